package checkout_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// files is a model of a working tree or of a git tree: it contains every file and link by path. A directory exists if
// the model has a path below it.
type files map[string]worktreetest.File

func (f files) String() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&b, "\n  %o %s: %q", uint32(modeOf(f[p])), p, f[p].Data)
	}
	return b.String()
}

func modeOf(f worktreetest.File) object.Mode {
	if f.Mode == 0 {
		return object.ModeFile
	}
	return f.Mode
}

// below returns a path of f that is below a directory, or "" if there is none.
func (f files) below(dir string) string {
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if strings.HasPrefix(p, dir+"/") {
			return p
		}
	}
	return ""
}

// above returns the path of a file of f that is in the place of a parent directory of at, or "" if there is none.
func (f files) above(at string) string {
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		if _, ok := f[dir]; ok {
			return dir
		}
	}
	return ""
}

// put sets a path, and removes paths that are in the way.
func (f files) put(at string, file worktreetest.File) {
	for p := f.below(at); p != ""; p = f.below(at) {
		delete(f, p)
	}
	if p := f.above(at); p != "" {
		delete(f, p)
	}
	f[at] = file
}

// rounds returns n, or a fifth of n in short mode: each round starts git about ten times.
func rounds(n int) uint64 {
	if testing.Short() {
		n /= 5
	}
	return uint64(n)
}

// randomPath returns one of a small number of paths, so that two random trees often have the same path, also with a
// file in one and a directory in the other.
func randomPath(r *rand.Rand) string {
	parts := []string{[]string{"a", "b", "c"}[r.IntN(3)]}
	for r.IntN(2) == 0 && len(parts) < 3 {
		parts = append(parts, []string{"a", "b", "x"}[r.IntN(3)])
	}
	return strings.Join(parts, "/")
}

func randomFile(r *rand.Rand) worktreetest.File {
	f := worktreetest.File{Data: fmt.Sprintf("%d\n", r.IntN(3))}
	switch r.IntN(8) {
	case 0:
		f.Mode = object.ModeExec
	case 1:
		f = worktreetest.File{Mode: object.ModeSymlink, Data: fmt.Sprintf("target%d", r.IntN(2))}
	}
	return f
}

func randomFiles(r *rand.Rand) files {
	f := files{".gitignore": {Data: "x\n"}}
	for range 2 + r.IntN(7) {
		f.put(randomPath(r), randomFile(r))
	}
	return f
}

// near returns a copy of f with a few changed paths, because two commits usually have most files in common.
func near(r *rand.Rand, f files) files {
	g := maps.Clone(f)
	for range 1 + r.IntN(5) {
		if at := randomPath(r); r.IntN(3) == 0 {
			delete(g, at)
		} else {
			g.put(at, randomFile(r))
		}
	}
	return g
}

// world is a working tree without a mount, and a git directory for it, below one directory that can be copied.
type world struct {
	testing.TB
	dir  string
	src  *worktreetest.Source
	tree *worktree.Tree
	git  *gitdir.Dir
	root object.ID // base tree
	fs   disk.FS   // file system of the working tree's files; if nil, that of the operating system
}

// repo is a git repository with one commit for each of some trees. Worlds are created as copies of it.
type repo struct {
	dir   string
	src   *worktreetest.Source
	trees []object.ID
}

func run(t testing.TB, dir string, stdin []byte, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, nil, args...)
	if err != nil {
		t.Fatalf("run git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// newRepo creates a repository with a commit and a branch for each tree. HEAD is the first branch, "tree0".
func newRepo(t testing.TB, trees ...files) *repo {
	t.Helper()
	r := &repo{dir: filepath.Join(t.TempDir(), "repo")}
	must(t, filepath.Dir(r.dir), "git", "init", "-q", "-b", "tree0", r.dir)
	var stream bytes.Buffer
	for i, f := range trees {
		fmt.Fprintf(&stream, "commit refs/heads/tree%d\nmark :%d\ncommitter a <a@b> 1700000000 +0000\ndata 1\nx\ndeleteall\n",
			i, i+1)
		for _, p := range slices.Sorted(maps.Keys(f)) {
			fmt.Fprintf(&stream, "M %o inline %s\ndata %d\n%s\n", uint32(modeOf(f[p])), p, len(f[p].Data), f[p].Data)
		}
		if i == 0 {
			r.src = worktreetest.New(f)
			r.trees = append(r.trees, r.src.Root)
		} else {
			r.trees = append(r.trees, r.src.Add(f))
		}
	}
	if out, err := run(t, r.dir, stream.Bytes(), "git", "fast-import", "--quiet", "--force"); err != nil {
		t.Fatalf("git fast-import: %v\n%s", err, out)
	}
	for i, want := range r.trees {
		if got := strings.TrimSpace(must(t, r.dir, "git", "rev-parse",
			fmt.Sprintf("tree%d^{tree}", i))); got != want.String() {
			t.Fatalf("tree %d of git: got %s, want %s", i, got, want)
		}
	}
	must(t, r.dir, "git", "read-tree", "--reset", "-u", "HEAD")
	return r
}

// world creates a working tree that shows the repository's first commit.
func (r *repo) world(t testing.TB) *world {
	t.Helper()
	return r.worldOn(t, nil)
}

// worldOn creates a working tree like world, with its files on the file system on.
func (r *repo) worldOn(t testing.TB, on disk.FS) *world {
	t.Helper()
	w := &world{TB: t, dir: filepath.Join(t.TempDir(), "world"), src: r.src, root: r.trees[0], fs: on}
	for _, dir := range []string{"home", "overlay"} {
		w.must(os.MkdirAll(filepath.Join(w.dir, dir), 0o755))
	}
	must(t, r.dir, "cp", "-a", r.dir, filepath.Join(w.dir, "top"))
	w.open()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// open opens the working tree as a process does that starts to serve it.
func (w *world) open() {
	w.Helper()
	tree, err := worktree.Open(filepath.Join(w.dir, "inodes"), w.src, worktree.Options{
		FS: w.fs, Root: w.root, Time: time.Unix(1700000000, 0), Overlay: filepath.Join(w.dir, "overlay"),
		Journal: filepath.Join(w.dir, "journal"),
	})
	w.must(err)
	w.tree = tree
	w.Cleanup(func() { tree.Close() })
	top := filepath.Join(w.dir, "top")
	w.git = gitdir.Reopen(filepath.Join(top, ".git"), gitdir.Options{Format: object.SHA1, WorkTree: top})
}

// home returns the directory in which intents are recorded.
func (w *world) home() string { return filepath.Join(w.dir, "home") }

// checkout returns a Checkout that uses the journal j.
func (w *world) checkout(j *Journal) *Checkout {
	return &Checkout{
		Refuses: func(string) error { return nil },
		Tree:    w.tree, Kernel: kernel{}, Mark: &mark{}, Mounts: nothing{}, Git: exported{w.git, w},
		Refs: w.git, Journal: j,
		Trees: w.src.Tree, Log: zap.NewNop(), Base: w.root,
		Lock: func(ctx context.Context) (Index, error) {
			lock, err := w.git.LockIndex(ctx)
			if err != nil {
				return nil, err
			}
			return lock, nil
		},
		Device: func() (uint32, error) { return 1, nil },
		Added:  w.tree.Overlay().Added, Redirects: func() []string { return nil }, Show: func(object.ID) {},
		Notify: func([]worktree.ChangedName) {},
	}
}

type (
	kernel  struct{}
	mark    struct{ stale bool }
	nothing struct{}
)

func (kernel) Refresh([]worktree.Node)   {}
func (kernel) Invalidate(worktree.Stale) {}
func (m *mark) Stale() bool              { return m.stale }
func (m *mark) SetStale(stale bool)      { m.stale = stale }
func (nothing) On(string) bool           { return false }
func (nothing) Below(string) bool        { return false }

// exported implements git for a world that has no mount. It runs git in a plain directory with the same files as the
// working tree.
type exported struct {
	*gitdir.Dir
	w *world
}

func (e exported) Modified(ctx context.Context, paths []string) ([]string, error) {
	e.w.export()
	return e.Dir.Modified(ctx, paths)
}

func (e exported) Ignored(ctx context.Context, paths []string) ([]string, error) {
	e.w.export()
	return e.Dir.Ignored(ctx, paths)
}

// export makes the files of the plain directory equal to those of the working tree.
func (w *world) export() {
	w.Helper()
	top := filepath.Join(w.dir, "top")
	entries, err := os.ReadDir(top)
	w.must(err)
	for _, e := range entries {
		if e.Name() != ".git" {
			w.must(os.RemoveAll(filepath.Join(top, e.Name())))
		}
	}
	for p, f := range w.shown() {
		plainWrite(w, top, p, f)
	}
}

func plainWrite(t testing.TB, top, at string, f worktreetest.File) {
	t.Helper()
	name := filepath.Join(top, at)
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	switch {
	case err != nil:
	case f.Mode == object.ModeSymlink:
		err = os.Symlink(f.Data, name)
	default:
		perm := fs.FileMode(0o644)
		if f.Mode == object.ModeExec {
			perm = 0o755
		}
		err = os.WriteFile(name, []byte(f.Data), perm)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// plain returns the files of a plain directory without .git.
func plain(t testing.TB, top string) files {
	t.Helper()
	f := files{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == ".git" {
				return fs.SkipDir
			}
			return err
		}
		file := worktreetest.File{}
		if d.Type()&fs.ModeSymlink != 0 {
			file.Mode = object.ModeSymlink
			file.Data, err = os.Readlink(name)
		} else {
			var text []byte
			text, err = os.ReadFile(name)
			st, statErr := d.Info()
			if err = errors.Join(err, statErr); err == nil && st.Mode()&0o100 != 0 {
				file.Mode = object.ModeExec
			}
			file.Data = string(text)
		}
		at, _ := filepath.Rel(top, name)
		f[at] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shown returns the files of the working tree without empty directories.
func (w *world) shown() files {
	w.Helper()
	f := w.withDirs()
	maps.DeleteFunc(f, func(_ string, file worktreetest.File) bool { return file.Mode == object.ModeDir })
	return f
}

// withDirs returns the files of the working tree, including empty directories.
func (w *world) withDirs() files {
	w.Helper()
	f := files{}
	w.walk(worktree.Root, "", f)
	return f
}

func (w *world) walk(dir worktree.Node, prefix string, into files) {
	w.Helper()
	ctx := w.Context()
	list := map[string]worktree.Node{}
	w.must(w.tree.ReadDir(ctx, dir, 0, func(e worktree.Entry) bool {
		list[strings.Clone(e.Name)] = e.Node
		return true
	}))
	if len(list) == 0 && prefix != "" {
		into[strings.TrimSuffix(prefix, "/")] = worktreetest.File{Mode: object.ModeDir}
	}
	for name, n := range list {
		a, err := w.tree.Attr(ctx, n)
		w.must(err)
		switch a.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			w.walk(n, prefix+name+"/", into)
		case syscall.S_IFLNK:
			target, err := w.tree.Readlink(ctx, n)
			w.must(err)
			into[prefix+name] = worktreetest.File{Mode: object.ModeSymlink, Data: string(target)}
		default:
			p := make([]byte, a.Size)
			_, err := w.tree.Read(ctx, n, p, 0)
			w.must(err)
			file := worktreetest.File{Data: string(p)}
			if a.Mode&0o100 != 0 {
				file.Mode = object.ModeExec
			}
			into[prefix+name] = file
		}
	}
}

// remove removes a path, and parent directories that are then empty. It returns false if the path does not exist.
func (w *world) remove(at string) bool {
	w.Helper()
	for first := true; ; first = false {
		dir, err := w.tree.Resolve(w.Context(), path.Dir(at))
		if err != nil {
			return false
		}
		if first {
			err = w.tree.Unlink(w.Context(), dir, path.Base(at))
			if errors.Is(err, worktree.ErrNotExist) || errors.Is(err, syscall.EISDIR) || errors.Is(err, worktree.ErrNotDir) {
				return false
			}
		} else {
			err = w.tree.Rmdir(w.Context(), dir, path.Base(at))
			if errors.Is(err, syscall.ENOTEMPTY) {
				return true
			}
		}
		w.must(err)
		if at = path.Dir(at); at == "." {
			return true
		}
	}
}

// write creates a file or link and its parent directories. Files in the way must have been removed. An existing file of
// the same type is overwritten in place.
func (w *world) write(at string, f worktreetest.File) {
	w.Helper()
	ctx := w.Context()
	dir := worktree.Root
	for _, name := range strings.Split(path.Dir(at), "/") {
		if name == "." {
			break
		}
		a, err := w.tree.Lookup(ctx, dir, name)
		if errors.Is(err, worktree.ErrNotExist) {
			a, err = w.tree.Mkdir(ctx, dir, name, 0o755, worktree.Cred{})
		}
		w.must(err)
		dir = a.Node
	}
	name := path.Base(at)
	a, err := w.tree.Lookup(ctx, dir, name)
	if err == nil && (f.Mode == object.ModeSymlink || a.Mode&syscall.S_IFMT == syscall.S_IFLNK ||
		(a.Mode&0o100 != 0) != (f.Mode == object.ModeExec)) {
		w.must(w.tree.Unlink(ctx, dir, name))
		err = worktree.ErrNotExist
	}
	if f.Mode == object.ModeSymlink {
		_, err = w.tree.Symlink(ctx, dir, name, f.Data, worktree.Cred{})
		w.must(err)
		return
	}
	if errors.Is(err, worktree.ErrNotExist) {
		perm := uint32(0o644)
		if f.Mode == object.ModeExec {
			perm = 0o755
		}
		a, err = w.tree.Mknod(ctx, dir, name, syscall.S_IFREG|perm, 0, worktree.Cred{})
	}
	w.must(err)
	_, err = w.tree.Write(ctx, a.Node, []byte(f.Data), 0, false)
	w.must(err)
}

// put changes the working tree as files.put changes a model.
func (w *world) put(at string, f worktreetest.File) {
	w.Helper()
	now := w.shown()
	for _, p := range slices.Sorted(maps.Keys(now)) {
		if strings.HasPrefix(p, at+"/") || strings.HasPrefix(at, p+"/") {
			w.remove(p)
		}
	}
	w.write(at, f)
}

// entries returns the entries of git's index as git ls-files --stage prints them.
func (w *world) entries() string {
	w.Helper()
	return must(w, filepath.Join(w.dir, "top"), "git", "ls-files", "--stage")
}
