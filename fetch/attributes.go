package fetch

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	attributesName = ".gitattributes"
	// maxAttributes is the size, in bytes, above which git ignores a .gitattributes.
	maxAttributes = 100 << 20
)

// rules holds the .gitattributes that apply in each directory of one tree that was looked up so
// far. Directories without a file of their own share the list of their parent. conversions.mu
// guards it.
type rules struct {
	settings convert.Settings
	files    map[string][]*convert.File // by directory, the root's first; nil where there is none, shortened at the end
	refused  map[object.ID]bool         // converted contents that an optional driver refused to filter
}

// rule returns how checkout would convert the file at path. Missing attributes are fetched in the
// same request as the file itself.
func (v *View) rule(ctx context.Context, id object.ID, path string) (convert.Rule, error) {
	files, err := v.attributes(ctx, dirOf(path), func() pipeline.Neighbours { return v.wantsForRead(ctx, id, path) })
	if err != nil {
		return convert.Rule{}, fmt.Errorf("read %s: %w", path, err)
	}
	return v.decide(files, id, path), nil
}

// decide returns the rule for the blob at path. It leaves out a driver that has refused this blob,
// so that contents and size stay the same while the tree is mounted.
func (v *View) decide(files []*convert.File, id object.ID, path string) convert.Rule {
	r := convert.Decide(v.rules.settings, files, path)
	// Only a driver can refuse a blob.
	if _, ok := r.Driver(); !ok {
		return r
	}
	key := convertedID(id, r, path)
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	if v.rules.refused[key] {
		return r.Unfiltered()
	}
	return r
}

// wantsForRead returns the wants for reading the file at path: its attributes, itself, and its
// neighbours.
func (v *View) wantsForRead(ctx context.Context, id object.ID, path string) pipeline.Neighbours {
	c := pipeline.Neighbours{Patience: pipeline.HedgeAfter}
	// A file that is on this host needs no neighbours: only its attributes are missing.
	if v.missing(id) {
		c = v.neighbours(ctx, id, path)
		c.Wants = append(c.Wants, prioritize.Want{ID: id, Class: prioritize.Sibling, Path: path})
	}
	for dir := dirOf(path); ; dir = dirOf(dir) {
		if e, ok := v.attributesEntry(ctx, dir); ok && v.missing(e.ID) {
			c.Wants = append(c.Wants, prioritize.Want{ID: e.ID, Class: prioritize.Sibling, Path: join(dir, attributesName)})
		}
		if dir == "" {
			return c
		}
	}
}

// knownRule returns the same as rule, but does not wait. It returns false if the attributes are not known yet.
func (v *View) knownRule(id object.ID, path string) (convert.Rule, bool) {
	v.conversions.mu.Lock()
	files, ok := v.rules.files[dirOf(path)]
	v.conversions.mu.Unlock()
	if !ok {
		return convert.Rule{}, false
	}
	return v.decide(files, id, path), true
}

// Exact reports whether the file at path can be read as checkout would write it. It never waits: it
// returns true if the attributes are not known yet, since the file will be converted when it is
// read.
func (v *View) Exact(path string) bool {
	r, ok := v.knownRule(object.ID{}, path)
	return !ok || r.Check() == nil
}

// Converts reports whether git would convert the file at path when it is added to the repository,
// by the attributes that are known. It never waits.
func (v *View) Converts(path string) bool {
	v.conversions.mu.Lock()
	files := v.rules.files[dirOf(path)]
	v.conversions.mu.Unlock()
	return convert.Returns(v.rules.settings, files, path)
}

// Returns returns the same as Converts, but first waits until the attributes are known.
func (v *View) Returns(ctx context.Context, path string) (bool, error) {
	if _, err := v.attributes(ctx, dirOf(path), func() pipeline.Neighbours { return pipeline.Neighbours{} }); err != nil {
		return v.Converts(path), fmt.Errorf("read attributes of %s: %w", path, err)
	}
	return v.Converts(path), nil
}

// attributes returns the .gitattributes that apply in a directory. A request for one of these files also contains the wants
// that along returns.
func (v *View) attributes(ctx context.Context, dir string, along func() pipeline.Neighbours) ([]*convert.File, error) {
	v.conversions.mu.Lock()
	files, ok := v.rules.files[dir]
	v.conversions.mu.Unlock()
	if ok {
		return files, nil
	}
	// The attributes of the parent apply too, and are read first, so that those of dir override
	// them.
	if dir != "" {
		var err error
		if files, err = v.attributes(ctx, dirOf(dir), along); err != nil {
			return nil, err
		}
	}
	entries, err := v.store.trees.directory(ctx, v.root, dir)
	if err != nil {
		return nil, err
	}
	if e, ok := findAttributes(entries); ok {
		f, err := v.attributesFile(ctx, e.ID, dir, along)
		if err != nil {
			return nil, err
		}
		if f != nil {
			files = append(padded(files, depth(dir)), f)
		}
	}
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	if v.rules.files == nil {
		v.rules.files = map[string][]*convert.File{}
	}
	// The caller's string may be a part of a larger buffer, such as a request of the kernel, which
	// the map would keep alive.
	v.rules.files[strings.Clone(dir)] = files
	return files, nil
}

// padded returns files with length n: the attributes of a directory are at the index of its depth.
func padded(files []*convert.File, n int) []*convert.File {
	longer := make([]*convert.File, n, n+1)
	copy(longer, files)
	return longer
}

// depth returns the number of components of a directory's path; 0 for the root.
func depth(dir string) int {
	if dir == "" {
		return 0
	}
	return 1 + strings.Count(dir, "/")
}

// attributesEntry returns the entry of a directory's .gitattributes.
func (v *View) attributesEntry(ctx context.Context, dir string) (object.TreeEntry, bool) {
	entries, err := v.store.trees.directory(ctx, v.root, dir)
	if err != nil {
		return object.TreeEntry{}, false
	}
	return findAttributes(entries)
}

// findAttributes returns the entry of the .gitattributes among the entries of a directory.
func findAttributes(entries []object.TreeEntry) (object.TreeEntry, bool) {
	for _, e := range entries {
		if e.Name == attributesName && e.Mode.IsBlob() { // git reads the target of a symlink as attributes too
			return e, true
		}
	}
	return object.TreeEntry{}, false
}

// attributesFile reads one .gitattributes. It returns nil if nothing in it converts contents.
func (v *View) attributesFile(ctx context.Context, id object.ID, dir string, along func() pipeline.Neighbours) (*convert.File, error) {
	c, err := v.openStored(ctx, id, join(dir, attributesName), along)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	if c.Size() > maxAttributes {
		return nil, nil
	}
	text := make([]byte, c.Size())
	if _, err := c.ReadAt(text, 0); err != nil && err != io.EOF {
		return nil, err
	}
	f := v.rules.settings.Parse(text, dir == "")
	if !f.Matters() {
		return nil, nil
	}
	return f, nil
}
