// Package inotify makes the kernel raise inotify events for names that the daemon has changed without a system call. A separate process,
// the event process, makes system calls in the mount that change nothing (see fuse.NameEvent). The process that serves the mount must not
// make them itself: if it were killed in such a call, its thread would wait for a reply that only the successor can give, while the
// successor waits for the end of the thread.
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
	// mostNames is the maximum number of names for which events are raised. After a change of more names, each changed directory gets
	// one event.
	mostNames = 5000
	killTime  = limit + time.Second // how long an event process may take before it is killed
	pauseTime = time.Second         // how long Pause waits for the end of an event process
)

// Raiser raises events for one writable mount. The methods may be called from any goroutine. A nil Raiser raises none.
type Raiser struct {
	Dir    string // directory of the mount
	Server *fuse.Server
	Kernel *worktree.Kernel
	Note   func(fuse.EventProcess) // stores the event process for a successor
	Log    *zap.Logger

	turn  chan struct{}  // held while an event process runs; capacity 1
	work  sync.WaitGroup // of the goroutines that Raise has started
	ended chan struct{}  // closed by Close, which holds mu

	mu      sync.Mutex
	process *os.Process // the event process, or nil; protected by mu
}

// New returns a Raiser with the exported fields of r.
func New(r *Raiser) *Raiser {
	r.turn, r.ended = make(chan struct{}, 1), make(chan struct{})
	return r
}

// Raise raises events for the changes in the background. It raises none in directories that the kernel does not know, because
// nobody watches them.
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

// changes are the changes for one event process.
type changes struct {
	events []*fuse.NameEvent
	input  []byte // input of the event process; empty: there is nothing to do
}

// changesOf returns the changes that somebody may watch.
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
		// A directory that is new or gone has an event of its own.
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
	if len(c.events) > mostNames {
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

// kindOf returns the kind of a change, or 0 if nothing has changed.
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

// dirOf returns the path of the directory that contains a path; "" for the root.
func dirOf(p string) string {
	if dir := path.Dir(p); dir != "." {
		return dir
	}
	return ""
}

// raise runs an event process until it ends. It waits for the event process of an earlier change.
//
// The kernel kills the event process when the thread that has started it ends (prctl(2), PR_SET_PDEATHSIG). A successor ends only an
// event process that was noted, and one that is stopped does not end by itself.
func (r *Raiser) raise(c changes) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-r.ended:
		return nil
	case <-time.After(2 * killTime):
		return errors.New("the previous event process hangs")
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
	cmd.Wait() // from here on, another process can have the id
	switch code := cmd.ProcessState.ExitCode(); code {
	case exitDone:
		return nil
	case exitUnknown: // another file system hides the mount, or it belongs to another PID namespace
		r.Log.Debug("no inotify events", zap.String("dir", r.Dir))
		return nil
	}
	return errors.Join(err, fmt.Errorf("event process has ended: %s", cmd.ProcessState))
}

// await waits until a child of this process has ended. Its id stays in use.
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

// Pause ends the event process, so that it does not keep the mount busy, and lets no other one start until the returned function is
// called.
func (r *Raiser) Pause() (resume func()) {
	if r == nil || !r.pause() {
		return func() {}
	}
	return func() { <-r.turn }
}

// pause ends the event process and takes its turn. It returns false if the process does not end within pauseTime.
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

// Close ends the event process for good. It is called once, when the mount has ended. An event process that does not end is left.
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
