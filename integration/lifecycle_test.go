package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// daemon returns the daemon's main process, which leads the process group of its children. A child that has been forked
// but has not yet executed its program has the same arguments, so daemon waits until there is only one.
func (w *world) daemon() int {
	w.Helper()
	var pids []int
	w.until("there is one daemon", func() bool {
		pids = slices.DeleteFunc(daemonsBelow(w.root), isWorker)
		return len(pids) == 1
	})
	return pids[0]
}

// serving returns the id of the worker, the process that serves the mounts.
func (w *world) serving() int {
	w.Helper()
	w.until("there is a daemon", func() bool { return len(daemonsBelow(w.root)) > 0 })
	if pid := w.victim().Worker(); pid != 0 {
		return pid
	}
	return w.daemon()
}

// killDaemon kills all processes of the daemon in one moment, as the end of a container does, and waits for their end.
func (w *world) killDaemon() {
	w.Helper()
	if err := syscall.Kill(-w.daemon(), syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	w.dead()
}

// dead waits until no process of the daemon is left.
func (w *world) dead() {
	w.Helper()
	// Helpers of ours that git in a mount has started wait for the next daemon.
	left := func() []int { return slices.DeleteFunc(daemonsBelow(w.root), isHelper) }
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if len(left()) == 0 {
			return
		}
	}
	for _, pid := range left() { // the stack shows whether a process hangs in its own mount
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, thread := range threads {
			stack, _ := os.ReadFile(filepath.Join(thread, "stack"))
			w.Logf("%q %s\n%s", args, thread, stack)
		}
	}
	w.Fatalf("waited for %s, but processes of the daemon still exist", patience)
}

func (w *world) list() []control.MountStatus {
	w.Helper()
	var st control.Status
	if out := w.ok("status", "--json"); json.Unmarshal([]byte(out), &st) != nil {
		w.Fatalf("status printed %q", out)
	}
	return st.Mounts
}

func TestUnmountLeavesTheIdleDaemonAlone(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("lifecycle"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.mount(url)
	pid := w.daemon()
	w.unmount(m)
	w.nothingLeft(m.Dir)
	if got := w.daemon(); got != pid {
		t.Errorf("the daemon is process %d, want the one before, %d", got, pid)
	}
	r := w.afs("unmount", m.Dir)
	w.refusal(r, control.ExitNotMounted, "no artifactfs mount at this directory", "artifactfs list")
	if r := w.afs("status", m.Dir); r.code != control.ExitNotMounted {
		t.Error(r)
	}
	again := w.mount(url)
	w.ok("unmount", "--all")
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	w.nothingLeft(again.Dir)
}

// foreground starts a mount command in the foreground and waits until the directory is mounted.
func (w *world) foreground(url, dir string) *waiting {
	w.Helper()
	p := &waiting{Cmd: w.command(context.Background(), "mount", url, dir, "--foreground")}
	p.Stdout, p.Stderr = &p.out, &p.out
	if err := p.Start(); err != nil {
		w.Fatal(err)
	}
	w.until("the directory is mounted", func() bool {
		return len(mountsBelow(dir[:strings.LastIndexByte(dir, '/')])) > 0 && exists(filepath.Join(dir, "link"))
	})
	return p
}

// foregroundEnds are the ways in which a user ends a mount in the foreground. All of them succeed.
var foregroundEnds = map[string]func(w *world, p *waiting, dir string){
	"SIGINT":      func(_ *world, p *waiting, _ string) { p.Process.Signal(syscall.SIGINT) },
	"SIGTERM":     func(_ *world, p *waiting, _ string) { p.Process.Signal(syscall.SIGTERM) },
	"unmount":     func(w *world, _ *waiting, dir string) { w.ok("unmount", dir) },
	"unmount all": func(w *world, _ *waiting, _ string) { w.ok("unmount", "--all") },
	"umount(8)":   func(w *world, _ *waiting, dir string) { w.umount(dir) },
}

func TestForegroundEnds(t *testing.T) {
	for name, end := range foregroundEnds {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit(w.repo("r.git", object.SHA1), sample("foreground"))
			dir := w.place("m")
			p := w.foreground(w.serve(gittest.ServerOptions{}).URL("r.git"), dir)
			end(w, p, dir)
			w.endedWell(p, dir)
		})
	}
}

// endedWell waits for a mount command in the foreground, which must succeed and leave nothing behind.
func (w *world) endedWell(p *waiting, dir string) {
	w.Helper()
	if err := p.Wait(); err != nil {
		w.Errorf("wait for the command: %v\n%s", err, &p.out)
	}
	w.nothingLeft(dir)
	w.until("no process of the daemon is left", func() bool { return len(daemonsBelow(w.root)) == 0 })
}

// A mount that the kernel already has, but whose command has not printed its result yet, ends like any other.
func TestForegroundEndsBeforeItsResult(t *testing.T) {
	for name, end := range foregroundEnds {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit(w.repo("r.git", object.SHA1), sample(name))
			s := w.serve(gittest.ServerOptions{})
			stall := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 1})
			dir := w.place("m")
			p := &waiting{Cmd: w.command(context.Background(), "mount", s.URL("r.git"), dir, "--foreground", "--wait", "all",
				"--prefetch", "all")}
			p.Stdout, p.Stderr = &p.out, &p.out
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			w.until("the kernel has the mount",
				func() bool { return stall.Hits() > 0 && len(mountsBelow(filepath.Dir(dir))) > 0 })
			end(w, p, dir)
			w.endedWell(p, dir)
		})
	}
}

func (w *world) umount(dir string) {
	w.Helper()
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
		w.Errorf("umount: %v: %s", err, out)
	}
}

func TestInterruptedMountLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		fault gittest.Fault
	}{
		{"before anything came", nil, gittest.Fault{Kind: gittest.Stall}},
		{"before the commit", nil, gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch}},
		{"while all is waited for", []string{"--wait", "all", "--prefetch", "all"},
			gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, Skip: 1}},
		{"in the foreground", []string{"--foreground"}, gittest.Fault{Kind: gittest.Stall}},
		// The answer stalls in the middle of the root tree, which is longer than one packet of git's protocol.
		{"before the root directory", []string{"--read-only"},
			gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 70_000}},
	} {
		for _, how := range []string{"SIGINT", "unmount all"} {
			t.Run(c.name+" by "+how, func(t *testing.T) {
				w := newWorld(t)
				files := sample(c.name + how)
				for i := range min(c.fault.After, 4000) { // only a root tree in which an answer stalls must be long
					files[fmt.Sprintf("file%d", i)] = gittest.File{Data: []byte(fmt.Sprint(i))}
				}
				w.commit(w.repo("r.git", object.SHA1), files)
				s := w.serve(gittest.ServerOptions{})
				stall := s.Inject(c.fault)
				parent := w.place("parent")
				p := &waiting{Cmd: w.command(context.Background(),
					append([]string{"mount", s.URL("r.git"), filepath.Join(parent, "m")}, c.args...)...)}
				p.Stdout, p.Stderr = &p.out, &p.out
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
				w.until("the server stalls", func() bool { return stall.Hits() > 0 })
				if mounts := w.list(); len(mounts) != 1 {
					t.Errorf("status during the mount: got %+v, want no mount", mounts)
				}
				start := now()
				if how == "SIGINT" {
					p.Process.Signal(syscall.SIGINT)
				} else {
					w.ok("unmount", "--all")
				}
				p.Wait()
				if took := start.elapsed(); took > 5*time.Second {
					t.Errorf("mount ended %v after the signal", took)
				}
				if out := p.out.String(); p.ProcessState.ExitCode() != control.ExitFailed ||
					!strings.Contains(out, "interrupted") && !strings.Contains(out, "unmounted") {
					t.Errorf("interrupted command: got %v with output %s, want exit code %d and a message about the interrupt",
						p.ProcessState, out, control.ExitFailed)
				}
				w.nothingLeft(parent)
			})
		}
	}
}

// If the mount command is killed while it starts the daemon, at most the daemon remains, and the next command works.
func TestInterruptWhileTheDaemonStarts(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("interrupt at start"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for i := range 20 {
		dir := w.place("m")
		p := w.command(context.Background(), "mount", url, dir)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		for pause := time.NewTimer(time.Duration(i) * 3 * time.Millisecond); ; {
			<-pause.C
			break
		}
		p.Process.Signal(syscall.SIGINT)
		p.Wait()
		if p.ProcessState.ExitCode() == 0 {
			w.ok("unmount", dir)
		}
		w.nothingLeft(dir)
		w.ok("unmount", "--all")
		w.until("no daemon is left", func() bool { return len(daemonsBelow(w.root)) == 0 })
	}
}

func TestBusyMountStays(t *testing.T) {
	w := newWorld(t)
	files := sample("busy")
	w.commit(w.repo("r.git", object.SHA1), files)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	f := must[*os.File](t)(os.Open(m.path("known/a")))
	w.refusal(w.afs("unmount", m.Dir), control.ExitFailed, "in use by", "holds known/a")
	if r := w.afs("unmount", "--all"); r.code != control.ExitFailed {
		t.Error(r)
	}
	if n := readAll(t, m.Dir, files); n > 0 {
		t.Errorf("%d reads failed after the refused unmount", n)
	}
	if st := m.status(); st.State != control.StateMounted {
		t.Errorf("state of the mount after the refused unmount: got %s", st.State)
	}
	f.Close()
	w.unmount(m)
	w.nothingLeft(m.Dir)
}

// SIGTERM ends the daemon although a mount is busy: the mount is detached, and its directory can be used again.
func TestTerminatedDaemonDetaches(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("terminated"))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	f := must[*os.File](t)(os.Open(m.path("known/a")))
	defer f.Close()
	syscall.Kill(w.daemon(), syscall.SIGTERM)
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	w.nothingLeft(m.Dir)
}

func TestUmountByHandIsNoticed(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("by hand"))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"))
	w.umount(m.Dir)
	w.until("the daemon notices the unmount", func() bool {
		homes, err := os.ReadDir(filepath.Join(w.state, "mounts"))
		return err == nil && len(homes) == 0 && len(w.list()) == 0 && !exists(m.Dir)
	})
	w.nothingLeft(m.Dir)
}

func TestKilledDaemonIsReplaced(t *testing.T) {
	w := newWorld(t)
	files := sample("killed")
	w.commit(w.repo("r.git", object.SHA1), files)
	s := w.serve(gittest.ServerOptions{})
	url := s.URL("r.git")
	m := w.mount(url, "--wait", "all", "--prefetch", "all")
	readAll(t, m.Dir, files) // the kernel caches these files, also after the daemon has died
	w.killDaemon()
	if r := w.afs("status", m.Dir); r.code != control.ExitNotMounted || !strings.Contains(r.stderr, "dead mount") ||
		!strings.Contains(r.stderr, "artifactfs unmount "+m.Dir) {
		t.Error(r)
	}
	if out := w.ok("list"); strings.Contains(out, m.Dir) {
		t.Errorf("list shows the mount of the killed daemon: %s", out)
	}
	s.quiet()
	s.Log().Reset()
	w.ok("mount", url, m.Dir, "--history", "none", "--prefetch", "none")
	if at := mountsBelow(w.root); len(at) != 1 {
		t.Errorf("mounts: %s, want one", at)
	}
	if n := readAll(t, m.Dir, files); n > 0 {
		t.Errorf("%d reads failed", n)
	}
	if fetches := s.Log().Fetches(); len(fetches) > 0 {
		t.Errorf("fetched contents were fetched again:\n%s", s.Log())
	}
	if homes := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(w.state, "mounts"))); len(homes) != 1 {
		t.Errorf("directories below mounts/: %v", homes)
	}
	w.ok("unmount", m.Dir)
	if at := mountsBelow(w.root); len(at) > 0 {
		t.Errorf("still mounted: %s", at)
	}
	// The new daemon does not know whether the killed daemon created the directory.
	os.Remove(m.Dir)
}

func TestMountsAtOnceShareADaemon(t *testing.T) {
	w := newWorld(t)
	files := sample("at once")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	var commands []*waiting
	var dirs []string
	for range 8 {
		dirs = append(dirs, w.place("m"))
		p := &waiting{Cmd: w.command(context.Background(), "mount", url, dirs[len(dirs)-1])}
		p.Stdout, p.Stderr = &p.out, &p.out
		commands = append(commands, p)
	}
	// Two daemons that mount at one directory at the same time: one succeeds.
	for range 2 {
		p := &waiting{Cmd: w.command(context.Background(), "mount", url, filepath.Join(w.root, "same"))}
		p.Stdout, p.Stderr = &p.out, &p.out
		commands = append(commands, p)
	}
	for _, p := range commands {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	won := 0
	for i, p := range commands {
		err := p.Wait()
		switch {
		case i < len(dirs) && err != nil:
			t.Errorf("mount at once with others: %v: %s", err, &p.out)
		case err == nil && i >= len(dirs):
			won++
		case err != nil && !strings.Contains(p.out.String(), "already"):
			t.Errorf("second mount of a directory: got %v: %s, want success or \"already\"", err, &p.out)
		}
	}
	if won != 1 {
		t.Errorf("%d mounts succeeded at one directory, want 1", won)
	}
	w.daemon()
	for _, dir := range dirs {
		if n := readAll(t, dir, files); n > 0 {
			t.Errorf("mount %s: %d reads failed", dir, n)
		}
	}
}

func TestStateDirectoriesAreIndependent(t *testing.T) {
	w := newWorld(t)
	files := sample("two states")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	other := newWorld(t)
	mine, theirs := w.bare(url), other.bare(url)
	if len(w.list()) != 1 || len(other.list()) != 1 || w.list()[0].Dir != mine.Dir || other.list()[0].Dir != theirs.Dir {
		t.Errorf("the daemons list %+v and %+v, want one mount each", w.list(), other.list())
	}
	w.refusal(other.afs("unmount", mine.Dir), control.ExitNotMounted, mine.Dir, "")
	w.refusal(other.afs("mount", url, mine.Dir), control.ExitFailed, "already", "")
	w.ok("unmount", "--all")
	if n := readAll(t, theirs.Dir, files); n > 0 {
		t.Errorf("%d reads failed", n)
	}
}
