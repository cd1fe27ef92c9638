package fetch

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	attributesName = ".gitattributes"
	lfsConfigName  = ".lfsconfig" // configuration of git-lfs in the root directory
	// maxAttributes is the size, in bytes, above which git ignores a .gitattributes file.
	maxAttributes = 100 << 20
)

// rules holds the .gitattributes files that apply in each directory of one tree. Directories are added when they are
// looked up. A directory without a .gitattributes file uses the list of its parent. conversions.mu protects rules.
type rules struct {
	settings convert.Settings
	// files maps the path of a directory to the list of the .gitattributes files that apply in this directory. The index
	// in the list is the depth: the root's file is at index 0, the file of the directory itself is last. An element is nil
	// if the directory at that depth has no .gitattributes file. Nil elements at the end of the list are left out.
	files map[string][]*convert.File
	// leavesOut is true if the file .lfsconfig of the tree may make git-lfs leave out files. It is set before files has an
	// element.
	leavesOut bool
}

// rule returns the rule by which checkout would convert the file at path. Missing .gitattributes files are fetched in
// the same request as the file.
func (v *View) rule(ctx context.Context, id object.ID, path string) (convert.Rule, error) {
	files, err := v.attributes(ctx, treewalk.DirOf(path),
		func() pipeline.Neighbours { return v.wantsForRead(ctx, id, path) })
	if err != nil {
		return convert.Rule{}, fmt.Errorf("read %s: %w", path, err)
	}
	return v.decide(files, id, path), nil
}

// decide returns the conversion rule for the blob at path, given the .gitattributes files of its directory. If a filter
// driver did not convert this blob, the returned rule does not contain the driver, so that contents and size stay the
// same while the tree is mounted.
func (v *View) decide(files []*convert.File, id object.ID, path string) convert.Rule {
	r := convert.Decide(v.rules.settings, files, path)
	// If the rule has no driver, the map of refused contents need not be searched.
	if _, ok := r.Driver(); !ok {
		return r
	}
	v.conversions.mu.Lock()
	private := v.rules.leavesOut
	v.conversions.mu.Unlock()
	if private {
		r = r.Private()
	}
	if f := v.conversions.filters; f != nil && f.Left(v.resultsOf(id, r, path).own) {
		return r.Unfiltered()
	}
	return r
}

// wantsForRead returns the wants for reading the file at path: the blob of the file, the .gitattributes files that
// apply to the file, and the neighbours of the file. Blobs on this host are left out.
func (v *View) wantsForRead(ctx context.Context, id object.ID, path string) pipeline.Neighbours {
	c := pipeline.Neighbours{Patience: pipeline.HedgeAfter}
	// If the file is on this host, only its .gitattributes files have to be fetched.
	if v.missing(id) {
		c = v.neighbours(ctx, id, path)
		c.Wants = append(c.Wants, prioritize.Want{ID: id, Class: prioritize.Sibling, Path: path})
	}
	for dir := treewalk.DirOf(path); ; dir = treewalk.DirOf(dir) {
		if e, ok := v.attributesEntry(ctx, dir); ok && v.missing(e.ID) {
			c.Wants = append(c.Wants, prioritize.Want{ID: e.ID, Class: prioritize.Sibling,
				Path: treewalk.Join(dir, attributesName)})
		}
		if dir == "" {
			break
		}
	}
	if entries, err := v.store.trees.Directory(ctx, v.root, ""); err == nil {
		if e, ok := v.lfsConfig(entries); ok && v.missing(e.ID) {
			c.Wants = append(c.Wants, prioritize.Want{ID: e.ID, Class: prioritize.Sibling, Path: lfsConfigName})
		}
	}
	return c
}

// knownRule returns the same rule as the method rule, but does not wait. It returns false if a .gitattributes file for
// path is not on this host.
func (v *View) knownRule(id object.ID, path string) (convert.Rule, bool) {
	files, err := v.attributesBy(treewalk.DirOf(path), v.localEntries, v.localFile)
	if err != nil {
		return convert.Rule{}, false
	}
	return v.decide(files, id, path), true
}

// Exact reports whether the file at path can be read with the contents that checkout would write. Exact never waits. If
// the attributes are not known yet, Exact returns true, because the file will be converted when it is read.
func (v *View) Exact(path string) bool {
	r, ok := v.knownRule(object.ID{}, path)
	return !ok || r.Check() == nil
}

// Converts reports whether git would convert the file at path when the file is added to the repository. It considers
// the attributes that have been looked up already, and no others. It never waits.
func (v *View) Converts(path string) bool {
	v.conversions.mu.Lock()
	files := v.rules.files[treewalk.DirOf(path)]
	v.conversions.mu.Unlock()
	return convert.Returns(v.rules.settings, files, path)
}

// Returns reports the same as Converts, but first waits until the attributes for path have been looked up.
func (v *View) Returns(ctx context.Context, path string) (bool, error) {
	if _, err := v.attributes(ctx, treewalk.DirOf(path),
		func() pipeline.Neighbours { return pipeline.Neighbours{} }); err != nil {
		return v.Converts(path), fmt.Errorf("read attributes of %s: %w", path, err)
	}
	return v.Converts(path), nil
}

// attributes returns the .gitattributes files that apply in the directory dir. If one of these files has to be fetched,
// the request also contains the wants that the function along returns.
func (v *View) attributes(ctx context.Context, dir string, along func() pipeline.Neighbours) ([]*convert.File, error) {
	return v.attributesBy(dir, func(dir string) ([]object.TreeEntry, error) {
		return v.store.trees.Directory(ctx, v.root, dir)
	}, func(id object.ID, path string) (Content, error) { return v.openStored(ctx, id, path, along) })
}

// attributesBy returns the .gitattributes files that apply in the directory dir. If they have not been looked up
// before, it calls the functions entries, which returns the entries of a directory, and open, which opens a
// .gitattributes or .lfsconfig file.
func (v *View) attributesBy(dir string, entries func(dir string) ([]object.TreeEntry, error),
	open func(id object.ID, path string) (Content, error)) ([]*convert.File, error) {
	v.conversions.mu.Lock()
	files, ok := v.rules.files[dir]
	v.conversions.mu.Unlock()
	if ok {
		return files, nil
	}
	// The .gitattributes files of the parent directories apply too. They precede the file of dir in the list, because the
	// attributes in dir override those of its parents.
	if dir != "" {
		var err error
		if files, err = v.attributesBy(treewalk.DirOf(dir), entries, open); err != nil {
			return nil, err
		}
	}
	list, err := entries(dir)
	if err != nil {
		return nil, err
	}
	if e, ok := findAttributes(list); ok {
		c, err := open(e.ID, treewalk.Join(dir, attributesName))
		if err != nil {
			return nil, err
		}
		f, err := v.parseAttributes(c, dir)
		if err != nil {
			return nil, err
		}
		if f != nil {
			files = append(padded(files, depth(dir)), f)
		}
	}
	leavesOut := false
	if e, ok := v.lfsConfig(list); ok && dir == "" {
		c, err := open(e.ID, lfsConfigName)
		if err != nil {
			return nil, err
		}
		defer c.Release()
		text := make([]byte, min(c.Size(), maxAttributes))
		if _, err := c.ReadAt(text, 0); err != nil && err != io.EOF {
			return nil, err
		}
		leavesOut = convert.LeavesOutLFS(text)
	}
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	v.rules.leavesOut = v.rules.leavesOut || leavesOut
	if v.rules.files == nil {
		v.rules.files = map[string][]*convert.File{}
	}
	// The string is copied, because the caller's string may be a part of a larger buffer, such as a request of the kernel,
	// which the map would keep in memory.
	v.rules.files[strings.Clone(dir)] = files
	return files, nil
}

// padded returns a copy of the list files, extended with nil elements to the length n. In such a list, the
// .gitattributes file of a directory is at the index that equals the depth of the directory.
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

// attributesEntry returns the tree entry of the .gitattributes file in directory dir, and false if dir has no
// .gitattributes file.
func (v *View) attributesEntry(ctx context.Context, dir string) (object.TreeEntry, bool) {
	entries, err := v.store.trees.Directory(ctx, v.root, dir)
	if err != nil {
		return object.TreeEntry{}, false
	}
	return findAttributes(entries)
}

// findAttributes returns the entry of .gitattributes among the entries of a directory, and false if the directory has
// no such entry.
func findAttributes(entries []object.TreeEntry) (object.TreeEntry, bool) {
	// A symlink is accepted too, because git reads the text of a symlink's target as attributes.
	return findBlob(entries, attributesName)
}

// lfsConfig returns the entry of .lfsconfig among the entries of the root directory. It returns false if there is none,
// or if no driver of the user shares results, so that the file has no effect.
func (v *View) lfsConfig(entries []object.TreeEntry) (object.TreeEntry, bool) {
	for _, d := range v.rules.settings.Drivers {
		if d.Shared != "" {
			return findBlob(entries, lfsConfigName)
		}
	}
	return object.TreeEntry{}, false
}

// findBlob returns the entry of a file or symlink among the entries of a directory, and false if the directory has no
// such entry.
func findBlob(entries []object.TreeEntry, name string) (object.TreeEntry, bool) {
	for _, e := range entries {
		if e.Name > name {
			break // the entries are sorted, so none of the following ones has the name
		}
		if e.Name == name && e.Mode.IsBlob() {
			return e, true
		}
	}
	return object.TreeEntry{}, false
}

// localEntries returns the entries of a directory. If a tree is missing on this host, the error is treewalk.ErrMissing.
func (v *View) localEntries(dir string) ([]object.TreeEntry, error) {
	return treewalk.Walker{Trees: treewalk.Local{Trees: v.store.trees}}.Directory(context.Background(), v.root, dir)
}

// localFile opens a .gitattributes or .lfsconfig file. If it is not on this host, the error is odb.ErrNotFound.
func (v *View) localFile(id object.ID, _ string) (Content, error) {
	// The index of the cache is checked first, because content opens a file, and a walk calls localFile for every path.
	if !v.store.storage.cached(id) {
		return nil, odb.ErrNotFound
	}
	if c, ok := v.store.storage.stored(id); ok {
		return c, nil
	}
	return nil, odb.ErrNotFound
}

// parseAttributes parses one .gitattributes file of directory dir, and releases c, its contents. It returns nil if no
// line of the file has an effect on contents, or if the file is larger than maxAttributes.
func (v *View) parseAttributes(c Content, dir string) (*convert.File, error) {
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
