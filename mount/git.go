package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/credential"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/gitdir/fsmonitor"
	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/gitsocket"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/promisor"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// stockGit holds the resources with which git commands work in a mount: the git directory, and the servers that answer git's
// queries. It is zero until the git directory is served.
//
// A git command finds the repository by looking up .git in the root of the mount. The kernel sends this lookup to the daemon,
// where awaitGit delays the reply until git commands can work. Later the command connects to the servers by sockets in the git
// directory.
type stockGit struct {
	dir     *gitdir.Dir        // git directory; nil: not served yet
	monitor *fsmonitor.Server  // answers fsmonitor queries: paths that have changed
	objects *promisor.Server   // supplies missing objects
	logins  *credential.Server // credential helper of git commands
	guests  *control.Guests    // serves requests from inside the mount; nil: .git is a file
}

// gitPath returns the path of the mount's git directory. The mount has a file .git in its root that refers to this path.
func (m *Mount) gitPath() string { return filepath.Join(m.home.Dir, "git") }

// gitFile returns the content of the file .git in the root of the mount (gitrepository-layout(5)).
func (m *Mount) gitFile() string { return "gitdir: " + m.gitPath() + "\n" }

// makeGitDir waits for all trees of the mounted commit. Then it creates the git directory, or opens an existing one, and serves
// git commands. Writing the first index is expensive, so makeGitDir waits for its turn among the mounts of the daemon before it
// does that.
func (m *Mount) makeGitDir(ctx context.Context) (*gitdir.Dir, error) {
	snap, err := m.wholeSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	x, modules := m.indexOptions(ctx), m.wholeModules(ctx)  // before the turn, since both may send requests
	if drain(m.tree.Monitor().Noticed()); m.changed() > 0 { // a checkpoint is due soon, and needs the git directory
		m.wantGit()
	}
	if !m.hasIndex() {
		done := m.host.Turns.Take(ctx, m.gitWanted, m.tree.Monitor().Noticed())
		defer done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	o, err := m.gitOptions(ctx, snap)
	if err != nil {
		return nil, err
	}
	was, err := m.likeCheckpoint(&o)
	if err != nil {
		return nil, err
	}
	dir, ok, err := gitdir.Open(m.gitPath(), o)
	if err == nil && !ok {
		dir, err = gitdir.Create(m.gitPath(), o)
	}
	if err == nil && len(modules) > 0 {
		err = dir.AddSubmodules(modules)
	}
	if err != nil {
		return nil, err
	}
	if err := m.writeIndex(ctx, dir, x, was); err != nil {
		return nil, err
	}
	if !ok || !m.resumed && !dir.Sealed() { // or a process died between creating and sealing it
		if err := dir.Seal(); err != nil {
			return nil, err
		}
	}
	return dir, m.openToGit(ctx, dir)
}

// writeIndex writes git's first index, unless an index exists. The index lists the files of the base tree. The parameter was is
// the index of the checkpoint that the mount starts from, whose staged entries are added; it is nil if the mount starts from a
// commit.
func (m *Mount) writeIndex(ctx context.Context, dir *gitdir.Dir, o gitdir.IndexOptions, was *session.Index) error {
	if m.hasIndex() {
		return nil
	}
	if was != nil {
		var err error
		if o.Staged, err = m.staged(ctx, was); err != nil {
			return err
		}
	}
	came := m.store.Stats().Blobs // before the walk: contents fetched during it may be missing in the index
	err := dir.WriteIndex(ctx, o, m.walkBase)
	if err == nil {
		m.indexed = came
	}
	return err
}

// reopenGitDir serves the git directory that the predecessor served. It does not change the directory, because git commands may
// be using it, and it does not wait for requests to the remote.
func (m *Mount) reopenGitDir(ctx context.Context) (*gitdir.Dir, error) {
	snap := m.snapshot()
	o := gitdir.Options{Format: snap.Format, WorkTree: m.Dir, Ref: snap.Ref, Commit: snap.Commit}
	if m.record.Checkpoint != nil {
		o.Ref = ""
	}
	dir := gitdir.Reopen(m.gitPath(), o)
	return dir, m.openToGit(ctx, dir)
}

// openToGit starts the servers for git commands and completes interrupted switches and restores. After that, git commands can
// run in the mount.
func (m *Mount) openToGit(ctx context.Context, dir *gitdir.Dir) error {
	if err := m.serveGit(dir); err != nil {
		return err
	}
	m.moves.Finish(ctx, dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gitReady = true
	return nil
}

// gitOptions returns the options of the git directory for the snapshot snap. If no git is installed, it logs that and leaves the
// option Git empty.
func (m *Mount) gitOptions(ctx context.Context, snap *fetch.Snapshot) (gitdir.Options, error) {
	program, err := os.Executable()
	if err != nil {
		return gitdir.Options{}, fmt.Errorf("find own program: %w", err)
	}
	// The mount works without git commands, so a missing git is not an error.
	version, err := gitdir.InstalledGit(ctx)
	if err != nil {
		m.host.Log.Info("no git", zap.Error(err))
	}
	branch := "" // only a mount of HEAD has learned the remote's default branch
	if r := m.Request.Ref; r == "" || r == "HEAD" {
		branch = snap.Ref
	}
	return gitdir.Options{
		Format: snap.Format, WorkTree: m.Dir, Remote: m.store.URL(), Objects: filepath.Join(m.store.GitDir(), "objects"),
		Ref: snap.Ref, Commit: snap.Commit, Shallow: snap.Shallow(), Partial: snap.Partial,
		Default: branch, Git: version, Monitor: hookProgram(program), Helper: program, Inside: m.inside.Wanted(),
		Logins: logins{m}.helped(ctx),
	}, nil
}

// hookProgram returns the program that git runs as its fsmonitor hook. That is the small program query.HookName, if it is
// installed in the directory of program. Otherwise it is program itself, which starts more slowly and runs the hook if it is
// called by that name.
func hookProgram(program string) string {
	small := filepath.Join(filepath.Dir(program), query.HookName)
	if _, err := os.Stat(small); err != nil {
		return program
	}
	return small
}

// serveGit starts the servers of stockGit. If the predecessor left listening sockets, the servers use them.
func (m *Mount) serveGit(dir *gitdir.Dir) error {
	monitor, err := fsmonitor.Serve(m.gitPath(), m.changes,
		fsmonitor.Options{Inherited: m.inherited.Take(takeover.PartMonitor), Keep: m.handover.KeepAs(takeover.PartMonitor)})
	if err != nil {
		return err
	}
	objects, err := promisor.Serve(m.gitPath(), m.provider(),
		gitsocket.Options{Inherited: m.inherited.Take(takeover.PartObjects), Keep: m.handover.KeepAs(takeover.PartObjects)}, m.host.Log)
	if err != nil {
		return errors.Join(err, monitor.Close())
	}
	answers, err := credential.Serve(m.gitPath(), logins{m},
		gitsocket.Options{Inherited: m.inherited.Take(takeover.PartLogins), Keep: m.handover.KeepAs(takeover.PartLogins)}, m.host.Log)
	if err != nil {
		return errors.Join(err, objects.Close(), monitor.Close())
	}
	var guests *control.Guests
	if m.inside.Wanted() {
		o := gitsocket.Options{Inherited: m.inherited.Take(takeover.PartGuests), Keep: m.handover.KeepAs(takeover.PartGuests)}
		if guests, err = control.ServeGuests(m.gitPath(), o, m.Dir, m.host.Handler, m.host.Log); err != nil {
			return errors.Join(err, answers.Close(), objects.Close(), monitor.Close())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.git = stockGit{dir, monitor, objects, answers, guests}
	return nil
}

// close stops the servers. Git commands that still run in the mount fail after that.
func (g stockGit) close() error {
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
func (m *Mount) changes(_ context.Context, token string) (next string, paths []string, all bool, err error) {
	c, err := m.tree.Monitor().Changes(token)
	if err != nil {
		return "", nil, false, err
	}
	m.server.Refresh(c.Open)
	return c.Token, append(c.Paths, m.redirects.Paths()...), c.All, nil
}

// walkBase calls emit with an index entry for each path of the base tree, in the order of git's index. The first index is
// written from these entries.
func (m *Mount) walkBase(ctx context.Context, emit func(index.Entry) error) error {
	device, err := mountpoint.DeviceOf(m.Dir)
	if err != nil {
		return err
	}
	return m.tree.Base().Walk(ctx, func(e worktree.BaseEntry) error {
		a := e.Attr
		return emit(index.Entry{
			Path: e.Path, Mode: e.Mode, ID: e.ID, Valid: e.Mode == object.ModeSymlink || m.view.Exact(e.Path),
			Stat: index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Dev: device, Ino: uint32(a.Node), UID: a.UID, GID: a.GID, Size: uint32(max(a.Size, 0))},
		})
	})
}

// hasIndex reports whether git's index exists. Once it exists, git commands maintain it, and the mount does not write a new one.
func (m *Mount) hasIndex() bool {
	_, err := os.Lstat(filepath.Join(m.gitPath(), "index"))
	return err == nil
}

// indexOptions returns the data for the extensions of git's first index: the journal position and the ignore files. If an index
// exists, it returns the zero value. It may fetch ignore files, which takes no longer than ignoreTime.
func (m *Mount) indexOptions(ctx context.Context) gitdir.IndexOptions {
	if m.hasIndex() {
		return gitdir.IndexOptions{}
	}
	ctx, cancel := context.WithTimeout(ctx, ignoreTime)
	defer cancel()
	rules, files, err := m.ignoreFiles(ctx)
	if err != nil { // without the ignore files git status is slower, but correct
		m.host.Log.Debug("read ignore files", zap.String("dir", m.Dir), zap.Error(err))
	}
	return gitdir.IndexOptions{
		Token:    m.tree.Monitor().StartToken(),
		Files:    files,
		Ignore:   func(e index.Entry) ([]byte, bool) { content, ok := rules[e.Path]; return content, ok },
		Converts: func(e index.Entry) bool { return m.view.Converts(e.Path) },
	}
}

const (
	maxIgnoreFile = 1 << 20         // bytes; git reads larger ignore files itself
	ignoreTime    = 2 * time.Second // git commands wait meanwhile
)

// ignoreFiles returns the contents of the base tree's ignore files by path, and the number of files in the tree. The first index
// uses them to fill git's untracked cache, which identifies ignore files by hash; without them the first git status reads every
// directory. Missing ignore files are fetched in one request, unless prefetching is off.
func (m *Mount) ignoreFiles(ctx context.Context) (rules map[string][]byte, files int, err error) {
	blobs, attributes, files, err := m.view.GitConfigFiles(ctx)
	if err != nil || len(blobs) == 0 {
		return nil, files, err
	}
	if m.Request.Prefetch != control.PrefetchNone {
		var ids []object.ID
		for _, b := range slices.Concat(blobs, attributes) { // attributes decide whether an ignore file is converted
			ids = append(ids, b.ID)
		}
		if err = m.store.Provide(ctx, nil, ids); ctx.Err() != nil {
			return nil, files, err
		}
	}
	rules = make(map[string][]byte, len(blobs))
	for _, b := range blobs {
		if !m.view.IsFetched(b) {
			continue // git reads it when it needs it
		}
		content, readErr := m.readIgnoreFile(ctx, b)
		if readErr != nil {
			err = readErr
		} else if content != nil {
			rules[b.Path] = content
		}
	}
	return rules, files, err
}

// readIgnoreFile returns the contents of an ignore file; nil if it is larger than maxIgnoreFile.
func (m *Mount) readIgnoreFile(ctx context.Context, b fetch.Blob) ([]byte, error) {
	c, err := m.view.OpenAlone(ctx, b)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	if c.Size() > maxIgnoreFile {
		return nil, nil
	}
	content := make([]byte, c.Size())
	if _, err := c.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content, nil
}

// listing names programs that look up .git because they list or search directories, and that do not use the repository.
var listing = []string{"ls", "find", "stat", "tree", "du", "rm", "fd", "bash", "sh", "dash", "zsh", "fish"}

// awaitGit is called when the process pid has looked up .git, and delays the reply until git works in the mount. It waits until
// the git directory exists; until the history is fetched or has failed, if the command line needs history; and until the objects
// are fetched that the command is predicted to need. If the command discards changes, awaitGit creates a checkpoint first. It
// returns true if no further lookup has to wait.
func (m *Mount) awaitGit(ctx context.Context, pid uint32) (done bool) {
	// The thread that bind-mounts the git directory looks up .git too. It must not wait for itself.
	if m.inside.Mounts(pid) {
		return false
	}
	caller := proc.Of(int(pid))
	name, err := caller.Name()
	if err == nil && slices.Contains(listing, name) {
		return false
	}
	if !m.TriedGit(ctx) {
		return false
	}
	argv, err := caller.Args()
	if err != nil {
		return false
	}
	if len(argv) == 0 {
		argv = []string{""} // the process is exiting
	}
	m.passes.let(pid, argv)
	m.agent.BeforeGit(ctx, pid, argv)
	if gitdir.NeedsHistory(argv) {
		m.historyWanted.Store(true)
		if !m.tried(ctx, m.historyTried) {
			return false
		}
	}
	m.mu.Lock()
	objects, ready := m.git.objects, m.gitReady
	m.mu.Unlock()
	if !ready || !objects.Foresee(ctx, pid) {
		return false
	}
	select {
	case <-m.historyTried:
	default:
		return false
	}
	// Checkpoints before commands that discard changes depend on every lookup. While trees are missing, later commands may want
	// them.
	if m.agent.Guards() || !m.snapshot().Whole() {
		return false
	}
	// If all contents are on this host, a later lookup has nothing to wait for.
	h := m.view.Counts(ctx)
	return h.Fetched == h.Blobs
}

// hurried reports whether a git command or the mount request waits for history.
func (m *Mount) hurried() bool {
	return m.historyWanted.Load() || m.Request.History == control.HistoryFull || m.Request.Wait == control.WaitAll
}

// TriedGit waits until the mount has tried to create the git directory. It closes gitWanted, so that the mount does this without
// waiting for its turn among the mounts of the daemon. It returns false if ctx or the mount ends first.
func (m *Mount) TriedGit(ctx context.Context) bool {
	m.wantGit()
	return m.tried(ctx, m.gitTried)
}

// gitWasTried reports whether the mount has tried to create the git directory.
func (m *Mount) gitWasTried() bool {
	select {
	case <-m.gitTried:
		return true
	default:
		return false
	}
}

// tried waits until the channel what is closed. It returns false if ctx or the mount ends first.
func (m *Mount) tried(ctx context.Context, what <-chan struct{}) bool {
	select {
	case <-what:
		return true
	case <-ctx.Done():
	case <-m.gone:
	}
	return false
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
