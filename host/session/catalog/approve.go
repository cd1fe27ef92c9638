package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/treediff"
)

const (
	defaultExpiry = 24 * time.Hour // lifetime of a request that names no other one
	namedPaths    = 3              // maximum number of paths in an error text
)

// verbs are the words for the operations in error texts.
var verbs = map[string]string{control.ApproveRequest: "request approval of", control.ApproveGrant: "grant", control.ApproveDeny: "deny",
	control.ApproveWithdraw: "withdraw"}

// conflict returns an error that states why an operation on approvals is not possible.
func conflict(verb, object, cause, hint string) error {
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: verb, Object: object, Cause: cause, Hint: hint}
}

// SessionApprove adds a record to the approvals of a session: a request, or a grant, denial or withdrawal of one.
func (rev Reviews) SessionApprove(ctx context.Context, r control.SessionApproveRequest) (control.SessionApproveReply, error) {
	reply, err := rev.sessionApprove(ctx, r)
	if err != nil {
		return reply, fault.ExplainSessionAt(verbs[r.Op], "session "+r.Of, err)
	}
	return reply, nil
}

// sessionApprove does the work of SessionApprove, which adds hints to its errors.
func (rev Reviews) sessionApprove(ctx context.Context, r control.SessionApproveRequest) (reply control.SessionApproveReply, err error) {
	to := r.To
	if r.Action == control.ApprovePromote {
		to = cmp.Or(to, control.RemoteOrigin)
	}
	if r.Op == control.ApproveRequest {
		if err := rev.Catalog.keepNewest(ctx, r.Of, r.SessionRemote, r.ID); err != nil {
			return reply, err
		}
	}
	ap, err := rev.Catalog.approve(ctx, r.Of, r.SessionRemote, to, r.Op == control.ApproveRequest || r.Op == control.ApproveGrant)
	if err != nil {
		return reply, err
	}
	defer ap.Close()
	if r.Op != control.ApproveRequest && to == "" && r.SessionRemote == "" && ap.mountedElsewhere() {
		if to, err = ap.findRequest(ctx, r.Request); err != nil {
			return reply, err
		}
	}
	who, err := userOf(ctx, ap.remote, r.Actor)
	if err != nil {
		return reply, ap.explain(err)
	}
	record := approval.Record{Op: approval.Op(r.Op), Actor: who.Actor, Token: who.Token, Text: r.Text}
	l, err := ap.log(ctx)
	if err != nil {
		return reply, err
	}
	var branches []string
	if request, ok := l.Find(r.Request); ok && request.Subject.Target != "" {
		branches = append(branches, request.Subject.Target)
	} else if r.Branch != "" {
		branches = append(branches, branchRef(r.Branch))
	}
	tips, standard, err := ap.tips(ctx, branches...)
	if err != nil {
		return reply, err
	}
	var c *changed
	if r.Op == control.ApproveRequest {
		record.Subject, c, err = ap.subject(ctx, r, tips, standard)
		record.Reviewers = r.Reviewers
		record.Time = time.Now().UTC().Truncate(time.Millisecond)
		record.Expires = record.Time.Add(cmp.Or(r.Expires, defaultExpiry))
	} else {
		c, err = ap.answer(ctx, r, l, tips, &record)
	}
	if err != nil {
		return reply, err
	}
	if r.Op == control.ApproveRequest || r.Op == control.ApproveGrant {
		if reply.Changes, err = c.count(ctx); err != nil {
			return reply, err
		}
		reply.Merge = c.merge
	}
	if l, record, err = ap.add(ctx, record); err != nil {
		return reply, ap.explainRefusal(r.Op, who, err)
	}
	request := record
	if record.Op != approval.Request {
		request, _ = l.Find(record.Request)
	}
	v, err := ap.judge(ctx, l, request)
	if err != nil {
		return reply, err
	}
	if record.Op == approval.Grant {
		before := l
		before.Records = l.Records[:len(l.Records)-1]
		was, err := ap.judge(ctx, before, request)
		if err != nil {
			return reply, err
		}
		reply.Counted = was.Status == approval.Granted || v.Missing != was.Missing
	}
	reply.Approval = ap.shown(v, tips[request.Subject.Target])
	reply.Record, reply.Actor, reply.Token = record.ID, record.Actor, record.Token
	link := sessionlink.Link{Remote: ap.o.far.Remote().URL(), Session: ap.session, Checkpoint: request.ID}
	reply.Link = link.String()
	link.Checkpoint = request.Subject.Checkpoint
	reply.Show = link.String()
	if to != "" {
		reply.To = ap.remote.URL()
	}
	return reply, nil
}

// findRequest finds the repository that has a request: the session remote, or the mounted remote. It turns to the latter and returns
// control.RemoteOrigin if only the mounted remote has the request.
func (ap *approving) findRequest(ctx context.Context, id string) (to string, err error) {
	l, err := ap.log(ctx)
	if err != nil {
		return "", err
	}
	if _, ok := l.Find(id); ok {
		return "", nil
	}
	if err := ap.turnTo(ctx, control.RemoteOrigin); err != nil {
		return "", err
	}
	return control.RemoteOrigin, nil
}

// explainRefusal adds a hint to the error if the server has refused a grant or a denial because of the token.
func (ap *approving) explainRefusal(op string, who transport.Identity, err error) error {
	var refused *transport.Rejected
	unnamed := who.Token != "" && (who.Session != "" || who.Actor == "token:"+who.Token)
	if !errors.As(err, &refused) || !unnamed || op != control.ApproveGrant && op != control.ApproveDeny {
		return err
	}
	e := fault.ExplainSessionAt(verbs[op], "session "+ap.session, err)
	e.Hint = "use a token that names a user and is not for one session: artifactfs token create NAMESPACE/NAME --actor USER"
	return e
}

// branchRef returns the full name of a branch.
func branchRef(branch string) string {
	return "refs/heads/" + strings.TrimPrefix(branch, "refs/heads/")
}

// add appends a record to the approvals. If others append records at the same time, the record is added behind theirs.
func (ap *approving) add(ctx context.Context, record approval.Record) (l approval.Log, added approval.Record, err error) {
	message := fmt.Sprintf("%s by %s", record.Op, record.Actor)
	_, err = ap.store().Change(ctx, approvalsFile(ap.session), message, func(now reffile.Version) ([]byte, error) {
		var err error
		if l, err = approval.ParseLog(ap.session, now.Content); err != nil {
			return nil, err
		}
		var content []byte
		if content, added, err = l.Append(now.Content, record, time.Now()); err != nil {
			return nil, &control.Error{Code: control.ExitUsage, Verb: verbs[string(record.Op)], Object: "session " + ap.session, Cause: err.Error()}
		}
		return content, nil
	})
	return l, added, ap.explain(err)
}

// subject returns the content that a new request is for: the checkpoint, the branch with its present commit, and the tree that the
// branch will have.
func (ap *approving) subject(ctx context.Context, r control.SessionApproveRequest, tips map[string]object.ID,
	standard string) (*approval.Subject, *changed, error) {
	verb, what := verbs[r.Op], "session "+ap.session
	p, err := ap.o.Find(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	s := &approval.Subject{Action: approval.Action(r.Action)}
	newest := string(ap.newest.ID)
	if s.Reviews(ap.pushed); s.VoidedBy(ap.newest) {
		return nil, nil, conflict(verb, what, "checkpoint "+newest+" is not on the session remote yet",
			"run artifactfs sync to push it, or to see why it is not pushed")
	}
	if s.Reviews(p); s.VoidedBy(ap.newest) {
		return nil, nil, conflict(verb, "checkpoint "+string(p.ID), "session has a newer checkpoint, "+newest+", which would void the request",
			"run artifactfs session fork "+control.ShellWord(ap.session+"@"+string(p.ID))+" DIR, and request the approval for the fork")
	}
	if s.Action == approval.Delete {
		s.Tree = treediff.Name(p.Commit.Format(), p.Tree)
		c, err := ap.deleted(ctx, p)
		return s, c, err
	}
	if s.Target = standard; r.Branch != "" {
		s.Target = branchRef(r.Branch)
	}
	if !refname.Valid(s.Target) {
		return nil, nil, &control.Error{Code: control.ExitUsage, Verb: verb, Object: what,
			Cause: fmt.Sprintf("branch %q of %s is not valid", r.Branch, ap.remote.URL()), Hint: "add --into BRANCH"}
	}
	if err := ap.committed(ctx, p); err != nil {
		return nil, nil, err
	}
	tip := tips[s.Target]
	s.Base = text(tip)
	c, err := ap.change(ctx, p, tip, strings.TrimPrefix(s.Target, "refs/heads/"))
	if err != nil {
		return nil, nil, err
	}
	s.Tree = treediff.Name(p.Commit.Format(), c.after)
	return s, c, nil
}

// committed returns an error unless all files of a checkpoint are in the commit of HEAD. Only commits can be pushed to a branch.
func (ap *approving) committed(ctx context.Context, p session.Checkpoint) error {
	verb, what := verbs[control.ApproveRequest], "session "+ap.session
	if p.Head.IsZero() {
		return conflict(verb, what, "session has no commit", "commit the changes with git first")
	}
	if err := ap.o.farBase(ctx); err != nil {
		return err
	}
	head, err := ap.o.Repo.TreeOf(p.Head)
	if err != nil {
		return err
	}
	var paths []string
	count := 0
	err = treediff.Trees(ctx, ap.o.tree, head, p.Tree, func(path string, _, _ object.TreeEntry) error {
		if count++; count <= namedPaths {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil || count == 0 {
		return err
	}
	names := strings.Join(paths, ", ")
	if count > namedPaths {
		names += fmt.Sprintf(" and %d more", count-namedPaths)
	}
	return conflict(verb, what, "changes are not committed: "+names,
		"commit them with git, or remove them; only commits can be pushed to a branch")
}

// answer completes a record that grants, denies or withdraws a request. A grant is refused unless the request is still for the present
// state of the session and of the branch.
func (ap *approving) answer(ctx context.Context, r control.SessionApproveRequest, l approval.Log, tips map[string]object.ID,
	record *approval.Record) (*changed, error) {
	request, ok := l.Find(r.Request)
	if !ok {
		return nil, errRequest(verbs[r.Op], r.Request)
	}
	record.Request = request.ID
	if r.Op != control.ApproveGrant {
		return nil, nil
	}
	refuse := func(cause string) error {
		return conflict("grant", "request "+request.ID, cause, "the session's user can run artifactfs session review request again")
	}
	if ap.problem != nil {
		return nil, refuse(ap.problem.Error())
	}
	v, err := ap.judge(ctx, l, request)
	if err != nil {
		return nil, err
	}
	switch v.Status {
	case approval.Denied:
		// The reviewer who has denied the request may change the decision.
		if v.Denials[0].Actor != record.Actor || len(v.Denials) > 1 {
			return nil, refuse("request was denied by " + v.Denials[0].Actor)
		}
	case approval.Withdrawn:
		return nil, refuse("request was withdrawn")
	case approval.Expired:
		return nil, refuse("request has expired at " + v.Expires.Format(time.RFC3339))
	case approval.Void:
		return nil, refuse("request is void, because the session was changed after the review: its newest checkpoint is " + string(ap.newest.ID))
	}
	s := request.Subject
	if tip := tips[s.Target]; s.Action != approval.Delete && text(tip) != s.Base {
		return nil, refuse(fmt.Sprintf("branch %s has moved from %.10s to %.10s since the request", strings.TrimPrefix(s.Target, "refs/heads/"),
			cmp.Or(s.Base, "no commit"), cmp.Or(text(tip), "no commit")))
	}
	c, err := ap.reviewed(ctx, request)
	if err != nil {
		return nil, err
	}
	if p, err := ap.o.Find(ctx, s.Checkpoint); err != nil {
		return nil, err
	} else if s.Action != approval.Delete && s.Commit != p.Head.String() {
		return nil, refuse(fmt.Sprintf("request is for the commit %s, but HEAD of its checkpoint is %s", cmp.Or(s.Commit, "of no name"), p.Head))
	}
	if got := treediff.Name(ap.o.Repo.Format(), c.after); got != s.Tree {
		return nil, refuse("request is for the tree " + s.Tree + ", but its checkpoint results in the tree " + got)
	}
	return c, nil
}

// reviewed returns the change that a request is for.
func (ap *approving) reviewed(ctx context.Context, request approval.Record) (*changed, error) {
	s := request.Subject
	if err := ap.o.far.Trees(ctx, ap.session); err != nil {
		return nil, fault.SessionRemote(ap.o.far.Remote(), err)
	}
	p, err := ap.o.Find(ctx, s.Checkpoint)
	if err != nil {
		return nil, err
	}
	if s.Action == approval.Delete {
		return ap.deleted(ctx, p)
	}
	var base object.ID
	if s.Base != "" {
		if base, err = object.ParseID(s.Base); err != nil {
			return nil, err
		}
	}
	return ap.change(ctx, p, base, strings.TrimPrefix(s.Target, "refs/heads/"))
}
