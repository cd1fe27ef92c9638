package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
)

const (
	defaultExpiry = 24 * time.Hour // lifetime of a request that names no other one
	namedPaths    = 3              // maximum number of paths in a text
	headsPrefix   = "refs/heads/"
)

// ApprovalRequest is what a user asks an approval for.
type ApprovalRequest struct {
	Action     approval.Action
	Checkpoint string   // name of the checkpoint, which must be the newest one; "" for the newest one
	Branch     string   // branch that is changed, without refs/heads/; "" for the default branch
	Reviewers  []string // users who are asked; the policy decides who may grant
	Expires    time.Duration
	Text       string
}

// Approval is a request with its present state.
type Approval struct {
	approval.Verdict
	Tip   string // present commit of the branch; "" if it does not exist, and for Delete
	Moved bool   // the branch is not at the commit that was reviewed, so a new request is necessary
	// Counted reports, after a grant, whether it counts. A grant by a user who may not grant does not.
	Counted bool
}

// approvalsOf names the file with the approvals of a session.
func approvalsOf(name string) reffile.File {
	return reffile.File{Ref: approval.Ref(name), Name: approval.LogFile}
}

// RequestApproval asks for an approval of the newest checkpoint of a session.
func (s *Service) RequestApproval(ctx context.Context, by By, repo records.Repo, name string, r ApprovalRequest) (Approval, error) {
	return s.approve(ctx, by, repo, name, approval.Record{Op: approval.Request, Reviewers: r.Reviewers, Text: r.Text},
		func(ctx context.Context, v *view, _ approval.Log, record *approval.Record) (err error) {
			record.Subject, err = v.subject(ctx, name, r)
			record.Time = s.o.Now().UTC().Truncate(time.Millisecond)
			record.Expires = record.Time.Add(cmp.Or(r.Expires, defaultExpiry))
			return err
		})
}

// Answer grants, denies or withdraws a request. The parameter request is its id, or the beginning of the id. A grant is refused unless the
// request is for the present state of the session and of the branch.
func (s *Service) Answer(ctx context.Context, by By, repo records.Repo, name string, op approval.Op, request, text string) (
	Approval, error) {
	return s.approve(ctx, by, repo, name, approval.Record{Op: op, Text: text},
		func(ctx context.Context, v *view, l approval.Log, record *approval.Record) error {
			found, ok := l.Find(request)
			if !ok {
				return problem(Missing, "no request of session %s has an id that begins with %.40q, or several have", name, request)
			}
			record.Request = found.ID
			if op != approval.Grant {
				return nil
			}
			return v.grantable(ctx, l, found, by)
		})
}

// approve adds a record to the approvals of a session. The function complete completes it.
func (s *Service) approve(ctx context.Context, by By, repo records.Repo, name string, record approval.Record,
	complete func(ctx context.Context, v *view, l approval.Log, record *approval.Record) error) (Approval, error) {
	record.Actor, record.Token = by.actor(), by.Token.ID
	var made Approval
	message := fmt.Sprintf("%s by %s", record.Op, record.Actor)
	err := s.edit(ctx, by, repo, approvalsOf(name), message, func(ctx context.Context, v *view, now []byte) ([]byte, error) {
		if err := v.session(name); err != nil {
			return nil, err
		}
		l, err := approval.ParseLog(name, now)
		if err != nil {
			return nil, problem(Conflict, "the approvals of session %s: %v", name, err)
		}
		next := record
		if err := complete(ctx, v, l, &next); err != nil {
			return nil, err
		}
		before := l
		file, added, err := l.Append(now, next, s.o.Now())
		if err != nil {
			return nil, problem(Invalid, "%s: %v", record.Op, err)
		}
		request := added
		if added.Op != approval.Request {
			request, _ = l.Find(added.Request)
		}
		if made, err = v.approval(ctx, l, request); err != nil || added.Op != approval.Grant {
			return file, err
		}
		was, err := v.approval(ctx, before, request)
		made.Counted = was.Status == approval.Granted || made.Missing != was.Missing
		return file, err
	})
	return made, err
}

// subject returns the content that a new request is for.
func (v *view) subject(ctx context.Context, name string, r ApprovalRequest) (*approval.Subject, error) {
	newest, err := v.checkpoint(ctx, name, "")
	if err != nil {
		return nil, err
	}
	p := newest
	if r.Checkpoint != "" {
		if p, err = v.checkpoint(ctx, name, r.Checkpoint); err != nil {
			return nil, err
		}
	}
	sub := &approval.Subject{Action: r.Action}
	if sub.Reviews(p); sub.VoidedBy(newest) {
		return nil, problem(Conflict, "session %s has a newer checkpoint, %s, which would void the request: "+
			"fork the session at %s, and request the approval for the fork", name, newest.ID, p.ID)
	}
	if r.Action == approval.Delete {
		sub.Tree = p.Tree.String()
		return sub, nil
	}
	if err := v.whole(name); err != nil {
		return nil, err
	}
	if sub.Target, err = v.branch(r.Branch); err != nil {
		return nil, err
	}
	if err := v.committed(ctx, p); err != nil {
		return nil, err
	}
	sub.Base = v.refs[sub.Target]
	j, err := v.join(ctx, p.Head.String(), sub.Base)
	if err != nil {
		return nil, err
	}
	if j.none {
		return nil, problem(Conflict, "branch %s already has all commits of session %s", short(sub.Target), name)
	}
	sub.Tree = j.tree
	return sub, nil
}

// branch returns the full name of a branch, whose name may begin with refs/heads/; "" stands for the default branch.
func (v *view) branch(name string) (string, error) {
	full := headsPrefix + cmp.Or(short(name), v.repo.DefaultBranch)
	if !refname.Valid(full) {
		return "", problem(Invalid, "%.200q cannot be the name of a branch", name)
	}
	return full, nil
}

// short returns the name of a branch without refs/heads/.
func short(branch string) string { return strings.TrimPrefix(branch, headsPrefix) }

// committed returns an error unless all files of a checkpoint are in the commit of HEAD. Only commits can be pushed to a branch.
func (v *view) committed(ctx context.Context, p session.Checkpoint) error {
	if p.Head.IsZero() {
		return problem(Conflict, "session %s has no commit: commit the changes with git first", p.Session)
	}
	head, err := v.tree(ctx, p.Head.String())
	if err != nil {
		return err
	}
	paths, err := v.changed(ctx, v.git.Dir, head, p.Tree.String())
	if err != nil || len(paths) == 0 {
		return err
	}
	return problem(Conflict, "changes of session %s are not committed: %s", p.Session, some(paths))
}

// some returns the first of some paths as a text.
func some(paths []string) string {
	text := strings.Join(paths[:min(len(paths), namedPaths)], ", ")
	if n := len(paths) - namedPaths; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// grantable returns an error unless a request is for the present state of the session and of the branch.
func (v *view) grantable(ctx context.Context, l approval.Log, request approval.Record, by By) error {
	refuse := func(format string, args ...any) error {
		return problem(Conflict, "request %s cannot be granted: %s", request.ID, fmt.Sprintf(format, args...))
	}
	if _, err := v.policy(ctx); err != nil {
		return err
	}
	a, err := v.approval(ctx, l, request)
	if err != nil {
		return err
	}
	switch a.Status {
	case approval.Denied:
		// The reviewer who has denied the request may change the decision.
		if a.Denials[0].Actor != by.actor() || len(a.Denials) > 1 {
			return refuse("it was denied by %s", a.Denials[0].Actor)
		}
	case approval.Withdrawn:
		return refuse("it was withdrawn")
	case approval.Expired:
		return refuse("it has expired at %s", a.Expires.UTC().Format(time.RFC3339))
	case approval.Void:
		return refuse("it is void, because the session was changed after the review")
	}
	sub := request.Subject
	if a.Moved {
		return refuse("branch %s has moved from %.10s to %.10s since the request", short(sub.Target), cmp.Or(sub.Base, "no commit"),
			cmp.Or(a.Tip, "no commit"))
	}
	p, err := v.checkpoint(ctx, request.Session, sub.Checkpoint)
	if err != nil {
		return err
	}
	if sub.Action != approval.Delete && sub.Commit != p.Head.String() {
		return refuse("it is for the commit %s, but HEAD of its checkpoint is %s", cmp.Or(sub.Commit, "of no name"), p.Head)
	}
	tree, err := v.requested(ctx, request)
	if err == nil && tree != sub.Tree {
		return refuse("it is for the tree %s, but its checkpoint results in the tree %s", sub.Tree, tree)
	}
	return err
}

// requested returns the tree that results from the checkpoint and the base of a request.
func (v *view) requested(ctx context.Context, request approval.Record) (string, error) {
	sub := request.Subject
	p, err := v.checkpoint(ctx, request.Session, sub.Checkpoint)
	switch {
	case err != nil:
		return "", err
	case sub.Action == approval.Delete:
		return p.Tree.String(), nil
	case p.Head.IsZero():
		return "", problem(Conflict, "checkpoint %s has no commit", p.ID)
	}
	j, err := v.join(ctx, p.Head.String(), sub.Base)
	return j.tree, err
}

// policy returns the policy of the repository. The error of a policy that is not valid is a Problem.
func (v *view) policy(ctx context.Context) (approval.Policy, error) {
	text, err := v.file(ctx, policyFile)
	if errors.Is(err, reffile.ErrNotFile) {
		return approval.Policy{}, problem(Conflict, "the policy of the repository cannot be read: %v", err)
	}
	if err != nil {
		return approval.Policy{}, err
	}
	p, err := approval.ParsePolicy(text)
	if err != nil {
		return p, problem(Conflict, "the policy of the repository is not valid: %v", err)
	}
	return p, nil
}

// policyFile names the file with the policy of a repository.
var policyFile = reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}

// approval returns the state of a request. If the policy has rules for paths, it compares the trees before and after the change. No
// request is granted while the policy is not valid.
func (v *view) approval(ctx context.Context, l approval.Log, request approval.Record) (a Approval, err error) {
	sub := request.Subject
	if sub.Action != approval.Delete {
		a.Tip = v.refs[sub.Target]
		a.Moved = a.Tip != sub.Base
	}
	newest, err := v.newest(ctx, request.Session)
	if err != nil {
		return a, err
	}
	policy, invalid := v.policy(ctx)
	var why *Problem
	if invalid != nil && !errors.As(invalid, &why) {
		return a, invalid
	}
	now := v.s.o.Now()
	a.Verdict = policy.Judge(l, request, nil, newest, now)
	switch {
	case a.Status != approval.Open && a.Status != approval.Granted:
		return a, nil
	case why != nil:
		a.Status, a.Missing = approval.Open, "a valid policy: "+why.Text
		return a, nil
	case sub.Action == approval.Delete || !policy.NeedsPaths(sub.Target):
		return a, nil
	}
	paths, err := v.touched(ctx, request)
	if errors.As(err, &why) { // for example, the branch was rewritten and its old commit removed
		a.Status, a.Missing = approval.Open, "a new request: the changed files cannot be read: "+why.Text
		return a, nil
	}
	if err == nil {
		a.Verdict = policy.Judge(l, request, paths, newest, now)
	}
	return a, err
}

// newest returns the newest checkpoint of a session, the zero Checkpoint if there is none.
func (v *view) newest(ctx context.Context, name string) (newest session.Checkpoint, err error) {
	if p, ok := v.points[name]; ok {
		return p, nil
	}
	all, err := v.git.Newest(ctx, v.of(name))
	if p, ok := all[name]; ok && err == nil {
		err = v.read(ctx, []gitread.Point{p}, func(p session.Checkpoint) { newest = p })
	}
	if err == nil {
		v.points[name] = newest
	}
	return newest, err
}

// Approvals returns the requests of a session with their states, newest first.
func (s *Service) Approvals(ctx context.Context, repo records.Repo, name string) (all []Approval, err error) {
	err = s.look(ctx, repo, func(v *view) error {
		if err := v.session(name); err != nil {
			return err
		}
		text, err := v.file(ctx, approvalsOf(name))
		if err != nil {
			return err
		}
		l, err := approval.ParseLog(name, text)
		if err != nil {
			return problem(Conflict, "the approvals of session %s: %v", name, err)
		}
		for i := len(l.Records) - 1; i >= 0; i-- {
			if l.Records[i].Op != approval.Request {
				continue
			}
			a, err := v.approval(ctx, l, l.Records[i])
			if err != nil {
				return err
			}
			all = append(all, a)
		}
		return nil
	})
	return all, err
}
