package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/worktree"
)

// A mount can start from a checkpoint instead of a commit: if its session was last mounted on another host, if it is a
// fork of another session, or if it shows one checkpoint read-only. The tree of the checkpoint is then the base tree,
// the overlay is empty, and the git directory is created from the checkpoint state. The objects of the session, without
// the contents of files, are first copied to the session repository in the home of the mount:
//
//	from another home        the packs are hard-linked, which takes the same short time for any size
//	from a session remote    four requests fetch refs, metadata, checkpoints with their trees, and small files of the state
//
// All other objects are on the mounted remote, and are fetched as for any mount. Missing contents that were created in
// the session are fetched from the session remote when they are read (fetch.Local).

// settled is the minimum age that unchanged files have when a mount starts, so that git regards its index as newer than
// the files.
const settled = 2 * time.Second

// beginning determines the commit or the checkpoint from which a mount starts, and fetches it. It is used once, by the
// goroutine that prepares the mount, in the order openObjects, acquire, messages. For a mount that was taken over, only
// openObjects is called, and base, from, far and known are nil.
type beginning struct {
	base *statedir.Record // record of an earlier mount, whose base commit is mounted again; nil if there is none
	from *origin.Local    // checkpoint of a session on this host from which the mount starts; nil if there is none
	// checkpoint of a session on a session remote from which the mount starts; nil if there is none
	far   *origin.Far
	known *origin.KnownSession // metadata of the session to resume, if it was read before the start; otherwise nil
	head  *control.NewHead     // where HEAD of a new session is; nil: where HEAD of the checkpoint or the commit was
	newer map[string]object.ID // refs that have other commits on the session remote than in the mounted checkpoint
	moved map[string]bool      // names of the refs in newer that the session itself has pushed

	missing Missing // what the mount does not have of the mount that is forked

	session  string    // name of the session; "" if the mount has none
	since    time.Time // time at which the mount was started
	request  *Request
	home     *home.Home
	contents *contents.Contents
	remotes  *remotes.Remotes
	agent    *agent.Agent
}

// openObjects opens the objects of the mount, and the session remotes from which missing objects are fetched.
func (b *beginning) openObjects() error {
	b.contents.OpenObjects(b.home)
	if b.session == "" && b.request.At == "" {
		return nil
	}
	r := b.request.Now()
	r.SessionOptions = b.agent.Options()
	r.Session = cmp.Or(b.session, r.Session)
	var remote *thin.Remote
	// If the daemon has already asked the session remote which repository is mounted, that connection is still open and
	// is reused.
	if at, _ := remotes.SessionURL(r); at != "" {
		given := remotes.GivenForSession(r, at)
		var l *remotes.Login
		if remote = b.known.Take(b.remotes, at, given); remote != nil {
			l = b.known.Login
		} else {
			b.known = nil
		}
		b.request.holdSessionLogin(l, given)
	}
	if remote == nil {
		var err error
		if remote, _, err = b.remotes.Session(r); err != nil {
			return err
		}
	}
	if remote != nil {
		remote.Keep(catalog.ThinDir(b.home.RepoDir()))
		b.contents.Objects.UseSessionRemote(remote)
	}
	if p := b.home.Record.Checkpoint; p != nil && p.From != "" {
		return b.addForkRemote(p.From)
	}
	return nil
}

// addForkRemote adds the session remote of the parent session, with the URL at, as another source of objects. The
// session token is sent to this remote only if it is on the same host as the mount's own session remote.
func (b *beginning) addForkRemote(at string) error {
	remote, _, err := b.remotes.Session(remotes.WithSessionRemote(b.request.Now(), at))
	if err != nil || remote == nil {
		return err
	}
	b.contents.UseForkRemote(remote, b.home)
	return nil
}

// settings returns the settings in the record that determine the contents of files. A new session has those of the
// session from which it starts, unless the request has others.
func (b *beginning) settings() []gitdir.Setting {
	r := &b.home.Record
	switch {
	case b.home.Resumed || len(r.Checkout) > 0:
	case b.base != nil:
		r.Checkout = b.base.Checkout
	case b.from != nil:
		r.Checkout = b.from.Record.Checkout
	}
	return r.Checkout
}

// acquireCheckpoint fetches or links the checkpoint from which the mount starts, and calls startAt with it. It returns
// false if the mount starts from a commit instead.
func (b *beginning) acquireCheckpoint(ctx context.Context, progress func(control.Progress)) (bool, error) {
	var s *resume.Start
	var err error
	reportStart := func() { progress(control.Progress{Phase: "session"}) }
	switch {
	// The mount uses the base of an earlier mount again, which is a commit.
	case b.base != nil && b.base.Checkpoint == nil:
		return false, nil
	// The session of the checkpoint is on this host.
	case b.from != nil:
		s, err = b.target().Link(ctx, b.from.Resume(b.contents.Objects.SessionRemote))
	// The parent session is on a session remote, so the checkpoint is fetched from there.
	case b.far != nil:
		reportStart()
		s, err = b.target().Fork(ctx, b.far.Parent, b.far.At)
	// The mount shows one checkpoint of a session that is only on the session remote.
	case b.request.At != "":
		if s, err = b.resumeSession(ctx, b.request.Session, reportStart); err == nil && s == nil {
			err = statedir.ErrNoSession
		}
		if err != nil {
			err = origin.Explain(b.request.MountRequest, err)
		}
	case b.session == "":
		return false, nil
	// The session may be on the session remote, because it was mounted on another machine.
	default:
		s, err = b.resumeSession(ctx, b.session, reportStart)
	}
	if err != nil || s == nil {
		return false, err
	}
	return true, b.startAt(ctx, s)
}

// target returns the description of the mount that package resume needs. The caller holds the lock of the mount's home,
// and has called openObjects.
func (b *beginning) target() *resume.Target {
	return &resume.Target{
		Session: b.session, Mounted: b.contents.Store.URL(), RepoDir: b.home.RepoDir(),
		Remote: b.contents.Objects.SessionRemote,
		Since:  b.since, RepoOptions: b.contents.RepoOptions,
		Objects: b.contents.Objects.Owned, Own: b.contents.Objects.Own(), Store: b.contents.Store, Claims: b.agent,
	}
}

// resumeSession fetches the session called name from the session remote. It returns nil if the session remote does not
// have the session, or if the session has no checkpoint.
func (b *beginning) resumeSession(ctx context.Context, name string, reportStart func()) (*resume.Start, error) {
	var known *resume.Known
	if b.known != nil {
		known = b.known.Known
	}
	b.known = nil // the list of refs in b.known is out of date after its first use
	t := b.target()
	t.Listed = func(l *thin.Listing) {
		b.contents.Objects.Listed = &keeper.Listed{}
		b.contents.Objects.Listed.Locks, _ = l.Has(locks.Ref)
		b.contents.Objects.Listed.Policy, _ = l.Has(approval.PolicyRef)
	}
	return t.Resume(ctx, name, b.request.At, known, reportStart)
}

// startAt records that the mount starts from the checkpoint a, fetches its base commit if that is missing, and sets the
// snapshot.
func (b *beginning) startAt(ctx context.Context, a *resume.Start) error {
	// The field Snapshot is nil if the checkpoint was linked from this host. If the checkpoint was fetched, Resume has
	// acquired the snapshot at the same time.
	if a.Snapshot == nil {
		if err := b.target().Acquire(ctx, a); err != nil {
			return err
		}
	}
	snap := a.Snapshot
	b.newer, b.moved = a.Newer, a.Own
	b.home.Record.Ref, b.home.Record.Format = a.Ref, snap.Format.String()
	if !snap.Commit.IsZero() {
		b.home.Record.Commit, b.home.Record.Tree = snap.Commit.String(), snap.Tree.String()
	}
	// Unchanged files get the time of the checkpoint, so that they have the same times in every mount of this
	// checkpoint. The overlay of a fork of the present state has another time.
	b.home.Record.Time = checkpointTime(a.Checkpoint, b.since)
	b.home.Record.Checkpoint = &statedir.Checkpoint{
		ID: string(a.Checkpoint.ID), Commit: a.Checkpoint.Commit.String(), Tree: a.Checkpoint.Tree.String(),
		State: a.Checkpoint.State.String(), Time: a.Checkpoint.Time, Branch: a.Checkpoint.Branch,
	}
	if !a.Checkpoint.Head.IsZero() {
		b.home.Record.Checkpoint.Head = a.Checkpoint.Head.String()
	}
	if b.from != nil && b.session != "" {
		var err error
		b.home.Record.Fork.Settings, err = gitdir.IgnoreSettings(filepath.Join(b.from.Home, "git"))
		if err != nil {
			return err
		}
	}
	// The status shows the parent session, and the session inherits its transcript and erasures.
	switch p := b.home.Record.Checkpoint; {
	case b.far != nil:
		p.Parent, p.ParentRemote = b.far.Session, b.far.Remote.URL()
	case b.from != nil && b.from.Record.Session != b.from.Session: // the parent is a mount that shows one checkpoint
		p.Parent, p.ParentRemote = b.from.Session, b.from.Record.Checkpoint.ParentRemote
	case b.from != nil:
		p.Parent, p.ParentRemote = b.from.Session,
			statedir.ShownRemote(b.from.Carried.Remote, b.from.Home, b.from.Record)
	case b.request.At != "" && b.contents.Objects.SessionRemote != nil:
		p.Parent, p.ParentRemote = b.request.Session, b.contents.Objects.SessionRemote.URL()
	}
	if a.ContentsFrom != "" {
		b.home.Record.Checkpoint.From = statedir.WithoutSecrets(a.ContentsFrom)
		if err := b.addForkRemote(a.ContentsFrom); err != nil {
			return err
		}
	}
	snap.Ref, snap.Tree, snap.Time = a.Ref, a.Checkpoint.Tree, b.home.Record.Time
	b.contents.SetSnapshot(snap)
	return nil
}

// knownBase returns the base commit of the mount's session, or false if the metadata of the session were not read
// before the mount was created. The ID is zero if the session was started on a branch without commits.
func (b *beginning) knownBase() (object.ID, bool) {
	var base string
	switch {
	case b.far != nil:
		base = b.far.Meta.Base
	case b.known != nil:
		base = b.known.Meta.Base
	default:
		return object.ID{}, false
	}
	id, err := object.ParseID(base)
	return id, err == nil || base == ""
}

// acquire fetches the snapshot that is mounted: for a new session the commit that the request names, and for a resumed
// session its base commit, even if the ref has moved on the remote since.
func (b *beginning) acquire(ctx context.Context, progress func(control.Progress)) error {
	if !b.home.Resumed {
		b.home.Record.Fork.Head = b.head
		if b.base != nil {
			b.home.Record.Fork.Parent = b.base.Fork.Parent // the session is mounted again after a restart of the machine
			if b.base.Session != b.session {
				b.home.Record.Fork.Parent = b.base.Session
			}
		}
		// If the session is on the session remote, or a checkpoint is requested, the requested ref is not used.
		if found, err := b.acquireCheckpoint(ctx, progress); found || err != nil {
			return err
		}
		snap, err := b.acquireFirst(ctx)
		if err != nil {
			return fault.Remote(err)
		}
		// If a file's mtime is not older than the index, git assumes that the file may have changed, and compares its
		// contents. Therefore a time that is too late is replaced by a time before the start of the mount.
		if latest := b.since.Add(-settled); snap.Time.After(latest) {
			snap.Time = latest
		}
		b.contents.SetSnapshot(snap)
		b.home.Record.SetBase(snap)
		return nil
	}
	if err := b.checkRef(ctx, progress); err != nil {
		return err
	}
	base, err := b.home.Record.Base()
	if err != nil {
		return err
	}
	base.Own = b.contents.Objects.Own()
	snap, err := b.contents.Store.Resume(ctx, base)
	if err != nil {
		return fault.Remote(err)
	}
	b.contents.SetSnapshot(snap)
	// A commit always has the same tree, so a difference shows that the record or the remote is damaged.
	if snap.Tree != base.Tree && base.Shown.IsZero() {
		return fmt.Errorf("read session %s: %w: commit %s has another tree", b.home.Dir, statedir.ErrRecord,
			b.home.Record.Commit)
	}
	return nil
}

// acquireFirst returns the snapshot for a new session: that of the commit that the request names or, if b.base is set,
// of the commit of that earlier mount.
func (b *beginning) acquireFirst(ctx context.Context) (*fetch.Snapshot, error) {
	if b.base == nil {
		return b.contents.Store.Acquire(ctx, b.request.Ref)
	}
	base, err := b.base.Base()
	if err != nil {
		return nil, err
	}
	base.Own = b.contents.Objects.Own()
	return b.contents.Store.Resume(ctx, base)
}

// checkRef returns an error if the requested ref does not resolve to the base commit of the session. If the remote
// cannot be reached, and the session was started from this ref, checkRef passes a message to progress and returns nil.
func (b *beginning) checkRef(ctx context.Context, progress func(control.Progress)) error {
	ref, r := b.request.Ref, b.home.Record
	if ref == "" || ref == r.Commit || b.request.Follow {
		return nil
	}
	commit, err := b.contents.Store.Resolve(ctx, ref)
	// The user may give the short or the full name of the ref from which the session was started.
	same := ref == r.Asked || ref == r.Ref || ref == statedir.ShortRef(r.Ref)
	switch {
	case err != nil && ctx.Err() == nil && same &&
		(errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled)):
		progress(control.Progress{Message: "remote cannot be reached to resolve " + ref + ": mounting " +
			fmt.Sprintf("%.12s", r.Commit)})
		return nil
	case err != nil:
		return fault.Remote(err)
	case commit.String() != r.Commit:
		return fault.OtherCommitError{Ref: ref, Commit: commit.String(), Session: r.Session, Base: r.Commit}
	}
	return nil
}

// checkpointTime returns the modification time for files that are unchanged since the checkpoint p. This is the time of
// the checkpoint, but at the latest the time since, at which the mount was started, minus the duration settled.
func checkpointTime(p session.Checkpoint, since time.Time) time.Time {
	if latest := since.Add(-settled); p.Time.After(latest) {
		return latest
	}
	return p.Time
}

// takeTimes returns the times of the files of the parent session, or nil if the mount is no writable fork of the
// present state of a session. The list may be long, and the mount does not keep it: a second call returns nil.
func (b *beginning) takeTimes() *worktree.Times {
	if b.from == nil || b.session == "" || b.request.ReadOnly {
		return nil
	}
	t := b.from.Times
	b.from.Times = nil
	return t
}

// besides returns the files that the mount has in addition to those of the checkpoint, if it is a writable fork.
func (b *beginning) besides() origin.Besides {
	if b.from == nil || b.session == "" || b.request.ReadOnly {
		return origin.Besides{}
	}
	return b.from.Besides
}

// forgetBesides releases the memory of the result of besides.
func (b *beginning) forgetBesides() {
	if b.from != nil {
		b.from.Besides = origin.Besides{}
	}
}

// forks reports whether the mount creates its session from another session.
func (b *beginning) forks() bool {
	return b.session != "" && (b.from != nil || b.far != nil || b.base != nil && b.base.Session != b.session)
}

// resumedFromRemote reports whether this is the first mount of its session on this host, and the session was resumed
// from the session remote.
func (b *beginning) resumedFromRemote() bool {
	return !b.home.Resumed && b.session != "" && b.from == nil && b.far == nil && b.home.Record.Checkpoint != nil &&
		b.contents.Objects.SessionRemote != nil
}

// receipt returns what is missing in a mount that starts from a checkpoint, or nil if it does not start from one, or
// nothing is missing. The mount that is forked knows this better than the checkpoint: files that git ignores may have
// been made since. The files of the parent must have been added before.
func (b *beginning) receipt(git *gitside.Side) *control.Receipt {
	left, all := b.missing.Paths, b.missing.All
	if !b.missing.Known {
		first, number := git.LeftOut()
		left, all = catalog.LeftOut(first), number
	}
	lacks := b.besides().Lacks()
	return control.NewReceipt(slices.Concat(lacks, left), int64(len(lacks))+all, b.missing.Submodules)
}

// shownCheckpoint returns a note for the status if the mount shows one checkpoint of a session, and nothing otherwise.
func (b *beginning) shownCheckpoint() []string {
	if b.request.At == "" || b.home.Record.Checkpoint == nil {
		return nil
	}
	return []string{fmt.Sprintf("shows checkpoint %s of session %s", b.home.Record.Checkpoint.ID, b.request.Session)}
}

// confirms reports whether the mount must wait until the session remote has confirmed that no other machine uses the
// session.
func (b *beginning) confirms() bool { return b.far == nil || !b.far.Free() }

// messages returns messages for the user that state from which checkpoint the mount has started, and which newer
// commits are on the session remote.
func (b *beginning) messages() (all []string) {
	if b.resumedFromRemote() {
		all = append(all, fmt.Sprintf("resuming session %s of %s at its checkpoint %s of %s",
			b.session, b.contents.Objects.SessionRemote.URL(), b.home.Record.Checkpoint.ID,
			b.home.Record.Checkpoint.Time.Local().Format(time.DateTime)))
		// If refs on the session remote have commits that the checkpoint lacks, the mount does not contain these
		// commits, and the user may want to merge them.
		for _, ref := range slices.Sorted(maps.Keys(b.newer)) {
			text := agent.AheadText(ref, b.newer[ref].String())
			if b.moved[ref] {
				text = lostText(ref, b.newer[ref].String())
			}
			all = append(all, text)
		}
	}
	if f := b.far; f != nil && b.home.Record.Checkpoint != nil {
		all = append(all, fmt.Sprintf("starting from checkpoint %s of %s of session %s of %s",
			b.home.Record.Checkpoint.ID, b.home.Record.Checkpoint.Time.Local().Format(time.DateTime), f.Session,
			f.Remote.URL()))
	}
	return all
}

// lostText returns a message about a ref that the session has moved to the commit id after its last checkpoint, just
// before the mount died.
func lostText(ref, id string) string {
	return fmt.Sprintf("%s was moved to %.12s after that checkpoint, just before the mount died; "+
		"run git show %.12s to see this commit, which is kept", statedir.ShortRef(ref), id, id)
}
