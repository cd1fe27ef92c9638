package gitread

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Object is what git knows about an object without reading all of it.
type Object struct {
	ID   string
	Type string // "commit", "tree", "blob" or "tag"
	Size int64  // of the contents, in bytes
}

// batch is a running `git cat-file --batch-command`.
type batch struct {
	cmd    *exec.Cmd
	stop   context.CancelFunc
	in     io.WriteCloser
	out    *bufio.Reader
	stderr gitcmd.Tail
}

func (r Repo) batch(ctx context.Context) (*batch, error) {
	ctx, stop := context.WithCancel(ctx)
	b := &batch{cmd: r.command(ctx, "cat-file", "--batch-command", "-z"), stop: stop}
	b.cmd.Stderr = &b.stderr
	in, err := b.cmd.StdinPipe()
	if err != nil {
		stop()
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		stop()
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		stop()
		return nil, gitcmd.Failed(b.cmd, err, nil)
	}
	b.in, b.out = in, bufio.NewReaderSize(out, 32<<10)
	return b, nil
}

// close ends the process. It kills git, which may be about to write contents that nobody reads.
func (b *batch) close() {
	_ = b.in.Close()
	b.stop()
	_ = b.cmd.Wait() // the result of a killed process says nothing
}

// info returns the object that a name stands for. name must not contain NUL.
func (b *batch) info(name string) (Object, error) { return b.ask("info", name) }

// contents is like info. The caller must then read the contents and a newline from b.out before the next question.
func (b *batch) contents(name string) (Object, error) { return b.ask("contents", name) }

func (b *batch) ask(command, name string) (Object, error) {
	if _, err := io.WriteString(b.in, command+" "+name+"\x00"); err != nil {
		return Object{}, b.failed(err)
	}
	line, err := b.out.ReadString('\n')
	if err != nil {
		return Object{}, b.failed(err)
	}
	if o, ok := parseInfo(strings.TrimSuffix(line, "\n")); ok {
		return o, nil
	}
	// git repeats the name, which may contain newlines, and adds a word.
	const word = " missing\n"
	if rest := len(name) + len(word) - len(line); rest > 0 {
		if _, err := b.out.Discard(rest); err != nil {
			return Object{}, b.failed(err)
		}
	}
	return Object{}, fmt.Errorf("read object %q: %w", name, ErrNotFound)
}

// parseInfo parses "ID TYPE SIZE".
func parseInfo(line string) (Object, bool) {
	f := strings.Split(line, " ")
	if len(f) != 3 || !IsID(f[0]) {
		return Object{}, false
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	return Object{f[0], f[1], size}, err == nil && size >= 0
}

// failed returns the error of a process that has ended too early, with its own message.
func (b *batch) failed(err error) error {
	b.stop()
	if exit := b.cmd.Wait(); exit != nil {
		err = exit
	}
	return gitcmd.Failed(b.cmd, err, bytes.TrimSpace(b.stderr.Bytes()))
}
