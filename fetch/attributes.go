package fetch

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	attributesName = ".gitattributes"
	// maxAttributes is the largest .gitattributes that counts, in bytes, as in git.
	maxAttributes = 100 << 20
	// maxConverted is the largest content that is converted, in bytes: it has to lie in memory for that. Git converts
	// larger ones too, but nobody keeps text of that size in a repository.
	maxConverted = 512 << 20
)

// rules knows how checkout would change the contents of one tree: the .gitattributes that apply in each directory
// looked at so far. Directories without one of their own share their parent's list. It is guarded by View.mu.
type rules struct {
	settings convert.Settings
	files    map[string][]*convert.File // by directory, from the root's down; nil where there is none, short at the end
}

// rule says how checkout would change the file at path. Attributes that are not here are fetched, in the request
// that brings the file itself.
func (v *View) rule(ctx context.Context, id object.ID, path string) (convert.Rule, error) {
	files, err := v.attributes(ctx, dirOf(path), func() company { return v.together(ctx, id, path) })
	if err != nil {
		return convert.Rule{}, fmt.Errorf("read %s: %w", path, err)
	}
	if name := convert.Unsupported(files, path); name != "" {
		v.store.notice("the repository asks for " + name + ", which is not applied: such files read as they are stored")
	}
	return convert.Decide(v.rules.settings, files, path), nil
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
func (v *View) knownRule(path string) (convert.Rule, bool) {
	v.mu.Lock()
	files, ok := v.rules.files[dirOf(path)]
	v.mu.Unlock()
	if !ok {
		return convert.Rule{}, false
	}
	return convert.Decide(v.rules.settings, files, path), true
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
	f := convert.Parse(text, dir == "")
	if !f.Matters() {
		return nil, nil
	}
	return f, nil
}

// convertedID names the converted form of a blob in the cache.
func convertedID(id object.ID, r convert.Rule) object.ID {
	sum := sha256.Sum256([]byte("converted\x00" + id.String() + "\x00" + r.String()))
	key, err := object.FromBytes(sum[:])
	if err != nil {
		panic(err) // a SHA-256 sum is as long as an id
	}
	return key
}

// converted gives a content as checkout would write it.
func (v *View) converted(ctx context.Context, id object.ID, path string, r convert.Rule) (Content, error) {
	key := convertedID(id, r)
	if c, ok := v.store.content(key); ok {
		return c, nil
	}
	c, err := v.raw(ctx, id, path, func() company { return v.neighbours(ctx, id, path) })
	if err != nil || c.Size() > maxConverted {
		return c, err
	}
	defer c.Release()
	stored := make([]byte, c.Size())
	if _, err := c.ReadAt(stored, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	content := r.Apply(id, stored)
	err = v.store.keep(odb.Object{ID: key, Type: object.Blob, Size: int64(len(content)), Data: content})
	return memoryContent(content), err
}
