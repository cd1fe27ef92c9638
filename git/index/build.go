package index

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Options configures a Builder.
type Options struct {
	Format  object.Format // object format of the ids
	Version uint32        // version of the index file: 2 or 4
	Token   string        // position in the file system monitor, as git stores it; "" if there is no monitor
	// Untracked contains the fields of the untracked cache, except Root, which the Builder sets. If it is nil, the index
	// has no untracked cache, and git searches the whole working tree for untracked files.
	Untracked *Untracked
	Files     int // estimated number of files, to allocate memory for; 0 if unknown
	// Ignore returns the id that git compares with the contents of an ignore file (see Directory.Ignore). It returns false
	// if the id is not known. If Ignore is nil, no id is known.
	Ignore func(e Entry) (object.ID, bool)
}

// Builder builds the index of an unchanged working tree. The caller walks over the tree and calls Dir or Add for each
// path, in git's order, and at the end Index or WriteTo. If a call of Dir or Add has failed, Index and WriteTo return
// the first error.
type Builder struct {
	o     Options
	x     Index
	stack []*level // the directory of the current path and its parents, the root first
	// hidden are the entries whose paths the working tree does not show. They are not in git's order.
	hidden []Entry
	err    error // first error of Dir or Add
}

// level is one of the directories that contain the current path of the walk.
type level struct {
	path  string     // path of the directory with a slash at its end; "" for the root
	tree  *Tree      // entry of the directory in the cache tree
	dir   *Directory // entry of the directory in the untracked cache
	start int        // number of the index entries before the first entry of the directory
}

// NewBuilder returns a Builder without entries.
func NewBuilder(o Options) *Builder {
	b := &Builder{o: o}
	b.x = Index{Format: o.Format, Version: o.Version, Token: o.Token, Entries: make([]Entry, 0, o.Files)}
	return b
}

// Dir adds a directory. The caller adds the directory before its contents. The first directory is the root, with the
// path "". If the id is zero, git must make the tree of the directory again, because the entries do not describe it
// completely.
func (b *Builder) Dir(dir string, id object.ID, stat Stat) {
	if dir == "" {
		if len(b.stack) > 0 || len(b.x.Entries) > 0 {
			b.fail("the root is not the first")
			return
		}
		b.stack = []*level{{tree: &Tree{ID: id}, dir: &Directory{Valid: true, Stat: stat}}}
		return
	}
	up := b.closeTo(dir)
	if up == nil {
		return
	}
	l := &level{path: dir + "/", tree: &Tree{Name: path.Base(dir), ID: id},
		dir: &Directory{Name: path.Base(dir), Valid: true, Stat: stat}, start: len(b.x.Entries)}
	up.tree.Sub = append(up.tree.Sub, l.tree)
	up.dir.Sub = append(up.dir.Sub, l.dir)
	b.stack = append(b.stack, l)
}

// Add adds a file, symbolic link or gitlink. An entry with SkipWorktree, whose path the working tree does not show, may
// be added at any time. It is left out if another entry has its path.
func (b *Builder) Add(e Entry) {
	if e.SkipWorktree {
		b.hidden = append(b.hidden, e)
		return
	}
	up := b.closeTo(e.Path)
	if up == nil {
		return
	}
	if b.o.Untracked != nil && e.Mode != object.ModeGitlink && e.Path == up.path+b.o.Untracked.PerDirectory {
		b.ignoreFile(up.dir, e)
	}
	b.x.Entries = append(b.x.Entries, e)
}

// ignoreFile records that a directory contains an ignore file. If the id of the file is not known, the directory is
// recorded as having no ignore file. After a change in or below the directory, git then finds the file, reads it, and
// searches everything below the directory again. The empty stat data make git do the same if it has no file system
// monitor. With the flag ShowAll, git would not search the directories above the change again, so it would not read the
// ignore files in them. Therefore, with ShowAll, the directory is marked invalid from the beginning.
func (b *Builder) ignoreFile(d *Directory, e Entry) {
	if b.o.Ignore != nil {
		if id, ok := b.o.Ignore(e); ok {
			d.Ignore = id
			return
		}
	}
	d.Stat = Stat{}
	d.Valid = b.o.Untracked.Flags == ShowNormal
}

// FillIgnored sets the ids of ignore files that were unknown when the index was built (see Options.Ignore). The
// function id returns the id of a file, or false if the id is still unknown. FillIgnored returns the number of ids that
// it has set.
func (x *Index) FillIgnored(id func(e Entry) (object.ID, bool)) int {
	if x.Untracked == nil || x.Untracked.Root == nil || x.Untracked.PerDirectory == "" {
		return 0
	}
	filled := 0
	for i := range x.Entries {
		e := &x.Entries[i]
		dir, ok := strings.CutSuffix(e.Path, x.Untracked.PerDirectory)
		if !ok || !e.Valid || dir != "" && !strings.HasSuffix(dir, "/") {
			continue
		}
		d := x.Untracked.Root
		for name := range strings.SplitSeq(strings.TrimSuffix(dir, "/"), "/") {
			if name != "" && d != nil {
				n := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
				if n < 0 {
					d = nil
				} else {
					d = d.Sub[n]
				}
			}
		}
		// git searches an invalid directory in any case, so the id of its ignore file is not needed.
		if d == nil || !d.Valid || !d.Ignore.IsZero() {
			continue
		}
		if d.Ignore, ok = id(*e); ok {
			filled++
		}
	}
	return filled
}

// closeTo closes the directories on the stack that do not contain path, and returns the innermost directory that
// contains path. It returns nil if the walk did not add the directory of path.
func (b *Builder) closeTo(path string) *level {
	for i := len(b.stack) - 1; i >= 0; i-- {
		l := b.stack[i]
		if name, ok := strings.CutPrefix(path, l.path); ok {
			// The directory of path was not added before path, or path is the directory itself, so there is no level to
			// return.
			if name == "" || strings.IndexByte(name, '/') >= 0 {
				break
			}
			return l
		}
		b.close(l)
		b.stack = b.stack[:i]
	}
	b.fail(fmt.Sprintf("%q is in no directory of the walk", path))
	return nil
}

// fail records the error, unless an earlier error was recorded.
func (b *Builder) fail(what string) {
	if b.err == nil {
		b.err = fmt.Errorf("build index: %s", what)
	}
}

// close finishes a directory. It sets the number of entries below the directory, and sorts the subdirectories into the
// order in which git searches them.
func (b *Builder) close(l *level) {
	l.tree.Count = len(b.x.Entries) - l.start
	if l.tree.ID.IsZero() || slices.ContainsFunc(l.tree.Sub, func(s *Tree) bool { return s.Count <= 0 }) {
		// The tree contains a directory without files. git does not write such directories into trees, so the id of
		// this tree is not the one that git would compute. Mark the tree as invalid: otherwise git would write a commit
		// with this id.
		l.tree.Count = -1
		l.tree.Sub = slices.DeleteFunc(l.tree.Sub, func(s *Tree) bool { return s.Count == 0 })
	}
	slices.SortFunc(l.tree.Sub, func(a, b *Tree) int { return compareTrees(a.Name, b.Name) })
	slices.SortFunc(l.dir.Sub, func(a, b *Directory) int { return strings.Compare(a.Name, b.Name) })
}

// compareTrees compares two names in the order of the subdirectories in a cache tree: shorter names first.
func compareTrees(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// Index ends the walk and returns the index.
func (b *Builder) Index() (*Index, error) {
	if len(b.stack) == 0 {
		b.fail("there was no root")
	}
	if b.err != nil {
		return nil, b.err
	}
	// close the innermost directory first, because subdirectories precede parents
	for _, l := range slices.Backward(b.stack) {
		b.close(l)
	}
	root := b.stack[0]
	b.stack = nil
	b.addHidden(root.tree)
	// If the root has no id, the caller has passed no ids of trees. Then the index has no cache tree.
	if !root.tree.ID.IsZero() {
		b.x.Tree = root.tree
	}
	if b.o.Untracked != nil {
		// The Options of the caller are not modified.
		u := *b.o.Untracked
		u.Root = root.dir
		b.x.Untracked = &u
	}
	return &b.x, nil
}

// addHidden adds the hidden entries to the index, and counts them in the trees below root that contain them. These
// entries belong to the trees, so the trees stay valid. Below a tree that git must write again, the trees that contain
// hidden entries become invalid as well, because two directories of the same name may be joined in them.
func (b *Builder) addHidden(root *Tree) {
	for _, e := range b.hidden {
		at, found := slices.BinarySearchFunc(b.x.Entries, e, func(a, b Entry) int { return compare(&a, &b) })
		if found {
			continue
		}
		b.x.Entries = slices.Insert(b.x.Entries, at, e)
		t, rest, again := root, e.Path, false
		for {
			if again = again || t.Count < 0; again {
				t.Count = -1
			} else {
				t.Count++
			}
			name, below, deeper := strings.Cut(rest, "/")
			i := slices.IndexFunc(t.Sub, func(s *Tree) bool { return deeper && s.Name == name })
			if i < 0 {
				break
			}
			t, rest = t.Sub[i], below
		}
	}
}

// WriteTo ends the walk and writes the index file to w.
func (b *Builder) WriteTo(w io.Writer) (int64, error) {
	x, err := b.Index()
	if err != nil {
		return 0, err
	}
	return x.WriteTo(w)
}
