package cache

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// contentsOf returns n different contents of about size bytes by their ids.
func contentsOf(t *testing.T, n, size int) map[object.ID][]byte {
	t.Helper()
	all := map[object.ID][]byte{}
	for i := range n {
		line := fmt.Appendf(nil, "%d %d\n", n, i)
		data := bytes.Repeat(line, size/len(line)+1)
		id, err := object.Hash(object.SHA1, object.Blob, data)
		if err != nil {
			t.Fatal(err)
		}
		all[id] = data
	}
	return all
}

// readShared returns the contents of a blob, and false if s does not have it.
func readShared(t *testing.T, s *Shared, id object.ID) ([]byte, bool) {
	t.Helper()
	c, ok := s.Get(id)
	if !ok {
		return nil, false
	}
	defer c.Release()
	got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	if err != nil {
		t.Errorf("read shared blob %s: %v", id, err)
	}
	return got, true
}

func TestSharedSeesWhatTheOwnerStores(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenShared(dir) // before the owner has created anything
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	owner, err := OpenBlobs(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	for _, size := range []int{100, maxSmall + 1} {
		for id, data := range contentsOf(t, 5, size) {
			if err := owner.Put(id, data); err != nil {
				t.Fatal(err)
			}
			await.Until(t, "the stored blob is seen", func() bool { _, ok := s.Size(id); return ok || size > maxSmall })
			if got, ok := readShared(t, s, id); !ok || !bytes.Equal(got, data) {
				t.Errorf("shared blob of %d bytes: got %d bytes, %v", len(data), len(got), ok)
			}
		}
	}
}

// A checksum that matches wrong contents is no protection against the owner of the directory: the contents are hashed.
func TestSharedHashesContents(t *testing.T) {
	dir := t.TempDir()
	owner, err := OpenBlobs(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	for _, size := range []int{100, maxSmall + 1} {
		for id, data := range contentsOf(t, 2, size) {
			data[len(data)/2] ^= 1
			if err := owner.Put(id, data); err != nil {
				t.Fatal(err)
			}
			if c, ok := owner.Get(id); !ok {
				t.Errorf("the owner does not read its own contents, so this test proves nothing")
			} else {
				c.Release()
			}
			s, err := OpenShared(dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := readShared(t, s, id); ok {
				t.Errorf("wrong contents of %d bytes were returned", len(data))
			}
			if _, ok := s.Size(id); ok {
				t.Errorf("wrong contents of %d bytes still count as present", len(data))
			}
			s.Close()
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "big")); err != nil {
		t.Error(err)
	}
}

// Shared changes nothing in the directory: not the damaged files, and not the times of last use, from which the owner
// chooses what to evict.
func TestSharedChangesNothing(t *testing.T) {
	dir := t.TempDir()
	owner, err := OpenBlobs(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	all := contentsOf(t, 4, 1000)
	for id, data := range contentsOf(t, 2, maxSmall+1) {
		all[id] = data
	}
	for id, data := range all {
		if err := owner.Put(id, data); err != nil {
			t.Fatal(err)
		}
	}
	owner.Close()
	// One of the big files is cut, as by a crash.
	cut, err := filepath.Glob(filepath.Join(dir, "big", "*", "*"))
	if err != nil || len(cut) != 2 {
		t.Fatalf("big files: got %v, %v, want 2", cut, err)
	}
	if err := os.Truncate(cut[0], 10); err != nil {
		t.Fatal(err)
	}
	old := map[string]string{}
	look := func(into map[string]string) {
		err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil {
				into[path] = fmt.Sprint(info.Size(), info.ModTime(), info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	look(old)
	past := time.Now().Add(-time.Hour)
	for path := range old {
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	look(old)
	s, err := OpenShared(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for id := range all {
		if _, ok := readShared(t, s, id); ok {
			found++
		}
	}
	s.Close()
	if found != len(all)-1 {
		t.Errorf("shared blobs: got %d, want %d", found, len(all)-1)
	}
	now := map[string]string{}
	look(now)
	if fmt.Sprint(old) != fmt.Sprint(now) {
		t.Errorf("directory after reading:\n got %v\nwant %v", now, old)
	}
}

// Contents that were opened can be read to their end although the owner evicts everything at the same time, and a read
// that comes too late is a miss.
func TestSharedReadsWhileTheOwnerEvicts(t *testing.T) {
	dir := t.TempDir()
	owner, err := OpenBlobs(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	all := contentsOf(t, 200, 20_000)
	ids := make([]object.ID, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	fill := func() {
		for id, data := range all {
			if err := owner.Put(id, data); err != nil {
				t.Error(err)
			}
		}
	}
	fill()
	s, err := OpenShared(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := owner.Collect(0); err != nil {
				t.Error(err)
			}
			fill()
		}
	}()
	hits := 0
	for range 5000 {
		id := ids[rand.IntN(len(ids))]
		if got, ok := readShared(t, s, id); ok {
			hits++
			if !bytes.Equal(got, all[id]) {
				t.Errorf("shared blob %s: wrong contents", id)
			}
		}
	}
	close(stop)
	<-done
	if hits == 0 {
		t.Error("no read found its contents")
	}
}

func TestSharedSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sizes")
	if _, err := OpenSharedSizes(path, object.SHA1); err == nil {
		t.Error("a missing table was opened")
	}
	owner, err := OpenSizes(path, object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	all := contentsOf(t, 3, 100)
	s, err := OpenSharedSizes(path, object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	for id := range all {
		owner.Put(id, 7)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	for id := range all {
		await.Until(t, "the stored size is seen", func() bool { n, ok := s.Get(id); return ok && n == 7 })
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := OpenSharedSizes(path, object.SHA256); err == nil {
		t.Error("a table of another format was opened")
	}
}
