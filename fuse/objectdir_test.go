package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/object/loose"
	"github.com/artifactfs/artifactfs/odb/named"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// namedBlobs are Objects in memory.
type namedBlobs struct {
	away   atomic.Bool // whether contents cannot be fetched
	packed func(id object.ID) bool
	opened atomic.Int64 // number of calls of Opened
	read   atomic.Int64 // number of calls of Content

	mu      sync.Mutex
	blobs   map[object.ID]string
	fetched map[object.ID]bool // blobs whose contents were read
	grown   func()
}

func (n *namedBlobs) Format() object.Format { return object.SHA1 }

func (n *namedBlobs) Has(_ context.Context, id object.ID) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.blobs[id]
	return ok, nil
}

func (n *namedBlobs) Prefixed(_ context.Context, prefix uint64) (object.ID, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.blobs {
		if named.Prefix(id) == prefix {
			return id, true, nil
		}
	}
	return object.ID{}, false, nil
}

func (n *namedBlobs) From(first byte, _ object.ID) iter.Seq[object.ID] {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []object.ID
	for id := range n.blobs {
		if id.Bytes()[0] == first {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b object.ID) int { return bytes.Compare(a.Bytes(), b.Bytes()) })
	return slices.Values(ids)
}

func (n *namedBlobs) Opened(_ context.Context, _ uint32, id object.ID) (bool, error) {
	n.opened.Add(1)
	return n.packed != nil && n.packed(id), nil
}

func (n *namedBlobs) Swept(context.Context, object.ID) error { return nil }

func (n *namedBlobs) Size(id object.ID) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.fetched[id] {
		return -1
	}
	return int64(len(n.blobs[id]))
}

func (n *namedBlobs) Content(_ context.Context, id object.ID) (worktree.Content, error) {
	n.read.Add(1)
	if n.away.Load() {
		return nil, errors.New("the remote is away")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fetched[id] = true
	return inMemory{strings.NewReader(n.blobs[id])}, nil
}

func (n *namedBlobs) Watch(grown func()) func() {
	n.grown = grown
	return func() {}
}

// add adds a blob, as if a tree with it had come, and returns its id.
func (n *namedBlobs) add(content string) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, []byte(content))
	if err != nil {
		panic(err)
	}
	n.mu.Lock()
	n.blobs[id] = content
	n.mu.Unlock()
	if n.grown != nil {
		n.grown()
	}
	return id
}

// inMemory is a worktree.Content.
type inMemory struct{ *strings.Reader }

func (inMemory) Release() {}

// shown is a mount with an object directory, and a repository that has it as its only alternate.
type shown struct {
	*mounted
	objects *namedBlobs
	repo    string
}

func showObjects(t *testing.T, readOnly bool) *shown {
	t.Helper()
	s := &shown{objects: &namedBlobs{blobs: map[object.ID]string{}, fetched: map[object.ID]bool{}}, repo: filepath.Join(t.TempDir(), "repo.git")}
	src := worktreetest.New(map[string]worktreetest.File{"a": {Data: "a"}})
	state := t.TempDir()
	o, overlay := Options{ReadOnly: readOnly, Objects: s.objects}, filepath.Join(state, "overlay")
	if readOnly {
		overlay = ""
	}
	s.mounted = mountTree(t, src, filepath.Join(state, "inodes"), overlay, o)
	if out, err := s.try("init", "--quiet", "--bare", s.repo); err != nil {
		t.Fatal(err, out)
	}
	alternates := filepath.Join(s.repo, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(s.path(loose.DirName)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// try runs git in the repository.
func (s *shown) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := gitcmd.Output(gitcmd.Isolated(ctx, append([]string{"--git-dir=" + s.repo}, args...)...))
	return string(out), err
}

// git is try for a command that must succeed.
func (s *shown) git(args ...string) string {
	s.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// Blobs of all sizes can be read, whether the kernel has a writeback cache or not. A look-up reads no contents.
func TestObjectDirectory(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		t.Run(fmt.Sprintf("read-only %v", readOnly), func(t *testing.T) {
			s := showObjects(t, readOnly)
			for _, n := range []int{0, 1, 100, 4070, 4071, 4072, 4073, 4074, 4075, 4096, 65_524, 70_000, 300_000} {
				content := strings.Repeat("0123456789abcde\n", n/16+1)[:n]
				id := s.objects.add(content)
				s.git("cat-file", "-e", id.String())
				if read := s.objects.read.Load(); read != 0 {
					t.Errorf("git cat-file -e read contents %d times", read)
				}
				for range 2 {
					if got := s.git("cat-file", "blob", id.String()); got != content {
						t.Errorf("blob of %d bytes: got %d other bytes", n, len(got))
					}
				}
				form, err := os.ReadFile(s.path(filepath.Join(loose.DirName, id.String()[:2], id.String()[2:])))
				if err != nil || int64(len(form)) != loose.Size(int64(n)) {
					t.Errorf("loose form of %d bytes: got %d bytes, %v, want %d", n, len(form), err, loose.Size(int64(n)))
				}
				s.objects.read.Store(0)
			}
			if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 1 {
				t.Errorf("the root contains %v, %v, want one file", entries, err)
			}
		})
	}
}

// A blob that trees do not name is absent, and the kernel does not ask twice. When trees come that name it, git finds it.
func TestObjectsThatCome(t *testing.T) {
	s := showObjects(t, false)
	s.objects.add("one")
	two, err := object.Hash(object.SHA1, object.Blob, []byte("two"))
	if err != nil {
		t.Fatal(err)
	}
	link := s.path(filepath.Join(loose.DirName, two.String()[:2], two.String()[2:]))
	for range 3 {
		if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("blob that no tree names: got %v, want that it does not exist", err)
		}
	}
	undisturbed(t, func() (errs []error) {
		if r := s.requests(func() { os.Lstat(link) }); total(r) != 0 {
			errs = append(errs, fmt.Errorf("third look-up of an absent blob: got requests %v, want none", r))
		}
		return errs
	})
	s.objects.add("two")
	if got := s.git("cat-file", "blob", two.String()); got != "two" {
		t.Errorf("blob that trees name now: got %q, want two", got)
	}
}

// If contents cannot be fetched, git fails and does not report the blob as missing. git fsck without contents succeeds.
func TestObjectsOfARemoteThatIsAway(t *testing.T) {
	s := showObjects(t, false)
	id := s.objects.add("content")
	s.objects.away.Store(true)
	s.git("cat-file", "-e", id.String())
	if _, err := os.ReadFile(s.path(filepath.Join(loose.DirName, "contents", id.String()))); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of a blob while the remote is away: got %v, want EIO", err)
	}
	if _, err := s.try("cat-file", "blob", id.String()); err == nil {
		t.Error("git cat-file succeeded while the remote is away")
	}
	s.objects.away.Store(false)
	if got := s.git("cat-file", "blob", id.String()); got != "content" {
		t.Errorf("blob after the remote has come back: got %q, want content", got)
	}
}

// If the contents were put into a pack, the file of the blob does not exist for programs that open it.
func TestPackedObjects(t *testing.T) {
	s := showObjects(t, false)
	id := s.objects.add("content")
	s.objects.packed = func(object.ID) bool { return true }
	path := s.path(filepath.Join(loose.DirName, "contents", id.String()))
	if f, err := os.Open(path); !errors.Is(err, os.ErrNotExist) {
		f.Close()
		t.Errorf("open of a packed blob: got %v, want that it does not exist", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("stat of a packed blob: %v", err)
	}
}

// git writes its own copy of a blob that it has at hand, although the blob seems to exist.
func TestObjectsThatGitWrites(t *testing.T) {
	s := showObjects(t, false)
	content := "content"
	id := s.objects.add(content)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	s.git("hash-object", "-w", file)
	if _, err := os.Stat(filepath.Join(s.repo, "objects", id.String()[:2], id.String()[2:])); err != nil {
		t.Errorf("git relies on a blob that is not on this host: %v", err)
	}
}

// Listings are empty, except for programs that need a list of all objects.
func TestListedObjects(t *testing.T) {
	s := showObjects(t, false)
	var want []string
	for i := range 300 {
		want = append(want, s.objects.add(fmt.Sprint(i)).String())
	}
	slices.Sort(want)
	if got := s.git("count-objects"); got != "0 objects, 0 kilobytes\n" {
		t.Errorf("git count-objects printed %q", got)
	}
	got := strings.Fields(s.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
	if !slices.Equal(got, want) {
		t.Errorf("git cat-file --batch-all-objects: got %d objects, want %d", len(got), len(want))
	}
	if out, err := s.try("fsck", "--no-dangling"); err != nil {
		t.Errorf("git fsck: %v\n%s", err, out)
	}
}

// Programs cannot change the object directory, nor create or remove its name.
func TestObjectDirectoryIsReadOnly(t *testing.T) {
	s := showObjects(t, false)
	id := s.objects.add("content")
	dir := s.path(loose.DirName)
	for name, err := range map[string]error{
		"remove":  syscall.Rmdir(dir),
		"rename":  os.Rename(dir, s.path("b")),
		"replace": os.Rename(s.path("a"), dir),
		"create":  os.WriteFile(filepath.Join(dir, "contents", "x"), nil, 0o644),
		"utime":   syscall.Utimes(filepath.Join(dir, "contents", id.String()), make([]syscall.Timeval, 2)),
		"unlink":  os.Remove(filepath.Join(dir, id.String()[:2], id.String()[2:])),
		"link":    os.Link(filepath.Join(dir, "contents", id.String()), s.path("b")),
	} {
		if err == nil {
			t.Errorf("%s: succeeded", name)
		}
	}
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, os.ErrExist) {
		t.Errorf("mkdir: got %v, want that the directory exists", err)
	}
}
