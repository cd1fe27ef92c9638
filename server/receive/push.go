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

// Push is one push in progress. The caller runs `git receive-pack --stateless-rpc Dir()` with the settings of
// Configure, calls Serve at the same time, and calls End after both have ended.
type Push struct {
	r        *Receiver
	repoID   string
	token    records.Token
	cause    records.Cause
	commands Commands
	// sessions by the branches into which they are merged, if the server makes the push itself
	merged map[string]string
	from   *replica.Replica // replica of the repository, which the caller of Begin must hold
	copy   *replica.Copy
	hook   *os.File   // end of the socket that receive-pack and the hook inherit
	socket *os.File   // end of the socket that this process uses
	packs  *odb.Store // packs of the push; opened when the type of an object is needed

	mu       sync.Mutex
	decided  bool // whether receive-pack has sent the updates to the hook
	done     []records.RefUpdate
	refused  string           // lines with the reason for each update that failed
	failures map[string]error // reasons by the names of the refs whose updates failed
	pack     *records.Pack    // stored pack of the push; nil if there is none
	err      error            // error of the server that has made updates fail
}

// Begin prepares a push to the repository of a replica. The caller must not release the replica before End was called.
// cause is for the audit log.
func (r *Receiver) Begin(ctx context.Context, at *replica.Replica, token records.Token, cause records.Cause,
	c Commands) (*Push, error) {
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

// manyRefs is the size of packed-refs, in bytes, from which on git compares a push only with the refs that the push
// moves, because it takes git a third of a second to look up 100,000 refs. mostMoved is the maximum number of moved
// refs for which this is done.
const manyRefs, mostMoved = 256 << 10, 50

// shown returns settings with which git, when it searches for objects that the repository has already, sees only the
// refs that the push moves and the default branch. It returns nil for a push that creates refs, and for a repository
// with few refs: the new commits may be based on any ref, and git would walk through the whole history of a ref that it
// does not see.
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

// Started must be called when receive-pack was started. It closes this process's copy of the hook's socket, so that
// Serve notices the end of receive-pack.
func (p *Push) Started() { p.hook.Close() }

// Decided reports whether git has received all objects of the push and found them valid.
func (p *Push) Decided() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided
}

// Err returns the error of the server that has made updates fail. It returns nil if all updates succeeded, or if the
// push was only refused. It wraps ErrFull and ErrUnavailable of packages records and objects.
func (p *Push) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Done returns the updates that were made.
func (p *Push) Done() []records.RefUpdate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Refused returns a line with the reason for each update that the server has refused. It does not include updates that
// git itself has refused.
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

// Serve decides about the updates of the push in place of the hook, and returns when receive-pack has ended.
func (p *Push) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.socket.SetDeadline(time.Unix(1, 0)) })()
	lines := bufio.NewReader(io.LimitReader(p.socket, 1<<10))
	line, err := lines.ReadString('\n')
	if errors.Is(err, io.EOF) && line == "" {
		return nil // the hook was not run, because git has refused the push itself or has failed
	}
	if err != nil {
		return fmt.Errorf("wait for hook of git: %w", err)
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
		err = fmt.Errorf("answer hook of git: %w", writeErr)
	}
	return err
}

// answer speaks with receive-pack in place of the process hook. The hook waits until Serve sends it an exit status.
func (p *Push) answer(ctx context.Context, hook proc.Process) error {
	p.mu.Lock()
	p.decided = true
	p.mu.Unlock()
	in, err := os.Open(hook.FDPath(hookInput))
	if err != nil {
		return fmt.Errorf("open input of hook of git: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(hook.FDPath(hookOutput), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open output of hook of git: %w", err)
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
