// Package inotify makes the kernel raise inotify events for names that the daemon has changed without a system call. A
// separate process, the event process, makes system calls in the mount that change nothing (see fuse.NameEvent). The
// process that serves the mount must not make them itself: if it were killed in such a call, its thread would wait for
// a reply of the successor, while the successor waits for the end of the thread.
package inotify

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	// maxEventNames is the maximum number of names for which events are raised. After a change of more names, each
	// changed directory gets one event.
	maxEventNames = 5000
	killTime      = limit + time.Second // time after which an event process is killed
	pauseTime     = time.Second         // maximum time for which Pause waits for the end of an event process
)

// Raiser raises inotify events for one writable mount. The methods may be called from any goroutine. A nil Raiser
// raises none.
type Raiser struct {
	Dir    string // directory of the mount
	Server *fuse.Server
	Kernel *worktree.Kernel
	Note   func(fuse.EventProcess) // stores the ID of the event process for a successor
	Log    *zap.Logger

	turn  chan struct{}  // full while an event process runs; capacity 1
	work  sync.WaitGroup // goroutines that Raise has started
	ended chan struct{}  // closed by Close, which then holds mu

	mu      sync.Mutex
	process *os.Process // running event process; nil if there is none; protected by mu
}

// New returns a Raiser with the exported fields of r.
func New(r *Raiser) *Raiser {
	r.turn, r.ended = make(chan struct{}, 1), make(chan struct{})
	return r
}

// Raise raises inotify events for the changes in the background. It raises none in directories that the kernel does not
// know, because no program watches them.
func (r *Raiser) Raise(changed []worktree.ChangedName) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.ended:
		return
	default:
	}
	r.work.Go(func() {
		c := r.changesOf(changed)
		if len(c.input) == 0 {
			return
		}
		if err := r.raise(c); err != nil {
			r.Log.Info("some changes have raised no inotify events", zap.String("dir", r.Dir), zap.Error(err))
		}
	})
}

// changes has the changed names for one event process.
type changes struct {
	events []*fuse.NameEvent
	input  []byte // input of the event process; empty if there is nothing to do
}

// changesOf returns those of the changed names that a program may watch.
func (r *Raiser) changesOf(changed []worktree.ChangedName) (c changes) {
	merged := map[string]*worktree.ChangedName{}
	var paths []string
	for _, n := range changed {
		if before := merged[n.Path]; before != nil {
			before.New, before.Lookups = n.New, n.Lookups
			continue
		}
		merged[n.Path] = &n
		paths = append(paths, n.Path)
	}
	known := map[worktree.Node]bool{worktree.Root: true}
	var dirs []string
	var text strings.Builder
	record := func(kind byte, name string) { text.WriteString(string(rune(kind)) + name + "\x00") }
	for _, p := range paths {
		n := merged[p]
		kind := kindOf(n)
		// For a directory that is new or removed, the event is raised in its parent directory.
		if above := merged[dirOf(p)]; kind == 0 || above != nil && above.Old.Node != above.New.Node {
			continue
		}
		if _, asked := known[n.Dir]; !asked {
			known[n.Dir] = r.Kernel.Lookups(n.Dir) > 0
		}
		if !known[n.Dir] {
			continue
		}
		if len(dirs) == 0 || dirs[len(dirs)-1] != dirOf(p) {
			dirs = append(dirs, dirOf(p))
			record(recordDir, dirOf(p))
		}
		record(byte(kind), n.Name)
		c.events = append(c.events, &fuse.NameEvent{Place: n.Place, Kind: kind, Old: n.Old.Node, Lookups: n.Lookups})
	}
	if len(dirs) == 0 {
		return changes{}
	}
	if len(c.events) > maxEventNames {
		c.events = nil
		text.Reset()
		for _, d := range dirs {
			record(recordDir, d)
			record(recordTouch, "")
		}
	}
	record(recordEnd, "")
	c.input = []byte(text.String())
	return c
}

// kindOf returns the kind of event for the change n, or 0 if nothing has changed.
func kindOf(n *worktree.ChangedName) fuse.EventKind {
	switch {
	case n.Old.Node == n.New.Node:
		return 0
	case n.Old.Node == 0 && n.New.Dir:
		return fuse.CreatedDir
	case n.Old.Node == 0:
		return fuse.Created
	case n.New.Node == 0 && n.Old.Dir:
		return fuse.RemovedDir
	case n.New.Node == 0:
		return fuse.Removed
	}
	return fuse.Replaced
}

// dirOf returns the path of the parent directory of the path p, or "" for the root.
func dirOf(p string) string {
	if dir := path.Dir(p); dir != "." {
		return dir
	}
	return ""
}

// raise runs an event process for the changes c until it ends. It first waits for the end of the event process of an
// earlier change.
//
// The kernel kills the event process when the thread that has started it ends (prctl(2), PR_SET_PDEATHSIG). This is
// needed because a successor kills an event process only if Note was called before, and because a stopped event process
// does not end by itself.
func (r *Raiser) raise(c changes) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-r.ended:
		return nil
	case <-time.After(2 * killTime):
		return errors.New("previous event process does not end")
	}
	input, output, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: proc.Self.ExecutablePath(), Args: []string{processName, r.Dir}, Env: []string{}, Dir: "/", Stdin: input,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	runtime.LockOSThread() // the thread lasts as long as the event process
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	input.Close()
	if err != nil {
		output.Close()
		return err
	}
	late := time.AfterFunc(killTime, func() { cmd.Process.Kill() })
	defer late.Stop()
	r.set(cmd.Process)
	if stat, statErr := proc.Of(cmd.Process.Pid).Stat(); statErr == nil {
		r.Note(fuse.EventProcess{PID: cmd.Process.Pid, Start: stat.Start})
		r.Server.BeginEvents(cmd.Process.Pid, c.events)
		_, err = output.Write(c.input) // the process makes no request before it has all of its input
	}
	output.Close()
	r.await(cmd.Process.Pid)
	r.set(nil)
	r.Server.EndEvents()
	r.Note(fuse.EventProcess{})
	cmd.Wait() // from here on, another process can have the same ID
	switch code := cmd.ProcessState.ExitCode(); code {
	case exitDone:
		return nil
	case exitUnknown: // another file system hides the mount, or it belongs to another PID namespace
		r.Log.Debug("inotify events cannot be raised", zap.String("dir", r.Dir))
		return nil
	}
	return errors.Join(err, fmt.Errorf("event process has ended: %s", cmd.ProcessState))
}

// await waits until the child process pid has ended. The ID remains in use, because the process is not reaped.
func (r *Raiser) await(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (r *Raiser) set(p *os.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
}

// Pause ends a running event process, so that it does not keep the mount busy, and prevents new ones until resume is
// called.
func (r *Raiser) Pause() (resume func()) {
	if r == nil || !r.pause() {
		return func() {}
	}
	return func() { <-r.turn }
}

// pause ends a running event process and prevents new ones. It returns false if the process does not end within
// pauseTime.
func (r *Raiser) pause() bool {
	for end := time.Now().Add(pauseTime); time.Now().Before(end); {
		r.mu.Lock()
		if r.process != nil {
			r.process.Kill()
		}
		r.mu.Unlock()
		select {
		case r.turn <- struct{}{}:
			return true
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.Log.Warn("event process does not end", zap.String("dir", r.Dir))
	return false
}

// Close ends a running event process and prevents new ones. It is called once, when the mount has ended. It does not
// wait for an event process that cannot be killed.
func (r *Raiser) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	close(r.ended)
	r.mu.Unlock()
	if r.pause() {
		r.work.Wait()
	}
}
