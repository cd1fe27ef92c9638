package fetch

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	attributesName = ".gitattributes"
	// maxAttributes is the largest .gitattributes that counts, in bytes, as in git.
	maxAttributes = 100 << 20
)

// rules knows how checkout would change the contents of one tree: the .gitattributes that apply in each directory
// looked at so far. Directories without one of their own share their parent's list. It is guarded by View.mu.
type rules struct {
	settings convert.Settings
	files    map[string][]*convert.File // by directory, from the root's down; nil where there is none, short at the end
	refused  map[object.ID]bool         // converted contents that a driver did not filter, and did not have to
}

// rule says how checkout would change the file at path. Attributes that are not here are fetched, in the request
// that brings the file itself.
func (v *View) rule(ctx context.Context, id object.ID, path string) (convert.Rule, error) {
	files, err := v.attributes(ctx, dirOf(path), func() company { return v.together(ctx, id, path) })
	if err != nil {
		return convert.Rule{}, fmt.Errorf("read %s: %w", path, err)
	}
	return v.decide(files, id, path), nil
}

// decide is the rule for the blob at path: without its driver where that has refused it, so that its bytes and its size
// stay the same while it is mounted.
func (v *View) decide(files []*convert.File, id object.ID, path string) convert.Rule {
	r := convert.Decide(v.rules.settings, files, path)
	if _, ok := r.Driver(); !ok {
		return r
	}
	key := convertedID(id, r, path)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rules.refused[key] {
		return r.Unfiltered()
	}
	return r
}

// together lists what is missing to read the file at path: its attributes, itself, and its neighbours.
func (v *View) together(ctx context.Context, id object.ID, path string) company {
	c := company{patience: hedgeAfter}
	if v.missing(id) {
		c = v.neighbours(ctx, id, path)
		c.wants = append(c.wants, prioritize.Want{ID: id, Class: prioritize.Sibling, Path: path})
	}
	for dir := dirOf(path); ; dir = dirOf(dir) {
		if e, ok := v.attributesEntry(ctx, dir); ok && v.missing(e.ID) {
			c.wants = append(c.wants, prioritize.Want{ID: e.ID, Class: prioritize.Sibling, Path: join(dir, attributesName)})
		}
		if dir == "" {
			return c
		}
	}
}

// knownRule is rule where that needs no waiting.
func (v *View) knownRule(id object.ID, path string) (convert.Rule, bool) {
	v.mu.Lock()
	files, ok := v.rules.files[dirOf(path)]
	v.mu.Unlock()
	if !ok {
		return convert.Rule{}, false
	}
	return v.decide(files, id, path), true
}

// Exact says whether the file at path reads as checkout would write it. It never waits: a file whose attributes are not
// here yet is taken for one, since it will be converted by them when it is read.
func (v *View) Exact(path string) bool {
	r, ok := v.knownRule(object.ID{}, path)
	return !ok || r.Check() == nil
}

// Converts says whether git would convert the file at path on its way into the repository, as far as is known without
// waiting.
func (v *View) Converts(path string) bool {
	v.mu.Lock()
	files := v.rules.files[dirOf(path)]
	v.mu.Unlock()
	return convert.Returns(v.rules.settings, files, path)
}

// Returns is Converts that waits for the attributes.
func (v *View) Returns(ctx context.Context, path string) (bool, error) {
	if _, err := v.attributes(ctx, dirOf(path), func() company { return company{} }); err != nil {
		return v.Converts(path), fmt.Errorf("read attributes of %s: %w", path, err)
	}
	return v.Converts(path), nil
}

// attributes gives the .gitattributes that apply in a directory. What is fetched for that takes along with it.
func (v *View) attributes(ctx context.Context, dir string, along func() company) ([]*convert.File, error) {
	v.mu.Lock()
	files, ok := v.rules.files[dir]
	v.mu.Unlock()
	if ok {
		return files, nil
	}
	if dir != "" {
		var err error
		if files, err = v.attributes(ctx, dirOf(dir), along); err != nil {
			return nil, err
		}
	}
	entries, err := v.store.directory(ctx, v.root, dir)
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
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rules.files == nil {
		v.rules.files = map[string][]*convert.File{}
	}
	v.rules.files[strings.Clone(dir)] = files
	return files, nil
}

// padded is files made n long: a directory's attributes stand at the index that is its depth.
func padded(files []*convert.File, n int) []*convert.File {
	longer := make([]*convert.File, n, n+1)
	copy(longer, files)
	return longer
}

func depth(dir string) int {
	if dir == "" {
		return 0
	}
	return 1 + strings.Count(dir, "/")
}

// attributesEntry finds a directory's .gitattributes among the trees that are here.
func (v *View) attributesEntry(ctx context.Context, dir string) (object.TreeEntry, bool) {
	entries, err := v.store.directory(ctx, v.root, dir)
	if err != nil {
		return object.TreeEntry{}, false
	}
	return findAttributes(entries)
}

func findAttributes(entries []object.TreeEntry) (object.TreeEntry, bool) {
	for _, e := range entries {
		if e.Name == attributesName && e.Mode.IsBlob() { // a clone reads a symlink's target as attributes, too
			return e, true
		}
	}
	return object.TreeEntry{}, false
}

// attributesFile reads one .gitattributes; nil if nothing in it changes contents.
func (v *View) attributesFile(ctx context.Context, id object.ID, dir string, along func() company) (*convert.File, error) {
	c, err := v.raw(ctx, id, join(dir, attributesName), along)
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
