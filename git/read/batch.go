package read

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
)

// Object contains the properties of an object that git can determine without reading its contents.
type Object struct {
	ID   string
	Type string // "commit", "tree", "blob" or "tag"
	Size int64  // size of the contents in bytes
}

// batch is a running `git cat-file --batch-command`. It is used by one goroutine.
type batch struct {
	dir    string // git directory
	cmd    *exec.Cmd
	stop   context.CancelFunc // kills git
	in     io.WriteCloser
	out    *bufio.Reader
	stderr gitcmd.Tail

	memory  int64       // limit of the memory of git; 0: none
	forget  func()      // gives back the memory that an unused process has in a Pool
	reused  bool        // the process has been used by earlier calls
	clean   bool        // all answers were read to their ends
	ended   bool        // git has ended
	unwatch func() bool // ends the effect of the context of the call; false if git was killed
	idle    *time.Timer // timer that ends the process if it stays unused in a Pool
}

// start starts git for a call with a context. git may outlive the call.
func (r Repo) start(ctx context.Context) (*batch, error) {
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &batch{dir: r.Dir, cmd: r.Command(own, "cat-file", "--batch-command", "-z"), stop: stop, clean: true,
		memory: gitcmd.MemoryOf(ctx, r.Git.Memory)}
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
	b.watch(ctx)
	return b, nil
}

// watch kills git when ctx ends.
func (b *batch) watch(ctx context.Context) { b.unwatch = context.AfterFunc(ctx, b.stop) }

// use calls the function do with a running git process. If a process from the pool has ended in the meantime, it calls
// do again with another one. If do returns keep, the process is released later, by the caller.
func (r Repo) use(ctx context.Context, do func(b *batch) (keep bool, err error)) error {
	b := r.Pool.take(r.Dir, gitcmd.MemoryOf(ctx, r.Git.Memory))
	for {
		if b == nil {
			var err error
			if b, err = r.start(ctx); err != nil {
				return err
			}
		} else {
			b.watch(ctx)
		}
		keep, err := do(b)
		if !keep {
			r.release(b)
		}
		if err == nil || !b.ended || !b.reused || ctx.Err() != nil {
			return err
		}
		b = nil
	}
}

// release returns the process to the pool, or ends it if it cannot be used again.
func (r Repo) release(b *batch) {
	if !b.unwatch() || !b.clean || b.ended || !r.Pool.put(b) {
		b.close()
	}
}

// close ends the process. It kills git, because git may be writing contents that are not read any more.
func (b *batch) close() {
	_ = b.in.Close()
	b.stop()
	_ = b.cmd.Wait() // the exit status of a killed process is of no interest
}

// finish reads the newline that follows the contents of an object.
func (b *batch) finish() error {
	if _, err := b.out.Discard(1); err != nil {
		return b.failed(err)
	}
	b.clean = true
	return nil
}

// info returns the properties of the object with a name, which must not contain NUL.
func (b *batch) info(name string) (Object, error) { return b.ask("info", name) }

// contents is like info. The caller must then read the contents from b.out and call finish before the next question.
func (b *batch) contents(name string) (o Object, err error) {
	o, err = b.ask("contents", name)
	b.clean = err != nil && !b.ended
	return o, err
}

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
	// For a missing object, git prints the name, which may contain newlines, and a word.
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
	if len(f) != 3 || !object.ValidID(f[0]) {
		return Object{}, false
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	return Object{f[0], f[1], size}, err == nil && size >= 0
}

// failed returns the error of a process that has ended too early, with its own message.
func (b *batch) failed(err error) error {
	b.ended = true
	b.stop()
	if exit := b.cmd.Wait(); exit != nil {
		err = exit
	}
	return gitcmd.Failed(b.cmd, err, bytes.TrimSpace(b.stderr.Bytes()))
}
