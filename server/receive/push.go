package receive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Push is one push in progress. The caller runs `git receive-pack --stateless-rpc Dir()` with the settings of Configure, calls Serve
// at the same time, and End after both have ended.
type Push struct {
	r        *Receiver
	repoID   string
	token    records.Token
	cause    records.Cause
	commands Commands
	merged   map[string]string // sessions by the branches into which the push merges them, as far as the server has made the push
	from     *replica.Replica  // replica of the repository, which the caller of Begin holds
	copy     *replica.Copy
	hook     *os.File   // end of the socket that git inherits
	socket   *os.File   // end of the socket of this process
	packs    *odb.Store // nil until the hook asks for the kind of an object

	mu       sync.Mutex
	decided  bool // receive-pack has sent the updates to the hook
	done     []records.RefUpdate
	refused  string           // a line with the reason for each update that failed
	failures map[string]error // reasons by the names of the refs
	pack     *records.Pack    // nil if the push has no new objects
	err      error            // error of the server that has made updates fail
}

// Begin prepares a push to the repository of a replica, which the caller releases after End. cause goes to the audit log.
func (r *Receiver) Begin(ctx context.Context, at *replica.Replica, token records.Token, cause records.Cause, c Commands) (*Push, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("prepare push: %w", err)
	}
	p := &Push{r: r, from: at, repoID: at.Repo.ID, token: token, cause: cause, commands: c}
	p.hook = os.NewFile(uintptr(fds[0]), "hook")
	if err = syscall.SetNonblock(fds[1], true); err == nil {
		p.socket = os.NewFile(uintptr(fds[1]), "hooks")
		p.copy, err = at.Copy(ctx)
	}
	if err != nil {
		p.End()
		return nil, fmt.Errorf("prepare push: %w", err)
	}
	return p, nil
}

// Dir returns the git directory for receive-pack.
func (p *Push) Dir() string { return p.copy.Dir }

// Configure sets the environment and the inherited descriptors of a command.
func (p *Push) Configure(cmd *exec.Cmd) {
	cmd.Env = p.r.git.Env
	if shown := p.shown(); shown != nil {
		cmd.Env = append(slices.Clone(cmd.Env), settings(append(p.r.settings, shown...))...)
	}
	cmd.ExtraFiles = []*os.File{p.hook}
}

// manyRefs is the size in bytes of packed-refs from which on git compares a push with the refs that it moves only: to look 100,000 refs up
// takes git a third of a second. mostMoved is the number of these refs.
const manyRefs, mostMoved = 256 << 10, 50

// shown returns settings of git that hide all refs but those that the push moves, and the default branch, when git searches for the
// objects that the repository has already. It returns nil for a push that creates refs, or of few refs: the new commits may be based on
// any ref, and git would walk through all history that it does not see.
func (p *Push) shown() [][2]string {
	refs, err := packedrefs.Map(p.copy.Dir)
	if err != nil {
		return nil
	}
	defer refs.Unmap()
	if len(refs) < manyRefs || len(p.commands.Updates) > mostMoved {
		return nil
	}
	const key = "receive.hideRefs"
	list := [][2]string{{key, "refs"}, {key, "!refs/heads/" + p.copy.Repo.DefaultBranch}}
	for _, u := range p.commands.Updates {
		if refs.ID(u.Name) != u.Old {
			return nil
		}
		list = append(list, [2]string{key, "!" + u.Name})
	}
	return list
}

// Started must be called when receive-pack has been started, so that Serve notices its end.
func (p *Push) Started() { p.hook.Close() }

// Decided reports whether git has received the objects of the push and found them valid.
func (p *Push) Decided() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided
}

// Err returns the error of the server that has made updates fail. It returns nil if none has failed, or only because the push was
// refused. It wraps ErrFull and ErrUnavailable of records and objects.
func (p *Push) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Done returns the updates that are visible.
func (p *Push) Done() []records.RefUpdate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Refused returns a line with the reason for each update that the server has refused. Updates that git itself has refused are not among
// them.
func (p *Push) Refused() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// End removes the files of the push from the disk.
func (p *Push) End() {
	p.hook.Close()
	if p.socket != nil {
		p.socket.Close()
	}
	if p.copy == nil {
		return
	}
	if p.packs != nil {
		p.packs.Close()
	}
	if p.pack != nil && len(p.done) > 0 {
		if err := p.copy.Adopt(*p.pack); err != nil {
			p.r.o.Log.Warn("a pushed pack must be fetched from the object store", zap.Error(err))
		}
	}
	p.copy.Remove()
}

// Serve answers the hook until receive-pack has ended.
func (p *Push) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.socket.SetDeadline(time.Unix(1, 0)) })()
	lines := bufio.NewReader(io.LimitReader(p.socket, 1<<10))
	line, err := lines.ReadString('\n')
	if errors.Is(err, io.EOF) && line == "" {
		return nil // git has refused the push itself, or has failed
	}
	if err != nil {
		return fmt.Errorf("wait for hook: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err == nil {
		err = p.answer(ctx, proc.Of(pid))
	}
	status := 0
	if err != nil {
		status = 1
		p.fail(err)
	}
	if _, writeErr := fmt.Fprintln(p.socket, status); err == nil && writeErr != nil {
		err = fmt.Errorf("answer hook: %w", writeErr)
	}
	return err
}

// answer speaks with receive-pack in place of the hook, which waits for its exit status.
func (p *Push) answer(ctx context.Context, hook proc.Process) error {
	p.mu.Lock()
	p.decided = true
	p.mu.Unlock()
	in, err := os.Open(hook.FDPath(hookInput))
	if err != nil {
		return fmt.Errorf("open input of hook: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(hook.FDPath(hookOutput), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open output of hook: %w", err)
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() {
		in.SetDeadline(time.Unix(1, 0))
		out.SetDeadline(time.Unix(1, 0))
	})()
	return converse(in, out, func(updates []records.RefUpdate, atomic bool) []error {
		return p.decide(ctx, updates, atomic)
	})
}

// fail records an error of the server, and returns it with a text for the user of git.
func (p *Push) fail(err error) failure {
	text := "internal error of the server"
	switch {
	case errors.Is(err, objects.ErrFull), errors.Is(err, records.ErrFull):
		text = "the server has no space left"
	case errors.Is(err, objects.ErrUnavailable), errors.Is(err, records.ErrUnavailable):
		text = "the server is not available now, try again later"
	case errors.Is(err, records.ErrCollected):
		text = "the repository changes too often, try again"
	case errors.Is(err, records.ErrRevoked):
		text = "Invalid or expired token"
	case errors.Is(err, records.ErrNotFound):
		text = "Repository not found"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		text = "the push was cancelled"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	return failure{text, err}
}
