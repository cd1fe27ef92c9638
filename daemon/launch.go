package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	launchTime = 15 * time.Second
	launchPoll = 5 * time.Millisecond
	endTime    = 5 * time.Second // for a daemon that was started in vain
)

// LaunchConfig says how to start a daemon in the background.
type LaunchConfig struct {
	Socket     string
	Executable string
	Args       []string // of the daemon command
	Log        string   // file for what the daemon prints
}

// Ensure gives a client of the daemon at a socket, starting one if none answers. Of several callers at once one
// starts it and the others wait.
func Ensure(ctx context.Context, c LaunchConfig) (*control.Client, error) {
	if client, err := control.Dial(ctx, c.Socket); err == nil || !errors.Is(err, control.ErrNoServer) {
		return client, err
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o700); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	unlock, err := lockLaunch(ctx, c.Socket+".launch")
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	defer unlock()
	if client, err := control.Dial(ctx, c.Socket); err == nil || !errors.Is(err, control.ErrNoServer) {
		return client, err // somebody was faster
	}
	return launch(ctx, c)
}

func launch(ctx context.Context, c LaunchConfig) (*control.Client, error) {
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o700); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	defer log.Close()
	from, _ := log.Seek(0, 2)
	cmd := exec.Command(c.Executable, c.Args...)
	cmd.Dir = "/" // it must not hold a directory that somebody wants to unmount
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, launchTime)
	defer cancel()
	for {
		client, err := control.Dial(ctx, c.Socket)
		if err == nil || !errors.Is(err, control.ErrNoServer) && ctx.Err() == nil {
			return client, err
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("start daemon: it ended at once (%v): %s", err, tail(c.Log, from))
		case <-ctx.Done():
			if client, err := control.Dial(context.WithoutCancel(ctx), c.Socket); err == nil {
				return client, nil // at the last moment: others may use it already
			}
			endChild(cmd.Process, ended)
			return nil, fmt.Errorf("start daemon: no answer: %w", ctx.Err())
		case <-time.After(launchPoll):
		}
	}
}

// lockLaunch waits for whoever starts the daemon at this moment, or for ctx.
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

// endChild ends a daemon that nobody has reached, and waits for it.
func endChild(p *os.Process, ended <-chan error) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(endTime):
		p.Kill()
		<-ended
	}
}

// tail gives the last line that was logged after offset from.
func tail(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < from {
		return "see " + path
	}
	text := strings.TrimSpace(string(b[from:]))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
