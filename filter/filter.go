// Package filter runs the programs that change contents on their way to a working tree: the filter drivers of
// gitattributes(5), and iconv.
//
// Terms. A one-shot is a command run for each content, `filter.<driver>.smudge`. A process is a program that is
// kept, `filter.<driver>.process`: it speaks the long-running filter protocol, version 2. A process that can delay
// takes many contents before it gives the first one back, so that it can, for example, download them at the same
// time. Smudging is the direction here; cleaning is git's own affair.
//
// Promises. A process is started when it is needed, is kept, and ends when it has had nothing to do for a while, when
// a reader of the mount could not be served any more, or with Close. One that died is started again, and the contents
// that went with it are tried once more. A program that says nothing for longer than Options.Deadline is killed. No
// program shares a terminal, a process group or a session with whoever started this one. Programs run in the working
// tree, but nothing here opens a file in it or waits for it: a program may read the tree whose reader it serves.
//
// Lock order: Programs.mu > pool.mu; neither is held while a program is waited for.
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
	// idleTime is how long a process is kept that has nothing to do. It keeps its directory, the mount, busy.
	idleTime = 15 * time.Second
	// patience is how long a content waits for a busy process before another one is started for it.
	patience = time.Second
	// maxProcesses bounds the processes of one command.
	maxProcesses = 4
	// maxOneShots bounds the commands that run at the same time.
	maxOneShots = 8
	// startPause is how long a process that cannot be started is not tried again.
	startPause = time.Second
	// maxBatch bounds how many contents a process has delayed at the same time.
	maxBatch = 1000
)

var (
	// ErrUnfiltered means that a program did not filter a content: it said so, failed, or does not know how.
	ErrUnfiltered = errors.New("not filtered")
	// ErrDeadline means that a program was killed because it said nothing for too long.
	ErrDeadline = errors.New("deadline passed")
	// ErrStopped means that the programs were ended, or that nobody wanted the content any more.
	ErrStopped = errors.New("filters are stopped")
)

// Options describe the working tree that programs run for.
type Options struct {
	Dir      string   // the working tree; programs are started in it
	Base     []string // environment of programs, in which no repository is named; empty: that of this process
	Env      []string // what they get beside it
	Deadline time.Duration
	Ready    func(context.Context) error // nil, or waits until programs can use the repository
	Log      *zap.Logger
}

// File is one content to be filtered.
type File struct {
	Path                 string // below the working tree
	Ref, Treeish, BlobID string // what git tells a process of the checkout; "" is not told
	Content              io.ReaderAt
	Size                 int64 // of Content in bytes
	Out                  Output
	Wanted               func() bool // nil: always; false: nobody waits for it any more
	Ahead                bool        // nobody may wait for it yet, and it is to be filtered all the same
}

// Output takes what a program writes. Reset empties it: a content may be tried more than once.
type Output interface {
	io.Writer
	Reset() error
}

func (f *File) reader() io.Reader { return io.NewSectionReader(f.Content, 0, f.Size) }
func (f *File) wanted() bool      { return f.Wanted == nil || f.Wanted() }

// Programs are those of one mount. Its methods may be called from any goroutine.
type Programs struct {
	o        Options
	env      []string
	oneShots chan struct{} // a place for each that runs

	mu      sync.Mutex
	closed  bool
	pools   map[string]*pool // by command
	shots   map[*File]bool   // those that commands run for
	running *generation
}

// generation is what is ended together.
type generation struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newGeneration() *generation {
	g := &generation{}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// New starts nothing yet.
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

// private reports whether a variable names a repository, other than the mount's, or holds a secret of ours.
func private(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	switch name {
	case "ARTIFACTFS_TOKEN", "ARTIFACTFS_SESSION_TOKEN", "OLDPWD", "PWD":
		return true
	}
	return gitcmd.IsLocal(name)
}

// begin enters work that Close waits for; it needs mu.
func (p *Programs) begin() (*generation, error) {
	if p.closed {
		return nil, ErrStopped
	}
	p.running.wg.Add(1)
	return p.running, nil
}

// Process has the process that command starts filter a content, and waits for it: for as long as it takes, unless the
// file is no longer wanted when its turn comes, which is ErrStopped. The output is whole when the error is nil.
func (p *Programs) Process(command string, f File) error {
	j := &job{file: f, done: make(chan struct{})}
	p.mu.Lock()
	g, err := p.begin()
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

// pool needs mu.
func (p *Programs) pool(command string) *pool {
	o := p.pools[command]
	if o == nil {
		o = &pool{programs: p, command: command, wake: make(chan struct{}, 1)}
		p.pools[command] = o
	}
	return o
}

// Release ends what nobody waits for, idle processes above all: their working directory keeps a mount busy. It says
// whether nothing is left. Programs start again when they are needed.
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

// Close ends all programs and waits for them. Further work is refused.
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
