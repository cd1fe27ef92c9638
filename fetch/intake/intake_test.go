package intake

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// blob returns an object with n bytes of contents.
func blob(n int) odb.Object {
	return odb.Object{Type: object.Blob, Size: int64(n), Data: make([]byte, n)}
}

func TestObjectsAreStoredInOrderAndInBatches(t *testing.T) {
	var sizes []int
	calls := 0
	q := New(func(objects []odb.Object) error {
		calls++
		for _, o := range objects {
			sizes = append(sizes, len(o.Data))
		}
		return nil
	})
	var want []int
	for n := range 1000 {
		if err := q.Add(blob(n)); err != nil {
			t.Fatal(err)
		}
		want = append(want, n)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sizes, want) {
		t.Errorf("stored %d objects, not the ones that were added in their order", len(sizes))
	}
	if calls > 1000/batchObjects+2 {
		t.Errorf("%d calls for 1000 small objects", calls)
	}
}

// An object is stored before the decoder waits for more data of the pack.
func TestReadPassesObjectsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := 0
		q := New(func(objects []odb.Object) error { stored += len(objects); return nil })
		q.Add(blob(1))
		synctest.Wait()
		if stored != 0 {
			t.Errorf("one object was stored at once")
		}
		io.ReadAll(q.Reader(bytes.NewReader([]byte("pack"))))
		synctest.Wait()
		if stored != 1 {
			t.Errorf("%d objects were stored after a read, want 1", stored)
		}
		q.Close()
	})
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		q := New(func([]odb.Object) error { <-release; return nil })
		added := 0
		go func() {
			for range 100 {
				q.Add(blob(batchBytes))
				added++
			}
			q.Close()
		}()
		synctest.Wait()
		if most := batchesAhead + 2; added > most {
			t.Errorf("%d large objects were added while none was stored, want at most %d", added, most)
		}
		close(release)
		synctest.Wait()
		if added != 100 {
			t.Errorf("%d objects were added", added)
		}
	})
}

func TestNothingIsStoredAfterAnError(t *testing.T) {
	full := errors.New("disk is full")
	calls := 0
	q := New(func([]odb.Object) error { calls++; return full })
	q.Add(blob(batchBytes))
	if err := q.Await(); !errors.Is(err, full) {
		t.Errorf("Await: %v", err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "spooled"))
	if err != nil {
		t.Fatal(err)
	}
	q.Add(odb.Object{Type: object.Blob, File: f})
	if err := q.Add(blob(batchBytes)); !errors.Is(err, full) {
		t.Errorf("Add: %v", err)
	}
	if err := q.Close(); !errors.Is(err, full) || calls != 1 {
		t.Errorf("Close: %v after %d calls", err, calls)
	}
	if _, err := os.Stat(f.Name()); err == nil {
		t.Error("the file of an object that was not stored is left")
	}
}
