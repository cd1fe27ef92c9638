package catalog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
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
	"github.com/artifactfs/artifactfs/session/thin"
)

// The approvals of a session are stored in the repository that has the branch (package approval). Each request reads the session from
// its session remote, also if the session is on this host, because only what was pushed can be approved.

// approving is a request that reads or changes the approvals of one session. A single goroutine uses it. The caller must close it.
type approving struct {
	all     *Catalog
	session string
	asked   control.MountRequest // request that has opened the session remote
	o       *opened              // the session, as its session remote has it
	// target is the mirror of the repository that has the branch and the approvals. It is the mirror of the session remote unless the
	// request names another repository.
	target *mirror.Mirror
	remote *transport.Remote  // connection to the repository of target, which target closes
	pushed session.Checkpoint // newest checkpoint of the session on the session remote
	newest session.Checkpoint // newest checkpoint of the session, on the session remote or on this host

	policy  approval.Policy
	problem error // why the policy is not valid; nil if it is valid
	// paths holds the changed paths of requests, by their ids, as far as a rule of the policy needs them.
	paths map[string][]string
}

// Reviews answers requests about approvals, policies and annotations. Its methods are safe for concurrent use.
type Reviews struct{ Catalog *Catalog }

// approvalsFile returns the name of the file with the approvals of a session.
func approvalsFile(name string) reffile.File {
	return reffile.File{Ref: approval.Ref(name), Name: approval.LogFile}
}

// policyFile is the name of the file with the policy of a repository.
var policyFile = reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}

// remoteOf returns a request that names the session remote of a session, with the credentials of its mount. The parameter at is the
// URL of the session remote, or "" if the session is on this host. The embedded session remote of a session of this host is named by
// its path. The result newest is the newest checkpoint on this host; zero if this host does not have the session, or no checkpoint of it.
func (all *Catalog) remoteOf(ctx context.Context, of, at string) (r control.MountRequest, newest session.Checkpoint, err error) {
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

// approve opens the approvals of a session. The parameter to is the repository that has the approvals: a URL or path, or
// control.RemoteOrigin for the mounted remote, or "" for the session remote. If withTrees is set, the trees of the checkpoints are fetched
// together with their commits.
func (all *Catalog) approve(ctx context.Context, of, at, to string, withTrees bool) (_ *approving, err error) {
	r, newest, err := all.remoteOf(ctx, of, at)
	if err != nil {
		return nil, err
	}
	ap := &approving{all: all, session: r.Session, asked: r, newest: newest, paths: map[string][]string{}}
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
		return ap, ap.turnTo(ctx, to)
	}
	return ap, ap.readPolicy(ctx)
}

// turnTo continues with the approvals in another repository: a URL or path, or control.RemoteOrigin for the mounted remote.
func (ap *approving) turnTo(ctx context.Context, to string) error {
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
func (ap *approving) readPolicy(ctx context.Context) error {
	v, err := ap.store().Read(ctx, policyFile)
	if err != nil {
		return ap.explain(err)
	}
	ap.policy, ap.problem = approval.ParsePolicy(v.Content)
	clear(ap.paths)
	return nil
}

// mountedElsewhere reports whether the mounted remote of the session is another repository than the one that has the approvals.
func (ap *approving) mountedElsewhere() bool {
	mounted := cmp.Or(ap.asked.Remote, ap.o.record.Remote)
	return mounted != "" && statedir.WithoutSecrets(mounted) != ap.remote.URL()
}

// connect opens the session remote of a request, and a mirror of it. The mirror closes the remote.
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

// Close closes the mirrors.
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

// store returns the files of the repository that has the approvals.
func (ap *approving) store() *reffile.Store {
	return &reffile.Store{Remote: ap.remote, Dir: ap.all.State}
}

// explain marks an error as a failure of the repository that has the approvals.
func (ap *approving) explain(err error) error {
	var shown *control.Error
	if err == nil || errors.As(err, &shown) || errors.Is(err, approval.ErrLog) {
		return err
	}
	return fault.SessionRemote(ap.remote, err)
}

// log reads the records of the session.
func (ap *approving) log(ctx context.Context) (approval.Log, error) {
	v, err := ap.store().Read(ctx, approvalsFile(ap.session))
	if err != nil {
		return approval.Log{}, ap.explain(err)
	}
	return approval.ParseLog(ap.session, v.Content)
}

// judge returns the state of a request. If the policy has rules for paths, it compares the trees before and after the change. No request
// is granted while the policy is not valid.
func (ap *approving) judge(ctx context.Context, l approval.Log, request approval.Record) (approval.Verdict, error) {
	now := time.Now()
	v := ap.policy.Judge(l, request, nil, ap.newest, now)
	switch {
	case v.Status != approval.Open && v.Status != approval.Granted:
		return v, nil
	case ap.problem != nil:
		v.Status, v.Missing = approval.Open, "a valid policy: "+ap.problem.Error()
		return v, nil
	case request.Subject.Action == approval.Delete || !ap.policy.NeedsPaths(request.Subject.Target):
		return v, nil
	}
	paths, known := ap.paths[request.ID]
	if !known {
		c, err := ap.reviewed(ctx, request)
		if err != nil {
			return v, err
		}
		if paths, err = c.paths(ctx); err != nil {
			return v, err
		}
		ap.paths[request.ID] = paths
	}
	return ap.policy.Judge(l, request, paths, ap.newest, now), nil
}

// shown converts the state of a request into the form of a reply. The parameter tip is the present commit of the branch.
func (ap *approving) shown(v approval.Verdict, tip object.ID) control.Approval {
	r, s := v.Request, v.Request.Subject
	a := control.Approval{
		ID: r.ID, Session: r.Session, Repository: ap.remote.URL(), Action: string(s.Action), Checkpoint: s.Checkpoint,
		Branch: strings.TrimPrefix(s.Target, "refs/heads/"), Base: s.Base, Tree: s.Tree,
		Status: string(v.Status), Missing: v.Missing, Actor: r.Actor, Text: r.Text, Reviewers: r.Reviewers,
		Time: r.Time, Expires: v.Expires, Grants: votes(v.Grants), Denials: votes(v.Denials),
	}
	a.Moved = s.Action != approval.Delete && text(tip) != s.Base
	return a
}

// text returns an id in hexadecimal, or "" for the zero id.
func text(id object.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// votes converts grants or denials into the form of a reply.
func votes(all []approval.Record) []control.Vote {
	shown := []control.Vote{}
	for _, r := range all {
		shown = append(shown, control.Vote{Actor: r.Actor, Token: r.Token, Time: r.Time, Text: r.Text})
	}
	return shown
}

// tips returns the present commits of branches and of the default branch, by full name, and the full name of the default branch. The
// latter is "" if the repository does not name it.
func (ap *approving) tips(ctx context.Context, branches ...string) (tips map[string]object.ID, standard string, err error) {
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

// SessionApprovals lists the requests for approval of a session, newest first. Unless the request names a repository, it lists the
// requests on the session remote and, for a session of this host, those on the mounted remote.
func (rev Reviews) SessionApprovals(ctx context.Context, r control.SessionApprovalsRequest) (control.SessionApprovalsReply, error) {
	reply := control.SessionApprovalsReply{Approvals: []control.Approval{}}
	explained := func(err error) error { return fault.ExplainSessionAt("list approvals of", "session "+r.Of, err) }
	if err := rev.Catalog.keepNewest(ctx, r.Of, r.SessionRemote, ""); err != nil {
		return reply, explained(err)
	}
	ap, err := rev.Catalog.approve(ctx, r.Of, r.SessionRemote, r.To, false)
	if missing := new(fault.NoSuchSessionError); r.SessionRemote == "" && (errors.Is(err, fault.ErrNoCheckpoint) || errors.As(err, missing)) {
		reply.Session, reply.Repository = rev.Catalog.nameOf(ctx, r.Of), missing.Remote // no request can exist before the first push
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
	err = ap.turnTo(ctx, control.RemoteOrigin)
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

// nameOf returns the name of a session of this host. The parameter of is the name, or a directory of the session.
func (all *Catalog) nameOf(ctx context.Context, of string) string {
	if m, err := all.Mounts.Mounted(ctx, of); err == nil && m != nil {
		return m.Session
	}
	if id, err := all.Homes.IDOf(of); err == nil {
		return id
	}
	return of
}

// list returns the requests in the repository that has the approvals, newest first.
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
	for _, record := range slices.Backward(l.Records) {
		if record.Op != approval.Request {
			continue
		}
		v, err := ap.judge(ctx, l, record)
		if ctx.Err() != nil {
			return all, ctx.Err()
		}
		if err != nil { // for example, the branch was rewritten and its old commit removed
			v.Status, v.Missing = approval.Open, "a new request: the changed files cannot be read: "+err.Error()
		}
		all = append(all, ap.shown(v, tips[record.Subject.Target]))
	}
	return all, nil
}

// SessionPolicy returns the policy of a repository, after it has replaced the policy if the request contains one. Only a valid policy
// is written.
func (rev Reviews) SessionPolicy(ctx context.Context, r control.SessionPolicyRequest) (control.SessionPolicyReply, error) {
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
			return reply, &control.Error{Code: control.ExitUsage, Verb: "write policy of", Object: reply.Repository, Cause: err.Error()}
		}
		_, err := store.Change(ctx, policyFile, "change the policy", func(reffile.Version) ([]byte, error) { return []byte(*r.Policy), nil })
		if err != nil {
			return reply, fault.ExplainSessionAt("write policy of", reply.Repository, fault.SessionRemote(far, err))
		}
	}
	v, err := store.Read(ctx, policyFile)
	if err != nil {
		return reply, explained(fault.SessionRemote(far, err))
	}
	reply.Policy = string(v.Content)
	if _, err := approval.ParsePolicy(v.Content); err != nil {
		reply.Problem = err.Error()
	}
	return reply, nil
}

// errRequest returns the error if a request for approval was not found.
func errRequest(verb, id string) error {
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeNotFound, Verb: verb, Object: "request " + id,
		Cause: "no request of the session has an id that begins with this text, or several have",
		Hint:  "run artifactfs session review list --all to see the requests"}
}
