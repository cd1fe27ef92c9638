package shelf

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/server/objects"
)

func open(t *testing.T, o Options) *Shelf {
	t.Helper()
	o.Log = zap.NewNop()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// keep stores a file whose table has n bytes.
func keep(t *testing.T, s *Shelf, key string, n int) {
	t.Helper()
	f, err := s.Temp()
	if err == nil {
		_, err = f.Write(packs.Finish(make([]byte, n), sha256.New()))
	}
	if err == nil {
		err = s.Keep(f, key, true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// has reports which files are on the local disk, without using them.
func has(s *Shelf) []string {
	keys := s.List("")
	slices.Sort(keys)
	return keys
}

func TestLeastRecentlyUsedFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	const size = 1000
	s := open(t, Options{Dir: dir, Limit: 3 * (size + packs.FooterSize)})
	for i := range 3 {
		keep(t, s, fmt.Sprint("a/", i), size)
	}
	f, ok := s.Local("a/0")
	if !ok {
		t.Fatal("file a/0 is missing")
	}
	defer f.Close()
	keep(t, s, "a/3", size)
	if got := has(s); !slices.Equal(got, []string{"a/0", "a/2", "a/3"}) {
		t.Errorf("after a fourth file: got %q, want a/1 removed", got)
	}
	keep(t, s, "a/4", size)
	keep(t, s, "a/5", size)
	if got := has(s); !slices.Equal(got, []string{"a/3", "a/4", "a/5"}) {
		t.Errorf("after the sixth file: got %q", got)
	}
	if _, err := f.Stat(); err != nil || len(f.Table) != size {
		t.Errorf("a file that was removed while it was open: %v", err)
	}
	files, bytes := s.Usage()
	left, err := filepath.Glob(filepath.Join(dir, "a", "*"))
	if err != nil || files != 3 || len(left) != 3 || bytes != 3*(size+packs.FooterSize) {
		t.Errorf("usage: %d files, %d bytes; on disk %q, %v", files, bytes, left, err)
	}
	// A process with a lower limit removes more, and temporary files of its predecessor.
	if err := os.WriteFile(filepath.Join(dir, "new-1.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Close(context.Background())
	s = open(t, Options{Dir: dir, Limit: size + packs.FooterSize})
	if got := has(s); len(got) != 1 {
		t.Errorf("after a start with a lower limit: got %q", got)
	}
}

// While the object store fails, it is asked rarely.
func TestFailingStoreIsPaused(t *testing.T) {
	at := filepath.Join(t.TempDir(), "objects")
	store, err := objects.OpenCache(at)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Dir: t.TempDir(), Limit: 1 << 30, Store: store})
	if _, err := s.Load(t.Context(), "a/none"); err == nil || !s.Available() {
		t.Errorf("a missing file: %v, store available: %v", err, s.Available())
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := s.Load(t.Context(), "a/none"); err == nil {
			t.Error("a file was loaded from a store that is gone")
		}
	}
	if n := s.Stats.StoreFailures.Load(); n != 1 || s.Available() {
		t.Errorf("%d failures of the store were noticed, want 1; available: %v", n, s.Available())
	}
}
