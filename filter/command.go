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
	// killWait is how long output is waited for that a killed program's children may still hold open.
	killWait = time.Second
	// maxLogLine is how much of one line of a program's standard error is logged, in bytes.
	maxLogLine = 1 << 10
)

// enter is what the first shell does: the working directory must not be changed by the child that Go starts, which stops
// this process' thread until it runs a program: in a mount that this process serves, both could wait for each other.
const enter = `cd "$0" && exec /bin/sh -c "$1" "$1"`

// program is a command under way.
type program struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	limit  time.Duration
	timer  *time.Timer // kills it when it has been silent too long
	late   atomic.Bool
	undo   func() bool // of the stop that ctx causes
	killed sync.Once
	over   atomic.Bool // its number may be another process' now
}

// launch starts command as git would, in the working tree. It ends with ctx.
func (p *Programs) launch(ctx context.Context, command string) (*program, error) {
	return p.start(ctx, exec.Command("/bin/sh", "-c", enter, p.o.Dir, command), command)
}

func (p *Programs) start(ctx context.Context, cmd *exec.Cmd, name string) (*program, error) {
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", p.env, killWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal to ask at, and all of it is killed together
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

// alive puts the deadline off; rest ends it until then.
func (g *program) alive() { g.timer.Reset(g.limit) }
func (g *program) rest()  { g.timer.Stop() }

func (g *program) kill() {
	g.killed.Do(func() {
		if !g.over.Load() {
			_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

// stop tells a program to go as git does, and kills it if it stays.
func (g *program) stop() {
	g.in.Close()
	time.AfterFunc(killWait, g.kill)
}

// wait ends the program's use. Its input is closed, and its output read or of no interest.
func (g *program) wait() error {
	err := g.cmd.Wait()
	g.over.Store(true)
	g.timer.Stop()
	g.undo()
	if errors.Is(err, exec.ErrWaitDelay) { // it left somebody behind who holds its standard error
		err = nil
	}
	return err
}

// Write and Read are those of the pipes, and put the deadline off.
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

// OneShot runs command for one content, with the path in place of "%f".
func (p *Programs) OneShot(command string, f File) error {
	p.mu.Lock()
	g, err := p.begin()
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

// place takes one of the places for commands.
func (p *Programs) place(ctx context.Context) error {
	select {
	case p.oneShots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ErrStopped
	}
}

// pipe feeds a command and takes what it says. One that does not read all of its input is fine.
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

// onlyWriter and onlyReader keep io.Copy from going past the deadline's methods.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrStopped
	}
	return err
}

// expand replaces "%f" by the quoted path and "%%" by "%"; other signs stay.
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

var encodingName = regexp.MustCompile(`^[A-Za-z0-9_.:+()-]+(//[A-Za-z]*)?$`)

// Iconv writes UTF-8 in another encoding, by the first of its names that iconv(1) knows: it has the tables that git
// uses. false: the content cannot be encoded.
func (p *Programs) Iconv(names []string, content []byte) ([]byte, bool, error) {
	p.mu.Lock()
	g, err := p.begin()
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
		if !encodingName.MatchString(name) { // iconv(1) takes what looks like a path for a file to read
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

// withoutReset takes off what iconv(1) writes at the end of a text to leave a stateful encoding's last state: git does
// not ask iconv for it. The other stateful encodings, such as UTF-7, stay as iconv(1) ends them.
func withoutReset(name string, content, encoded []byte) []byte {
	name = strings.ToUpper(name)
	for prefix, reset := range map[string]string{"ISO-2022-JP": "\x1b(B", "ISO-2022-KR": "\x0f", "ISO-2022-CN": "\x0f"} {
		if strings.HasPrefix(name, prefix) && len(content) > 0 && content[len(content)-1] >= utf8.RuneSelf {
			return bytes.TrimSuffix(encoded, []byte(reset))
		}
	}
	return encoded
}

// lineLog logs what a program says on its standard error.
type lineLog struct {
	log  *zap.Logger
	name string
	line []byte
}

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
