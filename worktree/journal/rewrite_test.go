package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// Note never rewrites the file, because its callers hold locks: without MakeRoom, a full journal starts anew in the
// same file.
func TestNoteRewritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, Options{limit: 8 << 10})
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	token := j.Start()
	for i := range 1000 {
		var f Flight
		j.Note(&f, 0, fmt.Sprint("file", i%20))
		j.Land(&f)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("journal after 1,000 records without MakeRoom: another file (%v), want the same", err)
	}
	ask(t, j, token, "*")
}

// Changes go on while the file is rewritten, and no record is lost.
func TestRewriteBesideChanges(t *testing.T) {
	const writers, paths, rounds = 4, 50, 200
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, Options{limit: 128 << 10})
	held, err := os.Open(path) // otherwise a later file could get its inode number
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	before, err := held.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			for i := range paths * rounds {
				note(j, 0, fmt.Sprintf("writer%d/file%d", w, i%paths))
				if i%500 == 0 {
					j.Since("")
				}
			}
		})
	}
	wait.Wait()
	if after, err := os.Stat(path); err != nil || os.SameFile(before, after) {
		t.Errorf("journal after %d records: the same file (%v), want a rewritten one", writers*paths*rounds, err)
	}
	for range 2 {
		_, got, known := j.Since(j.Start())
		if !known || len(got) != writers*paths {
			t.Fatalf("paths since the beginning: got %d (known: %v), want %d", len(got), known, writers*paths)
		}
		if !slices.Contains(got, "writer3/file49") {
			t.Error("the last path is missing")
		}
		j.kill()
		j = open(t, path, Options{limit: 128 << 10})
	}
}

// A rewrite that fails is not tried again at every change.
func TestRewriteThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	const limit = 64 << 10
	j := open(t, path, Options{limit: limit})
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	tries := 0
	for at := j.rewriteAt.Load(); j.dropped == 0; {
		note(j, 0, "file")
		if now := j.rewriteAt.Load(); now != at {
			at = now
			tries++
		}
	}
	if tries == 0 || tries > reserve/2 {
		t.Errorf("rewrites tried until the journal was full: got %d, want 1 to %d", tries, reserve/2)
	}
}
