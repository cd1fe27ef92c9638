package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/control/spawn"
)

const (
	launchTime = 15 * time.Second     // timeout for the first answer of a new daemon
	launchPoll = 5 * time.Millisecond // interval at which Ensure checks whether the daemon answers

	defaultExecutable = "artifactfs"
	defaultIdleExit   = 5 * time.Minute
)

// Launch identifies a daemon and states how to start it. The zero value stands for the daemon that the command line
// uses: the daemon of the default state directory, started by the artifactfs in $PATH.
type Launch struct {
	State      string        // state directory; "": the default of StateDir
	Socket     string        // path of the socket; "": DaemonSocket of the state directory
	Executable string        // path of the artifactfs program; "": the artifactfs in $PATH
	IdleExit   time.Duration // time without a mount after which the daemon ends; 0: five minutes
	LogFile    string        // path of the log; "": log/daemon.log in the state directory
	LogLevel   string        // log level: "debug", "info", "warn" or "error"; "": the default of the daemon
	LogFormat  string        // log format: "console" or "json"; "": the default of the daemon
}

// Ensure returns a Client of a daemon. If the daemon does not answer, Ensure starts it. If several processes call
// Ensure at the same time, one of them starts the daemon and the others wait. The daemon continues to run when the
// caller ends.
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
	unlock, err := spawn.Lock(ctx, l.Socket+".launch")
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	defer unlock()
	if client, err := Dial(ctx, l.Socket); err == nil || !errors.Is(err, ErrNoServer) {
		return client, err // another process has started the daemon while this process waited for the lock
	}
	return l.start(ctx)
}

// complete returns l with defaults for empty fields. It makes all paths absolute, because the daemon has another
// working directory.
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

// arguments returns the command-line arguments of the daemon.
func (l Launch) arguments() []string {
	args := []string{"daemon", "--state", l.State, "--socket", l.Socket, "--idle-exit", l.IdleExit.String(),
		"--log-file", l.LogFile}
	if l.LogFormat != "" {
		args = append(args, "--log-format", l.LogFormat)
	}
	if l.LogLevel != "" {
		args = append(args, "--log-level", l.LogLevel)
	}
	return args
}

// start starts the daemon and waits until it answers. The caller must hold the lock of spawn.Lock.
func (l Launch) start(ctx context.Context) (*Client, error) {
	executable := l.Executable
	if executable == "" {
		var err error
		if executable, err = exec.LookPath(defaultExecutable); err != nil {
			return nil, &Error{Code: ExitFailed, Kind: CodeNotFound, Verb: "start", Object: "daemon", Cause: err.Error(),
				Hint: "install artifactfs, or set Launch.Executable to the path of the program"}
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
	// The log may contain lines of earlier daemons. The error below contains only lines that follow this offset.
	from, _ := log.Seek(0, 2)
	cmd := exec.Command(executable, l.arguments()...)
	cmd.Env = spawn.Environment(os.Environ())
	// with another working directory, the daemon would keep a file system busy that the user may want to unmount
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// The daemon gets its own session (setsid(2)), so that it is not killed when the caller's terminal is closed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, launchTime)
	defer cancel()
	for {
		// After an error other than ErrNoServer, a daemon is running, so return that error.
		client, err := Dial(ctx, l.Socket)
		if err == nil || !errors.Is(err, ErrNoServer) && ctx.Err() == nil {
			return client, err
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("start daemon: daemon exited at once (%v): %s", err, spawn.LastLine(l.LogFile, from))
		case <-ctx.Done():
			if client, err := Dial(context.WithoutCancel(ctx), l.Socket); err == nil {
				// do not kill the daemon, because it answers now and other processes may use it already
				return client, nil
			}
			spawn.End(cmd.Process, ended)
			return nil, fmt.Errorf("start daemon: daemon did not answer: %w", ctx.Err())
		case <-time.After(launchPoll):
		}
	}
}
