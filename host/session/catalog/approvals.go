package catalog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/review"
	"github.com/artifactfs/artifactfs/session/thin"
)

// The approvals of a session are stored in the repository whose branch is to change (package approval). Each request
// reads the session from its session remote, even if the session is on this host, because only what was pushed can be
// approved.

// approving is the state of a request that reads or changes the approvals of one session. Only one goroutine uses it.
// The caller must close it.
type approving struct {
	all     *Catalog
	session string
	asked   control.MountRequest // request that has opened the session remote
	o       *opened              // the session as it is on its session remote
	// target is the mirror of the repository that has the branch and the approvals. It is the mirror of the session
	// remote unless the request names another repository.
	target *mirror.Mirror
	remote *transport.Remote  // connection to the repository of target, which target closes
	pushed session.Checkpoint // newest checkpoint of the session on the session remote
	newest session.Checkpoint // newest checkpoint of the session, on the session remote or on this host

	policy review.Policy
	joined *changed // result of the last call of Join
}

var _ review.Source = (*approving)(nil)

// Reviews answers requests about approvals, policies and annotations. Its methods are safe for concurrent use.
type Reviews struct{ Catalog *Catalog }

// remoteOf returns a mount request that names the session remote of a session, with the credentials of the session's
// mount. The parameter at is the URL of the session remote, or "" if the session is on this host; the embedded session
// remote is then named by its path. newest is the newest checkpoint on this host, or zero if this host has none.
func (all *Catalog) remoteOf(ctx context.Context,
	of, at string) (r control.MountRequest, newest session.Checkpoint, err error) {
	if at != "" {
		return requestAt(of, at), newest, nil
	}
	o, err := all.openSession(ctx, of, false)
	if err != nil {
		return r, newest, err
	}
	defer o.Close()
	r = o.remoteRequest()
	if o.Repo != nil {
		last, err := o.Repo.Checkpoints(1)
		if err != nil {
			return r, newest, err
		}
		for _, p := range last {
			newest = p
		}
	}
	switch _, kind := remotes.SessionURL(r); {
	case kind == control.RemoteNone:
		return r, newest, fault.ErrNoSessionRemote
	case kind == control.RemoteEmbedded && o.Repo == nil:
		return r, newest, fault.ErrNoCheckpoint
	case kind == control.RemoteEmbedded:
		r.SessionOptions.Remote = o.Repo.Dir()
	}
	return r, newest, nil
}

// approve opens the approvals of a session. The parameter to names the repository that has the approvals: a URL or
// path, control.RemoteOrigin for the mounted remote, or "" for the session remote. If withTrees is set, the trees of
// the checkpoints are fetched together with their commits.
func (all *Catalog) approve(ctx context.Context, of, at, to string, withTrees bool) (_ *approving, err error) {
	r, newest, err := all.remoteOf(ctx, of, at)
	if err != nil {
		return nil, err
	}
	ap := &approving{all: all, session: r.Session, asked: r, newest: newest}
	defer func() {
		if err != nil {
			ap.Close()
		}
	}()
	source, m, err := all.connect(ctx, r)
	if err != nil {
		return nil, err
	}
	if ap.o, err = OpenFar(ctx, m, r.Session, withTrees); err != nil {
		all.CloseMirror(m)
		return nil, err
	}
	ap.o.release = func() { all.CloseMirror(m) }
	ap.target, ap.remote = m, source.Remote
	if last, err := ap.o.Repo.Checkpoints(1); err != nil {
		return nil, err
	} else if len(last) > 0 {
		if ap.pushed = last[0]; ap.pushed.ID > ap.newest.ID {
			ap.newest = ap.pushed
		}
	}
	if to != "" {
		return ap, ap.useTarget(ctx, to)
	}
	return ap, ap.readPolicy(ctx)
}

// useTarget changes the repository that has the approvals to another one: a URL or path, or control.RemoteOrigin for
// the mounted remote.
func (ap *approving) useTarget(ctx context.Context, to string) error {
	r := ap.asked
	r.Remote = cmp.Or(r.Remote, ap.o.record.Remote) // the mounted remote
	r = remotes.WithSessionRemote(r, to)
	r.Session = ""
	other, m, err := ap.all.connect(ctx, r)
	if err != nil {
		return err
	}
	ap.closeTarget()
	ap.target, ap.remote = m, other.Remote
	return ap.readPolicy(ctx)
}

// readPolicy reads the policy of the repository that has the approvals.
func (ap *approving) readPolicy(ctx context.Context) (err error) {
	v, err := ap.store().Read(ctx, review.PolicyFile)
	ap.policy, err = review.ReadPolicy(v.Content, err)
	return ap.explain(err)
}

// mountedElsewhere reports whether the mounted remote of the session is another repository than the one that has the
// approvals.
func (ap *approving) mountedElsewhere() bool {
	mounted := cmp.Or(ap.asked.Remote, ap.o.record.Remote)
	return mounted != "" && statedir.WithoutSecrets(mounted) != ap.remote.URL()
}

// connect opens the session remote of a mount request, and a mirror of it. Closing the mirror closes the remote.
func (all *Catalog) connect(ctx context.Context, r control.MountRequest) (*thin.Remote, *mirror.Mirror, error) {
	far, err := all.openRemote(r)
	if err == nil && far == nil {
		err = fault.ErrNoSessionRemote
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := all.mirrorThrough(ctx, far)
	return far, m, err
}

// Close closes the mirrors of the session remote and of the repository that has the approvals.
func (ap *approving) Close() {
	if ap.o == nil {
		return
	}
	ap.closeTarget()
	ap.o.Close()
}

// closeTarget closes the mirror of the repository that has the approvals, unless this repository is the session remote.
func (ap *approving) closeTarget() {
	if ap.target != nil && ap.target != ap.o.far {
		ap.all.CloseMirror(ap.target)
	}
}

// store returns access to the files of the repository that has the approvals.
func (ap *approving) store() *reffile.Store {
	return &reffile.Store{Remote: ap.remote, Dir: ap.all.State}
}

// explain returns err, marked as a failure of the repository that has the approvals unless it already is an error for
// the user.
func (ap *approving) explain(err error) error {
	var shown *control.Error
	if err == nil || errors.As(err, &shown) || errors.Is(err, approval.ErrLog) {
		return err
	}
	return fault.SessionRemote(ap.remote, err)
}

// log returns the log with the approval records of the session.
func (ap *approving) log(ctx context.Context) (approval.Log, error) {
	v, err := ap.store().Read(ctx, review.ApprovalsOf(ap.session))
	if err != nil {
		return approval.Log{}, ap.explain(err)
	}
	return approval.ParseLog(ap.session, v.Content)
}

// review returns the state of the approvals in the log l. tips and standard are results of the method tips.
func (ap *approving) review(l approval.Log, tips map[string]object.ID, standard string) *review.Review {
	return &review.Review{Source: ap, Session: ap.session, Log: l, Policy: ap.policy, Newest: ap.newest, Default: standard,
		Now: time.Now(),
		Tip: func(target string) string { return text(tips[target]) }}
}

// shown converts the state of a request for approval into the form of a reply.
func (ap *approving) shown(v review.Approval) control.Approval {
	r, s := v.Request, v.Request.Subject
	return control.Approval{
		ID: r.ID, Session: r.Session, Repository: ap.remote.URL(), Action: string(s.Action), Checkpoint: s.Checkpoint,
		Branch: review.Short(s.Target), Base: s.Base, Tree: s.Tree, Moved: v.Moved,
		Status: string(v.Status), Missing: v.Missing, Actor: r.Actor, Text: r.Text, Reviewers: r.Reviewers,
		Time: r.Time, Expires: v.Expires, Grants: votes(v.Grants), Denials: votes(v.Denials),
	}
}

// text returns an object ID in hexadecimal, or "" for the zero ID.
func text(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// votes converts the records of grants or denials into the form of a reply.
func votes(all []approval.Record) []control.Vote {
	shown := []control.Vote{}
	for _, r := range all {
		shown = append(shown, control.Vote{Actor: r.Actor, Token: r.Token, Time: r.Time, Text: r.Text})
	}
	return shown
}

// tips returns the present commits of the given branches and of the default branch in the repository that has the
// approvals, by full name, and the full name of the default branch, which is "" if the repository does not name it.
func (ap *approving) tips(ctx context.Context,
	branches ...string) (tips map[string]object.ID, standard string, err error) {
	refs, err := ap.remote.Refs(ctx, append(branches, "HEAD"))
	if err != nil {
		return nil, "", ap.explain(err)
	}
	tips, standard = map[string]object.ID{}, refs.Unborn
	for _, ref := range refs.List {
		if ref.Name != "HEAD" {
			tips[ref.Name] = ref.ID
		} else if ref.Target != "" {
			tips[ref.Target], standard = ref.ID, ref.Target
		}
	}
	return tips, standard, nil
}

// SessionApprovals lists the requests for approval of a session, newest first. Unless r.To names a repository, it lists
// the requests on the session remote and, for a session of this host, those on the mounted remote.
func (rev Reviews) SessionApprovals(ctx context.Context,
	r control.SessionApprovalsRequest) (control.SessionApprovalsReply, error) {
	reply := control.SessionApprovalsReply{Approvals: []control.Approval{}}
	explained := func(err error) error { return fault.ExplainSessionAt("list approvals of", "session "+r.Of, err) }
	if err := rev.Catalog.keepNewest(ctx, r.Of, r.SessionRemote, ""); err != nil {
		return reply, explained(err)
	}
	ap, err := rev.Catalog.approve(ctx, r.Of, r.SessionRemote, r.To, false)
	if missing := new(fault.NoSuchSessionError); r.SessionRemote == "" &&
		(errors.Is(err, fault.ErrNoCheckpoint) || errors.As(err, missing)) {
		// no request can exist before the first push
		reply.Session, reply.Repository = rev.Catalog.nameOf(ctx, r.Of), missing.Remote
		return reply, nil
	}
	if err != nil {
		return reply, explained(err)
	}
	defer ap.Close()
	reply.Session, reply.Repository = ap.session, ap.remote.URL()
	if reply.Approvals, err = ap.list(ctx); err != nil {
		return reply, explained(err)
	}
	if r.To != "" || r.SessionRemote != "" || !ap.mountedElsewhere() {
		return reply, nil
	}
	err = ap.useTarget(ctx, control.RemoteOrigin)
	var more []control.Approval
	if err == nil {
		more, err = ap.list(ctx)
	}
	if ctx.Err() != nil {
		return reply, explained(ctx.Err())
	}
	if err != nil {
		reply.Unread = append(reply.Unread, explained(err).Error())
	}
	reply.Approvals = append(reply.Approvals, more...)
	slices.SortStableFunc(reply.Approvals, func(a, b control.Approval) int { return b.Time.Compare(a.Time) })
	return reply, nil
}

// nameOf returns the name of a session of this host. The parameter of is the name, or the directory where the session
// is or was mounted.
func (all *Catalog) nameOf(ctx context.Context, of string) string {
	if m, err := all.Mounts.Mounted(ctx, of); err == nil && m != nil {
		return m.Session
	}
	if id, err := all.Homes.IDOf(of); err == nil {
		return id
	}
	return of
}

// list returns the requests for approval in the repository of ap, newest first.
func (ap *approving) list(ctx context.Context) ([]control.Approval, error) {
	all := []control.Approval{}
	l, err := ap.log(ctx)
	if err != nil {
		return all, err
	}
	var branches []string
	for _, record := range l.Records {
		if record.Op == approval.Request && record.Subject.Target != "" && !slices.Contains(branches, record.Subject.Target) {
			branches = append(branches, record.Subject.Target)
		}
	}
	tips, _, err := ap.tips(ctx, branches...)
	if err != nil {
		return all, err
	}
	states, err := ap.review(l, tips, "").States(ctx)
	for _, v := range states {
		all = append(all, ap.shown(v))
	}
	return all, err
}

// SessionPolicy returns the policy of a repository. If the request contains a policy, SessionPolicy first writes that
// to the repository; an invalid policy is an error, and is not written.
func (rev Reviews) SessionPolicy(ctx context.Context,
	r control.SessionPolicyRequest) (control.SessionPolicyReply, error) {
	var reply control.SessionPolicyReply
	all := rev.Catalog
	explained := func(err error) error {
		return fault.ExplainSessionAt("read policy of", cmp.Or(r.Of, "repository"), err)
	}
	req := control.MountRequest{SessionOptions: control.SessionOptions{Remote: r.Remote}}
	if r.Remote == "" {
		var err error
		if req, _, err = all.remoteOf(ctx, r.Of, ""); err != nil {
			return reply, explained(err)
		}
	}
	far, err := all.openRemote(req)
	if err == nil && far == nil {
		err = fault.ErrNoSessionRemote
	}
	if err != nil {
		return reply, explained(err)
	}
	defer far.Close()
	reply.Repository = far.URL()
	store := &reffile.Store{Remote: far.Remote, Dir: all.State}
	if r.Policy != nil {
		if _, err := approval.ParsePolicy([]byte(*r.Policy)); err != nil {
			return reply, &control.Error{Code: control.ExitUsage, Verb: "write policy of", Object: reply.Repository,
				Cause: err.Error()}
		}
		_, err := store.Change(ctx, review.PolicyFile, "change the policy",
			func(reffile.Version) ([]byte, error) { return []byte(*r.Policy), nil })
		if err != nil {
			return reply, fault.ExplainSessionAt("write policy of", reply.Repository, fault.SessionRemote(far, err))
		}
	}
	v, err := store.Read(ctx, review.PolicyFile)
	p, err := review.ReadPolicy(v.Content, err)
	if err != nil {
		return reply, explained(fault.SessionRemote(far, err))
	}
	if reply.Policy = string(v.Content); p.Invalid != nil {
		reply.Problem = p.Invalid.Error()
	}
	return reply, nil
}
