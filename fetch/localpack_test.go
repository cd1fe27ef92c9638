package fetch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// repackedFirst provides the loose objects of a directory, and repacks them with git at the worst moment: after the
// packs were searched, and before the loose objects are.
type repackedFirst struct {
	odb.Source
	repack func()
}

func (r repackedFirst) Size(id object.ID) (object.Type, int64, error) {
	r.repack()
	return r.Source.Size(id)
}

func (r repackedFirst) Get(id object.ID, limit int64) (object.Type, []byte, error) {
	r.repack()
	return r.Source.Get(id, limit)
}

// An object that git moves from a loose file to a pack during a lookup is found.
func TestObjectsAreFoundWhileGitRepacks(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := gittest.Git(t.Context(), dir, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	git("init", "-q", "-b", "main")
	s := openStore(t, t.TempDir(), "http://127.0.0.1:1/nowhere.git")
	if err := s.storage.prepare(t.Context(), object.SHA1, true); err != nil {
		t.Fatal(err)
	}
	objectsDir := filepath.Join(dir, ".git", "objects")
	local := s.OpenLocal(objectsDir)
	defer local.Close()
	own, ok := local.open()
	if !ok {
		t.Fatal("the objects of a new repository are not open")
	}
	own.Loose = repackedFirst{own.Loose, func() { git("repack", "-q", "-a", "-d") }}
	// commit creates a loose object. The list of packs is from git's last repack.
	commits := 0
	commit := func() (object.ID, []byte) {
		t.Helper()
		commits++
		text := fmt.Appendf(nil, "text %d\n", commits)
		if err := os.WriteFile(filepath.Join(dir, "file"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		git("add", "file")
		git("commit", "-q", "-m", "commit")
		id := object.MustID(git("rev-parse", "HEAD:file"))
		if _, err := os.Lstat(filepath.Join(objectsDir, id.String()[:2], id.String()[2:])); err != nil {
			t.Fatalf("blob of a new commit: %v", err)
		}
		return id, text
	}
	for range 2 { // first without an earlier pack, then with one that is replaced
		id, text := commit()
		if _, got, err := s.storage.get(id, 1<<20); err != nil || !bytes.Equal(got, text) {
			t.Errorf("contents of a blob that is being packed: got %q, %v", got, err)
		}
		id, text = commit()
		if from, _, n, err := s.storage.find(id); err != nil || n != int64(len(text)) {
			t.Errorf("size of a blob that is being packed: got %d, %v", n, err)
		} else {
			var got bytes.Buffer
			if err := from.WriteTo(id, &got); err != nil || !bytes.Equal(got.Bytes(), text) {
				t.Errorf("contents of a blob that was packed: got %q, %v", &got, err)
			}
		}
		id, text = commit()
		if _, n, err := local.Size(id); err != nil || n != int64(len(text)) {
			t.Errorf("size of a blob in the Local that is being packed: got %d, %v", n, err)
		}
		id, _ = commit()
		if missing := local.Missing([]object.ID{id}); len(missing) > 0 {
			t.Errorf("missing objects while a blob is being packed: got %v, want none", missing)
		}
	}
}
