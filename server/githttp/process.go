package githttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/proc"
)

var (
	errTime   = errors.New("git command has exceeded the time limit of a request")
	errSlow   = errors.New("client sends too slowly")
	errClient = errors.New("client does not read the answer")
	errWork   = errors.New("the push takes too much processor time: push it in parts, or repack with a lower depth")
)

// command is a git command that serves a request.
type command struct {
	cmd    *exec.Cmd
	body   io.Reader // standard input of git; nil: none
	out    io.Writer
	time   time.Duration
	memory int64 // maximum number of bytes of memory that each process may allocate
	// work returns the processor time that git may have used after it has received a number of bytes; nil: no limit
	work    func(received int64) time.Duration
	started func() // called when git was started; nil: nothing is called
	unblock func() // makes reads of body that are in progress fail
}

// run runs git in a separate process group, and returns when no process of the group is left. The group is killed when
// ctx ends, when a limit of time is reached, or when reading body or writing out fails; this cause is then the error.
// Otherwise the error is that of git.
func run(ctx context.Context, prepare func(ctx context.Context) (command, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c, err := prepare(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.time, errTime)
	defer cancel()
	var stdin, stdout pipe
	defer stdin.close()
	defer stdout.close()
	if err := errors.Join(stdin.open(), stdout.open()); err != nil {
		return fmt.Errorf("run git: %w", err)
	}
	var stderr gitcmd.Tail
	cmd := c.cmd
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin.r, stdout.w, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// If a process has left the group, or cannot be killed, Wait returns after this delay nevertheless.
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return gitcmd.Failed(cmd, err, nil)
	}
	stdin.r.Close()
	stdout.w.Close()
	if c.started != nil {
		c.started()
	}
	pid := cmd.Process.Pid
	var reaping sync.Mutex
	reaped := false
	kill := func() {
		reaping.Lock()
		defer reaping.Unlock()
		if !reaped { // not after Wait, because another process can have the ID then
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	}
	// The limit also applies to processes that git starts, because git starts none before it has read the request.
	limitErr := gitcmd.LimitMemory(pid, c.memory)
	dontKill := context.AfterFunc(ctx, kill)
	if limitErr != nil {
		stop(fmt.Errorf("limit memory of git: %w", limitErr))
	}
	input := &counted{w: stdin.w}
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	var watching, streams sync.WaitGroup
	if c.work != nil {
		watching.Go(func() { limitWork(watched, pid, input, c.work, stop) })
	}
	streams.Go(func() {
		defer stdin.w.Close()
		if c.body == nil || limitErr != nil {
			return
		}
		// EPIPE is not an error, because git may end before it has read the whole body
		if _, err := io.Copy(input, c.body); err != nil && !errors.Is(err, syscall.EPIPE) {
			stop(err)
		}
	})
	var outErr error
	streams.Go(func() {
		if _, outErr = io.CopyBuffer(onlyWriter{c.out}, stdout.r, make([]byte, 64<<10)); outErr != nil {
			stop(outErr)
			io.Copy(io.Discard, stdout.r)
		}
	})
	waitExited(pid)
	unwatch()
	watching.Wait()
	kill()
	dontKill()
	reaping.Lock()
	reaped = true
	reaping.Unlock()
	err = cmd.Wait()
	cause := context.Cause(ctx) // read before unblock, which may end ctx
	stdin.r.Close()
	if c.unblock != nil {
		c.unblock()
	}
	streams.Wait()
	switch {
	case cause != nil:
		return cause
	case outErr != nil: // git has ended without an error, but the last bytes of its answer could not be written
		return outErr
	}
	return gitcmd.Failed(cmd, err, stderr.Bytes())
}

// limitWork calls stop with errWork when the processes of a group have used more processor time than work allows for
// the input. It returns after that, or when ctx ends.
func limitWork(ctx context.Context, group int, input *counted, work func(received int64) time.Duration,
	stop func(error)) {
	for clock.Wait(ctx, max(work(0)/12, proc.Tick)) {
		if ran, err := proc.GroupRan(group); err == nil && ran > work(input.n.Load()) {
			stop(errWork)
			return
		}
	}
}

// counted counts the bytes that are written to w.
type counted struct {
	w io.Writer
	n atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// exited reports whether err means that git has ended with an error status, and was not killed.
func exited(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// onlyWriter hides all methods of a writer except Write, so that io.Copy passes each part on at once.
type onlyWriter struct{ io.Writer }

// waitExited waits until a child has ended, but leaves it as a zombie, so that its process group can be killed: the ID
// of the group is not used again before the zombie is reaped.
func waitExited(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// pipe is a pipe. Closing one of its ends again does nothing.
type pipe struct{ r, w *os.File }

func (p *pipe) open() (err error) {
	p.r, p.w, err = os.Pipe()
	return err
}

func (p *pipe) close() {
	if p.r != nil {
		p.r.Close()
		p.w.Close()
	}
}
