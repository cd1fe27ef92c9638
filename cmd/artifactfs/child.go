package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/namespace"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// stoppedFor is the time for which CMD must stay stopped before this process also stops itself.
const stoppedFor = 50 * time.Millisecond

// forwarded lists the signals that this process passes on to CMD. Like a child of a shell script, CMD is in the process
// group of this process, so that a pipeline that contains the command "artifactfs run" is one job. The terminal sends
// its signals to the whole group. These signals reach CMD directly, and must not be passed on a second time.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
	syscall.SIGWINCH,
}

// fromTerminal reports whether the terminal sends a signal to its whole foreground process group.
func fromTerminal(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH
}

// runChild runs a command in a directory of the mount and returns the exit code of the command, or 128 plus the number
// of the signal that killed it. If view is not nil, the command sees the mount at another path. If the command could
// not be started, runChild returns an error with an exit code.
//
// It does not use Cmd.Wait, because only wait4(2) reports that CMD was stopped. CMD inherits stdin, stdout and stderr
// unchanged.
func runChild(a *cli.App, command []string, dir string, view *namespace.View) (int, error) {
	var wanted []os.Signal
	for _, s := range forwarded {
		if !signal.Ignored(s) { // CMD inherits the signals that this process ignores.
			wanted = append(wanted, s)
		}
	}
	// Catch signals before CMD starts, so that no signal is lost.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, wanted...)
	defer signal.Stop(signals)
	terminal := openTerminal()
	defer terminal.close()

	child, err := startChild(a, command, dir, view)
	if err != nil {
		return control.AsError(err).Code, err
	}
	ended := make(chan unix.WaitStatus, 1)
	go func() { ended <- terminal.wait(child.Pid) }()
	for {
		select {
		case s := <-signals:
			// If the process group is in the foreground, the terminal has also sent its signals to CMD.
			if !fromTerminal(s) || !terminal.ours() {
				child.Signal(s)
			}
		case status := <-ended:
			child.Release()
			terminal.restore(status)
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}

// childEnvironment returns this process's environment with PWD set to dir.
func childEnvironment(dir string) []string {
	env := make([]string, 0, len(os.Environ())+1)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PWD=") && !strings.HasPrefix(v, "OLDPWD=") {
			env = append(env, v)
		}
	}
	return append(env, "PWD="+filepath.Clean(dir))
}

// terminal is the controlling terminal; the field file is nil if there is none.
type terminal struct {
	file *os.File
	// state holds the settings of the terminal at the start of this process.
	state *unix.Termios
}

// openTerminal opens the controlling terminal and saves its settings.
func openTerminal() terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return terminal{}
	}
	state, _ := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return terminal{f, state}
}

// close closes the terminal's file.
func (t terminal) close() {
	if t.file != nil {
		t.file.Close()
	}
}

// ours reports whether this process is in the foreground process group of the terminal. If it is, CMD receives the
// terminal's signals directly.
func (t terminal) ours() bool {
	group, ok := t.foreground()
	return ok && group == unix.Getpgrp()
}

// foreground returns the foreground process group of the terminal. It returns false if there is no terminal.
func (t terminal) foreground() (group int, ok bool) {
	if t.file == nil {
		return 0, false
	}
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return group, err == nil
}

// wait waits until CMD has ended and returns its status. If CMD stops itself, as a shell does with `suspend`, this
// process also stops. The parent of this process, usually a shell with job control, then gets the terminal. After the
// parent has continued this process, wait continues CMD.
func (t terminal) wait(pid int) unix.WaitStatus {
	any := pid
	if os.Getpid() == 1 { // process 1 of a container must reap all orphans
		any = -1
	}
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(any, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0
		case got != pid:
		case !status.Stopped():
			return status
		default:
			t.stopAlong(pid)
		}
	}
}

// stopAlong stops this process if CMD stays stopped. After SIGCONT it returns the terminal to CMD if CMD was in the
// foreground, and continues CMD.
func (t terminal) stopAlong(pid int) {
	time.Sleep(stoppedFor)
	if t.file == nil || !isStopped(pid) {
		return
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	group, had := t.foreground()
	t.give(unix.Getpgrp())
	unix.Kill(os.Getpid(), unix.SIGSTOP)
	<-continued // SIGSTOP may take effect after the call has returned
	if had && group != unix.Getpgrp() && t.ours() {
		t.give(group)
	}
	unix.Kill(pid, unix.SIGCONT)
}

// isStopped reports whether a process was stopped by a signal or a debugger.
func isStopped(pid int) bool {
	stat, err := proc.Of(pid).Stat()
	return err == nil && (stat.State == 'T' || stat.State == 't')
}

// give makes the process group in the parameter to the foreground group of the terminal. This is needed after CMD has
// ended: a shell that runs in a separate process group may exit without restoring the foreground group.
func (t terminal) give(to int) {
	if group, ok := t.foreground(); !ok || group == to {
		return
	}
	// The kernel stops a background process that sets the foreground group, unless the process ignores SIGTTOU. CMD is
	// already running, so it does not inherit the ignored signal.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, to)
}

// restore makes the process group of this process the foreground group again. If CMD was killed, restore also restores
// the settings of the terminal.
func (t terminal) restore(status unix.WaitStatus) {
	if t.file == nil {
		return
	}
	if group, ok := t.foreground(); !ok || unix.Kill(-group, 0) == nil && group != unix.Getpgrp() {
		return // another job is in the foreground, and this process runs in the background
	}
	t.give(unix.Getpgrp())
	if status.Signaled() && t.state != nil { // CMD could not restore the settings itself
		unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETS, t.state)
	}
}
