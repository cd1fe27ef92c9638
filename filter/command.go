package filter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
)

const (
	// killWait is how long wait waits for output that the children of a killed program still hold open.
	killWait = time.Second
	// maxLogLine is the maximum length in bytes of a logged line of standard error.
	maxLogLine = 1 << 10
)

// enter is the script of the first shell, which changes to the working tree. The child that Go starts must not do that
// itself, because its parent thread is stopped until the child runs a program: if this process serves the mount, the
// child's chdir would wait for this process, and both would hang.
const enter = `cd "$0" && exec /bin/sh -c "$1" "$1"`

// program is a running command.
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
	// limit is the deadline for the next input or output.
	limit  time.Duration
	timer  *time.Timer // kills the program when limit has passed
	late   atomic.Bool // the timer has killed the program
	undo   func() bool // cancels the stop that ctx causes
	killed sync.Once
	over   atomic.Bool // the process was reaped: its PID may belong to another process
}

// launch starts a shell command in the working tree, as git does. Cancelling ctx stops it.
func (p *Programs) launch(ctx context.Context, command string) (*program, error) {
	return p.start(ctx, exec.Command("/bin/sh", "-c", enter, p.o.Dir, command), command)
}

// start starts cmd with the programs' environment, pipes and deadline. The caller must close the input and call wait.
func (p *Programs) start(ctx context.Context, cmd *exec.Cmd, name string) (*program, error) {
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", p.env, killWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal for prompts, and a process group to kill as a whole
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

// alive restarts the deadline; rest suspends it until the next alive.
func (g *program) alive() { g.timer.Reset(g.limit) }
func (g *program) rest()  { g.timer.Stop() }

// kill kills the process group, unless the process was reaped.
func (g *program) kill() {
	g.killed.Do(func() {
		if !g.over.Load() {
			_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// stop closes the program's input, which ends it as in git, and kills it if it still runs after killWait.
func (g *program) stop() {
	g.in.Close()
	time.AfterFunc(killWait, g.kill)
}

// wait reaps the process. The input must be closed, and the output read or no longer needed.
func (g *program) wait() error {
	err := g.cmd.Wait()
	g.over.Store(true)
	g.timer.Stop()
	g.undo()
	if errors.Is(err, exec.ErrWaitDelay) { // a child still holds standard error open
		err = nil
	}
	return err
}

// Write and Read use the pipes and restart the deadline.
func (g *program) Write(b []byte) (int, error) {
	g.alive()
	n, err := g.in.Write(b)
	g.alive()
	return n, err
}

func (g *program) Read(b []byte) (int, error) {
	n, err := g.out.Read(b)
	g.alive()
	return n, err
}

// OneShot runs command for one file, with the path in place of "%f", and writes the result to f.Out. Errors:
// ErrUnfiltered, ErrDeadline, ErrStopped. It does not try a second time. The command must write the result to its
// standard output and exit with 0.
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

// place waits for one of the maxOneShots slots for commands.
func (p *Programs) place(ctx context.Context) error {
	select {
	case p.oneShots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ErrStopped
	}
}

// pipe writes in to a command and its output to out, and waits for its end. A command that does not read all of its
// input is no error.
//
// Input and output run concurrently, because a program may write before it has read everything. The errors are, in this
// order of precedence: ErrStopped, ErrDeadline, errOutput, ErrUnfiltered with the exit status, and read errors of in.
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

// onlyWriter and onlyReader hide other methods, so that io.Copy uses Write and Read, which restart the deadline.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// stoppedOr returns ErrStopped if ctx was cancelled, and err otherwise.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrStopped
	}
	return err
}

// expand replaces "%f" by the quoted path and "%%" by "%"; a "%" before other characters stays.
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

// encodingName matches the names that are passed to iconv(1).
var encodingName = regexp.MustCompile(`^[A-Za-z0-9_.:+()-]+(//[A-Za-z]*)?$`)

// Iconv converts UTF-8 to another encoding with iconv(1), which has the tables that git uses. It tries the names in
// order, and returns false if none is known or the content cannot be encoded.
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
		return nil, false, fmt.Errorf("encode: %w", err)
	}
	for _, name := range names {
		if !encodingName.MatchString(name) { // iconv(1) reads a file if the name looks like a path
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

// withoutReset removes the sequence with which iconv(1) resets a stateful encoding at the end of the text: git does not
// request it from the library. Other stateful encodings, such as UTF-7, stay as iconv(1) ends them.
func withoutReset(name string, content, encoded []byte) []byte {
	name = strings.ToUpper(name)
	for prefix, reset := range map[string]string{"ISO-2022-JP": "\x1b(B", "ISO-2022-KR": "\x0f", "ISO-2022-CN": "\x0f"} {
		if strings.HasPrefix(name, prefix) && len(content) > 0 && content[len(content)-1] >= utf8.RuneSelf {
			return bytes.TrimSuffix(encoded, []byte(reset))
		}
	}
	return encoded
}

// lineLog logs the lines that a program writes to standard error.
type lineLog struct {
	log  *zap.Logger
	name string
	line []byte
}

// Write collects bytes and logs every complete line, cut to maxLogLine. It never fails, so that the program is not
// disturbed.
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
			l.log.Info("filter says", zap.String("filter", l.name), zap.String("line", string(l.line)))
			l.line = l.line[:0]
		}
	}
	return n, nil
}
