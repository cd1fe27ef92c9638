package integration

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// watch collects inotify events in a mount, by path. The event of a watched file itself has the path and a colon.
type watch struct {
	w     *world
	file  *os.File
	paths map[int32]string
	got   map[string]uint32
}

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE | unix.IN_CLOSE_WRITE |
	unix.IN_DELETE_SELF

// watch watches directories and files of a mount. It looks up all entries first, as programs that watch do.
func (m mounted) watch(paths ...string) *watch {
	m.w.Helper()
	fd := must[int](m.w)(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))
	v := &watch{m.w, os.NewFile(uintptr(fd), "inotify"), map[int32]string{}, map[string]uint32{}}
	m.w.Cleanup(func() { v.file.Close() })
	for _, p := range paths {
		must[[]byte](m.w)(exec.Command("find", m.path(p), "-maxdepth", "1", "-size", "+100").Output())
		name := p + "/"
		if info := must[os.FileInfo](m.w)(os.Lstat(m.path(p))); !info.IsDir() {
			name = p + ":"
		}
		v.paths[int32(must[int](m.w)(unix.InotifyAddWatch(fd, m.path(p), watchMask)))] = name
	}
	return v
}

// read adds the events that have occurred.
func (v *watch) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(int(v.file.Fd()), buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+int(e.Len)], "\x00"))
			b = b[unix.SizeofInotifyEvent+int(e.Len):]
			if mask := e.Mask &^ unix.IN_IGNORED; mask != 0 && !strings.HasPrefix(name, ".git") {
				v.got[strings.TrimPrefix(v.paths[e.Wd]+name, "./")] |= mask
			}
		}
	}
}

// want waits until all events have occurred, and fails if others occur.
func (v *watch) want(after string, want map[string]uint32) {
	v.w.Helper()
	deadline := time.Now().Add(patience)
	for v.read(); !maps.Equal(v.got, want) && time.Now().Before(deadline); v.read() {
		if slices.ContainsFunc(slices.Collect(maps.Keys(v.got)), func(p string) bool { return v.got[p]&^want[p] != 0 }) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !maps.Equal(v.got, want) {
		v.w.Errorf("inotify events of %s: got %x, want %x", after, v.got, want)
	}
	clear(v.got)
}

// inotifyRepo serves a repository whose branch two differs from main in every way, and in many files of the directory
// many.
func (w *world) inotifyRepo() (s served, repo *gittest.Repo) {
	w.Helper()
	repo = w.repo("r.git", object.SHA1)
	main := map[string]gittest.File{
		"src/kept": {Data: []byte("kept\n")}, "src/changed": {Data: []byte("one\n")}, "src/gone": {Data: []byte("gone\n")},
		"src/mode": {Data: []byte("mode\n")}, "old/x": {Data: []byte("x\n")},
	}
	for i := range 600 {
		main[fmt.Sprintf("many/f%03d", i)] = gittest.File{Data: fmt.Appendf(nil, "main %d\n", i)}
	}
	w.commit(repo, main)
	w.git(repo.Path, "branch", "main-at-first", "main")
	two := map[string]gittest.File{
		"src/changed": {Data: []byte("two\n")}, "src/gone": {Delete: true},
		"src/mode": {Data: []byte("mode\n"), Mode: "100755"},
		"old/x":    {Delete: true}, "src/new": {Data: []byte("new\n")}, "src/newdir/z": {Data: []byte("z\n")},
	}
	for i := range 600 {
		two[fmt.Sprintf("many/f%03d", i)] = gittest.File{Data: fmt.Appendf(nil, "two %d\n", i)}
	}
	w.commit(repo, two)
	w.git(repo.Path, "branch", "two", "main")
	w.git(repo.Path, "update-ref", "refs/heads/main", "main-at-first")
	return w.serve(gittest.ServerOptions{}), repo
}

// Programs that watch the tree get an event for each path that switch and restore change, and the right one.
func TestInotifyEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _ := w.inotifyRepo()
	url := s.URL("r.git")
	m := w.mount(url, "--wait", "git", "--checkpoint", "off", "--history", "full")
	v := m.watch(".", "src", "src/changed", "src/gone", "old")
	stat := func(p string) (st unix.Stat_t) { check(t, unix.Lstat(m.path(p), &st)); return st }
	// A program that looks a changed file up at once does not take the event from those who watch the old file.
	var looking sync.WaitGroup
	end := make(chan struct{})
	looking.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_, _ = os.Lstat(m.path("src/changed"))
			}
		}
	})
	stop := sync.OnceFunc(func() { close(end); looking.Wait() })
	defer stop()
	m.switchTo(s, "two")
	before := stat("src/changed")
	v.want("switch", map[string]uint32{
		"src/changed": unix.IN_MODIFY, "src/changed:": unix.IN_MODIFY | unix.IN_DELETE_SELF, "src/mode": unix.IN_MODIFY,
		"src/gone": unix.IN_DELETE, "src/gone:": unix.IN_ATTRIB | unix.IN_DELETE_SELF, "old": unix.IN_DELETE | unix.IN_ISDIR,
		"src/new": unix.IN_CREATE, "src/newdir": unix.IN_CREATE | unix.IN_ISDIR,
	})
	stop()
	if after := stat("src/changed"); after != before {
		t.Errorf("the events have changed a file: got %+v, want %+v", after, before)
	}
	m.sameAs(w.clone(url, "-b", "two"), "two")
	v = m.watch(".", "src")
	m.switchTo(s, "main")
	v.want("switch back", map[string]uint32{
		"src/changed": unix.IN_MODIFY, "src/mode": unix.IN_MODIFY, "src/gone": unix.IN_CREATE, "src/new": unix.IN_DELETE,
		"src/newdir": unix.IN_DELETE | unix.IN_ISDIR, "old": unix.IN_CREATE | unix.IN_ISDIR,
	})
	m.sameAs(w.clone(url), "main")

	m.checkpoint("--pin", "p")
	check(t, os.WriteFile(m.path("src/changed"), []byte("mine\n"), 0o644))
	check(t, os.WriteFile(m.path("src/mine"), []byte("mine\n"), 0o644))
	check(t, os.Remove(m.path("src/gone")))
	v = m.watch("src")
	w.ok("session", "restore", "-C", m.Dir, "p")
	v.want("restore", map[string]uint32{"src/changed": unix.IN_MODIFY, "src/mine": unix.IN_DELETE,
		"src/gone": unix.IN_CREATE})
}

// sameAs compares a mount with a clone, byte for byte, and git's view of both.
func (m mounted) sameAs(clone, what string) {
	m.w.Helper()
	if out, err := exec.Command("diff", "-r", "--exclude=.git", m.Dir, clone).CombinedOutput(); err != nil {
		m.w.Errorf("mount and clone of %s differ: %v\n%s", what, err, out)
	}
	if out := m.w.git(m.Dir, "status", "--porcelain"); out != "" {
		m.w.Errorf("git status of %s:\n%s", what, out)
	}
}

// raising switches to a branch, and returns the id of the event process while it works, or 0 if it has worked between
// two looks, and a function that waits for the command.
func (m mounted) raising(branch string) (pid int, switched func()) {
	m.w.Helper()
	done, end := make(chan result, 1), time.Now().Add(patience)
	go func() { done <- m.w.afs("switch", "-C", m.Dir, branch) }()
	for ; pid == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, p := range must[[]int](m.w)(proc.PIDs()) {
			if args, _ := proc.Of(p).Args(); len(args) == 2 && path.Base(args[0]) == "artifactfs-events" && args[1] == m.Dir {
				pid = p
			}
		}
		if soon := time.Now().Add(time.Second); len(done) > 0 && soon.Before(end) {
			end = soon
		}
	}
	return pid, func() {
		m.w.Helper()
		if r := <-done; r.code != 0 {
			m.w.Fatal(r)
		}
	}
}

// A worker that is killed, or an unmount, while events are raised is not delayed by the event process, whose requests
// change nothing. A stopped event process delays neither.
func TestInotifyKilled(t *testing.T) {
	w := newWorld(t)
	s, _ := w.inotifyRepo()
	url := s.URL("r.git")
	m := w.mount(url, "--wait", "git", "--checkpoint", "off", "--history", "full")
	trees := map[string]string{"main": w.clone(url), "two": w.clone(url, "-b", "two")}
	missed := 0
	for i := range 12 {
		to := []string{"two", "main"}[i%2]
		m.watch("many", "src")
		events, switched := m.raising(to)
		if events == 0 {
			if missed++; missed > 3 {
				t.Fatal("no event process works")
			}
			switched()
			continue
		}
		if i >= 4 {
			check(t, syscall.Kill(events, syscall.SIGSTOP))
		} else {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond) // another moment of its work
		}
		pid := w.serving()
		check(t, syscall.Kill(pid, syscall.SIGKILL))
		start := now()
		must[[]byte](t)(os.ReadFile(m.path("src/changed")))
		if took := start.elapsed(); took > 10*time.Second {
			t.Errorf("read after kill %d took %v", i+1, took)
		}
		switched()
		w.until("another process serves", func() bool { s := w.victim().Serving(); return s != 0 && s != pid })
		w.until("the event process has ended", func() bool { return syscall.Kill(events, 0) != nil || ended(events) })
		m.sameAs(trees[to], to)
	}
	m.watch("many", "src")
	events, switched := m.raising("two")
	if events != 0 {
		check(t, syscall.Kill(events, syscall.SIGSTOP))
	}
	switched()
	w.unmount(m)
	if left, _ := filepath.Glob(m.path("*")); len(left) > 0 {
		t.Errorf("left after unmount: %q", left)
	}
}

// ended reports whether a process has ended and was not waited for.
func ended(pid int) bool {
	stat, err := proc.Of(pid).Stat()
	return err != nil || stat.Ended()
}
