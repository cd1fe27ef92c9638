package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// agentMount implements the interfaces of package agent for a mount.
type agentMount struct{ *mount }

var (
	_ agent.Tree       = agentMount{}
	_ agent.Removals   = agentMount{}
	_ agent.GitDir     = agentMount{}
	_ agent.Captures   = agentMount{}
	_ agent.Repository = agentMount{}
	_ agent.Remotes    = agentMount{}
	_ agent.Objects    = agentMount{}
)

// newAgent returns the agent of the mount. It does nothing before it is configured.
func (m *mount) newAgent() *agent.Agent {
	a := agentMount{m}
	log := m.daemon.log
	if log == nil {
		log = zap.NewNop()
	}
	return agent.New(agent.Config{
		Session: m.session, Dir: m.dir, Writable: m.writable(), Log: log,
		Tree: a, Removals: a, Git: a, Captures: a, Repository: a, Remotes: a, Objects: a,
		Writer: m.daemon.writer, Background: m.behind, Followed: func(ctx context.Context) bool { return m.asFollowed(ctx, false) },
		Watch: func(dir string, wake chan<- struct{}) (func(), bool, error) { return m.daemon.watch.Add(dir, wake) },
	})
}

// configureAgent decides how the session is pushed, and notes the decision in the mount's record, which open saves. The
// home must be locked, and its record read.
func (m *mount) configureAgent() error {
	err := m.agent.Configure(agent.Settings{
		Home: m.home.Dir, GitDir: m.gitPath(), Store: m.store, BaseURL: remotes.Readable(m.record.Remote),
		Asked: m.request.SessionOptions, Recorded: m.record.Carried,
	})
	if err == nil && m.writable() {
		m.record.Carried = shown(m.agent.Options())
	}
	return err
}

// writer returns the identity of this process in the lanes and claims of sessions.
func (d *Daemon) writer() (session.Writer, error) {
	pid := os.Getpid()
	if d.keeper != nil { // the supervisor replaces a worker that dies, so its process ID identifies the daemon
		pid = os.Getppid()
	}
	return session.Here(d.state, pid)
}

// Changed returns the number of paths that the user changed.
func (a agentMount) Changed() int64 { return a.changed() }

// LastChange returns the time of the latest change of the working tree.
func (a agentMount) LastChange() time.Time { return a.tree.LastChange() }

// Noticed returns a channel that receives a value after a change of the working tree.
func (a agentMount) Noticed() <-chan struct{} { return a.tree.Noticed() }

// MassRemoval returns a channel that receives a value when many changed files were removed or overwritten.
func (a agentMount) MassRemoval() <-chan struct{} { return a.tree.MassRemoval() }

// MassRemoved reports whether many files were removed or overwritten that no checkpoint has yet, when the latest one
// was, and whether the tree has little room left to keep more of them.
func (a agentMount) MassRemoved() (latest time.Time, full, many bool) { return a.tree.MassRemoved() }

// Await waits until the git directory was created or its creation failed. It returns false if ctx or the mount ended
// first.
func (a agentMount) Await(ctx context.Context) bool { return a.triedGit(ctx) }

// Exists reports whether the git directory exists, or its creation was at least tried.
func (a agentMount) Exists() bool { return a.gitWasTried() || a.hasIndex() }

// Untouched reports whether git's refs and index are as they were when the base commit was mounted.
func (a agentMount) Untouched() (bool, error) {
	b := a.mountedGitState()
	if b == nil {
		return true, nil // the mount started from a checkpoint, and differences from that are found elsewhere
	}
	return b.Untouched(a.gitPath(), a.snapshot().Format)
}

// mountedGitState returns the state of git at the time when the base commit was mounted; nil if the mount started from a
// checkpoint.
func (m *mount) mountedGitState() *capture.InitialState {
	base, err := m.record.Base()
	if err != nil || !base.Shown.IsZero() {
		return nil
	}
	b := &capture.InitialState{Commit: base.Commit, Tree: base.Tree, Refs: m.store.Refs}
	if strings.HasPrefix(base.Ref, "refs/heads/") {
		b.Branch = base.Ref
	}
	return b
}

// guardedCapturer is a Capturer that returns panics as errors.
type guardedCapturer struct {
	*capture.Capturer
	mount *mount
}

// Checkpoint makes a checkpoint, like Capturer.Point.
func (g guardedCapturer) Checkpoint(ctx context.Context, reason session.Reason,
	message string) (p session.Checkpoint, report capture.Report, err error) {
	err = g.mount.guarded("make a checkpoint", func() (err error) {
		p, report, err = g.Capturer.Checkpoint(ctx, reason, message)
		return err
	})
	return p, report, err
}

// NewCapturer returns a capturer of the mount's working tree and git directory into r.Repo.
func (a agentMount) NewCapturer(r agent.CaptureRequest) (agent.Capturer, error) {
	base, err := a.record.Base()
	if err != nil {
		return nil, err
	}
	c, err := capture.New(capture.Options{
		Tree: a.tree, WriteBack: a.writeBack, GitDir: a.gitPath(), Repo: r.Repo, Memory: filepath.Join(a.home.Dir, captureMemory),
		Lane: r.Lane.Name, Segment: r.Lane.Segment, Base: base.Commit, BaseTree: a.snapshot().Tree,
		InitialState: a.mountedGitState(), Rules: r.Rules,
		Converts: a.view.Returns, Blob: a.rawBlob, Trees: a.view.Tree, OthersNotes: r.MergedNotes,
		Log: a.daemon.log.With(zap.String("session", a.session)),
	})
	if err != nil {
		return nil, err
	}
	return guardedCapturer{c, a.mount}, nil
}

// captureMemory is the name of the file in a home that records the files which the last checkpoint saw.
const captureMemory = "capture.json"

// writeBackTime limits the wait for writes that depend on an object which the remote does not send. Their bytes are
// stored by the next checkpoint.
const writeBackTime = 5 * time.Second

// writeBack waits until the kernel has written its dirty pages to the tree. It does nothing for a mount that the kernel
// has detached. After writeBackTime it logs the missing writes and returns nil.
func (m *mount) writeBack(ctx context.Context) error {
	// There is nothing to write back if the kernel has no mount.
	if m.server == nil || m.letsGo() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, writeBackTime)
	defer cancel()
	err := m.server.WriteBack(limited)
	// The limit of this function has passed, and not that of the caller.
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		m.daemon.log.Warn("a checkpoint is made without writes that are still in flight", zap.String("dir", m.dir), zap.Error(err))
		return nil
	}
	return err
}

// letsGo reports whether the mount is being unmounted, so that the kernel may have detached it already.
func (m *mount) letsGo() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}

// rawBlob returns a small blob of the base tree without conversion by filters or line endings.
func (m *mount) rawBlob(ctx context.Context, path string, id object.ID) ([]byte, error) {
	return m.readIgnoreFile(ctx, fetch.Blob{ID: id, Path: path, Link: true}) // the target of a symbolic link is never converted
}

// Open opens the session's repository for writing, and creates it if necessary.
func (a agentMount) Open() (*session.Repo, error) {
	base, err := a.record.Base()
	if err != nil {
		return nil, err
	}
	o := a.repoOptions(base.Format, a.session)
	o.Fresh = []string{filepath.Join(a.gitPath(), "objects")}
	repo, err := session.OpenRepo(a.sessionRepoDir(), o)
	if err != nil {
		return nil, err
	}
	// Another mount may resume from this repository by its path while the history behind the base commit is still being
	// fetched. The base commit is made shallow so that git does not look for that history.
	ends := a.store.Boundary()
	if !base.Commit.IsZero() {
		ends = append(ends, base.Commit)
	}
	if err := repo.AddShallow(ends); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// OpenMeta opens the session's repository for changes of its meta only. It works before a base commit is known.
func (a agentMount) OpenMeta() (*session.Repo, error) {
	format := a.store.Format()
	if base, err := a.record.Base(); err == nil {
		format = base.Format
	}
	return session.OpenRepo(a.sessionRepoDir(), a.repoOptions(format, a.session))
}

// Meta returns the meta that a new session is recorded with.
func (a agentMount) Meta() session.Meta {
	r := a.record
	meta := session.Meta{Session: a.session, Remote: r.Remote, Ref: r.Ref, Base: r.Commit, Format: r.Format, Began: r.Began}
	if p := r.Checkpoint; p != nil && p.Parent != "" && p.Parent != a.session {
		meta.From, meta.FromRemote = p.Parent+" "+p.ID, p.ParentRemote
	}
	return meta
}

// Session returns the session remote; nil if the session has no other than the embedded one.
func (a agentMount) Session() *thin.Remote { return a.sessionRemote }

// Parent returns the parent session and the remote that it is stored on; nil if this mount has no connection to that
// remote.
func (a agentMount) Parent() (name string, remote *transport.Remote) {
	p := a.record.Checkpoint
	if p == nil || p.Parent == "" || p.Parent == a.session || p.ParentRemote == "" {
		return "", nil
	}
	switch {
	case a.sessionRemote != nil && a.sessionRemote.URL() == p.ParentRemote:
		return p.Parent, a.sessionRemote.Remote
	case a.forkRemote != nil && a.forkRemote.URL() == p.ParentRemote:
		return p.Parent, a.forkRemote.Remote
	}
	return "", nil
}

// OpenOrigin opens the mounted remote as a session remote. The caller closes it. The session's token is not used for it.
func (a agentMount) OpenOrigin() (*transport.Remote, error) {
	// The mounted remote is opened with its own credentials.
	r := a.requestNow()
	r.SessionOptions.Remote = control.RemoteOrigin
	r.SessionToken, r.SessionTokenFile = "", ""
	origin, _, err := a.daemon.remotes.Session(r)
	if err != nil {
		return nil, err
	}
	return origin.Remote, nil
}

// FetchMeta fetches version want of the session's meta. have is the version that this host has.
func (a agentMount) FetchMeta(ctx context.Context, want, have object.ID) error {
	_, err := a.owned.Fetch(ctx, fetch.FetchRequest{From: a.sessionRemote, Wants: []object.ID{want}, Haves: []object.ID{have}, Contents: true})
	return err
}

// ReadMeta returns the meta of a session on a remote.
func (a agentMount) ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error) {
	return resume.ReadMeta(ctx, a.daemon.state, remote, id)
}

// Contents returns a function that fetches contents of the session, or nil if none can be missing.
func (a agentMount) Contents(ctx context.Context) func(ids []object.ID) error {
	return a.listed().Contents(ctx)
}

// wasServed reports whether the kernel ever had the mount attached to this process.
func (m *mount) wasServed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cancel != nil
}

// ending reports whether the daemon is shutting down.
func (d *Daemon) ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// endReason returns the reason of the mount's last checkpoint.
func (m *mount) endReason() session.Reason {
	if m.discards() {
		return session.Discard
	}
	if m.daemon.ending() {
		return session.Shutdown
	}
	return session.Unmount
}

// lastCheckpointTime limits the cleanup before the last checkpoint of a mount.
const lastCheckpointTime = 30 * time.Second

// pushBeforeUnmount makes the last checkpoint and pushes it while the mount is still attached.
func (m *mount) pushBeforeUnmount(ctx context.Context) {
	if !m.agent.Active() || m.removes() || !m.wasServed() || m.foreign() || !m.mounted() {
		return
	}
	// Until all trees are fetched, git's directory may not exist.
	m.agent.BeforeUnmount(ctx, m.endReason(), m.snapshot().Whole())
}

// endAgent ends the agent. The mount is detached from the kernel, and its tree is still open.
func (m *mount) endAgent() {
	if m.home == nil {
		return
	}
	r := agent.EndRequest{Served: m.wasServed(), Opened: m.tree != nil, Keep: !m.removes(), Reason: m.endReason()}
	if r.Served && r.Opened && r.Keep && m.agent.Active() {
		ctx, cancel := context.WithTimeout(context.Background(), lastCheckpointTime)
		// It removes the directories that redirects created, so that the last checkpoint does not contain them.
		m.endRedirects(ctx)
		cancel()
	}
	m.agent.End(r)
}
