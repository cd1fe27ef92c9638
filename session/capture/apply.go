package capture

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// edit constructs the tree of a checkpoint: it takes the tree that a view starts from, and applies the frozen entries
// of the view, which are the changed paths with their contents at one moment.
type edit struct {
	c *Capturer
	v *view
	// out collects the new objects of the checkpoint. copies collects objects that git created and that are copied to
	// the Repo. trees holds the checkpoint's tree while it is constructed.
	out    *output
	copier *session.Copier
	trees  *trees
	// left is the set of paths that exist in the working tree, but not in the checkpoint's tree.
	left *leftSet
	// ignore maps directories to the texts of their ignore files, for ignore files that the checkpoint's tree does not
	// contain. The rules of these files still apply.
	ignore map[string]string
	// plain and cleaned are files whose blobs are not made yet. The contents of plain files are stored unchanged; git
	// converts the contents of cleaned files first.
	plain, cleaned []source
	// attributes is the set of directories whose .gitattributes file differs from the .gitattributes file in the base
	// tree.
	attributes map[string]bool
	// dirs maps directories to their permissions, except directories with the permissions 0755. The method emptyDirs
	// later removes the entries of directories that contain a file.
	dirs map[string]uint32
}

// apply applies the entries of v to the tree that v starts from, and returns the edit with the new tree. It returns
// errUnpinned if the contents of a large file were not frozen.
func (c *Capturer) apply(ctx context.Context, v *view, out *output, copier *session.Copier) (*edit, error) {
	e := &edit{c: c, v: v, out: out, copier: copier, trees: newTrees(c.readTree, c.format, v.from),
		ignore:     map[string]string{},
		attributes: map[string]bool{}, dirs: map[string]uint32{}}
	if v.whole {
		// The entries of v are everything that differs from the base tree, so the state of the previous checkpoint is not
		// needed.
		e.left = newLeftSet(nil)
	} else {
		e.left = c.left
		for _, dir := range c.mem.Attributes {
			e.attributes[dir] = true
		}
		for dir, text := range c.mem.Ignore {
			e.ignore[dir] = text
		}
	}
	e.rememberDirs()
	// Forget the text of a left-out ignore file if its path, or a directory above it, is among the entries: the loop below
	// decides about that file again.
	if len(e.ignore) > 0 {
		for dir := range e.ignore {
			for at := join(dir, ignoreName); at != ""; at = parent(at) {
				if _, ok := v.entries[at]; ok {
					delete(e.ignore, dir)
				}
			}
		}
	}
	for i := range v.frozen.Entries {
		f := &v.frozen.Entries[i]
		if path := f.Path; path == attributesName || strings.HasSuffix(path, "/"+attributesName) {
			same, err := e.likeBase(ctx, f)
			if err != nil {
				return nil, err
			}
			if e.attributes[parent(path)] = true; same {
				delete(e.attributes, parent(path))
			}
		}
	}
	under := "" // path of the last directory that was left out with everything below it, with a slash at the end
	for i := range v.frozen.Entries {
		f := &v.frozen.Entries[i]
		if c.roots.isGitFile(f.Path) {
			continue
		}
		// The entries are sorted by path, so those below a directory follow it.
		if under != "" && strings.HasPrefix(f.Path, under) {
			continue
		}
		e.left.forget(f.Path)
		passed, err := e.entry(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("apply change of %s: %w", f.Path, err)
		}
		if passed {
			under = f.Path + "/"
		}
	}
	// The Tree calls methods of v that cannot return errors, so v.failure holds the first error of these methods.
	if err := v.failure; err != nil {
		return nil, err
	}
	if err := e.filterAgain(ctx); err != nil {
		return nil, err
	}
	return e, e.contents(ctx)
}

// entry applies one entry of the view to the tree. The result passed is true if the path and all paths below it were
// left out.
func (e *edit) entry(ctx context.Context, f *worktree.FrozenEntry) (passed bool, err error) {
	switch f.Kind {
	// The path was removed. Its parent directory exists, and may be empty now, so record the permissions of the parent.
	case worktree.FrozenGone:
		e.mode(parent(f.Path), f.Perm)
		return false, e.trees.remove(ctx, f.Path)
	case worktree.FrozenSkipped:
		return true, e.leaveOut(ctx, f, session.Ignored)
	case worktree.FrozenDir, worktree.FrozenTree:
		if f.Path != "" && e.v.skip(f.Path) {
			return true, e.leaveOut(ctx, f, session.Ignored)
		}
		e.mode(f.Path, f.Perm)
		if f.Kind == worktree.FrozenDir {
			return false, e.trees.clear(ctx, f.Path)
		}
		return false, e.movedTree(ctx, f)
	case worktree.FrozenOther, worktree.FrozenModule:
		return true, e.module(ctx, f)
	}
	reason, err := e.reasonToLeaveOut(ctx, f)
	if err != nil {
		return false, err
	}
	if reason != "" {
		return false, e.leaveOut(ctx, f, reason)
	}
	if f.Mode == object.ModeFile && e.c.o.LinksAsFiles {
		if link, err := e.isLink(ctx, f.Path); err != nil {
			return false, err
		} else if link {
			f.Mode = object.ModeSymlink
		}
	}
	switch f.Kind {
	case worktree.FrozenLink:
		id, err := e.out.blob([]byte(f.Target))
		if err != nil {
			return false, err
		}
		return false, e.trees.set(ctx, f.Path, object.ModeSymlink, id)
	case worktree.FrozenBlob:
		if moved, err := e.moved(ctx, f); moved || err != nil {
			return false, err
		}
		return false, e.trees.set(ctx, f.Path, f.Mode, f.ID)
	}
	// The file is larger than FreezeOptions.MaxPinned, so its contents were not frozen. The method makeShot handles
	// errUnpinned: it freezes the working tree again without that limit.
	if f.Content == nil {
		return false, errUnpinned
	}
	s := source{path: f.Path, size: f.Size, content: f.Content, mode: f.Mode}
	// An empty file has the same blob whether git converts it or not, and the target of a link is never converted.
	if f.Size > 0 && f.Mode != object.ModeSymlink && e.converts(ctx, f.Path) {
		e.cleaned = append(e.cleaned, s)
	} else {
		e.plain = append(e.plain, s)
	}
	return false, nil
}

// movedTree adds a directory to the tree that was renamed with its contents unchanged. It leaves out the files that the
// ignore rules exclude at the new path.
func (e *edit) movedTree(ctx context.Context, f *worktree.FrozenEntry) error {
	if err := e.trees.set(ctx, f.Path, object.ModeDir, f.ID); err != nil {
		return err
	}
	// At the new path, the ignore rules of other parent directories apply. They may exclude files that were not ignored at
	// the old path.
	ignored, err := e.v.ignoredIn(f.ID, f.Path)
	if err != nil {
		return err
	}
	for _, path := range ignored {
		mode, id, err := e.trees.get(ctx, strings.TrimSuffix(path, "/"))
		if err == nil {
			err = e.drop(ctx, path, mode, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop removes an ignored path from the tree and adds it to the left-out paths. If the path is an ignore file, its
// rules still apply, so drop stores the text of the file in e.ignore.
func (e *edit) drop(ctx context.Context, path string, mode object.Mode, id object.ID) error {
	e.left.add(LeftOut{Path: path, Why: session.Ignored})
	if dir, name := split(path); name == ignoreName && (mode == object.ModeFile || mode == object.ModeExec) {
		text, err := e.c.contentOf(ctx, &worktree.FrozenEntry{Path: path, Kind: worktree.FrozenBlob, ID: id})
		if err != nil {
			return err
		}
		e.ignore[dir] = string(text)
	}
	return e.trees.remove(ctx, strings.TrimSuffix(path, "/"))
}

// moved handles a file that was renamed and whose blob is unchanged. Git may convert the file differently at its new
// path; if so, moved adds the file, with the contents that the working tree shows, to e.cleaned and returns true. It
// returns false if the blob can be used unchanged.
func (e *edit) moved(ctx context.Context, f *worktree.FrozenEntry) (bool, error) {
	// Either the file was not renamed, or git converts its contents neither at the old path nor at the new path.
	if f.From == "" || f.Mode == object.ModeSymlink || !e.converts(ctx, f.Path) && !e.c.converts(ctx, f.From) {
		return false, nil
	}
	// The file was renamed within its directory and kept its extension. Most attribute patterns match a directory or an
	// extension, so assume that the same attributes apply.
	if ext(f.From) == ext(f.Path) && parent(f.From) == parent(f.Path) && !e.attributesChanged(f.Path) {
		return false, nil
	}
	n, err := e.c.o.Tree.Resolve(ctx, f.Path)
	if err != nil {
		return false, nil // the file was renamed again after the freeze, so the next checkpoint contains its new path
	}
	a, err := e.c.o.Tree.Attr(ctx, n)
	if err != nil {
		return false, err
	}
	e.cleaned = append(e.cleaned, source{path: f.Path, size: a.Size, content: readerAt{e.c.o.Tree, ctx, n}, mode: f.Mode,
		before: f.ID})
	return true, nil
}

// attributesChanged reports whether the git attributes of path may differ from its attributes in the base tree, because
// a .gitattributes file that applies to it was changed.
func (e *edit) attributesChanged(path string) bool {
	if len(e.attributes) == 0 {
		return false
	}
	top := e.c.roots.above(path)
	for dir := parent(path); ; dir = parent(dir) {
		if e.attributes[dir] || dir == top {
			return e.attributes[dir]
		}
	}
}

// converts reports whether git may convert the file at path.
func (e *edit) converts(ctx context.Context, path string) bool {
	return e.attributesChanged(path) || e.c.converts(ctx, relative(path, e.c.roots.above(path)))
}

// likeBase reports whether f, a .gitattributes file in a linked worktree, has the same contents as the file at the same
// path of the base tree. If so, the attributes of the base tree apply. It returns false for a file in the main working
// tree.
func (e *edit) likeBase(ctx context.Context, f *worktree.FrozenEntry) (bool, error) {
	t, rel := e.v.of(f.Path)
	if t.path == "" || f.Kind != worktree.FrozenContent {
		return false, nil
	}
	text, err := e.c.contentOf(ctx, f)
	if err != nil {
		return false, err
	}
	id, err := object.Hash(e.c.format, object.Blob, text)
	if err != nil {
		return false, err
	}
	was, err := e.c.lookup(ctx, e.c.o.BaseTree, rel)
	return was.ID == id, err
}

// ext returns the extension of path with the dot, or the base name of path if there is no extension.
func ext(path string) string { return path[max(0, strings.LastIndexAny(path, "./")):] }

// readerAt is an io.ReaderAt that reads the current contents of a file in the working tree.
type readerAt struct {
	tree *worktree.Tree
	ctx  context.Context
	node worktree.Node
}

// ReadAt implements io.ReaderAt.
func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		k, err := r.tree.Read(r.ctx, r.node, p[n:], off+int64(n))
		n += k
		if err != nil {
			return n, err
		}
		if k == 0 {
			return n, io.EOF
		}
	}
	return len(p), nil
}

// module adds a submodule, as the commit that the index records for the path or, without an index entry, as the commit
// of f. Any other file that git cannot store, such as a socket, is left out.
func (e *edit) module(ctx context.Context, f *worktree.FrozenEntry) error {
	was, err := e.v.staged(f.Path)
	if err != nil {
		return err
	}
	if was.Mode == object.ModeGitlink {
		return e.trees.set(ctx, f.Path, object.ModeGitlink, was.ID)
	}
	if f.Mode == object.ModeGitlink && !f.ID.IsZero() {
		return e.trees.set(ctx, f.Path, object.ModeGitlink, f.ID)
	}
	return e.leaveOut(ctx, f, session.NoFile)
}

// reasonToLeaveOut returns why the checkpoint leaves out a file or symbolic link, or "" if the checkpoint contains it.
func (e *edit) reasonToLeaveOut(ctx context.Context, f *worktree.FrozenEntry) (session.Why, error) {
	r, path := &e.c.rules, f.Path
	// Include overrides every other rule. Exclude overrides every rule except Include.
	if r.include.covers(path, false) {
		return "", nil
	}
	if r.exclude.covers(path, false) {
		return session.Excluded, nil
	}
	if e.v.trackedFile(path) {
		// The file is a secret that is staged but was never committed. It may have been staged by mistake, so leave it out.
		if r.secret(path) && !e.committed(ctx, path) {
			return session.Secret, nil
		}
		return "", nil
	}
	switch {
	case e.v.x.file(path):
		return session.Ignored, nil
	case r.secret(path) && !e.committed(ctx, path):
		return session.Secret, nil
	case f.Kind == worktree.FrozenContent && f.Size > r.max:
		return session.TooLarge, nil
	}
	// Some configuration files are secrets only if they hold a token. Only the first 64 KiB are searched.
	if f.Content != nil && withToken[path[strings.LastIndexByte(path, '/')+1:]] != nil {
		head := make([]byte, min(f.Size, 64<<10))
		if _, err := io.ReadFull(io.NewSectionReader(f.Content, 0, int64(len(head))), head); err != nil {
			return "", err
		}
		if r.secretContent(path, head) {
			return session.Secret, nil
		}
	}
	return "", nil
}

// forgotten removes from the checkpoint's tree the paths that are untracked and ignored now, but that the index in was
// tracks. It does so for the working tree in the directory top: the main working tree if top is "", otherwise a linked
// worktree. now has the current index.
func (e *edit) forgotten(ctx context.Context, top string, was, now tracking) error {
	var list []string
	candidate := func(path string) {
		// If the view has an entry for the path or for a directory above it, the method entry has already decided about the
		// path.
		for at := path; at != ""; at = parent(at) {
			if _, ok := e.v.entries[at]; ok {
				return
			}
		}
		if !e.v.trackedFile(path) && !e.c.rules.include.covers(path, false) {
			// The method file records in v.needs which ignore files have to be fetched. Its result is not used here.
			e.v.x.file(path)
			list = append(list, path)
		}
	}
	before, after := was.index.Tree, now.index.Tree
	err := treediff.Trees(ctx, e.c.readTree, before, after, func(path string, from, to object.TreeEntry) error {
		if from.Mode != 0 && to.Mode == 0 {
			candidate(join(top, path))
		}
		return nil
	})
	for _, s := range was.index.Special {
		candidate(join(top, s.Path))
	}
	if err != nil {
		return err
	}
	if len(e.v.needs) > 0 {
		e.v.fetchRules()
	}
	for _, path := range list {
		mode, id, err := e.trees.get(ctx, path)
		if err != nil {
			return err
		}
		if mode == 0 || mode == object.ModeDir || !e.v.x.file(path) {
			continue
		}
		if err := e.drop(ctx, path, mode, id); err != nil {
			return err
		}
	}
	return e.v.failure
}

// committed reports whether the base tree or the tree of HEAD contains a file at path. A path that is only in the index
// is not committed.
func (e *edit) committed(ctx context.Context, path string) bool {
	t, rel := e.v.of(path)
	for _, root := range []object.ID{e.c.o.BaseTree, t.head} {
		if was, err := e.c.lookup(ctx, root, rel); err == nil && was.Mode != 0 && was.Mode != object.ModeDir {
			return true
		}
	}
	return false
}

// leaveOut leaves the path of the entry f out of the tree and records the reason. If the reason is session.Excluded and
// the base tree contains the path, the checkpoint's tree gets the entry of the base tree instead.
func (e *edit) leaveOut(ctx context.Context, f *worktree.FrozenEntry, reason session.Why) error {
	l := LeftOut{Path: f.Path, Why: reason, Size: f.Size}
	switch f.Kind {
	case worktree.FrozenSkipped, worktree.FrozenDir, worktree.FrozenTree:
		l.Path, l.Size = f.Path+"/", 0
	}
	e.left.add(l)
	if text, ok := e.v.changed[parent(f.Path)]; ok && len(text) > 0 && strings.HasSuffix(f.Path, ignoreName) &&
		f.Path == join(parent(f.Path), ignoreName) {
		e.ignore[parent(f.Path)] = string(text)
	}
	// An excluded file may be tracked. Unless the tree has the entry of the base tree, the checkpoint would show the file
	// as removed.
	if reason == session.Excluded {
		was, err := e.c.lookup(ctx, e.c.o.BaseTree, f.Path)
		if err != nil {
			return err
		}
		if was.Mode != 0 {
			return e.trees.set(ctx, f.Path, was.Mode, was.ID)
		}
	}
	return e.trees.remove(ctx, f.Path)
}
