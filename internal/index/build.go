package index

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Options say what a born-clean index holds besides its entries.
type Options struct {
	Format  object.Format
	Version uint32 // 2 or 4
	Token   string // of the file system monitor; "": none
	// Untracked tells all of it but Root, which the walk gives; nil: git looks for untracked files itself.
	Untracked *Untracked
	Files     int // about as many as the walk will tell, so that there is room for them; 0: not known
	// Ignore gives the id that git compares with an ignore file's content (see Directory.Ignore), if it is known; nil: of none.
	Ignore func(e Entry) (object.ID, bool)
}

// Builder makes the index of a working tree that nobody has changed, from a walk over it.
type Builder struct {
	o     Options
	x     Index
	stack []*level // the directories that the walk is in, the root first
	err   error
}

// level is a directory that the walk is in.
type level struct {
	path  string // with a slash behind; the root's is ""
	tree  *Tree
	dir   *Directory
	start int // entries before it
}

// NewBuilder starts an index.
func NewBuilder(o Options) *Builder {
	b := &Builder{o: o}
	b.x = Index{Format: o.Format, Version: o.Version, Token: o.Token, Entries: make([]Entry, 0, o.Files)}
	return b
}

// Dir says that the walk enters a directory; the root has the path "". Directories and entries come in git's order.
func (b *Builder) Dir(dir string, id object.ID, stat Stat) {
	if dir == "" {
		if len(b.stack) > 0 || len(b.x.Entries) > 0 {
			b.fail("the root is not the first")
			return
		}
		b.stack = []*level{{tree: &Tree{ID: id}, dir: &Directory{Valid: true, Stat: stat}}}
		return
	}
	up := b.leave(dir)
	if up == nil {
		return
	}
	l := &level{path: dir + "/", tree: &Tree{Name: path.Base(dir), ID: id}, dir: &Directory{Name: path.Base(dir), Valid: true, Stat: stat}, start: len(b.x.Entries)}
	up.tree.Sub = append(up.tree.Sub, l.tree)
	up.dir.Sub = append(up.dir.Sub, l.dir)
	b.stack = append(b.stack, l)
}

// Add adds a file, link or gitlink.
func (b *Builder) Add(e Entry) {
	up := b.leave(e.Path)
	if up == nil {
		return
	}
	if b.o.Untracked != nil && e.Mode != object.ModeGitlink && e.Path == up.path+b.o.Untracked.PerDirectory {
		b.ignoreFile(up.dir, e)
	}
	b.x.Entries = append(b.x.Entries, e)
}

// ignoreFile notes that a directory has an ignore file. If git's id of it is not known, the directory is called one
// without: git then does not read the file until the directory changes, finds then that there is one, and looks at all
// below anew. Stat data that fits nothing makes git do the same when it has no monitor to trust. With ShowAll that would
// not do: a change would leave the directories above the changed one as they are, and their rules unread.
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

// FillIgnored tells ids of ignore files that were not known when the index was built (see Options.Ignore), and says how many.
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
		if d == nil || !d.Valid || !d.Ignore.IsZero() {
			continue
		}
		if d.Ignore, ok = id(*e); ok {
			filled++
		}
	}
	return filled
}

// leave leaves the directories that do not hold path and gives the one that does.
func (b *Builder) leave(path string) *level {
	for i := len(b.stack) - 1; i >= 0; i-- {
		l := b.stack[i]
		if name, ok := strings.CutPrefix(path, l.path); ok {
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

func (b *Builder) fail(what string) {
	if b.err == nil {
		b.err = fmt.Errorf("build index: %s", what)
	}
}

// close ends a directory: its entries are known, and its children come into the orders in which git searches them.
func (b *Builder) close(l *level) {
	l.tree.Count = len(b.x.Entries) - l.start
	if slices.ContainsFunc(l.tree.Sub, func(s *Tree) bool { return s.Count <= 0 }) {
		// A directory without a file is in the tree that was walked, and in no tree that git writes: it would be committed.
		l.tree.Count = -1
		l.tree.Sub = slices.DeleteFunc(l.tree.Sub, func(s *Tree) bool { return s.Count == 0 })
	}
	slices.SortFunc(l.tree.Sub, func(a, b *Tree) int { return compareTrees(a.Name, b.Name) })
	slices.SortFunc(l.dir.Sub, func(a, b *Directory) int { return strings.Compare(a.Name, b.Name) })
}

// compareTrees is the order of a cache tree's children.
func compareTrees(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// Index ends the walk and gives what was built.
func (b *Builder) Index() (*Index, error) {
	if len(b.stack) == 0 {
		b.fail("there was no root")
	}
	if b.err != nil {
		return nil, b.err
	}
	for _, l := range slices.Backward(b.stack) { // a directory needs to know what is below it
		b.close(l)
	}
	root := b.stack[0]
	b.stack = nil
	if !root.tree.ID.IsZero() {
		b.x.Tree = root.tree
	}
	if b.o.Untracked != nil {
		u := *b.o.Untracked
		u.Root = root.dir
		b.x.Untracked = &u
	}
	return &b.x, nil
}

// WriteTo ends the walk and writes the index file.
func (b *Builder) WriteTo(w io.Writer) (int64, error) {
	x, err := b.Index()
	if err != nil {
		return 0, err
	}
	return x.WriteTo(w)
}
