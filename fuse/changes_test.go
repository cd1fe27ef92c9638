package fuse

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// tracked mounts files with a change journal and a ".git".
func tracked(t testing.TB, files map[string]worktreetest.File, o Options) *mounted {
	t.Helper()
	state := t.TempDir()
	src := worktreetest.New(files)
	return mountWith(t, src, worktree.Options{
		Overlay: filepath.Join(state, "overlay"), Journal: filepath.Join(state, "journal"), GitFile: "gitdir: /somewhere\n",
	}, filepath.Join(state, "inodes"), o)
}

// asker queries the change journal as git's file system monitor does.
type asker struct {
	*mounted
	token string
}

func (a *asker) ask() []string {
	a.Helper()
	c, err := a.tree.Monitor().Changes(a.token)
	if err != nil || c.All {
		a.Fatalf("changes since %s: got %+v, %v", a.token, c, err)
	}
	a.Refresh(c.Open)
	a.token = c.Token
	return c.Paths
}

// Every write of a program that keeps a file open is reported as a change.
func TestWritesToOpenFilesAreReported(t *testing.T) {
	files := map[string]worktreetest.File{"dir/known": {Data: pattern(10_000)}, "dir/other": {Data: "other"}}
	m := tracked(t, files, Options{})
	m.src.KnowsSizes.Store(true)
	a := &asker{m, m.tree.Monitor().StartToken()}
	for _, name := range []string{"dir/known", "new"} {
		f, err := os.OpenFile(m.path(name), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var st unix.Stat_t
		for round := range 20 {
			if _, err := f.WriteAt(fmt.Append(nil, "round ", round), int64(round)*10); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("more"), 5000+int64(round)); err != nil {
				t.Fatal(err)
			}
			got := a.ask()
			if !slices.Contains(got, name) {
				t.Errorf("round %d: %s is not among the changed paths %q", round, name, got)
			}
			if slices.Contains(got, "dir/other") {
				t.Errorf("round %d: changed paths %q contain a file that was not written", round, got)
			}
			if err := unix.Lstat(m.path(name), &st); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A file that is open but not written any more is eventually not reported as changed.
func TestWritesEnd(t *testing.T) {
	m := tracked(t, map[string]worktreetest.File{"f": {Data: "data"}}, Options{})
	a := &asker{m, m.tree.Monitor().StartToken()}
	f, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("written"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the change journal returns no changes", func() bool { return len(a.ask()) == 0 })
	var st unix.Stat_t
	if err := unix.Lstat(f.Name(), &st); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("again"); err != nil {
		t.Fatal(err)
	}
	if got := a.ask(); !slices.Equal(got, []string{"f"}) {
		t.Errorf("changed paths after a write through a kept descriptor: got %q, want f alone", got)
	}
}

// Invalidating the kernel's attributes does not deadlock with writes that are in progress.
func TestRefreshWhileWriting(t *testing.T) {
	m := tracked(t, map[string]worktreetest.File{}, Options{})
	a := &asker{m, m.tree.Monitor().StartToken()}
	cmd := exec.Command("sh", "-c", `i=0; while [ $i -lt 300 ]; do echo line >>log; echo $i >f$((i%10)); i=$((i+1)); done`)
	cmd.Dir = m.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		a.ask()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// waitingGit provides the function Options.Await, which blocks until ready is closed.
type waitingGit struct {
	ready   chan struct{}
	waiting atomic.Int32
	asked   atomic.Int32
	exempt  atomic.Uint32
}

func (g *waitingGit) await(ctx context.Context, pid uint32) bool {
	g.asked.Add(1)
	if pid == g.exempt.Load() {
		return false
	}
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	select {
	case <-g.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

func TestGitIsWaitedFor(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		t.Run(fmt.Sprint("read-only ", readOnly), func(t *testing.T) { waitForGit(t, readOnly) })
	}
}

func waitForGit(t *testing.T, readOnly bool) {
	g := &waitingGit{ready: make(chan struct{})}
	m := tracked(t, map[string]worktreetest.File{"dir/f": {Data: "data"}}, Options{Await: g.await, ReadOnly: readOnly})
	if out := m.run("ls", "-a"); !strings.Contains(out, ".git\n") || g.asked.Load() != 0 {
		t.Errorf("a listing waited for git, or lacks .git: %q", out)
	}
	read := func() *exec.Cmd {
		cmd := exec.Command("cat", m.path(".git"))
		cmd.Stdout = new(bytes.Buffer)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	first, second := read(), read()
	await.Until(t, "two processes wait for git", func() bool { return g.waiting.Load() == 2 })

	// Other requests are answered at the same time, including changes of the root directory.
	if data, err := os.ReadFile(m.path("dir/f")); err != nil || string(data) != "data" {
		t.Errorf("read dir/f while .git is not ready: got %q, %v", data, err)
	}
	if !readOnly {
		m.run("sh", "-c", "mkdir sub && echo x >sub/x && mv sub other && rm -r other && echo y >y && ls -a >z")
	}
	// A process that waits can be interrupted.
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err == nil {
		t.Error("the interrupted read succeeded")
	}
	if n := g.waiting.Load(); n != 1 {
		t.Errorf("processes that wait for git: got %d", n)
	}
	close(g.ready)
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
	if out := first.Stdout.(*bytes.Buffer).String(); out != "gitdir: /somewhere\n" {
		t.Errorf("the first process read %q from .git", out)
	}
	asked := g.asked.Load()
	got := m.requests(func() {
		for range 3 {
			if data, err := os.ReadFile(m.path(".git")); err != nil || string(data) != "gitdir: /somewhere\n" {
				t.Errorf("read .git again: got %q, %v", data, err)
			}
		}
	})
	if g.asked.Load() != asked || got["LOOKUP"] > 1 {
		t.Errorf("reads of .git when it is ready: Await was called %d times more, requests %v", g.asked.Load()-asked, got)
	}
}

// A process for which Await returns false sees .git before git is ready, and the kernel does not cache the entry for
// others.
func TestGitIsNotKeptBefore(t *testing.T) {
	g := &waitingGit{ready: make(chan struct{})}
	m := tracked(t, map[string]worktreetest.File{}, Options{Await: g.await})
	err := WithoutDevice(func() error {
		g.exempt.Store(uint32(unix.Gettid()))
		for want := int32(1); want <= 3; want++ {
			var st unix.Stat_t
			if err := unix.Lstat(m.path(".git"), &st); err != nil {
				return err
			}
			if got := g.asked.Load(); got != want {
				return fmt.Errorf("Await was called %d times, want %d", got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
