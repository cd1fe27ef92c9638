// Package plan lists the objects of one commit, and divides its contents into groups. Every relay divides a commit in
// the same way, whichever contents its clients read first, so that all relays request and store the same groups.
//
// Terms. The *want* is the object that the plan describes: a commit, or an annotated tag of a commit. The *structure*
// consists of the tag, the commit and the trees. The *blobs* are listed once each, in the order of their paths. A
// *group* is a part of this list.
package plan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

const (
	// maxStructure is the maximum total size, in bytes, of the commits and trees in the pack of a commit.
	maxStructure = 1 << 30
	maxTags      = 16 // maximum number of tags that point to one another before the commit
	deltaCache   = 1 << 20
)

// maxEntries is the maximum number of files and directories in a plan. Without this limit, a small pack could describe
// any number of files, because a tree can name the same tree many times. Tests lower the limit.
var maxEntries = 4 << 20

// ErrNoPlan means that a relay cannot divide the object into groups: it is not a commit, or its tree is too large.
var ErrNoPlan = errors.New("object has no plan")

// Plan lists the objects of one commit. It does not change after Cut was called.
type Plan struct {
	Want   object.ID
	Format object.Format
	Heads  []object.ID // the tags, if any, and the commit
	Commit object.ID
	Trees  []object.ID // all trees without duplicates, the root first
	Blobs  []object.ID // all blobs without duplicates, in the order of their paths

	blobAt map[object.ID]int32 // index in Blobs of each blob
	nodes  []node              // directories in the order of their paths, each before the directories in it
	nodeAt map[object.ID]int32 // index in nodes of the first directory with this tree
	files  []int32             // all files in the order of their paths, as indexes in Blobs
	starts []int32             // indexes in Blobs at which groups begin
	names  []string            // names of the groups
}

// node is a directory of a plan.
type node struct {
	id          object.ID
	first, last int32 // range of Plan.files that contains the files below the directory
	end         int32 // index in Plan.nodes after the last directory below this one
}

// Objects contains commits, tags and trees by their ids.
type Objects map[object.ID]Structure

// Structure is the type and the contents of a commit, a tag or a tree.
type Structure struct {
	Type object.Type
	Data []byte
}

// Unpack reads a pack and returns its commits, tags and trees. It compares every object with its id. dir is a directory
// for temporary files.
func Unpack(ctx context.Context, pack io.Reader, f object.Format, dir string) (Objects, error) {
	all := Objects{}
	total := 0
	_, err := odb.Unpack(ctx, pack, odb.UnpackOptions{
		Format: f, SpoolOver: object.MaxTreeSize, MaxObjectSize: object.MaxTreeSize,
		Spool: func(int64) (*os.File, error) { return os.CreateTemp(dir, "unpack-*.tmp") },
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			o, ok := all[id]
			if !ok {
				return nil, 0, nil, fmt.Errorf("pack does not contain object %s, on which a delta is based", id)
			}
			return bytes.NewReader(o.Data), int64(len(o.Data)), func() {}, nil
		},
	}, func(o odb.Object) error {
		if total += len(o.Data); o.File != nil || total > maxStructure {
			o.Discard()
			return fmt.Errorf("%w: commits and trees have more than %d bytes", ErrNoPlan, maxStructure)
		}
		if o.Type != object.Blob { // skip blobs, which a server without filters sends too
			all[o.ID] = Structure{o.Type, o.Data}
		}
		return nil
	})
	return all, err
}

// New returns the plan for the object want, a commit or a tag of one. all must contain the commit and all its trees.
func New(want object.ID, all Objects) (*Plan, error) {
	p := &Plan{Want: want, Format: want.Format(), blobAt: map[object.ID]int32{}, nodeAt: map[object.ID]int32{}}
	id := want
	for o := all[id]; o.Type == object.Tag && len(p.Heads) < maxTags; o = all[id] {
		p.Heads = append(p.Heads, id)
		target, _, err := object.ParseTagTarget(p.Format, o.Data)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoPlan, err)
		}
		id = target
	}
	o, ok := all[id]
	if !ok || o.Type != object.Commit {
		return nil, fmt.Errorf("%w: %s is not a commit", ErrNoPlan, id)
	}
	p.Heads, p.Commit = append(p.Heads, id), id
	info, err := object.ParseCommit(p.Format, o.Data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoPlan, err)
	}
	if err := p.add(all, info.Tree); err != nil {
		return nil, err
	}
	return p, nil
}

// add adds the directory with the given tree, and everything below it, to the plan.
func (p *Plan) add(all Objects, tree object.ID) error {
	entries, err := parse(p.Format, all, tree)
	if err != nil {
		return err
	}
	at := len(p.nodes)
	p.nodes = append(p.nodes, node{id: tree, first: int32(len(p.files))})
	if _, again := p.nodeAt[tree]; !again {
		p.nodeAt[tree] = int32(at)
		p.Trees = append(p.Trees, tree)
	}
	for _, e := range entries {
		if len(p.nodes)+len(p.files) > maxEntries {
			return fmt.Errorf("%w: commit has more than %d files", ErrNoPlan, maxEntries)
		}
		switch {
		case e.Mode == object.ModeDir:
			if err := p.add(all, e.ID); err != nil {
				return err
			}
		case e.Mode.IsBlob():
			n, ok := p.blobAt[e.ID]
			if !ok {
				n = int32(len(p.Blobs))
				p.blobAt[e.ID] = n
				p.Blobs = append(p.Blobs, e.ID)
			}
			p.files = append(p.files, n)
		}
	}
	p.nodes[at].last, p.nodes[at].end = int32(len(p.files)), int32(len(p.nodes))
	return nil
}

// parse returns the entries of a tree in all. The empty tree may be missing in all.
func parse(f object.Format, all Objects, id object.ID) ([]object.TreeEntry, error) {
	o, ok := all[id]
	if !ok && id == object.EmptyTree(f) {
		return nil, nil
	}
	if !ok || o.Type != object.Tree {
		return nil, fmt.Errorf("%w: pack does not contain tree %s", ErrNoPlan, id)
	}
	entries, _, err := object.ReadTree(f, o.Data)
	if err != nil {
		return nil, fmt.Errorf("%w: tree %s: %w", ErrNoPlan, id, err)
	}
	return entries, nil
}

// Files returns the number of files and directories in the plan.
func (p *Plan) Files() int { return len(p.files) + len(p.nodes) }

// HasBlob reports whether the commit contains a blob.
func (p *Plan) HasBlob(id object.ID) bool {
	_, ok := p.blobAt[id]
	return ok
}

// HasTree reports whether the commit contains a tree.
func (p *Plan) HasTree(id object.ID) bool {
	_, ok := p.nodeAt[id]
	return ok
}

// Below adds a tree of the plan and all trees below it to the set trees, and their blobs to the set blobs.
func (p *Plan) Below(tree object.ID, trees, blobs map[object.ID]struct{}) {
	at := p.nodeAt[tree]
	for _, n := range p.nodes[at:p.nodes[at].end] {
		trees[n.id] = struct{}{}
	}
	for _, n := range p.files[p.nodes[at].first:p.nodes[at].last] {
		blobs[p.Blobs[n]] = struct{}{}
	}
}

// The limits of a group, in bytes of contents. After leastGroup bytes, a group ends at the first blob that the hash
// selects, or at mostGroup bytes. A group should be large enough that a request for it is worth its round trip, and
// small enough that it is fetched soon.
const (
	leastGroup = 4 << 20
	meanRest   = 4 << 20 // mean number of bytes between leastGroup and the end of the group
	mostGroup  = 16 << 20
	// mostBlobs is the maximum number of blobs in a group, which limits the length of a request for a group.
	mostBlobs = 4096
)

// AssumedSize is the size, in bytes, that is assumed for a blob whose size is not known. Source files have this mean
// size.
const AssumedSize = 8 << 10

// Cut divides the blobs into groups. sizes contains the sizes of blobs in bytes; for the blobs that it does not
// contain, AssumedSize is used. A change of some files of a commit changes only the groups that contain them, because
// the end of a group depends on the id of its last blob.
func (p *Plan) Cut(sizes map[object.ID]int64) {
	var bytes int64
	count := 0
	for i, id := range p.Blobs {
		size, ok := sizes[id]
		if !ok {
			size = AssumedSize
		}
		if i == 0 || count > 0 && bytes+size > mostGroup && size > leastGroup {
			p.starts, bytes, count = append(p.starts, int32(i)), 0, 0 // a large blob begins a new group
		}
		bytes, count = bytes+size, count+1
		if bytes >= mostGroup || count >= mostBlobs || bytes >= leastGroup && selected(id, max(size, 1)) {
			if i+1 < len(p.Blobs) {
				p.starts = append(p.starts, int32(i+1))
			}
			bytes, count = 0, 0
		}
	}
	p.starts = slices.Compact(p.starts)
	for g := range p.starts {
		p.names = append(p.names, nameOf(p.Group(g)))
	}
}

// selected reports whether a group may end after a blob. The ids select blobs with a probability that is proportional
// to their size, up to meanRest.
func selected(id object.ID, size int64) bool {
	b := id.Bytes()
	// The last bytes of an id serve as a random number.
	last := uint64(0)
	for _, c := range b[len(b)-4:] {
		last = last<<8 | uint64(c)
	}
	return last*meanRest>>32 < uint64(min(size, meanRest))
}

// Groups returns the number of groups.
func (p *Plan) Groups() int { return len(p.starts) }

// Group returns the blobs of a group.
func (p *Plan) Group(g int) []object.ID {
	end := len(p.Blobs)
	if g+1 < len(p.starts) {
		end = int(p.starts[g+1])
	}
	return p.Blobs[p.starts[g]:end]
}

// Name returns the name of a group: the SHA-256 of the ids of its blobs in hexadecimal.
func (p *Plan) Name(g int) string { return p.names[g] }

// nameOf returns the name of the group that consists of these blobs.
func nameOf(ids []object.ID) string {
	h := sha256.New()
	for _, id := range ids {
		h.Write(id.Bytes())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Split divides blobs of the plan by their groups. The result maps the index of a group to its blobs in the order of
// their paths. The plan must contain all blobs.
func (p *Plan) Split(blobs map[object.ID]struct{}) map[int][]object.ID {
	at := make([]int32, 0, len(blobs))
	for id := range blobs {
		at = append(at, p.blobAt[id])
	}
	slices.Sort(at)
	split := map[int][]object.ID{}
	for _, n := range at {
		g, found := slices.BinarySearch(p.starts, n)
		if !found {
			g--
		}
		split[g] = append(split[g], p.Blobs[n])
	}
	return split
}
