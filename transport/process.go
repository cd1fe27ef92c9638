package transport

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of child processes.
const (
	pipeSize  = 1 << 20         // bytes the kernel holds of a pack while its reader is busy
	exitGrace = 2 * time.Second // how long a child whose pipes were closed may take to exit before it is killed
)

// process is a duplex over a child's standard input and output.
type process struct {
	in, out *os.File
	stats   *counters
	stderr  tail
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the child was waited for
	once    sync.Once
	// verdict returns the error to report if the child ended before its first answer.
	verdict func(ctx context.Context, p *process, err error) error
}

// startProcess runs a command in "/": the daemon must not keep files below its own mounts open, and
// the repository in the working directory must not have an effect.
func (r *Remote) startProcess(cmd *exec.Cmd, verdict func(context.Context, *process, error) error) (duplex, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		childIn.Close()
		in.Close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	// A larger pipe means fewer wake-ups. An error is ignored: the limit of an unprivileged user may be used up.
	if c, err := out.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
	p := &process{in: in, out: out, stats: &r.stats, cmd: cmd, exited: make(chan struct{}), verdict: verdict}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, &p.stderr
	cmd.Dir = "/"
	cmd.WaitDelay = exitGrace // a grandchild may hold stderr open
	// startTask fails once the Remote is closed; otherwise Close waits for the child.
	if err = r.startTask(); err == nil {
		if err = cmd.Start(); err != nil {
			err = fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
			r.tasks.Done()
		}
	}
	// The child has its own copies of these ends. With ours open a read would not see the end of the stream when the
	// child exits.
	childIn.Close()
	childOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	go func() {
		defer r.tasks.Done()
		cmd.Wait() // the exit status stays in cmd.ProcessState
		close(p.exited)
	}()
	return p, nil
}

// Read returns what the child has written to standard output.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	p.stats.in.Add(int64(n))
	return n, err
}

// Write sends bytes to the child's standard input.
func (p *process) Write(b []byte) (int, error) {
	n, err := p.in.Write(b)
	p.stats.out.Add(int64(n))
	return n, err
}

// abort closes the pipes, whereupon git and ssh exit. A child that does not is killed.
func (p *process) abort() {
	p.once.Do(func() {
		p.in.Close()
		p.out.Close()
		time.AfterFunc(exitGrace, func() { p.cmd.Process.Kill() }) // no-op on a child that was waited for
	})
}

// explain waits for the child to exit, because its exit status and its last messages are the reason of the failure.
func (p *process) explain(ctx context.Context, err error) error {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return p.verdict(ctx, p, err)
}

// lastOutput returns the last output of the child on stderr, after a colon.
func (p *process) lastOutput() string {
	if s := plain(p.stderr.bytes()); s != "" {
		return ": " + s
	}
	return ""
}

// tail keeps the end of what a child writes to stderr.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write keeps the last bytes of b and of earlier calls.
func (t *tail) Write(b []byte) (int, error) {
	const most = 2 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if extra := len(t.buf) - most; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(b), nil
}

// bytes returns a copy of the kept bytes.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf...)
}
