package filter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/lazy"
)

const (
	// killWait is the time that program.wait waits for the output pipes to be closed: children of a killed program may
	// still have the pipes open. It is also the time between the calls of stop and kill.
	killWait = time.Second
	// maxLogLine is the maximum length in bytes of a logged line of standard error.
	maxLogLine = 1 << 10
)

// enter is the script of the first shell. It changes to the working tree, $0, and then runs the command, $1. The
// process that Go forks must not change directory itself: a thread of this process waits until the forked process
// executes a program. If this process serves the mount, the chdir could wait for this process, and both would hang.
const enter = `cd "$0" && exec /bin/sh -c "$1" "$1"`

// program is a running command, with pipes for its input and output.
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader // output of the program
	// The field limit is the maximum time until the next input or output.
	limit  time.Duration
	timer  *time.Timer // kills the program when the time limit has passed
	late   atomic.Bool // whether the timer has killed the program
	undo   func() bool // cancels the call of the method stop that would follow the end of the context
	killed sync.Once
	over   atomic.Bool // whether the process was waited for, after which its PID may belong to another process
}

// launch starts a shell command in the working tree, as git does. When ctx is canceled, the command is stopped (method
// stop).
func (p *Programs) launch(ctx context.Context, command string) (*program, error) {
	return p.start(ctx, exec.Command("/bin/sh", "-c", enter, p.o.Dir, command), command)
}

// start starts cmd with the environment, pipes and deadline of a program. The parameter name identifies the program in
// logs. The caller must close the input of the program and call wait.
func (p *Programs) start(ctx context.Context, cmd *exec.Cmd, name string) (*program, error) {
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", p.env, killWait
	// no terminal for prompts, and a process group that can be killed as a whole
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = &lineLog{log: p.o.Log, name: name}
	g := &program{cmd: cmd, limit: p.o.Deadline}
	var err error
	if g.in, err = cmd.StdinPipe(); err == nil {
		g.out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start filter: %w", err)
	}
	g.timer = time.AfterFunc(g.limit, func() {
		g.late.Store(true)
		g.kill()
	})
	g.undo = context.AfterFunc(ctx, g.stop)
	return g, nil
}

// alive restarts the deadline. It is called after the program has read or written. The method rest stops the deadline
// until the next call of alive.
func (g *program) alive() { g.timer.Reset(g.limit) }
func (g *program) rest()  { g.timer.Stop() }

// kill kills the process group of the program, unless the process was waited for. Only the first call has an effect.
func (g *program) kill() {
	g.killed.Do(func() {
		if !g.over.Load() {
			_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// stop closes the input of the program, which asks a filter program to end. If the program still runs after killWait,
// stop kills the program.
func (g *program) stop() {
	g.in.Close()
	time.AfterFunc(killWait, g.kill)
}

// wait waits for the end of the process and returns its error, which is nil if it exits with 0. Before calling wait,
// the caller must close the input and read all output that it needs.
func (g *program) wait() error {
	err := g.cmd.Wait()
	g.over.Store(true)
	g.timer.Stop()
	g.undo()
	if errors.Is(err, exec.ErrWaitDelay) { // no error: a child of the program still has standard error open
		err = nil
	}
	return err
}

// Write writes to the input of the program and restarts the deadline.
func (g *program) Write(b []byte) (int, error) {
	g.alive()
	n, err := g.in.Write(b)
	g.alive()
	return n, err
}

// Read reads from the output of the program and restarts the deadline.
func (g *program) Read(b []byte) (int, error) {
	n, err := g.out.Read(b)
	g.alive()
	return n, err
}

// OneShot runs command for one file, with the file's path in place of "%f", and writes the output to f.Out. The command
// succeeds if it writes the result to its standard output and exits with 0. If the command fails, OneShot does not run
// it again. The error wraps ErrUnfiltered, ErrDeadline or ErrStopped, or is the error of reading or writing the
// contents.
func (p *Programs) OneShot(command string, f File) error {
	p.mu.Lock()
	g, err := p.beginWork()
	if err == nil {
		p.shots[&f] = true
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.shots, &f)
		g.wg.Done()
	}()
	if err := p.ready(g.ctx); err != nil {
		return stoppedOr(g.ctx, err)
	}
	if err := p.place(g.ctx); err != nil {
		return err
	}
	defer func() { <-p.oneShots }()
	if !f.wanted() {
		return ErrStopped
	}
	if err := f.Out.Reset(); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	run, err := p.launch(g.ctx, expand(command, f.Path))
	if err != nil {
		return stoppedOr(g.ctx, err)
	}
	return p.pipe(g.ctx, run, f.reader(), f.Out, command)
}

// place waits for one of the maxOneShots slots for commands. The caller must release the slot by a receive from
// p.oneShots. If ctx ends before a slot is free, the error is ErrStopped.
func (p *Programs) place(ctx context.Context) error {
	select {
	case p.oneShots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ErrStopped
	}
}

// pipe copies the reader in to a running command and the output of the command to out. It returns when the command has
// ended. It is not an error if the command does not read all of its input.
//
// Input and output are copied concurrently, because a command may write output before it has read all input. If several
// errors occur, pipe returns the first error of this list: ErrStopped, ErrDeadline, errOutput, ErrUnfiltered with the
// exit status, and an error of reading in.
func (p *Programs) pipe(ctx context.Context, run *program, in io.Reader, out io.Writer, name string) error {
	fed := make(chan error, 1)
	go func() {
		_, err := io.Copy(onlyWriter{run}, in)
		run.in.Close()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
			err = nil
		}
		fed <- err
	}()
	_, outErr := io.Copy(out, onlyReader{run})
	if outErr != nil {
		run.kill()
	}
	waitErr := run.wait()
	fedErr := <-fed
	switch {
	case ctx.Err() != nil:
		return ErrStopped
	case run.late.Load():
		return fmt.Errorf("run filter %q: %w", name, ErrDeadline)
	case outErr != nil:
		return fmt.Errorf("run filter %q: %w: %w", name, errOutput, outErr)
	case waitErr != nil:
		return fmt.Errorf("run filter %q: %w: %w", name, ErrUnfiltered, waitErr)
	case fedErr != nil:
		return fmt.Errorf("run filter %q: %w", name, fedErr)
	}
	return nil
}

// onlyWriter and onlyReader hide all methods except Write and Read, so that io.Copy uses these two, which restart the
// deadline.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// stoppedOr returns ErrStopped if ctx has ended, and err otherwise.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrStopped
	}
	return err
}

// expand replaces each "%f" in command by the path, quoted for the shell, and each "%%" by "%". A "%" before any other
// character remains.
func expand(command, path string) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(command, "%")
		b.WriteString(before)
		switch {
		case !ok:
			return b.String()
		case strings.HasPrefix(after, "f"):
			b.WriteString("'" + strings.ReplaceAll(path, "'", `'\''`) + "'")
			after = after[1:]
		case strings.HasPrefix(after, "%"):
			b.WriteByte('%')
			after = after[1:]
		default:
			b.WriteByte('%')
		}
		command = after
	}
}

// encodingName matches the names of encodings that may be passed to iconv(1).
var encodingName = lazy.Regexp(`^[A-Za-z0-9_.:+()-]+(//[A-Za-z]*)?$`)

// Iconv converts content from UTF-8 to another encoding with iconv(1), which has the same tables as git. It tries the
// given names of the encoding in order. The second result is false if iconv(1) knows none of the names or the contents
// cannot be encoded.
func (p *Programs) Iconv(names []string, content []byte) ([]byte, bool, error) {
	p.mu.Lock()
	g, err := p.beginWork()
	p.mu.Unlock()
	if err != nil {
		return nil, false, err
	}
	defer g.wg.Done()
	if err := p.place(g.ctx); err != nil {
		return nil, false, err
	}
	defer func() { <-p.oneShots }()
	path, err := exec.LookPath("iconv")
	if err != nil {
		return nil, false, fmt.Errorf("convert encoding: %w", err)
	}
	for _, name := range names {
		if !encodingName().MatchString(name) { // skip the name, because iconv(1) opens a file if a name looks like a path
			continue
		}
		run, err := p.start(g.ctx, exec.Command(path, "-f", "UTF-8", "-t", name), "iconv")
		if err != nil {
			return nil, false, stoppedOr(g.ctx, err)
		}
		var out bytes.Buffer
		err = p.pipe(g.ctx, run, bytes.NewReader(content), &out, "iconv")
		if err == nil {
			return withoutReset(name, content, out.Bytes()), true, nil
		}
		if !errors.Is(err, ErrUnfiltered) {
			return nil, false, err
		}
	}
	return nil, false, nil
}

// withoutReset removes the escape sequence that iconv(1) writes at the end of the text to reset the state of a stateful
// encoding. git does not request this sequence from the iconv library, so a checkout does not have it. For other
// stateful encodings, such as UTF-7, the output of iconv(1) is left unchanged.
func withoutReset(name string, content, encoded []byte) []byte {
	name = strings.ToUpper(name)
	for prefix, reset := range map[string]string{"ISO-2022-JP": "\x1b(B", "ISO-2022-KR": "\x0f", "ISO-2022-CN": "\x0f"} {
		if strings.HasPrefix(name, prefix) && len(content) > 0 && content[len(content)-1] >= utf8.RuneSelf {
			return bytes.TrimSuffix(encoded, []byte(reset))
		}
	}
	return encoded
}

// lineLog is an io.Writer that logs the lines that a program writes to standard error.
type lineLog struct {
	log  *zap.Logger
	name string
	line []byte // start of a line whose end was not written yet
}

// Write collects bytes and logs every complete line, truncated to maxLogLine. It never returns an error, because an
// error would disturb the program.
func (l *lineLog) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		end := bytes.IndexAny(b, "\r\n")
		part := b
		if end >= 0 {
			part = b[:end]
		}
		l.line = append(l.line, part[:min(len(part), maxLogLine-len(l.line))]...)
		if end < 0 {
			break
		}
		b = b[end+1:]
		if len(l.line) > 0 {
			l.log.Info("read output of filter", zap.String("filter", l.name), zap.String("line", string(l.line)))
			l.line = l.line[:0]
		}
	}
	return n, nil
}
