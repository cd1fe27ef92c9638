package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
)

// world is a mounted repository and an ordinary clone of it, which share the git directory of the clone. Each change is
// made in both working trees.
type world struct {
	t      testing.TB
	ctx    context.Context
	dir    string
	plain  string // directory of the clone
	commit object.ID
	root   object.ID
	tree   *worktree.Tree
	repo   *session.Repo
	o      capture.Options
	c      *capture.Capturer
	opened map[string]int // number of times that contents were opened, by path
	keep   bool           // openTree makes the Tree keep removed files
	sealed int            // number of seals
}

// objects reads the objects of the clone for a Tree.
type objects struct {
	repo *session.Repo
	seen map[string]int
}

type content []byte

func (c content) Size() int64 { return int64(len(c)) }
func (c content) Release()    {}
func (c content) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(c).ReadAt(p, off)
}

func (o objects) Tree(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() {
		return nil, nil
	}
	return o.repo.Tree(id)
}

func (o objects) Size(_ context.Context, b worktree.Blob) (int64, error) {
	_, n, err := o.repo.Size(b.ID)
	return n, err
}

func (o objects) KnownSize(b worktree.Blob) (int64, bool)            { return 0, false }
func (o objects) Looked(worktree.Blob)                               {}
func (o objects) Here(worktree.Blob) bool                            { return false }
func (o objects) Arriving() bool                                     { return false }
func (o objects) Searched(context.Context, string) (target, ok bool) { return false, false }
func (o objects) Open(_ context.Context, b worktree.Blob) (worktree.Content, error) {
	o.seen[b.Path]++
	_, text, err := o.repo.Get(b.ID, 1<<30)
	return content(text), err
}

func newWorld(t testing.TB, f object.Format, files map[string]gittest.File) *world {
	t.Helper()
	w := &world{t: t, ctx: context.Background(), dir: t.TempDir()}
	for k, v := range map[string]string{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
		"XDG_CONFIG_HOME": filepath.Join(w.dir, "config"), "HOME": w.dir} {
		t.Setenv(k, v)
	}
	remote, err := gittest.New(filepath.Join(w.dir, "remote.git"), gittest.RepoOptions{Format: f})
	if err == nil {
		w.commit, err = remote.Commit("main", files, "base")
	}
	if err != nil {
		t.Fatal(err)
	}
	w.plain = filepath.Join(w.dir, "plain")
	w.git(w.dir, "clone", "-q", "--no-local", "remote.git", "plain")
	w.root = object.MustID(w.git(w.plain, "rev-parse", "HEAD^{tree}"))
	w.repo, err = session.OpenRepo(filepath.Join(w.dir, "session.git"), session.RepoOptions{
		Format: f, Session: "s", Remote: "file://" + filepath.Join(w.dir, "remote.git"),
		Borrow: []string{filepath.Join(w.dir, "remote.git", "objects")},
		Fresh:  []string{filepath.Join(w.plain, ".git", "objects")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.repo.Close() })
	w.openTree()
	w.o = capture.Options{Tree: w.tree, GitDir: filepath.Join(w.plain, ".git"), Repo: w.repo,
		Memory: filepath.Join(w.dir, "memory"),
		Base:   w.commit, BaseTree: w.root, Rules: capture.Rules{NoDenyList: true}}
	w.openCapturer()
	return w
}

func (w *world) openTree() {
	w.t.Helper()
	w.opened = map[string]int{}
	tree, err := worktree.Open(filepath.Join(w.dir, "table"), objects{w.repo, w.opened}, worktree.Options{
		Root: w.root, Time: time.Unix(1_700_000_000, 0), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Overlay: filepath.Join(w.dir, "overlay"), Journal: filepath.Join(w.dir, "journal"), GitFile: "gitdir: elsewhere\n",
		KeepRemoved: w.keep, Shares: w.shares(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { tree.Close() })
	w.tree = tree
}

// shares returns the directory of the shares.
func (w *world) shares() string {
	w.t.Helper()
	dir := filepath.Join(w.dir, "shares")
	must(w.t, os.MkdirAll(dir, 0o700))
	return dir
}

func (w *world) openCapturer() {
	w.t.Helper()
	w.o.Tree = w.tree
	c, err := capture.New(w.o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.c = c
}

func (w *world) git(dir string, args ...string) string {
	w.t.Helper()
	out, err := gittest.Git(w.ctx, dir, args...)
	if err != nil {
		w.t.Fatalf("git %s failed: %v", strings.Join(args, " "), err)
	}
	return out
}

// gitMay runs a git command that may fail, and returns its error.
func (w *world) gitMay(args ...string) error {
	_, err := gittest.Git(w.ctx, w.plain, args...)
	return err
}

func (w *world) at(path string) string { return filepath.Join(w.plain, path) }

func (w *world) parent(path string) (worktree.Node, string) {
	w.t.Helper()
	dir, name := filepath.Split(path)
	n, err := w.tree.Resolve(w.ctx, strings.TrimSuffix(dir, "/"))
	if err != nil {
		w.t.Fatalf("resolve %s: %v", dir, err)
	}
	return n, name
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var cred = worktree.Cred{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}

func (w *world) mkdir(path string) {
	w.t.Helper()
	if _, err := os.Stat(w.at(path)); err == nil {
		return
	}
	if dir := filepath.Dir(path); dir != "." {
		w.mkdir(dir)
	}
	must(w.t, os.Mkdir(w.at(path), 0o755))
	n, name := w.parent(path)
	_, err := w.tree.Mkdir(w.ctx, n, name, 0o755, cred)
	must(w.t, err)
}

// write creates a file or replaces its contents.
func (w *world) write(path, text string) {
	w.t.Helper()
	if dir := filepath.Dir(path); dir != "." {
		w.mkdir(dir)
	}
	_, err := os.Lstat(w.at(path))
	must(w.t, os.WriteFile(w.at(path), []byte(text), 0o644))
	dir, name := w.parent(path)
	if err != nil {
		_, err := w.tree.Mknod(w.ctx, dir, name, syscall.S_IFREG|0o644, 0, cred)
		must(w.t, err)
	}
	w.put(path, text)
}

func (w *world) put(path, text string) {
	w.t.Helper()
	n, err := w.tree.Resolve(w.ctx, path)
	must(w.t, err)
	_, err = w.tree.SetAttr(w.ctx, n, worktree.Change{Set: worktree.SetSize, Size: 0})
	must(w.t, err)
	_, err = w.tree.Write(w.ctx, n, []byte(text), 0, false)
	must(w.t, err)
	// The kernel sends the times itself, after its writes.
	_, err = w.tree.SetAttr(w.ctx, n, worktree.Change{Set: worktree.SetMtime, Mtime: worktree.NowTime})
	must(w.t, err)
}

func (w *world) symlink(path, target string) {
	w.t.Helper()
	if dir := filepath.Dir(path); dir != "." {
		w.mkdir(dir)
	}
	must(w.t, os.Symlink(target, w.at(path)))
	n, name := w.parent(path)
	_, err := w.tree.Symlink(w.ctx, n, name, target, cred)
	must(w.t, err)
}

func (w *world) chmod(path string, mode uint32) {
	w.t.Helper()
	must(w.t, os.Chmod(w.at(path), os.FileMode(mode)))
	n, err := w.tree.Resolve(w.ctx, path)
	must(w.t, err)
	_, err = w.tree.SetAttr(w.ctx, n, worktree.Change{Set: worktree.SetMode, Mode: mode})
	must(w.t, err)
}

// remove removes the file or directory at a path.
func (w *world) remove(path string) {
	w.t.Helper()
	st, err := os.Lstat(w.at(path))
	must(w.t, err)
	if st.IsDir() {
		entries, err := os.ReadDir(w.at(path))
		must(w.t, err)
		for _, e := range entries {
			w.remove(filepath.Join(path, e.Name()))
		}
	}
	must(w.t, os.Remove(w.at(path)))
	n, name := w.parent(path)
	if st.IsDir() {
		must(w.t, w.tree.Rmdir(w.ctx, n, name))
	} else {
		must(w.t, w.tree.Unlink(w.ctx, n, name))
	}
}

func (w *world) rename(from, to string) error {
	w.t.Helper()
	if err := os.Rename(w.at(from), w.at(to)); err != nil {
		return err
	}
	a, x := w.parent(from)
	b, y := w.parent(to)
	must(w.t, w.tree.Rename(w.ctx, a, x, b, y, 0))
	return nil
}

// want returns the tree that git add and git write-tree make of the clone.
func (w *world) want() string {
	w.t.Helper()
	scratch := filepath.Join(w.dir, "scratch")
	text, err := os.ReadFile(w.at(".git/index"))
	must(w.t, err)
	must(w.t, os.WriteFile(scratch, text, 0o600))
	st, err := os.Stat(w.at(".git/index"))
	must(w.t, err)
	// git compares the index's mtime to find entries that it cannot trust
	must(w.t, os.Chtimes(scratch, st.ModTime(), st.ModTime()))
	run := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = w.plain
		cmd.Env = append(gittest.Env(), "GIT_INDEX_FILE="+scratch)
		out, err := cmd.CombinedOutput()
		if err != nil {
			w.t.Fatalf("git %s failed: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("add", "-A")
	return run("write-tree")
}

func (w *world) checkpoint(reason session.Reason) (session.Checkpoint, capture.Report) {
	w.t.Helper()
	p, report, err := w.c.Checkpoint(w.ctx, reason, "")
	must(w.t, err)
	return p, report
}

// check makes a checkpoint, and compares its tree with the one that git makes of the clone.
func (w *world) check(step string) (session.Checkpoint, capture.Report) {
	w.t.Helper()
	p, report := w.checkpoint(session.Manual)
	w.emptyDirs(step, p)
	if want := w.want(); w.withoutEmpty(p.Tree.String()) != want {
		w.t.Fatalf("%s: tree of the checkpoint: got %s, want the tree of git, %s:\n%s\nleft out: %+v\nstatus:\n%s", step,
			p.Tree, want, w.diff(p.Tree.String(), want), report.Left,
			w.git(w.plain, "status", "--short", "--ignored")+"\n"+w.rules())
	}
	return p, report
}

// withoutEmpty returns a tree without its empty directories, because git does not add these.
func (w *world) withoutEmpty(tree string) string {
	w.t.Helper()
	list := w.git(w.repo.Dir(), "ls-tree", "-r", "-t", "-z", tree)
	empty := object.EmptyTree(w.repo.Format()).String()
	if !strings.Contains(list, empty) {
		return tree
	}
	index := filepath.Join(w.t.TempDir(), "index")
	cmd := exec.Command("git", "update-index", "-z", "--index-info")
	cmd.Dir, cmd.Env = w.repo.Dir(), append(gittest.Env(), "GIT_INDEX_FILE="+index)
	var files []string
	for line := range strings.SplitSeq(list, "\x00") {
		if !strings.HasPrefix(line, "040000") && line != "" {
			files = append(files, line+"\x00")
		}
	}
	cmd.Stdin = strings.NewReader(strings.Join(files, ""))
	out, err := cmd.CombinedOutput()
	if err == nil {
		cmd = exec.Command("git", "write-tree", "--missing-ok")
		cmd.Dir, cmd.Env = w.repo.Dir(), append(gittest.Env(), "GIT_INDEX_FILE="+index)
		out, err = cmd.CombinedOutput()
	}
	if err != nil {
		w.t.Fatalf("tree without empty directories: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// emptyDirs checks that a checkpoint contains the empty directories of the working tree, except those that git ignores.
func (w *world) emptyDirs(step string, p session.Checkpoint) {
	w.t.Helper()
	held := map[string]bool{}
	empty := object.EmptyTree(w.repo.Format()).String()
	for line := range strings.SplitSeq(w.git(w.repo.Dir(), "ls-tree", "-r", "-t", "-z", p.Tree.String()), "\x00") {
		if entry, path, _ := strings.Cut(line, "\t"); strings.HasSuffix(entry, empty) {
			held[path] = true
			if st, err := os.Lstat(w.at(path)); err != nil || !st.IsDir() {
				w.t.Fatalf("%s: the checkpoint has an empty directory %s, which does not exist (%v)", step, path, err)
			}
		}
	}
	err := filepath.WalkDir(w.plain, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(w.plain, path)
		if err != nil || !d.IsDir() || rel == "." {
			return err
		}
		if rel == ".git" {
			return fs.SkipDir
		}
		if names, err := os.ReadDir(path); err == nil && len(names) == 0 && !held[rel] &&
			w.gitMay("check-ignore", "-q", "--no-index", rel+"/") != nil {
			w.t.Fatalf("%s: the checkpoint lacks the empty directory %s", step, rel)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) diff(a, b string) string {
	cmd := exec.Command("git", "diff-tree", "-r", a, b)
	cmd.Dir = w.plain
	cmd.Env = append(gittest.Env(), "GIT_ALTERNATE_OBJECT_DIRECTORIES="+filepath.Join(w.dir, "session.git", "objects"))
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

func text(s string) gittest.File { return gittest.File{Data: []byte(s)} }

// rules returns the contents of all ignore files in the clone.
func (w *world) rules() string {
	out, _ := exec.Command("sh", "-c", "cd "+w.plain+
		" && for f in .git/info/exclude $(find . -name .gitignore); do echo \"== $f\"; cat $f; done").CombinedOutput()
	return string(out)
}
