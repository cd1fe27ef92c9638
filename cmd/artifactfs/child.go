package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// stoppedFor is how long CMD must stay stopped before we stop as well.
const stoppedFor = 50 * time.Millisecond

// forwarded are the signals that CMD gets from us. It shares our process group, as a child of a shell script does, so that
// a pipeline with run in it stays one job: what the terminal sends comes to both, and must not come twice.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH,
}

// fromTerminal are those that the terminal sends to everybody in its foreground.
func fromTerminal(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH
}

// runChild runs a command in a directory of the mount and returns its exit code. The error is the reason if it did not run.
func runChild(a *cli.App, command []string, dir string) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.Stdout, a.Stderr
	if errors.Is(cmd.Err, exec.ErrDot) { // a relative directory of PATH means one below CMD's own
		cmd.Err = nil
	}
	cmd.Env = childEnvironment(dir)

	var wanted []os.Signal
	for _, s := range forwarded {
		if !signal.Ignored(s) { // what our parent had ignored stays so, in CMD too
			wanted = append(wanted, s)
		}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, wanted...)
	defer signal.Stop(signals)
	terminal := openTerminal()
	defer terminal.close()

	if err := cmd.Start(); err != nil {
		err = cannotRun(command[0], err)
		return control.AsError(err).Code, err
	}
	ended := make(chan unix.WaitStatus, 1)
	go func() { ended <- terminal.wait(cmd.Process.Pid) }()
	for {
		select {
		case s := <-signals:
			if !fromTerminal(s) || !terminal.ours() {
				cmd.Process.Signal(s)
			}
		case status := <-ended:
			cmd.Process.Release()
			terminal.restore(status)
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}

// childEnvironment is ours with the directory's name in PWD.
func childEnvironment(dir string) []string {
	env := make([]string, 0, len(os.Environ())+1)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PWD=") && !strings.HasPrefix(v, "OLDPWD=") {
			env = append(env, v)
		}
	}
	return append(env, "PWD="+filepath.Clean(dir))
}

// terminal is the controlling one, if there is one.
type terminal struct {
	file  *os.File
	state *unix.Termios
}

func openTerminal() terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return terminal{}
	}
	state, _ := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return terminal{f, state}
}

func (t terminal) close() {
	if t.file != nil {
		t.file.Close()
	}
}

// ours says whether we are in the terminal's foreground: then its signals come to CMD without us.
func (t terminal) ours() bool {
	group, ok := t.foreground()
	return ok && group == unix.Getpgrp()
}

func (t terminal) foreground() (group int, ok bool) {
	if t.file == nil {
		return 0, false
	}
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return group, err == nil
}

// wait waits until CMD has ended. One that stops itself alone, as a shell does with `suspend`, would have no process
// to wake it: this process stops as well, so that its parent takes the terminal back, and CMD continues when it does.
func (t terminal) wait(pid int) unix.WaitStatus {
	any := pid
	if os.Getpid() == 1 { // of a container: what lost its parent is ours to bury
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

// stopAlong stops this process if CMD is stopped, and not just about to be woken together with us. When we go on, CMD gets
// the terminal back, if it had it to itself, and continues too.
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
	<-continued // the stop may come a moment after the call
	if had && group != unix.Getpgrp() && t.ours() {
		t.give(group)
	}
	unix.Kill(pid, unix.SIGCONT)
}

// isStopped reports whether a signal or a debugger has stopped a process.
func isStopped(pid int) bool {
	stat, err := proc.Of(pid).Stat()
	return err == nil && (stat.State == 'T' || stat.State == 't')
}

// give puts a group into the terminal's foreground, if it is not there. A shell, which has a group of its own, may go without
// giving the terminal back.
func (t terminal) give(to int) {
	if group, ok := t.foreground(); !ok || group == to {
		return
	}
	// Whoever is in the background and sets the foreground is stopped, unless he ignores the signal. CMD runs already, and
	// inherits nothing of this.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, to)
}

// restore restores the state that the terminal had when this process started.
func (t terminal) restore(status unix.WaitStatus) {
	if t.file == nil {
		return
	}
	if group, ok := t.foreground(); !ok || unix.Kill(-group, 0) == nil && group != unix.Getpgrp() {
		return // another job's: we run in the background
	}
	t.give(unix.Getpgrp())
	if status.Signaled() && t.state != nil { // it had no time to
		unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETS, t.state)
	}
}
