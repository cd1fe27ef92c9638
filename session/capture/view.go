package capture

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/worktree"
)

// view is the list of the changes in the working tree at one moment, together with the ignore rules that apply to the
// changed paths.
type view struct {
	c *Capturer
	// ctx is the context of the call that makes the view. It is stored because callbacks of the Tree have no context.
	ctx    context.Context
	frozen *worktree.Frozen
	// from is the id of the tree to which the frozen entries are applied.
	from object.ID
	// whole is set if from is the base tree. The entries are then everything that differs from the base tree.
	whole bool
	x     ignores   // decides which paths are ignored
	main  tracked   // paths that git tracks in the main working tree
	roots []tracked // paths that git tracks in the linked worktrees, in the order of Capturer.roots
	// entries holds the paths of all entries. The value of a FrozenTree is the id of its tree; the value of other kinds is
	// zero.
	entries map[string]object.ID
	// changed holds the texts of the ignore files among the entries, by directory.
	changed map[string][]byte
	parsed  map[string]globs // parsed ignore files, by directory
	// needs holds the blob ids of the ignore files that have to be fetched, by path.
	needs   map[string]object.ID
	skipped map[string]bool // directories for which skip returned true
	// unread lists the paths of ignore files that could not be read.
	unread  []string
	failure error // first error of a method that cannot return errors
}

// fail stores the error of a method that cannot return one in v.failure. Only the first error is kept.
func (v *view) fail(err error) {
	if v.failure == nil {
		v.failure = err
	}
}

// rulesOf returns the rules of the ignore file in the directory dir. If the file has to be fetched first, rulesOf adds
// it to v.needs and returns nil.
func (v *view) rulesOf(dir string) globs {
	if g, ok := v.parsed[dir]; ok {
		return g
	}
	g := v.readRules(dir)
	v.parsed[dir] = g
	return g
}

// readRules does the work of rulesOf without looking in the cache v.parsed.
func (v *view) readRules(dir string) globs {
	path := join(dir, ignoreName)
	// The ignore file itself is among the entries, so its new text applies.
	if text, ok := v.changed[dir]; ok {
		return parseIgnore(text, v.x.fold)
	}
	root, rel := v.c.roots.gone(path), path
	gone := !root.IsZero()
	if !gone {
		root = v.from
	}
	for at := path; at != "" && !gone; at = parent(at) {
		if id, ok := v.entries[at]; ok {
			if id.IsZero() {
				return nil
			}
			// This directory was renamed together with the ignore file, so the ignore file is in the tree of the renamed
			// directory.
			root, rel = id, path[len(at)+1:]
		}
	}
	// An ignore file that is left out is not in the tree, but its rules still apply.
	if text, ok := v.c.mem.Ignore[dir]; ok && !v.whole && root == v.from {
		return parseIgnore([]byte(text), v.x.fold)
	}
	e, err := v.c.lookup(v.ctx, root, rel)
	if err != nil {
		v.fail(err)
		return nil
	}
	// Git does not follow a symbolic link at .gitignore.
	if e.Mode != object.ModeFile && e.Mode != object.ModeExec {
		return nil
	}
	if g, ok := v.c.ignoreFiles[e.ID]; ok {
		return g
	}
	_, text, err := v.c.o.Repo.Get(e.ID, maxIgnoreFile)
	if err != nil {
		// If an earlier fetch of this file has failed, do not repeat the fetch for the same checkpoint.
		if !slices.Contains(v.unread, path) {
			v.needs[path] = e.ID
		}
		return nil
	}
	g := parseIgnore(text, v.x.fold)
	v.c.ignoreFiles[e.ID] = g
	return g
}

// fetchRules fetches the ignore files in v.needs. A file that cannot be fetched counts as empty: a checkpoint with
// ignored files is better than one that lacks files.
func (v *view) fetchRules() {
	for path, id := range v.needs {
		text, err := []byte(nil), error(odb.ErrNotFound)
		if v.c.o.Blob != nil {
			// A slow remote must not block the checkpoint.
			ctx, cancel := context.WithTimeout(v.ctx, fetchWait)
			text, err = v.c.o.Blob(ctx, path, id)
			cancel()
		}
		if err != nil {
			v.c.o.Log.Warn("read ignore file", zap.String("path", path), zap.Error(err))
			v.parsed[parent(path)] = nil
			v.unread = append(v.unread, path)
			continue
		}
		g := parseIgnore(text, v.x.fold)
		v.c.ignoreFiles[id] = g
		v.parsed[parent(path)] = g
	}
	clear(v.needs)
	// Results that were cached before the rules were fetched may be wrong, so drop them.
	clear(v.x.cached)
}

// skip reports whether a checkpoint leaves out the directory dir with everything below it. It does so if dir is
// ignored, Rules.Include matches no path in dir, and git tracks no file in dir.
func (v *view) skip(dir string) bool {
	if v.skipped[dir] {
		return true
	}
	if v.c.roots.has(dir) || slices.ContainsFunc(v.c.roots, func(r root) bool { return isWithin(r.path, dir) }) {
		return false
	}
	// An ignored directory is entered if Include could match a file in it, or if git tracks a file in it.
	if !v.x.dir(dir) || v.c.rules.include.covers(dir, true) || v.c.rules.include.below(dir) || v.tracked(dir) {
		return false
	}
	v.skipped[dir] = true
	return true
}

// ignoredIn returns the paths below a renamed directory that are ignored and untracked at their new paths. The contents
// of the directory are unchanged: id is its tree, and dir is its new path. In the result, the paths of directories end
// in a slash.
func (v *view) ignoredIn(id object.ID, dir string) (list []string, err error) {
	entries, err := v.c.readTree(v.ctx, id)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := join(dir, e.Name)
		switch {
		case e.Mode == object.ModeDir && v.skip(path):
			list = append(list, path+"/")
		case e.Mode == object.ModeDir:
			below, err := v.ignoredIn(e.ID, path)
			if err != nil {
				return nil, err
			}
			list = append(list, below...)
		case !v.x.file(path), v.trackedFile(path), v.c.rules.include.covers(path, false):
		default:
			list = append(list, path)
		}
	}
	return list, nil
}

// storeEntries stores the paths of entries, and the texts of the ignore files among them, in v.entries and v.changed.
// The function read returns the text of an ignore file. The result stale is true if rules have changed for paths that
// have no entry, so that these paths have to be read again. The result differs is true if the ignore files differ from
// those of the previous call.
func (v *view) storeEntries(
	entries []worktree.FrozenEntry, read func(e *worktree.FrozenEntry) ([]byte, error),
) (stale, differs bool, err error) {
	v.entries = make(map[string]object.ID, len(entries))
	for i := range entries {
		e := &entries[i]
		v.entries[e.Path] = object.ID{}
		// The paths below a renamed directory have no entries. readRules finds their ignore files in the directory's tree.
		if e.Kind == worktree.FrozenTree {
			v.entries[e.Path] = e.ID
		}
	}
	before := v.changed
	v.changed = map[string][]byte{}
	for i := range entries {
		e := &entries[i]
		dir, name := split(e.Path)
		if name == attributesName { // different attributes may make git convert the files below dir differently
			stale = stale || !v.within(dir)
		}
		if name != ignoreName {
			continue
		}
		var text []byte
		if e.Kind == worktree.FrozenContent || e.Kind == worktree.FrozenBlob && e.Mode != object.ModeSymlink {
			if text, err = read(e); err != nil {
				return false, false, err
			}
		}
		v.changed[dir] = text
		old, known := before[dir]
		differs = differs || !known || !bytes.Equal(old, text)
		stale = stale || !v.within(dir)
	}
	differs = differs || len(before) != len(v.changed)
	clear(v.parsed)
	clear(v.x.cached)
	return stale, differs, v.failure
}

// within reports whether the view has an entry for the directory dir, or for a directory above dir.
func (v *view) within(dir string) bool {
	for at := dir; at != ""; at = parent(at) {
		if _, ok := v.entries[at]; ok {
			return true
		}
	}
	return false
}

// freezeView freezes the working tree, except for directories that checkpoints leave out as a whole, and returns a view
// of the changes since the previous checkpoint. If again is set, or if rules have changed, the view contains everything
// that differs from the base tree. The caller releases view.frozen.
func (c *Capturer) freezeView(ctx context.Context, again bool) (*view, error) {
	token, whole := c.mem.Token, c.mem.tree.IsZero() || again
	c.roots = c.findRoots(ctx)
	rules, err := c.ignoreSettings(ctx)
	if err != nil {
		return nil, err
	}
	// Rules outside of the working tree have changed. Files that have not changed may have become ignored, or may no
	// longer be ignored.
	if rules.print != c.mem.Rules {
		whole = true
	}
	for try := 0; ; try++ {
		if whole {
			token = ""
		}
		v := &view{c: c, ctx: ctx, from: c.mem.tree, whole: whole, entries: map[string]object.ID{},
			changed: map[string][]byte{},
			parsed:  map[string]globs{}, needs: map[string]object.ID{}, skipped: map[string]bool{}}
		v.x = ignores{print: rules.print, fold: rules.fold, user: rules.user, own: rules.own, of: v.rulesOf,
			cached: map[string]bool{},
			roots:  c.roots}
		if whole {
			v.from = c.o.BaseTree
		}
		// The index may have changed since c.tracking was read, and then skip decides wrongly. Therefore makeTree
		// checks the skipped directories after it has read the index.
		v.track(c.tracking)
		if whole, err = v.names(token, try); err != nil {
			return nil, err
		}
		// The view was made for the changes since the journal position token. Make another view, for all differences from the
		// base tree.
		if whole && token != "" {
			continue
		}
		frozen, err := c.o.Tree.Freeze(ctx, token, worktree.FreezeOptions{Skip: v.skipping(try), Enter: c.roots.has,
			MaxPinned: c.pinned, Seal: c.carrying.begin(ctx, c, rules.fold)})
		if err != nil {
			return nil, err
		}
		if frozen.Whole && token != "" { // the Tree no longer knows the changes since token
			v.from, v.whole = c.o.BaseTree, true
			clear(v.parsed)
		}
		stale, differs, err := v.storeEntries(frozen.Entries,
			func(e *worktree.FrozenEntry) ([]byte, error) { return c.contentOf(ctx, e) })
		// If the ignore files are the same as in the dry run, skip has selected the right directories.
		if err == nil && (!differs || try > 2) && (!stale || v.whole) {
			v.frozen = frozen
			return v, nil
		}
		frozen.Release()
		if err != nil {
			return nil, err
		}
		whole = whole || stale
	}
}

// names reads the names of the changed paths without blocking writers, and fetches the ignore files that decide about
// these paths. The parameter try is the number of earlier attempts. The result whole is true if everything that differs
// from the base tree has to be read: if the journal position token is empty or too old, or if rules have changed for
// unchanged paths.
func (v *view) names(token string, try int) (whole bool, err error) {
	for range 3 {
		dry, err := v.c.o.Tree.Freeze(v.ctx, token,
			worktree.FreezeOptions{Skip: v.skipping(try), Enter: v.c.roots.has, DryRun: true})
		if err != nil {
			return false, err
		}
		dry.Release()
		if dry.Whole && token != "" {
			return true, nil
		}
		stale, differs, err := v.storeEntries(dry.Entries,
			func(e *worktree.FrozenEntry) ([]byte, error) { return v.c.contentNow(v.ctx, e.Path) })
		if err != nil {
			return false, err
		}
		if stale && token != "" {
			return true, nil
		}
		clear(v.skipped)
		for i := range dry.Entries { // dir and ignoredIn record in v.needs which files to fetch
			if e := &dry.Entries[i]; e.Kind == worktree.FrozenDir {
				v.x.dir(e.Path)
			} else if e.Kind == worktree.FrozenTree {
				if _, err := v.ignoredIn(e.ID, e.Path); err != nil {
					return false, err
				}
			} else if e.Kind != worktree.FrozenGone && !v.trackedFile(e.Path) {
				v.x.file(e.Path)
			}
		}
		if len(v.needs) == 0 && !differs {
			return token == "", nil
		}
		v.fetchRules()
	}
	return token == "", nil
}

// skipping returns the function that selects the directories to skip. After three attempts in which the ignore files
// differed, it returns nil, so that no directory is skipped.
func (v *view) skipping(try int) func(dir string) bool {
	if try > 2 {
		return nil
	}
	return v.skip
}

// contentNow returns the current contents of an ignore file. A missing, oversized or unreadable file counts as empty.
func (c *Capturer) contentNow(ctx context.Context, path string) ([]byte, error) {
	n, err := c.o.Tree.Resolve(ctx, path)
	if err != nil {
		return nil, nil // the file was removed after the dry run
	}
	a, err := c.o.Tree.Attr(ctx, n)
	if err != nil || a.Size > maxIgnoreFile {
		return nil, nil
	}
	text := make([]byte, a.Size)
	k, err := c.o.Tree.Read(ctx, n, text, 0)
	if err != nil {
		return nil, nil
	}
	return text[:k], nil
}

// contentOf returns the frozen contents of an ignore file. An oversized or unavailable file counts as empty.
func (c *Capturer) contentOf(ctx context.Context, e *worktree.FrozenEntry) ([]byte, error) {
	if e.Kind == worktree.FrozenBlob {
		if _, text, err := c.o.Repo.Get(e.ID, maxIgnoreFile); err == nil {
			return text, nil
		}
		if c.o.Blob == nil {
			return nil, nil
		}
		text, err := c.o.Blob(ctx, e.Path, e.ID)
		if err != nil {
			c.o.Log.Warn("read ignore file", zap.String("path", e.Path), zap.Error(err))
		}
		return text, nil
	}
	if e.Content == nil || e.Size > maxIgnoreFile {
		return nil, nil
	}
	text := make([]byte, e.Size)
	_, err := io.ReadFull(io.NewSectionReader(e.Content, 0, e.Size), text)
	return text, err
}

// lookup returns the entry of path in the tree root. The mode of the entry is 0 if there is no such entry.
func (c *Capturer) lookup(ctx context.Context, root object.ID, path string) (object.TreeEntry, error) {
	id := root
	for {
		var name string
		var deep bool
		name, path, deep = strings.Cut(path, "/")
		list, err := c.readTree(ctx, id)
		if err != nil {
			return object.TreeEntry{}, err
		}
		e, _ := find(list, name)
		if !deep || e.Mode != object.ModeDir {
			if deep {
				e = object.TreeEntry{}
			}
			return e, nil
		}
		id = e.ID
	}
}

// maxTreeCache is the maximum total number of tree entries in Capturer.treeCache.
const maxTreeCache = 500_000

// readTree returns the entries of the tree id. It looks in the cache, in the trees that are to be written, in the Repo,
// and in Options.Trees. The zero id stands for the empty tree. The caller must not change the result.
func (c *Capturer) readTree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(c.format) {
		return nil, nil
	}
	if list, ok := c.treeCache[id]; ok {
		return list, nil
	}
	list, err := c.findTree(ctx, id)
	if err != nil {
		return nil, err
	}
	// A full cache is emptied completely, because one checkpoint rarely needs so many trees.
	if c.treeCacheSize += len(list); c.treeCacheSize > maxTreeCache {
		clear(c.treeCache)
		c.treeCacheSize = len(list)
	}
	c.treeCache[id] = list
	return list, nil
}

// findTree does the work of readTree without looking in the cache.
func (c *Capturer) findTree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	// Trees of the checkpoint that is being made are not in the Repo yet.
	if content, ok := c.pending[id]; ok {
		entries, _, err := object.ReadTree(c.format, content)
		return entries, err
	}
	list, err := c.o.Repo.Tree(id)
	if err != nil && c.o.Trees != nil {
		return c.o.Trees(ctx, id)
	}
	return list, err
}
