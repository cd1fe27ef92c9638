// Package filter runs the programs that convert files for a working tree: the filter drivers of gitattributes(5), and
// iconv.
//
// Terms. A one-shot is a command that runs once for each file (`filter.<driver>.smudge`). A process is a long-running
// program (`filter.<driver>.process`) that converts many files, by version 2 of the long-running filter protocol
// (gitattributes(5)). A process that can delay accepts many files before it returns the first one, for example to
// download them in parallel. This package only smudges, that is, converts files for the working tree; git itself runs
// the clean commands, which convert in the other direction.
//
// Promises. A process is started when it is needed. It is stopped after it was idle for idleTime, or by Release or
// Close. If a process dies, another process is started and gets the unfinished files again. A program without input or
// output for longer than Options.Deadline is killed. No program shares a terminal, process group or session with the
// user's programs. Programs run in the working tree, but this package opens no file in it: a program may read from the
// mount while the mount waits for the output of the program.
//
// Lock order: Programs.mu before pool.mu. No goroutine holds either lock while it waits for a program.
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

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

const (
	// idleTime is the time for which an idle process is kept. While the process runs, the mount cannot be unmounted,
	// because the working directory of the process is in the mount.
	idleTime = 15 * time.Second
	// patience is the time that a file waits for busy processes before another process is started.
	patience = time.Second
	// maxProcesses is the maximum number of processes of one command.
	maxProcesses = 4
	// maxOneShots is the maximum number of one-shots, including runs of iconv(1), at the same time.
	maxOneShots = 8
	// startPause is the time after a failed start of a process during which no process is started. A request in this time
	// fails with the error of that start.
	startPause = time.Second
	// maxBatch is the maximum number of files that a process delays at the same time.
	maxBatch = 1000
)

var (
	// ErrUnfiltered means that a program did not filter a file, because the program refused the file, failed, or does not
	// support smudging.
	ErrUnfiltered = errors.New("filter program failed")
	// ErrDeadline means that a program was killed because it had no input or output for longer than Options.Deadline.
	ErrDeadline = errors.New("filter program timed out")
	// ErrStopped means that the programs were stopped, or that no caller wanted the file any more.
	ErrStopped = errors.New("filter programs are stopped")
)

// Options describes the working tree that programs run for. The environment of the programs consists of Base, without
// variables that name a repository or contain a secret (see private), and Env.
type Options struct {
	Dir string // the working tree; programs start in it
	// environment variables in the form "NAME=value"; if Base is empty, the variables of this process are used
	Base []string
	Env  []string // additional environment variables, which are passed on unchanged
	// Deadline is the maximum time that a program may run without input or output.
	Deadline time.Duration
	Ready    func(context.Context) error // waits until programs can use the git directory; nil if no wait is needed
	Log      *zap.Logger
}

// File is one file that is to be filtered.
type File struct {
	Path                 string      // path of the file, relative to the working tree
	Ref, Treeish, BlobID string      // metadata of the checkout that git sends to a process; an empty string is not sent
	Content              io.ReaderAt // the contents before filtering
	Size                 int64       // length of Content in bytes
	Out                  Output      // receives the filtered contents
	Wanted               func() bool // reports whether a caller still waits for the file; nil means that a caller waits
	// whether the file is prefetched, so that it is filtered even if no caller waits for it yet
	Ahead bool
}

// Output receives the output of a program. The method Reset discards everything that was written so far. It is called
// before each attempt, because a program may run several times for the same file.
type Output interface {
	io.Writer
	Reset() error
}

// reader returns a new reader of the contents, from the start.
func (f *File) reader() io.Reader { return io.NewSectionReader(f.Content, 0, f.Size) }

// wanted reports whether a caller still waits for the file.
func (f *File) wanted() bool { return f.Wanted == nil || f.Wanted() }

// Programs manages the filter programs of one mount. Its methods may be called concurrently.
type Programs struct {
	o        Options
	env      []string      // environment of the programs
	oneShots chan struct{} // semaphore with maxOneShots slots

	mu     sync.Mutex
	closed bool             // whether Close was called
	pools  map[string]*pool // pools of processes, by command
	shots  map[*File]bool   // files of the running one-shots
	// running is the current generation, to which new programs belong.
	running *generation
}

// generation is a set of programs that are stopped together, by Release or Close.
type generation struct {
	ctx    context.Context // cancelled to stop the programs
	cancel context.CancelFunc
	wg     sync.WaitGroup // counts the goroutines and calls that use programs
}

// newGeneration returns a generation without programs.
func newGeneration() *generation {
	g := &generation{}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// New returns Programs for the working tree of o. It starts no program.
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

// private reports whether a program must not get the environment variable entry ("NAME=value"), because the variable
// may name a repository other than the mount's, contains a secret of this program, or names another working directory.
func private(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	switch name {
	case "ARTIFACTFS_TOKEN", "ARTIFACTFS_SESSION_TOKEN", "OLDPWD", "PWD":
		return true
	}
	return gitcmd.IsLocal(name)
}

// beginWork registers a call, and returns the generation to which the call belongs. Release and Close wait until the
// caller calls Done of the generation's wg. After Close, beginWork returns ErrStopped. The caller holds p.mu.
func (p *Programs) beginWork() (*generation, error) {
	if p.closed {
		return nil, ErrStopped
	}
	p.running.wg.Add(1)
	return p.running, nil
}

// Process filters f through a process that runs command, and waits for the result without a time limit. If no caller
// wants the file any more when f is the next file in the queue, the error is ErrStopped. If the error is nil, f.Out has
// received all of the output.
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

// pool returns the pool for a command, and creates it if needed. The caller holds p.mu.
func (p *Programs) pool(command string) *pool {
	o := p.pools[command]
	if o == nil {
		o = &pool{programs: p, command: command, wake: make(chan struct{}, 1)}
		p.pools[command] = o
	}
	return o
}

// Release stops all programs if no caller waits for any of them, and reports whether it has stopped them. It is called
// before the mount is unmounted, because the working directory of an idle process is in the mount and would prevent the
// unmount. Programs are started again when they are needed.
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
	if free { // the old pools end with their generation, so later calls need new pools
		p.running, p.pools = newGeneration(), map[string]*pool{}
	}
	p.mu.Unlock()
	if free {
		g.cancel()
		g.wg.Wait()
	}
	return free
}

// Close stops all programs and returns when they have ended. Later requests return ErrStopped.
func (p *Programs) Close() {
	p.mu.Lock()
	p.closed = true
	g := p.running
	p.mu.Unlock()
	g.cancel()
	g.wg.Wait()
}

// ready returns when programs can use the git directory, or with an error if Options.Ready fails.
func (p *Programs) ready(ctx context.Context) error {
	if p.o.Ready == nil {
		return nil
	}
	if err := p.o.Ready(ctx); err != nil {
		return fmt.Errorf("wait for the mount's git directory: %w", err)
	}
	return nil
}
