package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// launchTime bounds the wait for a new daemon to answer, launchPoll is the interval of the checks.
const (
	launchTime = 15 * time.Second
	launchPoll = 5 * time.Millisecond
	endTime    = 5 * time.Second // for a daemon that was started in vain

	defaultExecutable = "artifactfs"
	defaultIdleExit   = 5 * time.Minute
)

// Launch names a daemon, and how to start it if it does not run. The zero value is the daemon of
// the command line: that of the default state directory, started by the artifactfs in $PATH.
type Launch struct {
	State      string        // state directory; "": as StateDir says
	Socket     string        // "": DaemonSocket of the state directory
	Executable string        // the artifactfs program; "": the one in $PATH
	IdleExit   time.Duration // the daemon ends after so long without a mount; 0: five minutes
	LogFile    string        // "": log/daemon.log in the state directory
	LogLevel   string        // "debug", "info", "warn" or "error"; "": the daemon's default
	LogFormat  string        // "console" or "json"; "": the daemon's default
}

// Ensure returns a Client of a daemon, which it starts if none answers. Of several concurrent
// callers one starts it and the others wait. The daemon outlives the caller.
func Ensure(ctx context.Context, l Launch) (*Client, error) {
	l, err := l.complete()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	if client, err := Dial(ctx, l.Socket); err == nil || !errors.Is(err, ErrNoServer) {
		return client, err
	}
	if err := os.MkdirAll(filepath.Dir(l.Socket), 0o700); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	unlock, err := lockLaunch(ctx, l.Socket+".launch")
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	defer unlock()
	if client, err := Dial(ctx, l.Socket); err == nil || !errors.Is(err, ErrNoServer) {
		return client, err // another process was faster
	}
	return l.start(ctx)
}

// complete returns l with defaults for empty fields, and with absolute paths: the daemon works in
// another directory.
func (l Launch) complete() (Launch, error) {
	state, err := StateDir(l.State)
	if err != nil {
		return l, err
	}
	l.State = state
	l.Socket = cmp.Or(l.Socket, DaemonSocket(state))
	l.LogFile = cmp.Or(l.LogFile, filepath.Join(state, "log", "daemon.log"))
	l.IdleExit = cmp.Or(l.IdleExit, defaultIdleExit)
	for _, path := range []*string{&l.Socket, &l.LogFile} {
		if *path, err = filepath.Abs(*path); err != nil {
			return l, err
		}
	}
	return l, nil
}

// arguments returns those of the daemon command.
func (l Launch) arguments() []string {
	args := []string{"daemon", "--state", l.State, "--socket", l.Socket, "--idle-exit", l.IdleExit.String(), "--log-file", l.LogFile}
	if l.LogFormat != "" {
		args = append(args, "--log-format", l.LogFormat)
	}
	if l.LogLevel != "" {
		args = append(args, "--log-level", l.LogLevel)
	}
	return args
}

// start starts the daemon and waits until it answers. The caller holds the lock of the launch.
func (l Launch) start(ctx context.Context) (*Client, error) {
	executable := l.Executable
	if executable == "" {
		var err error
		if executable, err = exec.LookPath(defaultExecutable); err != nil {
			return nil, &Error{Code: ExitFailed, Kind: CodeNotFound, Verb: "start", Object: "daemon", Cause: err.Error(),
				Hint: "install artifactfs, or name the program in Launch.Executable"}
		}
	}
	if err := os.MkdirAll(filepath.Dir(l.LogFile), 0o700); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	log, err := os.OpenFile(l.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	defer log.Close()
	// The log may hold lines of earlier daemons: an error quotes only lines after this offset.
	from, _ := log.Seek(0, 2)
	cmd := exec.Command(executable, l.arguments()...)
	cmd.Env = launchEnvironment(os.Environ())
	cmd.Dir = "/" // it must not hold a directory that its user wants to unmount
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own keeps the daemon alive when the caller's terminal is closed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, launchTime)
	defer cancel()
	for {
		// A daemon that answers with an error has been started: its error is returned.
		client, err := Dial(ctx, l.Socket)
		if err == nil || !errors.Is(err, ErrNoServer) && ctx.Err() == nil {
			return client, err
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("start daemon: it ended at once (%v): %s", err, lastLine(l.LogFile, from))
		case <-ctx.Done():
			if client, err := Dial(context.WithoutCancel(ctx), l.Socket); err == nil {
				return client, nil // at the last moment: others may use it already
			}
			endChild(cmd.Process, ended)
			return nil, fmt.Errorf("start daemon: no answer: %w", ctx.Err())
		case <-time.After(launchPoll):
		}
	}
}

// lockLaunch waits for the process that starts the daemon at this moment, or for ctx.
func lockLaunch(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := disk.TryLock(path)
		if !errors.Is(err, disk.ErrLocked) {
			return unlock, err
		}
		select {
		case <-time.After(launchPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// endChild ends a daemon that no client has reached, and waits for it.
func endChild(p *os.Process, ended <-chan error) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(endTime):
		p.Kill()
		<-ended
	}
}

// lastLine returns the last line that was logged after offset from.
func lastLine(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < from {
		return "see " + path
	}
	text := strings.TrimSpace(string(b[from:]))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
