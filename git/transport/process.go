package transport

import (
	"cmp"
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
	pipeSize  = 1 << 20         // bytes of a pack that the kernel buffers while the reader is busy
	exitGrace = 2 * time.Second // time for which a child may run after its pipes were closed; then it is killed
	// the same for a child that only reads a repository of this host, and that may wait for the remote of a partial clone
	readGrace = exitGrace / 4
)

// process is a duplex over the standard input and output of a child process.
type process struct {
	in, out *os.File // the ends of the pipes in this process: in is the child's standard input, out its standard output
	stats   *counters
	stderr  tail
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the child has exited
	once    sync.Once     // ensures that abort closes the pipes only once
	// The function verdict is called if the child has ended before its first answer. It returns the error to report. Its
	// parameter err is the error of the read.
	verdict func(ctx context.Context, p *process, err error) error
}

// startProcess starts cmd in the directory "/", because the daemon must not have a working directory below its own
// mounts, and the configuration of a repository there must not take effect. The parameter verdict is stored in the
// process. cmd.WaitDelay is the time for which the child may run after its pipes were closed; 0: exitGrace.
func (n *connector) startProcess(cmd *exec.Cmd, verdict func(context.Context, *process, error) error) (duplex, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create pipe: %w", err)
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		childIn.Close()
		in.Close()
		return nil, fmt.Errorf("create pipe: %w", err)
	}
	// A larger pipe means fewer wake-ups. The error is ignored, because an unprivileged user may have reached the limit
	// for pipe buffers.
	if c, err := out.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
	p := &process{in: in, out: out, stats: n.stats, cmd: cmd, exited: make(chan struct{}), verdict: verdict}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, &p.stderr
	cmd.Dir = "/"
	// Wait must not wait longer for the end of stderr, which a grandchild may keep open.
	cmd.WaitDelay = cmp.Or(cmd.WaitDelay, exitGrace)
	// begin fails if the Remote is closed; otherwise Remote.Close waits for the child.
	if err = n.tasks.begin(); err == nil {
		if err = cmd.Start(); err != nil {
			err = fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
			n.tasks.done()
		}
	}
	// The child has its own copies of childIn and childOut. If this process kept them open, a read would not see the end
	// of the stream when the child exits.
	childIn.Close()
	childOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	go func() {
		defer n.tasks.done()
		cmd.Wait() // the exit status is stored in cmd.ProcessState
		close(p.exited)
	}()
	return p, nil
}

// Read returns bytes that the child has written to standard output.
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

// abort closes the pipes, after which git and ssh normally exit. A child that is still running after
// cmd.WaitDelay is killed.
func (p *process) abort() {
	p.once.Do(func() {
		p.in.Close()
		p.out.Close()
		time.AfterFunc(p.cmd.WaitDelay, func() { p.cmd.Process.Kill() }) // Kill has no effect on a child that has exited
	})
}

// explain waits for the child to exit, because its exit status and its last messages state the cause of the failure.
func (p *process) explain(ctx context.Context, err error) error {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return p.verdict(ctx, p, err)
}

// lastOutput returns the last output of the child on stderr, preceded by ": ", or "" if the child has written nothing
// to stderr.
func (p *process) lastOutput() string {
	if s := plain(p.stderr.bytes()); s != "" {
		return ": " + s
	}
	return ""
}

// tail stores the last part of the child's output on stderr.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write appends b. If the stored output then has more bytes than the field most allows, Write drops the oldest bytes.
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

// bytes returns a copy of the stored output.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf...)
}
