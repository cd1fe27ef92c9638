package mount

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
)

// agentMount implements the interfaces through which package agent uses a mount.
type agentMount struct{ m *Mount }

var (
	_ agent.Tree       = agentMount{}
	_ agent.Removals   = agentMount{}
	_ agent.GitDir     = agentMount{}
	_ agent.Captures   = agentMount{}
	_ agent.Repository = agentMount{}
	_ agent.Remotes    = agentMount{}
	_ agent.Objects    = agentMount{}
)

// newAgent returns the agent of the mount, which creates and pushes checkpoints. The agent does nothing until configureAgent is
// called.
func (m *Mount) newAgent() *agent.Agent {
	a := agentMount{m}
	log := m.host.Log
	if log == nil {
		log = zap.NewNop()
	}
	var turn func(context.Context) func()
	if m.succession.takenOver() {
		turn = func(ctx context.Context) func() { return m.succession.catchUp(ctx, m.host.Turns) }
	}
	return agent.New(agent.Config{
		Session: m.Session, Dir: m.Dir, Writable: m.Writable(), Log: log,
		Tree: a, Removals: a, Git: a, Captures: a, Repository: a, Remotes: a, Objects: a,
		Writer: m.host.Writer, Turn: turn, Background: m.work.Go,
		Followed: func(ctx context.Context) bool { return m.Following().Unchanged(ctx, false) },
		Watch:    func(dir string, wake chan<- struct{}) (func(), bool, error) { return m.host.Watch.Add(dir, wake) },
	})
}

// configureAgent decides to which session remote the session is pushed, and stores the decision in m.home.Record, which
// open saves. The caller must have locked the home and read its record.
func (m *Mount) configureAgent() error {
	err := m.agent.Configure(agent.Settings{
		Home: m.home.Dir, GitDir: m.home.GitDir(), Store: m.contents.Store,
		BaseURL: remotes.Readable(m.home.Record.Remote),
		Asked:   m.Request.SessionOptions, Recorded: m.home.Record.Carried,
	})
	if err == nil && m.Writable() {
		m.home.Record.Carried = shown(m.agent.Options())
	}
	return err
}

// Changed returns the number of paths that the user has changed.
func (a agentMount) Changed() int64 { return a.m.attachment.Changed() }

// LastChange returns the time of the last change of the working tree.
func (a agentMount) LastChange() time.Time { return a.m.attachment.Tree.Monitor().LastChange() }

// Noticed returns a channel that receives a value after a change of the working tree.
func (a agentMount) Noticed() <-chan struct{} { return a.m.attachment.Tree.Monitor().Noticed() }

// MassRemoval returns a channel that receives a value when many changed files have been removed or overwritten.
func (a agentMount) MassRemoval() <-chan struct{} { return a.m.attachment.Tree.Removals().Mass() }

// MassRemoved returns the time of the last removal, whether hardly any space is left to keep more removed files, and whether many
// files were removed or overwritten since the last checkpoint.
func (a agentMount) MassRemoved() (time.Time, bool, bool) {
	return a.m.attachment.Tree.Removals().Requested()
}

// Await waits until the mount has tried to create the git directory. It returns false if ctx or the mount ends first.
func (a agentMount) Await(ctx context.Context) bool { return a.m.Events.AwaitGit(ctx) }

// Exists reports whether the git directory was created, or the attempt to create it has failed. It does not wait.
func (a agentMount) Exists() bool {
	return a.m.Events.GitWasTried() || gitside.HasIndex(a.m.home.GitDir())
}

// Untouched reports whether git's refs and index have not changed since the base commit was mounted.
func (a agentMount) Untouched() (bool, error) {
	b := a.mountedGitState()
	if b == nil {
		// If the mount started from a checkpoint, the agent compares with the checkpoint, so this result does not matter.
		return true, nil
	}
	return b.Untouched(a.m.home.GitDir(), a.m.contents.Snapshot().Format)
}

// mountedGitState returns the state that git had when the base commit was mounted, or nil if the mount started from a
// checkpoint.
func (a agentMount) mountedGitState() *capture.InitialState {
	base, err := a.m.home.Record.Base()
	if err != nil || !base.Shown.IsZero() {
		return nil
	}
	b := &capture.InitialState{Commit: base.Commit, Tree: base.Tree, Refs: a.m.contents.Store.Refs}
	if strings.HasPrefix(base.Ref, "refs/heads/") {
		b.Branch = base.Ref
	}
	return b
}

// guardedCapturer is a Capturer that returns panics as errors.
type guardedCapturer struct {
	*capture.Capturer
	mount *Mount
}

// Checkpoint creates a checkpoint, as Capturer.Checkpoint does.
func (g guardedCapturer) Checkpoint(ctx context.Context, reason session.Reason,
	message string) (p session.Checkpoint, report capture.Report, err error) {
	err = g.mount.work.Guard("make a checkpoint", func() (err error) {
		p, report, err = g.Capturer.Checkpoint(ctx, reason, message)
		return err
	})
	return p, report, err
}

// NewCapturer returns a capturer that stores the state of the mount's working tree and git directory in r.Repo.
func (a agentMount) NewCapturer(r agent.CaptureRequest) (agent.Capturer, error) {
	base, err := a.m.home.Record.Base()
	if err != nil {
		return nil, err
	}
	c, err := capture.New(capture.Options{
		Tree: a.m.attachment.Tree, Dir: a.m.Dir, WriteBack: a.writeBack, GitDir: a.m.home.GitDir(), Repo: r.Repo,
		Memory: filepath.Join(a.m.home.Dir, captureMemory),
		Lane:   r.Lane.Name, Segment: r.Lane.Segment, Base: base.Commit, BaseTree: a.m.contents.Snapshot().Tree,
		InitialState: a.mountedGitState(), Rules: r.Rules, LinksAsFiles: a.m.contents.Modes.LinksAsFiles,
		Converts: a.m.contents.View.Returns, Blob: a.rawBlob, Trees: a.m.contents.View.Tree, OthersNotes: r.MergedNotes,
		Log: a.m.host.Log.With(zap.String("session", a.m.Session)),
	})
	if err != nil {
		return nil, err
	}
	return guardedCapturer{c, a.m}, nil
}

// captureMemory is the name of the file in a home that lists the files which the last checkpoint contains.
const captureMemory = "capture.json"

// writeBackTime is the maximum time for which a checkpoint waits until cached writes are stored. A write is delayed if the
// remote does not send an object that the write needs. In this case the write is contained in the next checkpoint.
const writeBackTime = 5 * time.Second

// writeBack waits until the kernel has written its dirty pages to the tree. After writeBackTime it logs that writes are missing,
// and returns nil. It does nothing if the mount is not served or is being unmounted.
func (a agentMount) writeBack(ctx context.Context) error {
	// Without a mount, the kernel has no dirty pages.
	if a.m.attachment.Server == nil || a.m.phase.Ending() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, writeBackTime)
	defer cancel()
	err := a.m.attachment.Server.WriteBack(limited)
	// If the context limited has ended and ctx has not, the time writeBackTime has passed.
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		a.m.host.Log.Warn("a checkpoint is made without writes that are still in flight", zap.String("dir", a.m.Dir), zap.Error(err))
		return nil
	}
	return err
}

// rawBlob returns the contents of a small blob of the base tree, without conversion by filters or line-ending rules.
func (a agentMount) rawBlob(ctx context.Context, path string, id object.ID) ([]byte, error) {
	return a.m.side.Index.ReadSmall(ctx, fetch.Blob{ID: id, Path: path, Link: true}) // contents with Link set are never converted
}

// Open opens the session's repository for writing, and creates it if necessary.
func (a agentMount) Open() (*session.Repo, error) {
	base, err := a.m.home.Record.Base()
	if err != nil {
		return nil, err
	}
	o := a.m.contents.RepoOptions(base.Format, a.m.Session)
	o.Fresh = []string{filepath.Join(a.m.home.GitDir(), "objects")}
	repo, err := session.OpenRepo(a.m.home.RepoDir(), o)
	if err != nil {
		return nil, err
	}
	// Another mount may resume from this repository while the history of the base commit is still being fetched. The base commit
	// is recorded as shallow, so that git does not look for its parents.
	ends := a.m.contents.Store.Boundary()
	if !base.Commit.IsZero() {
		ends = append(ends, base.Commit)
	}
	if err := repo.AddShallow(ends); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// OpenMeta opens the session's repository, whose object format is f, in order to change the session's metadata. It works before the
// store knows its object format.
func (a agentMount) OpenMeta(f object.Format) (*session.Repo, error) {
	return session.OpenRepo(a.m.home.RepoDir(), a.m.contents.RepoOptions(f, a.m.Session))
}

// Meta returns the metadata that is stored for a new session.
func (a agentMount) Meta() session.Meta {
	r := a.m.home.Record
	meta := session.Meta{Session: a.m.Session, Remote: r.Remote, Ref: r.Ref, Base: r.Commit, Format: r.Format, Began: r.Began}
	if p := r.Checkpoint; p != nil && p.Parent != "" && p.Parent != a.m.Session {
		meta.From, meta.FromRemote = p.Parent+" "+p.ID, p.ParentRemote
	}
	return meta
}

// Session returns the session remote. It returns nil if there is none, or if the session uses the embedded session remote.
func (a agentMount) Session() *thin.Remote { return a.m.contents.Objects.SessionRemote }

// Parent returns the name of the parent session and the remote that stores it. It returns nil if the session has no parent, or
// if this mount has no connection to that remote.
func (a agentMount) Parent() (name string, remote *transport.Remote) {
	p := a.m.home.Record.Checkpoint
	if p == nil || p.Parent == "" || p.Parent == a.m.Session || p.ParentRemote == "" {
		return "", nil
	}
	switch {
	case a.m.contents.Objects.SessionRemote != nil && a.m.contents.Objects.SessionRemote.URL() == p.ParentRemote:
		return p.Parent, a.m.contents.Objects.SessionRemote.Remote
	case a.m.contents.Objects.ForkRemote != nil && a.m.contents.Objects.ForkRemote.URL() == p.ParentRemote:
		return p.Parent, a.m.contents.Objects.ForkRemote.Remote
	}
	return "", nil
}

// OpenOrigin opens the mounted remote as a session remote, without the session's token. The caller must close it.
func (a agentMount) OpenOrigin() (*transport.Remote, error) {
	// Without a session token, the credentials of the mounted remote are used.
	origin, _, err := a.m.host.Remotes.Session(remotes.WithSessionRemote(a.m.Request.Now(), control.RemoteOrigin))
	if err != nil {
		return nil, err
	}
	return origin.Remote, nil
}

// FetchMeta fetches the session's metadata in the version of the commit want. The commit have is the version on this host.
func (a agentMount) FetchMeta(ctx context.Context, want, have object.ID) error {
	r := fetch.FetchRequest{From: a.m.contents.Objects.SessionRemote, Wants: []object.ID{want},
		Haves: []object.ID{have}, Contents: true}
	_, err := a.m.contents.Objects.Owned.Fetch(ctx, r)
	return err
}

// ReadMeta reads the metadata of a session from the given session remote. The parameter id is the commit of the metadata.
func (a agentMount) ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error) {
	return resume.ReadMeta(ctx, a.m.host.State, remote, id)
}

// Contents returns a function that fetches missing contents of the session. It returns nil if no contents can be missing.
func (a agentMount) Contents(ctx context.Context) func(ids []object.ID) error {
	return a.m.Listed().Contents(ctx)
}

// endReason returns the reason that the mount's last checkpoint records.
func (m *Mount) endReason() session.Reason {
	if m.options.discards() {
		return session.Discard
	}
	if m.host.Registry.Ending() {
		return session.Shutdown
	}
	return session.Unmount
}

// lastCheckpointTime is the maximum time for the removal of redirects before the last checkpoint of a mount.
const lastCheckpointTime = 30 * time.Second

// pushBeforeUnmount creates the last checkpoint and pushes it. It is called while the kernel still has the mount.
func (m *Mount) pushBeforeUnmount(ctx context.Context) {
	if !m.agent.Active() || m.options.removes() || !m.phase.Served() || m.attachment.Foreign() || !mountpoint.HasFUSE(m.Dir) {
		return
	}
	// If trees are still being fetched, the git directory may not exist yet. The last argument states whether all trees are on
	// this host.
	m.agent.BeforeUnmount(ctx, m.endReason(), m.contents.Snapshot().Whole())
}

// endAgent stops the agent. It is called after the kernel has unmounted the file system and before the tree is closed.
func (m *Mount) endAgent() {
	if !m.home.Locked() {
		return
	}
	r := agent.EndRequest{
		Served: m.phase.Served(), Opened: m.attachment.Tree != nil, Keep: !m.options.removes(), Reason: m.endReason(),
	}
	if r.Served && r.Opened && r.Keep && m.agent.Active() {
		ctx, cancel := context.WithTimeout(context.Background(), lastCheckpointTime)
		// After EndRedirects, the last checkpoint does not contain the directories that were created for redirects.
		m.attachment.EndRedirects(ctx)
		cancel()
	}
	m.agent.End(r)
}
