package odb

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestJoinLeavesDamageAlone checks that a join fails at a damaged entry before it removes a file, and that the next
// join leaves this pack out.
func TestJoinLeavesDamageAlone(t *testing.T) {
	dir, _ := promised(t, object.SHA1, 8)
	names, err := joinable(filepath.Join(dir, "objects", "pack"))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	bad, off := unique(t, s, names)
	data, err := os.ReadFile(bad + ".pack")
	if err != nil {
		t.Fatal(err)
	}
	data[off+5] ^= 1
	if err := os.Remove(bad + ".pack"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad+".pack", data, 0o444); err != nil {
		t.Fatal(err)
	}
	before := packsIn(t, dir)
	o := JoinOptions{Above: 2, Keep: 1, Crowd: 100}
	if res, err := s.Join(context.Background(), o); err == nil || res != (JoinResult{}) {
		t.Fatalf("join of a damaged pack succeeded: %+v", res)
	} else if classified(t, err); !slices.Equal(packsIn(t, dir), before) {
		t.Errorf("the failed join changed the files: %v", packsIn(t, dir))
	}
	if res := joined(t, s, o); res.Removed != 7 {
		t.Errorf("result of the second join: got %+v", res)
	}
	if _, err := os.Stat(bad + ".pack"); err != nil {
		t.Error(err)
	}
}

// unique returns the path of a pack, and the offset of an entry in it whose object is in no other pack.
func unique(t testing.TB, s *Store, paths []string) (path string, off int64) {
	t.Helper()
	all := s.candidates(paths)
	for i, c := range all {
		t.Cleanup(c.close)
		others := slices.Concat(all[:i], all[i+1:])
		for k := range c.idx.n {
			if !slices.ContainsFunc(others, func(o candidate) bool { return holds(o, c.idx.name(k)) }) {
				return c.path, c.idx.offset(k)
			}
		}
	}
	t.Fatal("all objects are in several packs")
	return "", 0
}

func holds(c candidate, name []byte) bool {
	_, ok := c.idx.lookup(name)
	return ok
}

// TestJoinRemovesRemains checks that an interrupted removal of packs leaves only files that git ignores, and that the
// next join removes them.
func TestJoinRemovesRemains(t *testing.T) {
	dir, want := promised(t, object.SHA1, 6)
	s := open(t, filepath.Join(dir, "objects"), object.SHA1)
	names := must(joinable(s.dir))
	kept := t.TempDir()
	if err := os.CopyFS(kept, os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	joined(t, s, JoinOptions{Above: 2, Keep: 1, Crowd: 100})
	for _, suffix := range []string{".pack", ".promisor"} { // the index is removed first
		if err := os.Rename(filepath.Join(kept, filepath.Base(names[0])+suffix), names[0]+suffix); err != nil {
			t.Fatal(err)
		}
	}
	// The .promisor file of a new pack is written first.
	if err := os.WriteFile(names[1]+".promisor", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	judged(t, dir, want)
	if err := removeOrphans(s.dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if found := packsIn(t, dir); suffixed(found, ".promisor") != 3 {
		t.Errorf("files of a pack that may be being written were removed: %v", found)
	}
	if err := removeOrphans(s.dir, time.Now().Add(2*orphanAge)); err != nil {
		t.Fatal(err)
	}
	if found := packsIn(t, dir); suffixed(found, ".promisor") != 1 || suffixed(found, ".pack") != 1 {
		t.Errorf("files after the join: got %v", found)
	}
	judged(t, dir, want)
}
