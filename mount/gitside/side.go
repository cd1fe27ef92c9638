// Package gitside serves git commands in a mount: it creates and serves the git directory, answers git's questions for changes, missing
// objects and logins, and writes git's index.
package gitside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/credential"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/gitdir/fsmonitor"
	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/gitsocket"
	"github.com/artifactfs/artifactfs/mount/bind"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/promisor"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/worktree"
)

// Side serves git commands in one mount. The mount sets the exported fields before the kernel has the mount; they are constant after
// that. The methods are safe for concurrent use, except Make and Reopen, of which the mount calls one at a time.
type Side struct {
	Mount     *catalog.Mounted
	Request   control.MountRequest // original request of the mount
	Resumed   bool                 // the session existed before the mount
	Events    *Events
	Index     *Index
	Inside    *bind.GitDir        // git directory that is bind-mounted as .git; nil: .git is a file
	Handover  *takeover.Handover  // state for a successor
	Inherited *takeover.Inherited // descriptors of the predecessor
	Handler   control.Handler     // answers requests that programs inside the mount send
	Logins    Logins
	Log       *zap.Logger

	Snapshot  func() *fetch.Snapshot                             // returns the snapshot of the mounted commit
	Whole     func(ctx context.Context) (*fetch.Snapshot, error) // waits for all trees of the mounted commit
	Modules   func(ctx context.Context) []gitdir.Submodule       // returns the submodules to list in the git directory
	Changed   func() int64                                       // returns the number of paths that the user changed
	Redirects func() []string                                    // returns the paths that are stored outside of the mount
	Refresh   func(open []worktree.Node)                         // drops the kernel's cached attributes of open files
	Finish    func(ctx context.Context, dir *gitdir.Dir)         // completes interrupted switches and restores

	passes gitPass // running git commands

	mu      sync.Mutex
	servers servers // guarded by mu
	ready   bool    // git commands work in the mount; guarded by mu
}

// New returns s, ready for use. It sets the functions of s.Index that s provides.
func New(s *Side) *Side {
	s.Index.Git, s.Index.Bar, s.Index.indexed = s.Dir, s.passes.bar, -1
	return s
}

// servers holds the resources with which git commands work in a mount: the git directory, and the servers that answer git's
// queries. It is zero until the git directory is served.
//
// A git command finds the repository by looking up .git in the root of the mount. The kernel sends this lookup to the daemon,
// where Await delays the reply until git commands can work. Later the command connects to the servers by sockets in the git
// directory.
type servers struct {
	dir     *gitdir.Dir        // git directory; nil: not served yet
	monitor *fsmonitor.Server  // answers fsmonitor queries: paths that have changed
	objects *promisor.Server   // supplies missing objects
	logins  *credential.Server // credential helper of git commands
	guests  *control.Guests    // serves requests from inside the mount; nil: .git is a file
}

// Make waits for all trees of the mounted commit. Then it creates the git directory, or opens an existing one, and serves git commands.
// Writing the first index is expensive, so Make waits for its turn among the mounts of the daemon before it does that.
func (s *Side) Make(ctx context.Context) (*gitdir.Dir, error) {
	snap, err := s.Whole(ctx)
	if err != nil {
		return nil, err
	}
	x, modules := s.Index.options(ctx), s.Modules(ctx)            // before the turn, since both may send requests
	if drain(s.Index.Tree.Monitor().Noticed()); s.Changed() > 0 { // a checkpoint is due soon, and needs the git directory
		s.Events.WantGit()
	}
	if !HasIndex(s.Mount.GitDir) {
		done := s.Index.Turns.Take(ctx, s.Events.gitWanted, s.Index.Tree.Monitor().Noticed())
		defer done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	o, err := s.options(ctx, snap)
	if err != nil {
		return nil, err
	}
	was, err := s.likeCheckpoint(&o)
	if err != nil {
		return nil, err
	}
	dir, ok, err := gitdir.Open(s.Mount.GitDir, o)
	if err == nil && !ok {
		dir, err = gitdir.Create(s.Mount.GitDir, o)
	}
	if err == nil && len(modules) > 0 {
		err = dir.AddSubmodules(modules)
	}
	if err != nil {
		return nil, err
	}
	if err := s.Index.write(ctx, dir, x, was); err != nil {
		return nil, err
	}
	if !ok || !s.Resumed && !dir.Sealed() { // or a process died between creating and sealing it
		if err := dir.Seal(); err != nil {
			return nil, err
		}
	}
	return dir, s.open(ctx, dir)
}

// Reopen serves the git directory that the predecessor served. It does not change the directory, because git commands may
// be using it, and it does not wait for requests to the remote.
func (s *Side) Reopen(ctx context.Context) (*gitdir.Dir, error) {
	snap := s.Snapshot()
	o := gitdir.Options{Format: snap.Format, WorkTree: s.Mount.Dir, Ref: snap.Ref, Commit: snap.Commit}
	if s.Mount.Record.Checkpoint != nil {
		o.Ref = ""
	}
	dir := gitdir.Reopen(s.Mount.GitDir, o)
	return dir, s.open(ctx, dir)
}

// open starts the servers for git commands and completes interrupted switches and restores. After that, git commands can
// run in the mount.
func (s *Side) open(ctx context.Context, dir *gitdir.Dir) error {
	if err := s.serve(dir); err != nil {
		return err
	}
	s.Finish(ctx, dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	return nil
}

// options returns the options of the git directory for the snapshot snap. If no git is installed, it logs that and leaves the
// option Git empty.
func (s *Side) options(ctx context.Context, snap *fetch.Snapshot) (gitdir.Options, error) {
	program, err := os.Executable()
	if err != nil {
		return gitdir.Options{}, fmt.Errorf("find own program: %w", err)
	}
	// The mount works without git commands, so a missing git is not an error.
	version, err := gitdir.InstalledGit(ctx)
	if err != nil {
		s.Log.Info("no git", zap.Error(err))
	}
	branch := "" // only a mount of HEAD has learned the remote's default branch
	if r := s.Request.Ref; r == "" || r == "HEAD" {
		branch = snap.Ref
	}
	return gitdir.Options{
		Format: snap.Format, WorkTree: s.Mount.Dir, Remote: s.Mount.Store.URL(), Objects: filepath.Join(s.Mount.Store.GitDir(), "objects"),
		Ref: snap.Ref, Commit: snap.Commit, Shallow: snap.Shallow(), Partial: snap.Partial,
		Default: branch, Git: version, Monitor: HookProgram(program), Helper: program, Inside: s.Inside.Wanted(),
		Logins: s.Logins.helped(ctx),
	}, nil
}

// HookProgram returns the program that git runs as its fsmonitor hook. That is the small program query.HookName, if it is
// installed in the directory of program. Otherwise it is program itself, which starts more slowly and runs the hook if it is
// called by that name.
func HookProgram(program string) string {
	small := filepath.Join(filepath.Dir(program), query.HookName)
	if _, err := os.Stat(small); err != nil {
		return program
	}
	return small
}

// serve opens the sockets in the git directory, and sets s.servers. If the predecessor left listening sockets, the servers use them.
func (s *Side) serve(dir *gitdir.Dir) error {
	monitor, err := fsmonitor.Serve(s.Mount.GitDir, s.changes,
		fsmonitor.Options{Inherited: s.Inherited.Take(takeover.PartMonitor), Keep: s.Handover.KeepAs(takeover.PartMonitor)})
	if err != nil {
		return err
	}
	objects, err := promisor.Serve(s.Mount.GitDir, s.provider(),
		gitsocket.Options{Inherited: s.Inherited.Take(takeover.PartObjects), Keep: s.Handover.KeepAs(takeover.PartObjects)}, s.Log)
	if err != nil {
		return errors.Join(err, monitor.Close())
	}
	answers, err := credential.Serve(s.Mount.GitDir, s.Logins,
		gitsocket.Options{Inherited: s.Inherited.Take(takeover.PartLogins), Keep: s.Handover.KeepAs(takeover.PartLogins)}, s.Log)
	if err != nil {
		return errors.Join(err, objects.Close(), monitor.Close())
	}
	var guests *control.Guests
	if s.Inside.Wanted() {
		o := gitsocket.Options{Inherited: s.Inherited.Take(takeover.PartGuests), Keep: s.Handover.KeepAs(takeover.PartGuests)}
		if guests, err = control.ServeGuests(s.Mount.GitDir, o, s.Mount.Dir, s.Handler, s.Log); err != nil {
			return errors.Join(err, answers.Close(), objects.Close(), monitor.Close())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = servers{dir, monitor, objects, answers, guests}
	return nil
}

// close stops the servers. Git commands that still run in the mount fail after that.
func (g servers) close() error {
	if g.dir == nil {
		return nil
	}
	var guests error
	if g.guests != nil {
		guests = g.guests.Close()
	}
	return errors.Join(guests, g.monitor.Close(), g.objects.Close(), g.logins.Close())
}

// changes answers git's fsmonitor queries. It returns the paths that may have changed since the journal position token, and the
// next position. The result all means that any path may have changed. A process can write to an open file through the page cache
// without a request to this process. Therefore changes makes the kernel drop the cached attributes of open files, so that their
// next write is recorded.
func (s *Side) changes(_ context.Context, token string) (next string, paths []string, all bool, err error) {
	c, err := s.Index.Tree.Monitor().Changes(token)
	if err != nil {
		return "", nil, false, err
	}
	s.Refresh(c.Open)
	return c.Token, append(c.Paths, s.Redirects()...), c.All, nil
}

// Ready returns the git directory of the mount. It waits until the mount has tried to create it, and returns fault.ErrNoGitDir if that
// failed.
func (s *Side) Ready(ctx context.Context) (*gitdir.Dir, error) {
	if !s.Events.AwaitGit(ctx) {
		return nil, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	dir := s.Dir()
	if dir == nil {
		return nil, fault.ErrNoGitDir
	}
	return dir, nil
}

// Dir returns the git directory of the mount; nil if git commands do not work in the mount yet, or if s is nil.
func (s *Side) Dir() *gitdir.Dir {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return nil
	}
	return s.servers.dir
}

// Close stops the servers. Git commands that still run in the mount fail after that. s may be nil.
func (s *Side) Close() error {
	if s == nil {
		return nil
	}
	return s.servers.close()
}

// Hurried reports whether a git command or the mount request waits for history.
func (s *Side) Hurried() bool {
	return s.Events.historyWanted.Load() || s.Request.History == control.HistoryFull || s.Request.Wait == control.WaitAll
}

// drain removes the value from a channel with a buffer of one, and reports whether there was a value.
func drain(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
