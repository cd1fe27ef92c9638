package odb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// packed returns the path, without suffix, of the only pack of the repository dir.
func packed(t *testing.T, dir string) string {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(dir, "objects/pack/*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs: got %v, %v, want one", packs, err)
	}
	return strings.TrimSuffix(packs[0], ".pack")
}

func TestStatPack(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		to := newRepo(t, f)
		git(t, to, nil, "fetch", "-q", dir, "refs/*:refs/*")
		git(t, to, nil, "repack", "-q", "-a", "-d", "-f")
		got, deltas := map[object.ID]string{}, 0
		err := StatPack(t.Context(), packed(t, to), f, func(o ObjectStat) error {
			got[o.ID] = fmt.Sprint(o.Type, o.Size)
			if o.Depth > 0 {
				deltas++
			}
			return nil
		})
		expected := map[object.ID]string{}
		for id, c := range want {
			expected[id] = fmt.Sprint(c.typ, len(c.data))
		}
		if err != nil || !maps.Equal(got, expected) || deltas == 0 {
			t.Errorf("objects of a pack: got %v with %d deltas, %v, want %v", got, deltas, err, expected)
		}
	})
}

// TestStatPackOfLaterBases checks deltas that precede their bases in the pack.
func TestStatPackOfLaterBases(t *testing.T) {
	c := newCraft(object.SHA1)
	first, second := []byte("first"), []byte("first, second")
	c.ref(idOf(object.SHA1, object.Blob, second), insertion(second, ", third"))
	c.ref(idOf(object.SHA1, object.Blob, first), insertion(first, ", second"))
	c.plain(object.Blob, first)
	dir := newRepo(t, object.SHA1)
	git(t, dir, c.pack(), "index-pack", "--stdin")
	got := map[int64]int{}
	stop := errors.New("stop")
	err := StatPack(t.Context(), packed(t, dir), object.SHA1, func(o ObjectStat) error {
		if got[o.Size] = o.Depth; len(got) == 3 {
			return stop
		}
		return nil
	})
	want := map[int64]int{int64(len(first)): 0, int64(len(second)): 1, int64(len(second) + len(", third")): 2}
	if !errors.Is(err, stop) || !maps.Equal(got, want) {
		t.Errorf("depths by size: got %v, %v, want %v", got, err, want)
	}
}

// countingSource counts the reads of a pack.
type countingSource struct {
	*pack
	reads int
}

func (s *countingSource) ReadAt(b []byte, off int64) (int, error) {
	s.reads++
	return s.pack.ReadAt(b, off)
}

// TestStatPackOfDeepChain checks that many deltas at the end of a long chain do not need the chain again and again.
func TestStatPackOfDeepChain(t *testing.T) {
	const deep, leaves = 1000, 1000
	c := newCraft(object.SHA1)
	text := "0"
	off, _ := c.plain(object.Blob, []byte(text))
	replace := func(with string) int64 {
		d := append(sizes(int64(len(text)), int64(len(with))), byte(len(with)))
		return c.ofs(off, append(d, with...))
	}
	for i := range deep {
		next := fmt.Sprint(i + 1)
		off, text = replace(next), next
	}
	for i := range leaves {
		replace(fmt.Sprint("leaf", i))
	}
	s := open(t, t.TempDir(), object.SHA1)
	ingest(t, s, c.pack())
	p := s.view.packs[0].(*pack)
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	src := &countingSource{pack: p}
	objects, depth := 0, 0
	err := statPack(t.Context(), src, p.files.Load().idx, object.SHA1, func(o ObjectStat) error {
		objects++
		depth = max(depth, o.Depth)
		return nil
	})
	if err != nil || objects != 1+deep+leaves || depth != deep+1 {
		t.Errorf("deep chain: got %d objects, depth %d, %v, want %d and %d", objects, depth, err, 1+deep+leaves, deep+1)
	}
	if src.reads > deep {
		t.Errorf("reads of a pack of %d bytes: got %d, want at most %d", p.end(), src.reads, deep)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := statPack(ctx, src, p.files.Load().idx, object.SHA1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("statPack after the end of its context: got %v", err)
	}
}
