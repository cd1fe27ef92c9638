package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/review"
)

// verbs has the verbs with which error texts name the operations on requests for approval.
var verbs = map[string]string{control.ApproveRequest: "request approval of", control.ApproveGrant: "grant",
	control.ApproveDeny:     "deny",
	control.ApproveWithdraw: "withdraw"}

// explainProblem returns the error for the user if err is a Problem of package review, and err unchanged otherwise. The
// parameter op is the operation.
func (ap *approving) explainProblem(op string, err error) error {
	var p *review.Problem
	if !errors.As(err, &p) {
		return err
	}
	e := &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: verbs[op], Cause: p.Text, Hint: p.Hint,
		Object: cmp.Or(p.Object, "session "+ap.session)}
	switch p.Kind {
	case review.Invalid:
		e.Code, e.Kind = control.ExitUsage, ""
	case review.Missing:
		e.Kind, e.Hint = control.CodeNotFound, "run artifactfs session review list --all to see the requests"
	}
	return e
}

// SessionApprove adds a record to the approvals of a session: a request, or a grant, denial or withdrawal of a request.
func (rev Reviews) SessionApprove(ctx context.Context,
	r control.SessionApproveRequest) (control.SessionApproveReply, error) {
	reply, err := rev.sessionApprove(ctx, r)
	if err != nil {
		return reply, fault.ExplainSessionAt(verbs[r.Op], "session "+r.Of, err)
	}
	return reply, nil
}

// sessionApprove implements SessionApprove, without hints in its errors.
func (rev Reviews) sessionApprove(ctx context.Context,
	r control.SessionApproveRequest) (reply control.SessionApproveReply, err error) {
	to := r.To
	if r.Action == control.ApprovePromote {
		to = cmp.Or(to, control.RemoteOrigin)
	}
	if r.Op == control.ApproveRequest {
		if err := rev.Catalog.keepNewest(ctx, r.Of, r.SessionRemote, r.ID); err != nil {
			return reply, err
		}
	}
	ap, err := rev.Catalog.approve(ctx, r.Of, r.SessionRemote, to, r.Op == control.ApproveRequest ||
		r.Op == control.ApproveGrant)
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
	l, err := ap.log(ctx)
	if err != nil {
		return reply, err
	}
	var branches []string
	if request, ok := l.Find(r.Request); ok && request.Subject.Target != "" {
		branches = append(branches, request.Subject.Target)
	} else if r.Branch != "" {
		branches = append(branches, "refs/heads/"+review.Short(r.Branch))
	}
	tips, standard, err := ap.tips(ctx, branches...)
	if err != nil {
		return reply, err
	}
	v := ap.review(l, tips, standard)
	var record approval.Record
	if r.Op == control.ApproveRequest {
		if err := ap.requirePushed(approval.Action(r.Action)); err != nil {
			return reply, err
		}
		record, err = v.Request(ctx, review.Request{Action: approval.Action(r.Action), Checkpoint: r.ID, Branch: r.Branch,
			Reviewers: r.Reviewers, Expires: r.Expires, Text: r.Text})
	} else {
		record, err = v.Answer(ctx, approval.Op(r.Op), r.Request, who.Actor, r.Text)
	}
	if err != nil {
		return reply, ap.explainProblem(r.Op, err)
	}
	if r.Op == control.ApproveRequest || r.Op == control.ApproveGrant {
		if err := ap.counted(ctx, l, record, &reply); err != nil {
			return reply, err
		}
	}
	record.Actor, record.Token = who.Actor, who.Token
	if l, record, err = ap.add(ctx, record); err != nil {
		return reply, ap.explainRefusal(r.Op, who, err)
	}
	made, err := v.Added(ctx, l)
	if err != nil {
		return reply, err
	}
	request := made.Request
	reply.Approval, reply.Counted = ap.shown(made), made.Counted
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

// findRequest searches the repository that has the request id. It returns "" if that is the session remote. Otherwise
// it turns to the mounted remote (see useTarget) and returns control.RemoteOrigin.
func (ap *approving) findRequest(ctx context.Context, id string) (to string, err error) {
	l, err := ap.log(ctx)
	if err != nil {
		return "", err
	}
	if _, ok := l.Find(id); ok {
		return "", nil
	}
	if err := ap.useTarget(ctx, control.RemoteOrigin); err != nil {
		return "", err
	}
	return control.RemoteOrigin, nil
}

// explainRefusal returns err, with a hint if the server has refused a grant or a denial because of the token.
func (ap *approving) explainRefusal(op string, who transport.Identity, err error) error {
	var refused *transport.Rejected
	unnamed := who.Token != "" && (who.Session != "" || who.Actor == "token:"+who.Token)
	if !errors.As(err, &refused) || !unnamed || op != control.ApproveGrant && op != control.ApproveDeny {
		return err
	}
	e := fault.ExplainSessionAt(verbs[op], "session "+ap.session, err)
	e.Hint =
		"use a token that names a user and is not for one session: artifactfs token create NAMESPACE/NAME --actor USER"
	return e
}

// requirePushed returns an error if this host has a newer checkpoint of the session than the session remote that would
// void a request for the action.
func (ap *approving) requirePushed(action approval.Action) error {
	s := &approval.Subject{Action: action}
	if s.Reviews(ap.pushed); !s.VoidedBy(ap.newest) {
		return nil
	}
	return ap.explainProblem(control.ApproveRequest, &review.Problem{Kind: review.Conflict,
		Text: "checkpoint " + string(ap.newest.ID) + " is not on the session remote yet",
		Hint: "run artifactfs sync to push it, or to see why it is not pushed"})
}

// counted adds the numbers of changed files and lines of a request to the reply. record is the request, or a grant of
// it.
func (ap *approving) counted(ctx context.Context, l approval.Log, record approval.Record,
	reply *control.SessionApproveReply) error {
	request := record
	if record.Op != approval.Request {
		request, _ = l.Find(record.Request)
	}
	c, err := ap.joined, error(nil)
	if request.Subject.Action == approval.Delete {
		c, err = ap.reviewed(ctx, request)
	}
	if err == nil {
		reply.Merge = c.merge
		reply.Changes, err = c.count(ctx)
	}
	return err
}

// add appends a record to the log with the approvals, also if other processes append records at the same time. It
// returns the new log and the record as it was added.
func (ap *approving) add(ctx context.Context,
	record approval.Record) (l approval.Log, added approval.Record, err error) {
	message := fmt.Sprintf("%s by %s", record.Op, record.Actor)
	_, err = ap.store().Change(ctx, review.ApprovalsOf(ap.session), message, func(now reffile.Version) ([]byte, error) {
		var err error
		if l, err = approval.ParseLog(ap.session, now.Content); err != nil {
			return nil, err
		}
		var content []byte
		if content, added, err = l.Append(now.Content, record, time.Now()); err != nil {
			return nil, &control.Error{Code: control.ExitUsage, Verb: verbs[string(record.Op)], Object: "session " + ap.session,
				Cause: err.Error()}
		}
		return content, nil
	})
	return l, added, ap.explain(err)
}

// Checkpoint implements review.Source.
func (ap *approving) Checkpoint(ctx context.Context, name string) (session.Checkpoint, error) {
	return ap.o.Find(ctx, name)
}

// Uncommitted implements review.Source.
func (ap *approving) Uncommitted(ctx context.Context, p session.Checkpoint) (paths []string, err error) {
	if err := ap.o.farBase(ctx); err != nil {
		return nil, err
	}
	head, err := ap.o.Repo.TreeOf(p.Head)
	if err != nil {
		return nil, err
	}
	err = treediff.Trees(ctx, ap.o.tree, head, p.Tree, func(path string, _, _ object.TreeEntry) error {
		paths = append(paths, path)
		return nil
	})
	return paths, err
}

// Join implements review.Source.
func (ap *approving) Join(ctx context.Context, p session.Checkpoint, base, target string) (review.Joined, error) {
	var tip object.ID
	if base != "" {
		var err error
		if tip, err = object.ParseID(base); err != nil {
			return review.Joined{}, err
		}
	}
	c, none, err := ap.change(ctx, p, tip, target)
	if err != nil {
		return review.Joined{}, err
	}
	ap.joined = c
	return review.Joined{Tree: treediff.Name(p.Commit.Format(), c.after), Forward: !none && !c.merge, None: none}, nil
}

// Paths implements review.Source.
func (ap *approving) Paths(ctx context.Context, request approval.Record) (paths []string, err error) {
	c, err := ap.reviewed(ctx, request)
	if err == nil {
		paths, err = c.paths(ctx)
	}
	if err != nil && ctx.Err() == nil {
		err = &review.Problem{Kind: review.Conflict, Text: err.Error()}
	}
	return paths, err
}

// reviewed returns the change that a request for approval is for.
func (ap *approving) reviewed(ctx context.Context, request approval.Record) (*changed, error) {
	if err := ap.o.far.Trees(ctx, ap.session); err != nil {
		return nil, fault.SessionRemote(ap.o.far.Remote(), err)
	}
	p, err := ap.o.Find(ctx, request.Subject.Checkpoint)
	if err != nil {
		return nil, err
	}
	if request.Subject.Action == approval.Delete {
		base, err := ap.o.baseTree(ctx) // the changes of the session since its base commit are removed
		return &changed{ap: ap, before: base, after: p.Tree}, err
	}
	_, err = ap.Join(ctx, p, request.Subject.Base, request.Subject.Target)
	return ap.joined, err
}
