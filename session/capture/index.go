package capture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// fileStat holds the attributes of a file that change whenever it is replaced by a new file. Git always replaces the
// index by a new file, so equal attributes mean that the index has not changed.
type fileStat struct {
	Ino, Size    int64
	Mtime, Ctime int64 // nanoseconds since 1970
}

// statOf returns the attributes of a file, or zero attributes if the file does not exist.
func statOf(name string) (fileStat, error) {
	var st syscall.Stat_t
	err := syscall.Stat(name, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return fileStat{}, nil
	}
	return fileStat{int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, err
}

// staging makes a tree from the entries of an index.
type staging struct {
	c      *Capturer
	out    *output
	copier *session.Copier
	// tracked states how many of the trees in the parameter against of the methods determine which paths are tracked:
	// the first ones, HEAD's tree and the base tree. An index entry that equals the entry at the same path of any tree
	// in against needs no check.
	tracked int
}

// readIndex returns the user's index and the attributes of the index file. The parameter head is the id of HEAD's tree.
// If neither the attributes nor head have changed since the previous checkpoint, readIndex returns the index of that
// checkpoint without reading the file.
func (c *Capturer) readIndex(ctx context.Context, out *output, copier *session.Copier,
	head object.ID) (session.Index, fileStat, error) {
	name := filepath.Join(c.o.GitDir, "index")
	st, err := statOf(name)
	if err != nil {
		return session.Index{}, st, fmt.Errorf("read index: %w", err)
	}
	// git replaces the index by rename, so an unchanged inode, size and time mean unchanged contents.
	if c.mem.Index.isUnchanged(st, head) {
		x, err := c.mem.Index.index()
		if err == nil {
			return x, st, nil
		}
	}
	s := &staging{c: c, out: out, copier: copier, tracked: 2}
	made, err := s.file(ctx, name, st, []object.ID{head, c.o.BaseTree, c.mem.Index.tracking().index.Tree})
	if err != nil {
		return session.Index{}, st, fmt.Errorf("read index: %w", err)
	}
	return made, st, nil
}

// file makes the tree of the index file called name, which has the attributes st. A missing file counts as an empty
// index.
func (s *staging) file(ctx context.Context, name string, st fileStat, against []object.ID) (session.Index, error) {
	if st == (fileStat{}) {
		return s.index(ctx, &index.Index{Format: s.c.format}, against)
	}
	text, err := disk.ReadRegular(name, disk.LargeFile)
	if err != nil {
		return session.Index{}, err
	}
	// An index without special entries is read without parsing each entry, because the trees that git caches in the index
	// show which directories are unchanged.
	if o, err := index.ReadOutline(s.c.format, text); err == nil {
		id, err := s.root(ctx, o, o.Len(), o.Tree, against)
		return session.Index{Tree: id}, err
	}
	// ReadOutline does not support every valid file. Read supports all valid files, and returns an error for an invalid
	// file.
	x, err := index.Read(s.c.format, text)
	if errors.Is(err, index.ErrSplit) {
		x, err = s.c.joinedIndex(ctx, name)
	}
	if err != nil {
		return session.Index{}, err
	}
	return s.index(ctx, x, against)
}

// entries is a list of index entries that is sorted by path.
type entries interface {
	// Entry returns entry i.
	Entry(i int) (index.Entry, error)
	// Search returns the number of the first of the entries lo to hi-1 whose path is not less than path, or hi if there
	// is none.
	Search(lo, hi int, path string) int
}

// listed implements entries for a parsed index.
type listed []index.Entry

// Entry implements entries.
func (l listed) Entry(i int) (index.Entry, error) { return l[i], nil }

// Search implements entries.
func (l listed) Search(lo, hi int, path string) int {
	i, _ := slices.BinarySearchFunc(l[lo:hi], path,
		func(e index.Entry, path string) int { return strings.Compare(e.Path, path) })
	return lo + i
}

// index makes the tree of a parsed index. Entries that a tree cannot hold, such as conflicts, are returned in Special.
func (s *staging) index(ctx context.Context, x *index.Index, against []object.ID) (session.Index, error) {
	var made session.Index
	plain := x.Entries
	for i := range x.Entries {
		e := &x.Entries[i]
		// A tree describes a plain entry completely, so only entries with a flag or a conflict stage become special entries.
		if e.Stage == 0 && !e.AssumeValid && !e.SkipWorktree && !e.IntentToAdd || e.Mode == object.ModeDir {
			continue
		}
		special := session.IndexEntry{Path: e.Path, Mode: e.Mode, ID: e.ID, Stage: e.Stage, AssumeValid: e.AssumeValid,
			SkipWorktree: e.SkipWorktree, IntentToAdd: e.IntentToAdd}
		// The command "git add -N" records a path without contents, so the id in its index entry has no meaning.
		if e.IntentToAdd {
			special.ID = object.ID{}
		}
		made.Special = append(made.Special, special)
		// The blobs of a conflict may exist only in the mount's git directory.
		if e.Stage != 0 && e.Mode.IsBlob() {
			if err := s.copier.Blob(e.ID); err != nil {
				return made, err
			}
		}
	}
	if slices.ContainsFunc(made.Special, func(e session.IndexEntry) bool { return e.Stage != 0 || e.IntentToAdd }) {
		plain = slices.DeleteFunc(slices.Clone(plain), func(e index.Entry) bool { return e.Stage != 0 || e.IntentToAdd })
	}
	var err error
	made.Tree, err = s.root(ctx, listed(plain), len(plain), x.Tree, against)
	return made, err
}

// root makes the root tree from the first n entries of all. It makes the empty tree if n is 0.
func (s *staging) root(ctx context.Context, all entries, n int, cached *index.Tree,
	against []object.ID) (object.ID, error) {
	id, err := s.dir(ctx, all, 0, n, "", cached, against)
	if err == nil && id.IsZero() {
		id, err = s.out.tree(nil)
	}
	return id, err
}

// dir makes the tree of one directory from the entries lo to hi-1, which are all entries below that directory. The
// directory's path ends in a slash, or is "" for the root. dir returns the zero id if there are no entries. The
// parameter cached is the tree that git has cached for the directory in the index, or nil. The list against contains
// the trees of the same directory in HEAD, in the base tree and in the previous index.
func (s *staging) dir(ctx context.Context, all entries, lo, hi int, path string, cached *index.Tree,
	against []object.ID) (object.ID, error) {
	// If git's cached tree is valid and exists on this host or on the mounted remote, its entries need not be examined.
	if cached != nil && cached.Count >= 0 && !cached.ID.IsZero() && lo < hi &&
		(slices.Contains(against, cached.ID) || s.c.o.Repo.Owned(cached.ID) || s.c.o.Repo.Remotes(cached.ID)) {
		return cached.ID, nil
	}
	var refs [][]object.TreeEntry
	for _, id := range against {
		list, err := s.c.readTree(ctx, id)
		if err != nil {
			return object.ID{}, err
		}
		refs = append(refs, list)
	}
	var made []object.TreeEntry
	for lo < hi {
		e, err := all.Entry(lo)
		if err != nil {
			return object.ID{}, err
		}
		name, _, deep := strings.Cut(e.Path[len(path):], "/")
		if !deep || e.Mode == object.ModeDir { // the entry is a file, or a directory entry of a sparse index
			lo++
			entry := object.TreeEntry{Name: name, Mode: e.Mode, ID: e.ID}
			keep, err := s.entry(e.Path, entry, refs)
			if err != nil {
				return object.ID{}, err
			}
			if keep {
				made = append(made, entry)
			}
			continue
		}
		below := path + name + "/"
		end := all.Search(lo, hi, path+name+"0") // '0' follows '/'
		var sub *index.Tree
		if cached != nil {
			if i := slices.IndexFunc(cached.Sub, func(t *index.Tree) bool { return t.Name == name }); i >= 0 {
				sub = cached.Sub[i]
			}
		}
		there := make([]object.ID, len(refs))
		for i, r := range refs {
			if e, _ := find(r, name); e.Mode == object.ModeDir {
				there[i] = e.ID
			}
		}
		id, err := s.dir(ctx, all, lo, end, below, sub, there)
		if err != nil {
			return object.ID{}, err
		}
		if !id.IsZero() {
			made = append(made, object.TreeEntry{Name: name, Mode: object.ModeDir, ID: id})
		}
		lo = end
	}
	if len(made) == 0 {
		return object.ID{}, nil
	}
	return s.out.tree(made)
}

// entry reports whether an index entry belongs in the tree, and copies its blob if the blob is new. A file that was
// staged but never committed does not belong in the tree if it looks like a secret or is excluded. refs are the entries
// of the same directory in other trees.
func (s *staging) entry(path string, e object.TreeEntry, refs [][]object.TreeEntry) (keep bool, err error) {
	tracked := false
	for i, r := range refs {
		was, ok := find(r, e.Name)
		// An entry that is equal in one of the trees is committed, or was checked for the previous checkpoint. Skip the
		// checks below.
		if ok && was == e {
			return true, nil
		}
		tracked = tracked || ok && i < s.tracked
	}
	if !tracked && !s.c.rules.include.covers(path, false) &&
		(s.c.rules.secret(path) || s.c.rules.exclude.covers(path, false)) {
		return false, nil
	}
	if e.Mode.IsBlob() {
		return true, s.copier.Blob(e.ID)
	}
	return true, nil
}

// joinedIndex reads a split index, which consists of two files. It lets git join the two parts in a temporary copy.
func (c *Capturer) joinedIndex(ctx context.Context, name string) (*index.Index, error) {
	dir, err := os.MkdirTemp("", "artifactfs-index-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	// The copy contains only the id of the shared index file, and git looks for the shared index file in the git
	// directory.
	copied := filepath.Join(dir, "index")
	text, err := disk.ReadRegular(name, disk.LargeFile)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		return nil, err
	}
	if _, err := c.git(ctx, gitRun{env: []string{"GIT_INDEX_FILE=" + copied}}, "-c", "core.splitIndex=false",
		"update-index",
		"--no-split-index", "--force-write-index"); err != nil {
		return nil, err
	}
	if text, err = os.ReadFile(copied); err != nil {
		return nil, err
	}
	return index.Read(c.format, text)
}
