// Package filter runs the programs that convert files for a working tree: the filter drivers of gitattributes(5), and
// iconv.
//
// Terms. A one-shot is a command that runs once for each file, `filter.<driver>.smudge`. A process is a long-running
// program, `filter.<driver>.process`, with the long-running filter protocol, version 2 (gitattributes(5)). A process
// that can delay accepts many files before it returns the first one, for example to download them in parallel. This
// package only smudges; git itself runs the clean commands.
//
// Promises. A process starts when it is needed. It ends when it was idle for idleTime, or in Release or Close. A process
// that died is started again, and the files that it was working on are tried again. A program without input or output
// for longer than Options.Deadline is killed. A program shares no terminal, process group or session with the user's
// programs. Programs run in the working tree, but this package opens no file in it: a program may read the mount that
// waits for the program's output.
//
// Lock order: Programs.mu > pool.mu; neither is held while waiting for a program.
package filter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

const (
	// idleTime is how long an idle process is kept. Its working directory is in the mount and keeps the mount busy.
	idleTime = 15 * time.Second
	// patience is how long a file waits for a busy process before another one is started.
	patience = time.Second
	// maxProcesses is the maximum number of processes of one command.
	maxProcesses = 4
	// maxOneShots is the maximum number of one-shots that run at the same time.
	maxOneShots = 8
	// startPause is the pause after a failed start of a process; until then requests fail with the same error.
	startPause = time.Second
	// maxBatch is the maximum number of files that a process delays at the same time.
	maxBatch = 1000
)

var (
	// ErrUnfiltered means that a program did not filter a file: it reported so, failed, or does not support smudging.
	ErrUnfiltered = errors.New("not filtered")
	// ErrDeadline means that a program was killed because it had no input or output for longer than Options.Deadline.
	ErrDeadline = errors.New("deadline passed")
	// ErrStopped means that the programs were stopped, or that the file was no longer wanted.
	ErrStopped = errors.New("filters are stopped")
)

// Options describes the working tree that programs run for. The environment of the programs is Base without the
// variables that private matches, followed by Env.
type Options struct {
	Dir  string   // the working tree; programs start in it
	Base []string // environment of the programs without variables that name a repository; empty: that of this process
	Env  []string // variables added to Base
	// Deadline is the longest time that a program may run without input or output.
	Deadline time.Duration
	Ready    func(context.Context) error // waits until programs can use the repository; nil: no wait
	Log      *zap.Logger
}

// File is one file to be filtered.
type File struct {
	Path                 string // relative to the working tree
	Ref, Treeish, BlobID string // metadata of the checkout for a process, as git sends it; "": not sent
	Content              io.ReaderAt
	Size                 int64 // length of Content in bytes
	Out                  Output
	Wanted               func() bool // false: no caller waits for the file any more; nil: always wanted
	Ahead                bool        // prefetched: filter the file although no caller waits for it yet
}

// Output receives a program's output. Reset discards that output, because a program may run again for the same file.
type Output interface {
	io.Writer
	Reset() error
}

// reader returns a new reader of the content, from its start.
func (f *File) reader() io.Reader { return io.NewSectionReader(f.Content, 0, f.Size) }

// wanted reports whether the file is still to be filtered.
func (f *File) wanted() bool { return f.Wanted == nil || f.Wanted() }

// Programs manages the filter programs of one mount. Its methods may be called concurrently.
type Programs struct {
	o        Options
	env      []string
	oneShots chan struct{} // semaphore with maxOneShots slots

	mu     sync.Mutex
	closed bool
	pools  map[string]*pool // processes by command
	shots  map[*File]bool   // files of the running one-shots
	// running is the current generation, to which new work is added.
	running *generation
}

// generation is the set of programs that are stopped together.
type generation struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newGeneration returns a generation without programs.
func newGeneration() *generation {
	g := &generation{}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// New returns Programs without starting any.
func New(o Options) *Programs {
	p := &Programs{
		o: o, oneShots: make(chan struct{}, maxOneShots), pools: map[string]*pool{}, shots: map[*File]bool{},
		running: newGeneration(),
	}
	base := slices.Clone(o.Base)
	if len(base) == 0 {
		base = os.Environ()
	}
	p.env = append(slices.DeleteFunc(base, private), "GIT_TERMINAL_PROMPT=0")
	p.env = append(p.env, o.Env...)
	return p
}

// private reports whether an environment variable names a repository other than the mount's, or contains a secret of
// this program.
func private(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	switch name {
	case "ARTIFACTFS_TOKEN", "ARTIFACTFS_SESSION_TOKEN", "OLDPWD", "PWD":
		return true
	}
	return gitcmd.IsLocal(name)
}

// beginWork adds work that Close waits for. p.mu is held.
func (p *Programs) beginWork() (*generation, error) {
	if p.closed {
		return nil, ErrStopped
	}
	p.running.wg.Add(1)
	return p.running, nil
}

// Process filters f through the process of command and waits for it without a limit. It returns ErrStopped if the file
// is no longer wanted when its turn comes. The output is complete if the error is nil.
func (p *Programs) Process(command string, f File) error {
	j := &job{file: f, done: make(chan struct{})}
	p.mu.Lock()
	g, err := p.beginWork()
	if err == nil {
		p.pool(command).push(g, j)
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	defer g.wg.Done()
	<-j.done
	return j.err
}

// pool returns the pool of a command. p.mu is held.
func (p *Programs) pool(command string) *pool {
	o := p.pools[command]
	if o == nil {
		o = &pool{programs: p, command: command, wake: make(chan struct{}, 1)}
		p.pools[command] = o
	}
	return o
}

// Release stops all programs if no caller waits for any of them: the working directory of an idle process keeps a mount
// busy. It reports whether it did so. Programs start again when they are needed.
func (p *Programs) Release() bool {
	p.mu.Lock()
	free := !p.closed
	for _, o := range p.pools {
		free = o.unwanted() && free
	}
	for f := range p.shots {
		free = free && !f.wanted()
	}
	g := p.running
	if free { // a pool ends with its generation
		p.running, p.pools = newGeneration(), map[string]*pool{}
	}
	p.mu.Unlock()
	if free {
		g.cancel()
		g.wg.Wait()
	}
	return free
}

// Close stops all programs and waits for their end. Later requests return ErrStopped.
func (p *Programs) Close() {
	p.mu.Lock()
	p.closed = true
	g := p.running
	p.mu.Unlock()
	g.cancel()
	g.wg.Wait()
}

// ready waits until programs can use the repository.
func (p *Programs) ready(ctx context.Context) error {
	if p.o.Ready == nil {
		return nil
	}
	if err := p.o.Ready(ctx); err != nil {
		return fmt.Errorf("wait for git directory: %w", err)
	}
	return nil
}
