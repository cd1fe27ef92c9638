package odb

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// keepTwo makes Join join packs whenever there are more than two.
var keepTwo = JoinOptions{Above: 2, Keep: 2, Crowd: 100}

// promised creates the repository of a partial clone with n packs, each with a part of the history of the fixture.
// Parts overlap as in packs of a server. Deltas name their bases by offset, but by id in every third pack.
func promised(t testing.TB, f object.Format, n int) (dir string, want truth) {
	t.Helper()
	from, want := fixture(t, f)
	dir = newRepo(t, f)
	commits := strings.Fields(string(git(t, from, nil, "rev-list", "--reverse", "main")))
	for i := range n {
		lo, hi := i*len(commits)/n, (i+1)*len(commits)/n-1
		revs := commits[hi] + "\n"
		if lo > 8 { // repeat the last commits of the previous part
			revs += "^" + commits[lo-5] + "\n"
		}
		if i == n-1 {
			revs += "v1\n"
		}
		args := []string{"pack-objects", "-q", "--revs", "--stdout", "--window=50", "--depth=50"}
		if i%3 != 2 {
			args = append(args, "--delta-base-offset")
		}
		addPromisor(t, dir, git(t, from, []byte(revs), args...), commits[hi]+" refs/heads/main\n")
	}
	for _, c := range [][]string{{"update-ref", "refs/heads/main", commits[len(commits)-1]},
		{"config", "core.repositoryFormatVersion", "1"},
		{"config", "extensions.partialClone", "origin"}, {"config", "remote.origin.url", from},
		{"config", "remote.origin.promisor", "true"}} {
		git(t, dir, nil, c...)
	}
	return dir, want
}

func addPromisor(t testing.TB, dir string, pack []byte, mark string) string {
	t.Helper()
	out := git(t, dir, pack, "index-pack", "--stdin", "--promisor="+strings.TrimSuffix(mark, "\n"))
	return strings.TrimSpace(strings.TrimPrefix(string(out), "pack\t"))
}

func packsIn(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

func suffixed(names []string, suffix string) (n int) {
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			n++
		}
	}
	return n
}

// judged checks a repository by git fsck, and compares its objects with want.
func judged(t testing.TB, dir string, want truth) {
	t.Helper()
	git(t, dir, nil, "fsck", "--strict", "--full")
	for _, name := range packsIn(t, dir) {
		if strings.HasSuffix(name, ".idx") {
			git(t, dir, nil, "verify-pack", filepath.Join("objects", "pack", name))
			seen := map[string]bool{}
			index, err := os.ReadFile(filepath.Join(dir, "objects", "pack", name))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(git(t, dir, index, "show-index", "--object-format="+formatOf(t, dir)))) {
				id := strings.Fields(line)[1]
				if seen[id] {
					t.Fatalf("%s lists %s twice", name, id)
				}
				seen[id] = true
			}
		}
	}
	got := readAll(t, dir)
	if len(got) != len(want) {
		t.Fatalf("git finds %d objects, want %d", len(got), len(want))
	}
	for id, c := range want {
		if !bytes.Equal(got[id].data, c.data) {
			t.Fatalf("object %s has other contents", id)
		}
	}
}

func formatOf(t testing.TB, dir string) string {
	return strings.TrimSpace(string(git(t, dir, nil, "rev-parse", "--show-object-format")))
}

func joined(t testing.TB, s *Store, o JoinOptions) JoinResult {
	t.Helper()
	res, err := s.Join(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestJoinedPacksAreGitsOwn(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := promised(t, f, 12)
		before := git(t, dir, nil, "rev-list", "--objects", "--all", "--missing=print")
		s := open(t, filepath.Join(dir, "objects"), f)
		want.check(t, s)
		res := joined(t, s, keepTwo)
		if res.Packs < 3 || res.Removed < res.Packs || res.Name == "" {
			t.Errorf("result of the join: got %+v", res)
		}
		names := packsIn(t, dir)
		for _, suffix := range []string{".pack", ".idx", ".promisor"} {
			if n := suffixed(names, suffix); n != 2 && n != 1 {
				t.Errorf("got %d files with suffix %s of %v", n, suffix, names)
			}
		}
		judged(t, dir, want)
		if after := git(t, dir, nil, "rev-list", "--objects", "--all", "--missing=print"); !bytes.Equal(before, after) {
			t.Error("git lists other objects than before")
		}
		want.check(t, s)
		want.check(t, open(t, filepath.Join(dir, "objects"), f))
		mark, err := os.ReadFile(filepath.Join(dir, "objects", "pack", res.Name+".promisor"))
		if err != nil || strings.Count(string(mark), " refs/heads/main\n") != res.Packs {
			t.Errorf("promisor mark of %d packs: got %q, %v", res.Packs, mark, err)
		}
		if res := joined(t, s, keepTwo); res != (JoinResult{}) {
			t.Errorf("second join: got %+v", res)
		}
	})
}

// TestJoinPointsDeltasToTheirBases checks that deltas get new headers if their bases are left out or have another
// distance than before.
func TestJoinPointsDeltasToTheirBases(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		s := open(t, t.TempDir(), f)
		rnd := rand.New(rand.NewPCG(3, 4))
		text := func() []byte { return fmt.Appendf(nil, "%x", rnd.Uint64()) }
		var packs [][]byte
		want := truth{}
		add := func(c *craft) { packs = append(packs, c.pack()) }
		base, other := bytes.Repeat(text(), 20), bytes.Repeat(text(), 300)
		plain := func(c *craft, data []byte) int64 {
			off, id := c.plain(object.Blob, data)
			want[id] = content{object.Blob, data}
			return off
		}
		delta := func(on []byte, tail string) []byte {
			data := append(slices.Clone(on), tail...)
			want[idOf(f, object.Blob, data)] = content{object.Blob, data}
			return data
		}
		first := newCraft(f) // the largest pack, which is copied unchanged
		noise := make([]byte, 40<<10)
		for i := range noise {
			noise[i] = byte(rnd.Uint32())
		}
		plain(first, base)
		plain(first, noise)
		add(first)
		second := newCraft(f) // its base is left out, and so is an entry between two others
		off := plain(second, base)
		x := delta(base, "x")
		at := second.ofs(off, insertion(base, "x"))
		far := plain(second, other)
		plain(second, noise[:len(noise)/2])
		plain(second, base[:10])
		second.ofs(at, insertion(x, "y"))
		delta(x, "y")
		second.ofs(far, insertion(other, "z"))
		delta(other, "z")
		second.ref(idOf(f, object.Blob, base), insertion(base, "ref"))
		delta(base, "ref")
		add(second)
		third := newCraft(f) // this pack consists of deltas that other packs also contain
		off = plain(third, base)
		at = third.ofs(off, insertion(base, "x"))
		third.ofs(at, insertion(x, "third"))
		delta(x, "third")
		plain(third, other)
		add(third)
		for _, p := range packs {
			if _, err := s.Ingest(context.Background(), bytes.NewReader(p),
				IngestOptions{Promisor: true, MaxObjectSize: noLimit}, nil); err != nil {
				t.Fatal(err)
			}
		}
		names, err := joinable(s.dir)
		if err != nil || len(names) != 3 {
			t.Fatalf("packs: got %v, %v", names, err)
		}
		cs := s.candidates(names)
		plan := &joinPlan{format: f, table: newTable(f), size: packHeaderSize}
		for _, c := range cs {
			if err := plan.add(c); err != nil {
				t.Fatal(err)
			}
			defer c.close()
		}
		if len(plan.rewritten) < 2 || plan.table.n != len(want) {
			t.Errorf("plan: got %d rewritten headers, and %d of %d objects", len(plan.rewritten), plan.table.n, len(want))
		}
		o := keepTwo
		o.Keep = 1
		if res := joined(t, s, o); res.Packs != 3 || res.Objects != len(want) {
			t.Errorf("result of the join: got %+v, want %d objects", res, len(want))
		}
		want.check(t, s)
		git(t, s.dir, nil, "index-pack", "--object-format="+f.String(), "--verify", onlyPack(t, s.dir))
	})
}

func onlyPack(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.pack"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packs: got %v, %v", found, err)
	}
	return found[0]
}

func TestChoose(t *testing.T) {
	o := JoinOptions{Above: 5, Keep: 4}
	for _, c := range []struct {
		sizes []int64
		left  int // expected number of the largest packs that are not joined
	}{
		{[]int64{9, 8, 7, 6, 5}, 5},                      // there are few packs
		{[]int64{1000, 1, 1, 1, 1, 1, 1, 1}, 1},          // only the small packs are joined
		{[]int64{1000, 900, 800, 1, 1, 1, 1, 1}, 3},      // large packs are kept
		{[]int64{1000, 900, 800, 700, 1, 1, 1, 1, 1}, 0}, // too many large packs are joined, too
		// Each pack is smaller than twice the sum of the smaller ones.
		{[]int64{10000, 4000, 2000, 700, 300, 300, 1}, 0},
		// Packs are joined up to the first that is twice as large as the smaller ones.
		{[]int64{100000, 10000, 2000, 700, 300, 300, 1}, 2},
	} {
		var packs []candidate
		for _, size := range c.sizes {
			packs = append(packs, candidate{size: size})
		}
		if got := choose(packs, o); len(packs)-len(got) != c.left {
			t.Errorf("packs of sizes %v: %d are not joined, want %d", c.sizes, len(packs)-len(got), c.left)
		}
	}
}

// FuzzMarks joins the contents of the .promisor files of two packs.
func FuzzMarks(f *testing.F) {
	f.Add([]byte("0123 refs/heads/main\n4567 HEAD\n"), []byte("4567 HEAD\n89ab refs/tags/x"))
	f.Add([]byte(""), []byte("\n\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		seen := map[string]bool{}
		all := appendLines(appendLines(nil, seen, a), seen, b)
		if again := appendLines(nil, map[string]bool{}, all); !bytes.Equal(again, all) {
			t.Fatalf("joined mark %q changed to %q when it was joined again", all, again)
		}
		for _, text := range [][]byte{a, b} {
			for line := range strings.SplitSeq(string(text), "\n") {
				if line != "" && !strings.Contains("\n"+string(all), "\n"+line+"\n") {
					t.Fatalf("line %q is missing in the joined mark %q", line, all)
				}
			}
		}
	})
}
