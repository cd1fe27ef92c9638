package mount

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/background"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/phase"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
)

// sessionSide connects a mount with its session: it has the agent, which creates and pushes checkpoints, and the locks
// of other sessions. It implements the interfaces through which package agent uses a mount. A mount without a session
// has one that does nothing.
//
//	newSessionSide -> configure -> beginLocks -> the agent is started in the background -> pushLastCheckpoint -> end
//
// The fields do not change after the mount is served. The methods may be called from any goroutine.
type sessionSide struct {
	agent   *agent.Agent // creates and pushes the checkpoints
	locking *locking     // locks of other sessions; nil if there are none to obey
	// deleteThere deletes a discarded session on its session remote, once, and returns a warning; see discardOnRemote.
	deleteThere func() string

	name       string // name of the session; "" if the mount has none
	dir        string // root directory of the mount
	host       *Host
	request    *Request
	phase      *phase.Phase
	home       *home.Home
	contents   *contents.Contents
	attachment *attach.Attachment
	events     *gitside.Events
	work       *background.Work
	git        func() *gitside.Side // returns the part of the mount that makes git commands work
}

var (
	_ agent.Tree       = (*sessionSide)(nil)
	_ agent.Removals   = (*sessionSide)(nil)
	_ agent.GitDir     = (*sessionSide)(nil)
	_ agent.Captures   = (*sessionSide)(nil)
	_ agent.Repository = (*sessionSide)(nil)
	_ agent.Remotes    = (*sessionSide)(nil)
	_ agent.Objects    = (*sessionSide)(nil)
)

// newSessionSide returns s with its agent, which does nothing until configure is called. followed reports whether
// following the branch has caused all changes.
func newSessionSide(s *sessionSide, from *takeover.Succession, followed func(ctx context.Context) bool) *sessionSide {
	log := s.host.Log
	if log == nil {
		log = zap.NewNop()
	}
	var turn func(context.Context) func()
	if from.TakenOver() {
		turn = func(ctx context.Context) func() { return from.CatchUp(ctx, s.host.Turns) }
	}
	s.deleteThere = sync.OnceValue(func() string { return s.discardOnRemote(from.TakenOver()) })
	s.agent = agent.New(agent.Config{
		Session: s.name, Dir: s.dir, Writable: s.attachment.Writable(), Log: log,
		Tree: s, Removals: s, Git: s, Captures: s, Repository: s, Remotes: s, Objects: s,
		Writer: s.host.Writer, Turn: turn, Background: s.work.Go, Followed: followed,
		Watch: s.host.Watch.Add,
	})
	return s
}

// configure determines the options of the session, such as its session remote, and stores them in the record, which is
// saved when the working tree is opened. The home must be locked.
func (s *sessionSide) configure() error {
	err := s.agent.Configure(agent.Settings{
		Home: s.home.Dir, GitDir: s.home.GitDir(), Store: s.contents.Store,
		BaseURL: remotes.Readable(s.home.Record.Remote),
		Asked:   s.request.SessionOptions, Recorded: s.home.Record.Carried,
	})
	if err == nil && s.attachment.Writable() {
		s.home.Record.Carried = shown(s.agent.Options())
	}
	return err
}

// Changed returns the number of paths that the user has changed. It implements agent.Tree.
func (s *sessionSide) Changed() int64 { return s.attachment.Changed() }

// LastChange returns the time of the last change of the working tree. It implements agent.Tree.
func (s *sessionSide) LastChange() time.Time { return s.attachment.Tree.Monitor().LastChange() }

// Noticed returns a channel that receives a value after a change of the working tree. It implements agent.Tree.
func (s *sessionSide) Noticed() <-chan struct{} { return s.attachment.Tree.Monitor().Noticed() }

// MassRemoval returns a channel that receives a value when many changed files have been removed or overwritten. It
// implements agent.Removals.
func (s *sessionSide) MassRemoval() <-chan struct{} { return s.attachment.Tree.Removals().Mass() }

// MassRemoved returns the time of the last removal of many files, whether there is little space to keep more removed
// files, and whether many files were removed or overwritten since the last checkpoint. It implements agent.Removals.
func (s *sessionSide) MassRemoved() (time.Time, bool, bool) {
	return s.attachment.Tree.Removals().Requested()
}

// Await waits until the mount has tried to create the git directory. It returns false if ctx or the mount ends first.
// It implements agent.GitDir.
func (s *sessionSide) Await(ctx context.Context) bool { return s.events.AwaitGit(ctx) }

// Exists reports whether the git directory was created, or the attempt to create it has failed. It implements
// agent.GitDir.
func (s *sessionSide) Exists() bool {
	return s.events.GitWasTried() || gitside.HasIndex(s.home.GitDir())
}

// Untouched reports whether git's refs and index have not changed since the base commit was mounted. It implements
// agent.GitDir.
func (s *sessionSide) Untouched() (bool, error) {
	b := s.mountedGitState()
	if b == nil {
		// If the mount started from a checkpoint, the agent compares with the checkpoint, so this result does not matter.
		return true, nil
	}
	return b.Untouched(s.home.GitDir(), s.contents.Snapshot().Format)
}

// mountedGitState returns the state of the git directory when the base commit was mounted, or nil if the mount started
// from a checkpoint.
func (s *sessionSide) mountedGitState() *capture.InitialState {
	base, err := s.home.Record.Base()
	if err != nil || !base.Shown.IsZero() {
		return nil
	}
	b := &capture.InitialState{Commit: base.Commit, Tree: base.Tree, Refs: s.contents.Store.Refs}
	if strings.HasPrefix(base.Ref, "refs/heads/") {
		b.Branch = base.Ref
	}
	if head := s.home.Record.Fork.Head; head != nil {
		b.Branch, b.Mounted = head.Ref(), b.Branch
	}
	return b
}

// guardedCapturer is a Capturer that returns a panic as an error.
type guardedCapturer struct {
	*capture.Capturer
	work *background.Work
}

// Checkpoint creates a checkpoint, as Capturer.Checkpoint does. It returns a panic as an error.
func (g guardedCapturer) Checkpoint(ctx context.Context, reason session.Reason, message string,
	carry ...capture.Carrying) (p session.Checkpoint, report capture.Report, err error) {
	err = g.work.Guard("make a checkpoint", func() (err error) {
		p, report, err = g.Capturer.Checkpoint(ctx, reason, message, carry...)
		return err
	})
	return p, report, err
}

// NewCapturer returns a Capturer that stores the state of the mount's working tree and git directory in r.Repo. It
// implements agent.Captures.
func (s *sessionSide) NewCapturer(r agent.CaptureRequest) (agent.Capturer, error) {
	base, err := s.home.Record.Base()
	if err != nil {
		return nil, err
	}
	head := s.home.Record.Fork.Head
	c, err := capture.New(capture.Options{
		Branch: head.Ref(), Detach: head != nil && head.Detach,
		Tree: s.attachment.Tree, Dir: s.dir, WriteBack: s.writeBack, GitDir: s.home.GitDir(), Repo: r.Repo,
		Environment: s.request.Now().Environment.ForPrograms(), Memory: filepath.Join(s.home.Dir, captureMemory),
		Lane: r.Lane.Name, Segment: r.Lane.Segment, Base: base.Commit, BaseTree: s.contents.Snapshot().Tree,
		InitialState: s.mountedGitState(), Rules: r.Rules, LinksAsFiles: s.contents.Modes.LinksAsFiles,
		Converts: s.contents.View.Returns, Blob: s.rawBlob, Trees: s.contents.View.Tree, OthersNotes: r.MergedNotes,
		Log: s.host.Log.With(zap.String("session", s.name)),
	})
	if err != nil {
		return nil, err
	}
	return guardedCapturer{c, s.work}, nil
}

// captureMemory is the name of the file in a home that lists the files which the last checkpoint contains.
const captureMemory = "capture.json"

// writeBackTime is the maximum time for which a checkpoint waits until cached writes are stored. A write that needs an
// object from the remote is delayed if the remote does not answer; the next checkpoint then contains the write.
const writeBackTime = 5 * time.Second

// writeBack waits until the kernel has written its dirty pages to the working tree. After writeBackTime it logs that
// writes are missing, and returns nil. It does nothing if the mount is not served or is being unmounted.
func (s *sessionSide) writeBack(ctx context.Context) error {
	// Without a mount, the kernel has no dirty pages.
	if s.attachment.Server == nil || s.phase.Ending() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, writeBackTime)
	defer cancel()
	err := s.attachment.Server.WriteBack(limited)
	// If the context limited has ended and ctx has not, the time writeBackTime has passed.
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		s.host.Log.Warn("checkpoint does not contain writes that the kernel has not sent yet", zap.String("dir", s.dir),
			zap.Error(err))
		return nil
	}
	return err
}

// rawBlob returns the contents of a small blob of the base tree, without conversion by filters or line-ending rules.
func (s *sessionSide) rawBlob(ctx context.Context, path string, id object.ID) ([]byte, error) {
	// Contents with Link set are never converted.
	return s.git().Index.ReadSmall(ctx, fetch.Blob{ID: id, Path: path, Link: true})
}

// Open opens the session repository for writing, and creates it if necessary. It implements agent.Repository.
func (s *sessionSide) Open() (*session.Repo, error) {
	base, err := s.home.Record.Base()
	if err != nil {
		return nil, err
	}
	o := s.contents.RepoOptions(base.Format, s.name)
	o.Fresh = []string{filepath.Join(s.home.GitDir(), "objects")}
	repo, err := session.OpenRepo(s.home.RepoDir(), o)
	if err != nil {
		return nil, err
	}
	// Another mount may resume from this repository while the history of the base commit is still being fetched. The base
	// commit is recorded as shallow, so that git does not look for its parents.
	ends := s.contents.Store.Boundary()
	if !base.Commit.IsZero() {
		ends = append(ends, base.Commit)
	}
	if err := repo.AddShallow(ends); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// OpenMeta opens the session repository, whose object format is f, to change the session's metadata, before the store
// knows its object format. It implements agent.Repository.
func (s *sessionSide) OpenMeta(f object.Format) (*session.Repo, error) {
	return session.OpenRepo(s.home.RepoDir(), s.contents.RepoOptions(f, s.name))
}

// Meta returns the metadata that are stored for a new session. It implements agent.Repository.
func (s *sessionSide) Meta() session.Meta {
	r := s.home.Record
	meta := session.Meta{Session: s.name, Remote: r.Remote, Ref: r.Ref, Base: r.Commit, Format: r.Format,
		Began: r.Began}
	if p := r.Checkpoint; p != nil && p.Parent != "" && p.Parent != s.name {
		meta.From, meta.FromRemote = p.Parent+" "+p.ID, p.ParentRemote
	}
	return meta
}

// Session returns the session remote, or nil if there is none or only the embedded one. It implements agent.Remotes.
func (s *sessionSide) Session() *thin.Remote { return s.contents.Objects.SessionRemote }

// Parent returns the name of the parent session and its session remote, or nil if there is no parent, or if this mount
// has no connection to that remote. It implements agent.Remotes.
func (s *sessionSide) Parent() (name string, remote *transport.Remote) {
	p := s.home.Record.Checkpoint
	if p == nil || p.Parent == "" || p.Parent == s.name || p.ParentRemote == "" {
		return "", nil
	}
	switch {
	case s.contents.Objects.SessionRemote != nil && s.contents.Objects.SessionRemote.URL() == p.ParentRemote:
		return p.Parent, s.contents.Objects.SessionRemote.Remote
	case s.contents.Objects.ForkRemote != nil && s.contents.Objects.ForkRemote.URL() == p.ParentRemote:
		return p.Parent, s.contents.Objects.ForkRemote.Remote
	}
	return "", nil
}

// OpenOrigin opens another connection to the mounted remote, with its own credentials. The caller must close it. It
// implements agent.Remotes.
func (s *sessionSide) OpenOrigin() (*transport.Remote, error) {
	// Without a session token, the credentials of the mounted remote are used.
	origin, _, err := s.host.Remotes.Session(remotes.WithSessionRemote(s.request.Now(), control.RemoteOrigin))
	if err != nil {
		return nil, err
	}
	return origin.Remote, nil
}

// FetchMeta fetches the session's metadata in the commit want. The commit have is on this host. It implements
// agent.Objects.
func (s *sessionSide) FetchMeta(ctx context.Context, want, have object.ID) error {
	r := fetch.FetchRequest{From: s.contents.Objects.SessionRemote, Wants: []object.ID{want},
		Haves: []object.ID{have}, Contents: true}
	_, err := s.contents.Objects.Owned.Fetch(ctx, r)
	return err
}

// ReadMeta returns the metadata of a session in the commit id on the given session remote. It implements agent.Objects.
func (s *sessionSide) ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error) {
	return resume.ReadMeta(ctx, s.host.State, remote, id)
}

// Contents returns a function that fetches missing contents of the session, or nil if no contents can be missing. It
// implements agent.Objects.
func (s *sessionSide) Contents(ctx context.Context) func(ids []object.ID) error {
	return (&catalog.Mounted{Owned: s.contents.Objects.Owned}).Contents(ctx)
}

// lastCheckpointTime is the maximum time for the removal of redirects before the last checkpoint of a mount.
const lastCheckpointTime = 30 * time.Second

// pushLastCheckpoint creates the last checkpoint of a mount and pushes it. It is called while the kernel still has the
// mount. reason is the reason that the checkpoint records.
func (s *sessionSide) pushLastCheckpoint(ctx context.Context, reason session.Reason) {
	if !s.agent.Active() || !s.phase.Served() || s.attachment.Foreign() || !mountpoint.HasFUSE(s.dir) {
		return
	}
	// If trees are still being fetched, the git directory may not exist yet. The last argument states whether all trees
	// are on this host.
	s.agent.BeforeUnmount(ctx, reason, s.contents.Snapshot().Whole())
}

// end stops the agent. It is called after the kernel has unmounted the mount, and before the working tree is closed.
// keep states whether the session is kept.
func (s *sessionSide) end(keep bool, reason session.Reason) {
	if !s.home.Locked() {
		return
	}
	r := agent.EndRequest{Served: s.phase.Served(), Opened: s.attachment.Tree != nil, Keep: keep, Reason: reason}
	if r.Served && r.Opened && r.Keep && s.agent.Active() {
		ctx, cancel := context.WithTimeout(context.Background(), lastCheckpointTime)
		// After EndRedirects, the last checkpoint does not contain the directories that were created for redirects.
		s.attachment.EndRedirects(ctx)
		cancel()
	}
	s.agent.End(r)
}

// reportUnpushed adds to the reply of an unmount the number of refs that are not pushed, with the reason, and the
// diverged refs, which were pushed under another name because another session had changed them, too.
func (s *sessionSide) reportUnpushed(reply *control.UnmountReply) {
	left := s.agent.Left()
	reply.Pending, reply.Why, reply.DivergedRefs = left.Pending, left.Why, left.Diverged
	if len(left.Diverged) > 0 {
		reply.SessionRemote = statedir.ShownRemote(s.agent.Options().Remote, "", s.home.Record)
	}
}

// shown returns the options of a session in the form that is stored in its record: without credentials and settings
// that apply to a single mount.
func shown(o control.SessionOptions) control.SessionOptions {
	// These values are names of kinds of session remotes and contain no secrets.
	switch o.Remote {
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone, "":
	default:
		o.Remote = statedir.WithoutSecrets(o.Remote)
	}
	o.TakeOver = false
	return o
}

// discardOnRemote deletes a discarded session on its session remote. It takes at most discardTime. It returns a warning
// if the session, or some of its refs, remain there, and "" otherwise. takenOver states whether an earlier process has
// started the mount. The field deleteThere calls discardOnRemote once.
func (s *sessionSide) discardOnRemote(takenOver bool) (warning string) {
	o := s.agent.Options()
	repo, _ := s.agent.Repo()
	switch {
	case s.name == "":
		return ""
	case !s.home.Locked(): // the predecessor was killed after it had removed the home, so the agent was not opened
		o = s.home.Record.Carried
		o.Remote = cmp.Or(s.request.SessionOptions.Remote, o.Remote)
	// Nothing was pushed, so there is nothing to delete. A successor does not open the repository of a mount that has
	// ended.
	case repo == nil && !takenOver:
		return ""
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), discardTime, fault.ErrSlow)
	defer cancel()
	r := s.request.Now()
	r.Session, r.SessionOptions = s.name, o
	_, kept, err := s.host.Catalog.DeleteOnRemote(ctx, r, false, time.Now())
	switch {
	case err != nil:
		return "session remote still has the session: " + control.AsError(err).Error()
	case len(kept) > 0:
		return "session remote keeps " + strings.Join(kept, ", ")
	}
	return ""
}

// dropBase removes the base ref of a tree of a clone from the clone, if the home was removed: without a home, nothing
// else needs the base commit, and nothing else removes the ref. A failure is only logged.
func (s *sessionSide) dropBase() {
	rec := s.home.Record
	_, err := os.Lstat(filepath.Join(s.host.Homes.Dir(), s.name))
	if s.name == "" || rec.Commit == "" || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), discardTime, fault.ErrSlow)
	defer cancel()
	r := s.request.Now()
	r.Session, r.SessionOptions = s.name, rec.Carried
	if err := s.host.Catalog.DropBase(ctx, r, rec.Commit); err != nil {
		s.host.Log.Info("remove the base ref of a session", zap.String("session", s.name), zap.Error(err))
	}
}

// discardTime is the maximum time for which an unmount waits for the session remote to delete refs of a session.
const discardTime = 10 * time.Second
