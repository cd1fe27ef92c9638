// Package gitside makes git commands work in a mount. It creates the git directory, supplies git commands with changed
// paths, missing objects and credentials, and writes git's index.
package gitside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/credential"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/promisor"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/bind"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Side makes git commands work in one mount. The exported fields are set before the kernel has the mount, and do not
// change after that. The methods may be called from any goroutine, but Make and Reopen not by two goroutines at the
// same time.
type Side struct {
	Mount     *catalog.Mounted
	Request   control.MountRequest // original request of the mount
	Resumed   bool                 // whether the session existed before the mount
	Events    *Events
	Index     *Index
	Contents  *contents.Contents  // files and directories as the mount reads them
	Inside    *bind.GitDir        // git directory that is bind-mounted as ".git"; nil if ".git" is a file
	Handover  *takeover.Handover  // passes state to a successor
	Inherited *takeover.Inherited // descriptors of the predecessor
	Handler   control.Handler     // answers requests that programs in the mount send to the daemon
	Logins    Logins
	Log       *zap.Logger
	// Listing is the list of the remote's refs, from which a new git directory gets refs before the history is fetched.
	// If it is nil and the history will be fetched, Make requests it when it creates the directory.
	Listing *fetch.Listing

	// returns the submodules that the configuration of the git directory lists
	Modules func(ctx context.Context) []gitdir.Submodule
	Changed func() int64 // returns the number of paths that the user has changed
	// returns the redirects, whose files are stored outside of the mount
	Redirects func() []string
	// drops the kernel's cached attributes of files that are open for writing
	Refresh func(open []worktree.Node)
	Finish  func(ctx context.Context, dir *gitdir.Dir) // completes switches and restores that were interrupted

	passes gitPass // running git commands
	// whether linked worktrees are restored before git commands can run; set before the kernel has the mount
	relinks bool
	begun   begun
	device  func() (uint32, error) // returns the device of the mount

	mu      sync.Mutex
	servers servers // stopped by Close; protected by mu
}

// New returns s, after it has set the functions of s.Index that s itself provides.
func New(s *Side) *Side {
	s.Index.Git, s.Index.Bar, s.Index.indexed = s.Dir, s.passes.bar, -1
	s.Index.filled.Store(-1)
	s.device = sync.OnceValues(func() (uint32, error) { return mountpoint.DeviceOf(s.Mount.Dir) })
	return s
}

// begun describes how a new mount has started. It is set before the kernel has the mount.
type begun struct {
	// what the checkpoint does not contain from which the mount starts, and the number of all these paths
	leftOut    []session.LeftOut
	allLeftOut int64
	note       string // what could not be done, for the user
}

// servers has the git directory, and the servers to which git commands in the mount send requests. It is the zero value
// until git commands can run.
//
// A git command finds the repository by a lookup of ".git" in the root of the mount. The kernel sends this lookup to
// the daemon, where Await delays the reply until git commands can run. Later, the command connects to the servers
// through sockets in the git directory.
type servers struct {
	dir     *gitdir.Dir        // git directory; nil until git commands can run
	monitor *fsmonitor.Server  // answers git's fsmonitor queries for paths that have changed
	objects *promisor.Server   // supplies missing objects
	logins  *credential.Server // credential helper of git commands
	guests  *control.Guests    // answers requests to the daemon from within the mount; nil if ".git" is a file
	ready   bool               // whether git commands work in the mount
}

// maxCrawlWait is the maximum time for which Make waits for the end of a program that reads all files.
const maxCrawlWait = 10 * time.Second

// Make creates the git directory of the mount, or opens an existing one, writes its index, and starts the servers for
// git commands. It first waits until all trees of the mounted commit are fetched. Before the index exists, git finds no
// repository. Because writing the first index takes much processor time, Make waits until no program reads all files
// and no other mount is writing its first index (see package turns), unless a git command waits.
func (s *Side) Make(ctx context.Context) (*gitdir.Dir, error) {
	snap, err := s.Contents.Whole(ctx)
	if err != nil {
		return nil, err
	}
	// both may send requests to the remote, so they are called before the turn
	x, modules := s.Index.options(ctx), s.Modules(ctx)
	// A mount with changes creates a checkpoint soon, and needs the git directory for that.
	if signal.Take(s.Index.Tree.Monitor().Noticed()); s.Changed() > 0 {
		s.Events.WantGit()
	}
	if !HasIndex(s.Mount.GitDir) {
		if s.Mount.Store.AwaitCrawl(ctx, maxCrawlWait, s.Events.gitWanted, s.Index.Tree.Monitor().Noticed()) {
			s.Events.WantGit()
		}
		done := s.Index.Turns.Take(ctx, s.Events.gitWanted, s.Index.Tree.Monitor().Noticed())
		defer done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// Without a history, the list would be the only request of the git directory.
	if s.Listing == nil && s.Request.History != control.HistoryNone && !gitdir.Exists(s.Mount.GitDir) {
		s.Listing = s.Mount.Store.List()
	}
	o, err := s.options(ctx, snap)
	if err != nil {
		return nil, err
	}
	was, err := s.applyCheckpoint(&o)
	if err != nil {
		return nil, err
	}
	o.Index = func(dir *gitdir.Dir) error { return s.Index.write(ctx, dir, x, was) }
	o.Refs = func() ([]packedrefs.Ref, string, []object.ID) { return s.refs(ctx, snap) }
	g, err := s.newGit()
	if err != nil {
		return nil, err
	}
	addNew(&o, g)
	tipsNow := s.tipsNow(ctx, g)
	defer tipsNow()
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
	if !ok || !s.Resumed && !dir.Sealed() { // the directory is not sealed if a process died while it created the directory
		if err := dir.Seal(); err != nil {
			return nil, err
		}
	}
	tips := tipsNow()
	if err := dir.AddTracking(ctx, tips.Here, tips.Symbolic); err != nil {
		s.Log.Info("remote-tracking branches are added later", zap.String("dir", s.Mount.Dir), zap.Error(err))
	}
	return dir, s.open(ctx, dir)
}

// Reopen opens the git directory that the predecessor has created, and starts the servers for git commands. It does not
// change the directory, because git commands may be using it, and it sends no requests to the remote.
func (s *Side) Reopen(ctx context.Context) (*gitdir.Dir, error) {
	snap := s.Contents.Snapshot()
	o := gitdir.Options{Format: snap.Format, WorkTree: s.Mount.Dir, Ref: snap.Ref, Commit: snap.Commit,
		Inside: s.Inside.Wanted(), Environment: s.Request.Environment.ForPrograms()}
	if s.Mount.Record.Checkpoint != nil {
		o.Ref = ""
	}
	dir := gitdir.Reopen(s.Mount.GitDir, o)
	return dir, s.open(ctx, dir)
}

// open starts the servers for git commands and completes interrupted switches and restores. When it returns, git
// commands can run in the mount.
func (s *Side) open(ctx context.Context, dir *gitdir.Dir) error {
	if err := s.serve(dir); err != nil {
		return err
	}
	s.Finish(ctx, dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers.ready = true
	return nil
}

// options returns the options of the git directory for the snapshot snap. If git is not installed, it logs this, and
// the option Git is empty.
func (s *Side) options(ctx context.Context, snap *fetch.Snapshot) (gitdir.Options, error) {
	program, err := os.Executable()
	if err != nil {
		return gitdir.Options{}, fmt.Errorf("find own program: %w", err)
	}
	// The mount works without git commands, so a missing git is not an error.
	version, err := gitdir.InstalledGit(ctx)
	if err != nil {
		s.Log.Info("find git; git commands do not work in mounts", zap.Error(err))
	}
	branch := "" // the remote's default branch is known only if the mount is of HEAD
	if r := s.Request.Ref; r == "" || r == "HEAD" {
		branch = snap.Ref
	}
	head := s.Mount.Record.Fork.Head
	return gitdir.Options{
		Branch: head.Ref(), Detach: head != nil && head.Detach, Settings: s.Mount.Record.Fork.Settings,
		Format: snap.Format, WorkTree: s.Mount.Dir, Remote: s.Mount.Store.URL(),
		Objects: filepath.Join(s.Mount.Store.GitDir(), "objects"),
		Ref:     snap.Ref, Commit: snap.Commit, Shallow: snap.Shallow(), Partial: snap.Partial,
		Default: branch, Git: version, Monitor: HookProgram(program), Helper: program, Inside: s.Inside.Wanted(),
		Logins: s.Logins.helperURLs(ctx), Called: s.Contents.Settings.RemoteName(),
		Streams: s.Contents.Settings.StreamsSmall(), Environment: s.Request.Environment.ForPrograms(),
	}, nil
}

// HookProgram returns the path of the program that git runs as its fsmonitor hook: the small program query.HookName, if
// it is in the directory of program, or program itself, which starts more slowly.
func HookProgram(program string) string {
	small := filepath.Join(filepath.Dir(program), query.HookName)
	if _, err := os.Stat(small); err != nil {
		return program
	}
	return small
}

// serve starts the servers on sockets in the git directory, and sets s.servers. If the predecessor had listening
// sockets, the servers use these.
func (s *Side) serve(dir *gitdir.Dir) error {
	monitor, err := fsmonitor.Serve(s.Mount.GitDir, s.changes,
		fsmonitor.Options{Inherited: s.Inherited.Take(takeover.PartMonitor), Keep: s.Handover.KeepAs(takeover.PartMonitor)})
	if err != nil {
		return err
	}
	objects, err := promisor.Serve(s.Mount.GitDir, s.provider(), s.Contents.View,
		gitsocket.Options{Inherited: s.Inherited.Take(takeover.PartObjects), Keep: s.Handover.KeepAs(takeover.PartObjects)},
		s.Log)
	if err != nil {
		return errors.Join(err, monitor.Close())
	}
	answers, err := credential.Serve(s.Mount.GitDir, s.Logins, s.Request.UID,
		gitsocket.Options{Inherited: s.Inherited.Take(takeover.PartLogins), Keep: s.Handover.KeepAs(takeover.PartLogins)},
		s.Log)
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
	s.servers = servers{dir, monitor, objects, answers, guests, false}
	return nil
}

// close stops the servers. Git commands that are still running in the mount fail after that.
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

// changes answers git's fsmonitor queries. It returns the paths that may have changed since the journal position token,
// and the next position. If all is true, the paths are not known, and git must check every path. A process with another
// working tree, such as an overlay over the mount, gets an error. Because a process can write to an open file through
// the page cache, without a request to this process, changes makes the kernel drop its cached attributes of open files,
// so that the next write is recorded.
//
// The answer contains more than the changes for commands that trust it for too long (see fsmonitor.Changes).
func (s *Side) changes(ctx context.Context, pid int32, token string) (
	next string, paths []string, all bool, err error,
) {
	if err := s.checkWorkingDir(pid); err != nil {
		return "", nil, false, err
	}
	monitor := s.Index.Tree.Monitor()
	c := fsmonitor.Changes{Start: monitor.StartToken(), ComparesLess: gitdir.ComparesLess(s.Mount.GitDir)}
	c.Since = func(token string) (string, []string, bool, error) {
		c, err := monitor.Changes(token)
		s.Refresh(c.Open)
		return c.Token, append(c.Paths, s.Redirects()...), c.All, err
	}
	_, err = s.Index.Tree.Resolve(ctx, gitdir.ModulesFile)
	c.HasModules = err == nil
	return c.Answer(pid, token)
}

// checkWorkingDir returns an error if the working directory of the process pid is not the root of the mount, because
// git sends its queries from the root of the working tree. The directory of a process in another PID namespace (pid 0)
// is not known; such a process gets no error, because it has found the socket in the git directory, of which other
// trees have no copy.
func (s *Side) checkWorkingDir(pid int32) error {
	if pid == 0 {
		return nil
	}
	own, err := s.device()
	if err != nil {
		return err
	}
	device, ino, err := proc.Of(int(pid)).DirNumber()
	if err == nil && (uint32(device) != own || ino != uint64(worktree.Root)) {
		err = errOtherTree
	}
	return err
}

// errOtherTree means that a git command with another working tree than the mount has sent an fsmonitor query.
var errOtherTree = errors.New("process uses another working tree")

// Ready returns the git directory of the mount, after the mount has tried to create it. It returns fault.ErrNoGitDir if
// this has failed.
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

// Dir returns the git directory of the mount, or nil if git commands do not work in the mount yet, or if s is nil.
func (s *Side) Dir() *gitdir.Dir {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.servers.ready {
		return nil
	}
	return s.servers.dir
}

// Close stops the servers after the mount has ended. s may be nil.
func (s *Side) Close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.servers.close(), gitdir.DropNamedObjects(s.Mount.GitDir))
}

// Hurried reports whether a git command or the mount request waits for history.
func (s *Side) Hurried() bool {
	return s.Events.historyWanted.Load() || s.Request.History == control.HistoryFull || s.Request.Wait == control.WaitAll
}
