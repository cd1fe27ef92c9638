package plan

import (
	"crypto/sha1"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// blob returns the id of a made-up blob.
func blob(n int) object.ID {
	sum := sha1.Sum(fmt.Append(nil, n))
	id, _ := object.FromBytes(sum[:])
	return id
}

// cut returns the groups of blobs.
func cut(ids []object.ID, sizes map[object.ID]int64) (p *Plan, groups [][]object.ID) {
	p = &Plan{Blobs: ids, blobAt: map[object.ID]int32{}}
	for i, id := range ids {
		p.blobAt[id] = int32(i)
	}
	p.Cut(sizes)
	for g := range p.Groups() {
		groups = append(groups, p.Group(g))
	}
	return p, groups
}

func TestGroupsCoverAllBlobsOnce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 1000, 20_000} {
		for _, mean := range []int64{0, 10, 8 << 10, 1 << 20, 30 << 20} {
			var ids []object.ID
			sizes := map[object.ID]int64{}
			for i := range n {
				ids = append(ids, blob(i))
				if mean > 0 {
					sizes[blob(i)] = int64(rnd.ExpFloat64() * float64(mean))
				}
			}
			p, groups := cut(ids, sizes)
			if got := slices.Concat(groups...); !slices.Equal(got, ids) {
				t.Fatalf("%d blobs of %d bytes: the groups have %d blobs", n, mean, len(got))
			}
			for g, group := range groups {
				var bytes int64
				for _, id := range group {
					bytes += sizes[id]
				}
				if len(group) == 0 || len(group) > mostBlobs || bytes > mostGroup+leastGroup && len(group) > 1 {
					t.Errorf("%d blobs of %d bytes: group %d has %d blobs and %d bytes", n, mean, g, len(group), bytes)
				}
				if g+1 < len(groups) && mean == 8<<10 && bytes < leastGroup && len(group) < mostBlobs {
					t.Errorf("%d blobs of %d bytes: group %d is not the last one and has %d bytes", n, mean, g, bytes)
				}
			}
			all := map[object.ID]struct{}{}
			for _, id := range ids {
				all[id] = struct{}{}
			}
			for g, want := range p.Split(all) {
				if !slices.Equal(want, groups[g]) {
					t.Errorf("split of all blobs: group %d has %d blobs, want %d", g, len(want), len(groups[g]))
				}
			}
		}
	}
}

// A change of one file, or a new file, changes few groups.
func TestChangesAreLocal(t *testing.T) {
	var ids []object.ID
	sizes := map[object.ID]int64{}
	for i := range 20_000 {
		ids = append(ids, blob(i))
		sizes[blob(i)] = int64(i % 20_000)
	}
	for _, known := range []map[object.ID]int64{nil, sizes} {
		before, groups := cut(ids, known)
		names := map[string]bool{}
		for g := range groups {
			names[before.Name(g)] = true
		}
		for _, at := range []int{0, 7_000, 19_999} {
			changed := slices.Clone(ids)
			changed[at] = blob(1_000_000)
			for what, list := range map[string][]object.ID{"changed": changed,
				"new": slices.Insert(slices.Clone(ids), at, blob(1_000_000))} {
				after, _ := cut(list, known)
				news := 0
				for g := range after.Groups() {
					if !names[after.Name(g)] {
						news++
					}
				}
				if news > 3 {
					t.Errorf("%s file at %d: %d of %d groups are new, want at most 3", what, at, news, after.Groups())
				}
			}
		}
	}
}

// put adds a tree to all and returns its id.
func put(all Objects, entries string) object.ID {
	id, _ := object.Hash(object.SHA1, object.Tree, []byte(entries))
	all[id] = Structure{object.Tree, []byte(entries)}
	return id
}

func entry(mode, name string, id object.ID) string {
	return mode + " " + name + "\x00" + string(id.Bytes())
}

func TestPlan(t *testing.T) {
	all := Objects{}
	sub := put(all, entry("100644", "a", blob(1))+entry("100644", "b", blob(2)))
	root := put(all, entry("40000", "d", sub)+entry("40000", "e", sub)+entry("120000", "l", blob(3))+
		entry("160000", "m", blob(9)))
	text := []byte("tree " + root.String() + "\ncommitter c <c@x> 1 +0000\n\nm\n")
	commit, _ := object.Hash(object.SHA1, object.Commit, text)
	all[commit] = Structure{object.Commit, text}
	text = []byte("object " + commit.String() + "\ntype commit\ntag v1\n\nm\n")
	tag, _ := object.Hash(object.SHA1, object.Tag, text)
	all[tag] = Structure{object.Tag, text}

	p, err := New(tag, all)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Heads, []object.ID{tag, commit}) || !slices.Equal(p.Trees, []object.ID{root, sub}) ||
		!slices.Equal(p.Blobs, []object.ID{blob(1), blob(2), blob(3)}) {
		t.Errorf("plan: got heads %v, trees %v, blobs %v", p.Heads, p.Trees, p.Blobs)
	}
	for _, c := range []struct {
		tree         object.ID
		trees, blobs int
	}{{root, 2, 3}, {sub, 1, 2}} {
		trees, blobs := map[object.ID]struct{}{}, map[object.ID]struct{}{}
		p.Below(c.tree, trees, blobs)
		if len(trees) != c.trees || len(blobs) != c.blobs {
			t.Errorf("below %s: got %d trees and %d blobs, want %d and %d", c.tree, len(trees), len(blobs), c.trees, c.blobs)
		}
	}
	delete(all, sub)
	for _, want := range []object.ID{tag, sub, blob(1)} {
		if _, err := New(want, all); err == nil {
			t.Errorf("plan of %s was made without a tree", want)
		}
	}
}

// A tree that names the same tree many times over has no plan, because it would have too many files.
func TestTreeBomb(t *testing.T) {
	defer func(n int) { maxEntries = n }(maxEntries)
	maxEntries = 10_000
	all := Objects{}
	tree := put(all, entry("100644", "f", blob(1)))
	for range 20 {
		text := ""
		for i := range 10 {
			text += entry("40000", fmt.Sprint("d", i), tree)
		}
		tree = put(all, text)
	}
	text := []byte("tree " + tree.String() + "\ncommitter c <c@x> 1 +0000\n\nm\n")
	commit, _ := object.Hash(object.SHA1, object.Commit, text)
	all[commit] = Structure{object.Commit, text}
	if _, err := New(commit, all); err == nil {
		t.Error("a tree with 10^20 files has a plan")
	}
}
