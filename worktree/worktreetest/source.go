// Package worktreetest provides a worktree.Source for tests, whose objects are in memory. It counts the calls of its
// methods. A test can make requests for single objects wait or fail (see Rule).
package worktreetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// File is a file of a Source. A directory exists if it contains a file. A File with the mode object.ModeDir is an empty
// directory, and one with object.ModeGitlink a submodule.
type File struct {
	Mode object.Mode // 0 stands for a regular file that is not executable
	Data string
	// If OnDisk is not nil, the contents are Size bytes of this file, beginning at Offset, instead of Data; they can also
	// be spliced from the file. If OnDisk is nil, a Size other than 0 is a wrong size, which the Source returns until the
	// contents are opened.
	OnDisk *os.File
	Offset int64
	Size   int64
}

// Rule determines what a Source does with a request for an object.
type Rule struct {
	Delay time.Duration
	Block <-chan struct{} // the request waits until this channel is closed
	Err   error           // if not nil, the request returns this error and not the object
	Panic string          // if not "", the request panics with this value
}

// Source is a worktree.Source for tests. It has one or more trees, of which New creates the first.
type Source struct {
	Root object.ID

	// If KnowsSizes is true, KnownSize returns the size of every blob. Otherwise it returns only the sizes of blobs for
	// which Size or Open was called.
	KnowsSizes atomic.Bool

	// Searches makes Searched treat every process as a program that reads all files of the tree.
	Searches atomic.Bool

	trees map[object.ID][]object.TreeEntry
	blobs map[object.ID]File
	ids   map[string]object.ID               // IDs of the files and directories in the first tree, by path
	all   map[object.ID]map[string]object.ID // the same for every tree, by the ID of the root

	mu      sync.Mutex
	rules   map[object.ID]Rule
	known   map[object.ID]bool
	calls   map[string]int
	waiting map[object.ID]int
	open    int
}

var _ worktree.Source = (*Source)(nil)

// New returns a Source whose first tree contains files. The keys of files are paths with slashes.
func New(files map[string]File) *Source {
	s := &Source{
		trees: make(map[object.ID][]object.TreeEntry), blobs: make(map[object.ID]File),
		all:   make(map[object.ID]map[string]object.ID),
		rules: make(map[object.ID]Rule), known: make(map[object.ID]bool), calls: make(map[string]int),
		waiting: make(map[object.ID]int),
	}
	s.Root = s.Add(files)
	s.ids = s.all[s.Root]
	return s
}

// Add adds a tree that contains files, and returns the ID of its root.
func (s *Source) Add(files map[string]File) (root object.ID) {
	ids := make(map[string]object.ID)
	dirs := map[string][]object.TreeEntry{"": nil}
	for path, f := range files {
		if f.Mode == 0 {
			f.Mode = object.ModeFile
		}
		e := object.TreeEntry{Mode: f.Mode}
		if f.Mode == object.ModeDir {
			if _, ok := dirs[path]; !ok {
				dirs[path] = nil
			}
			addParents(dirs, path)
			continue
		}
		e.ID = hash(object.Blob, f.Data)
		if f.OnDisk != nil || f.Size != 0 {
			e.ID = hash(object.Blob, "content of "+path)
		}
		s.blobs[e.ID], ids[path] = f, e.ID
		dir := addParents(dirs, path)
		e.Name = path[strings.LastIndexByte(path, '/')+1:]
		dirs[dir] = append(dirs[dir], e)
	}
	root = s.build(dirs, ids)
	s.all[root] = ids
	return root
}

// addParents adds to dirs every missing directory above path. It returns the path of the directory that contains path.
func addParents(dirs map[string][]object.TreeEntry, path string) string {
	i := strings.LastIndexByte(path, '/')
	dir := path[:max(i, 0)]
	if _, ok := dirs[dir]; !ok {
		dirs[dir] = nil
		addParents(dirs, dir)
	}
	return dir
}

// build creates the trees, the deepest first, and returns the ID of the root tree.
func (s *Source) build(dirs map[string][]object.TreeEntry, ids map[string]object.ID) object.ID {
	paths := make([]string, 0, len(dirs))
	for path := range dirs {
		paths = append(paths, path)
	}
	// The path of a directory is a prefix of its children's paths, so in this order it follows them.
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(b, a) })
	for _, path := range paths {
		entries := dirs[path]
		var content strings.Builder
		slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(gitName(a), gitName(b)) })
		for _, e := range entries {
			fmt.Fprintf(&content, "%o %s\x00%s", uint32(e.Mode), e.Name, e.ID.Bytes())
		}
		id := hash(object.Tree, content.String())
		s.trees[id], ids[path] = entries, id
		if path != "" {
			i := strings.LastIndexByte(path, '/')
			dir := path[:max(i, 0)]
			dirs[dir] = append(dirs[dir], object.TreeEntry{Name: path[i+1:], Mode: object.ModeDir, ID: id})
		}
	}
	return ids[""]
}

func gitName(e object.TreeEntry) string {
	if e.Mode == object.ModeDir {
		return e.Name + "/"
	}
	return e.Name
}

func hash(t object.Type, content string) object.ID {
	id, err := object.Hash(object.SHA1, t, []byte(content))
	if err != nil {
		panic(err)
	}
	return id
}

// ID returns the ID of the object at path in the first tree.
func (s *Source) ID(path string) object.ID {
	id, ok := s.ids[path]
	if !ok {
		panic("no " + path)
	}
	return id
}

// SetTree replaces the entries of the directory at path in the first tree. The entries may be invalid.
func (s *Source) SetTree(path string, entries []object.TreeEntry) { s.trees[s.ID(path)] = entries }

// Rule sets the rule for later requests for the object at path in the first tree.
func (s *Source) Rule(path string, r Rule) { s.RuleIn(s.Root, path, r) }

// RuleIn sets the rule for the file or directory at a path in the tree with the ID root.
func (s *Source) RuleIn(root object.ID, path string, r Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.all[root][path]
	if !ok {
		panic("no " + path)
	}
	s.rules[id] = r
}

// Calls returns how often a method ("Tree", "Size" or "Open") was called.
func (s *Source) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Waiting returns the number of requests for the object at path that are waiting now.
func (s *Source) Waiting(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[s.ID(path)]
}

// Unreleased returns the number of contents that were opened and not released yet.
func (s *Source) Unreleased() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// obey counts a call of method for the object id, and applies the Rule for this object. It returns the error of the
// Rule or of ctx.
func (s *Source) obey(ctx context.Context, method string, id object.ID) error {
	s.mu.Lock()
	s.calls[method]++
	r := s.rules[id]
	s.waiting[id]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting[id]--
		s.mu.Unlock()
	}()
	if r.Panic != "" {
		panic(r.Panic)
	}
	if r.Delay > 0 {
		select {
		case <-time.After(r.Delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if r.Block != nil {
		select {
		case <-r.Block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return r.Err
}

// Tree returns the entries of the tree id.
func (s *Source) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if err := s.obey(ctx, "Tree", id); err != nil {
		return nil, err
	}
	entries, ok := s.trees[id]
	if !ok {
		return nil, fmt.Errorf("no tree %s", id)
	}
	return entries, nil
}

// Size returns the size of a blob, which KnownSize returns too from then on.
func (s *Source) Size(ctx context.Context, b worktree.Blob) (int64, error) {
	if err := s.obey(ctx, "Size", b.ID); err != nil {
		return 0, err
	}
	return s.size(b)
}

// size does the same as Size, without counting the call. It returns an error if the Source has no such blob at this
// path.
func (s *Source) size(b worktree.Blob) (int64, error) {
	f, ok := s.blobs[b.ID]
	if !ok || s.all[b.Tree][b.Path] != b.ID || b.Link != (f.Mode == object.ModeSymlink) {
		return 0, fmt.Errorf("no blob %s at %q", b.ID, b.Path)
	}
	s.mu.Lock()
	s.known[b.ID] = true
	s.mu.Unlock()
	return f.told(), nil
}

// told returns the size, in bytes, that the Source reports for the file.
func (f File) told() int64 {
	if f.Size != 0 {
		return f.Size
	}
	return int64(len(f.Data))
}

// KnownSize returns the size of a blob if Size or Open was called for the blob, or if KnowsSizes is set.
func (s *Source) KnownSize(b worktree.Blob) (int64, bool) {
	f, ok := s.blobs[b.ID]
	if !ok {
		return 0, false
	}
	if s.KnowsSizes.Load() {
		return f.told(), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.told(), s.known[b.ID]
}

// Looked does nothing.
func (s *Source) Looked(worktree.Blob) {}

// Here reports whether the size of a blob is known.
func (s *Source) Here(b worktree.Blob) bool { _, ok := s.KnownSize(b); return ok }

// Searched reports whether Searches is set, and whether path is the root.
func (s *Source) Searched(_ context.Context, path string) (target, ok bool) {
	return s.Searches.Load() && path == "", s.Searches.Load()
}

// Arriving returns false.
func (s *Source) Arriving() bool { return false }

// Open returns the contents of a blob.
func (s *Source) Open(ctx context.Context, b worktree.Blob) (worktree.Content, error) {
	if err := s.obey(ctx, "Open", b.ID); err != nil {
		return nil, err
	}
	if _, err := s.size(b); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	f := s.blobs[b.ID]
	if f.OnDisk != nil {
		return &diskContent{content{io.NewSectionReader(f.OnDisk, f.Offset, f.Size), s}, f}, nil
	}
	return &content{bytes.NewReader([]byte(f.Data)), s}, nil
}

// sizedReaderAt is an io.ReaderAt whose size is known.
type sizedReaderAt interface {
	io.ReaderAt
	Size() int64
}

// content is the contents of an open blob.
type content struct {
	sizedReaderAt
	source *Source
}

// Release records that the contents were released.
func (c *content) Release() {
	c.source.mu.Lock()
	defer c.source.mu.Unlock()
	c.source.open--
}

// diskContent is the contents of an open blob that are stored in a file.
type diskContent struct {
	content
	file File
}

// File returns the descriptor of the file, and the offset at which the contents begin.
func (c *diskContent) File() (fd uintptr, off int64) { return c.file.OnDisk.Fd(), c.file.Offset }
