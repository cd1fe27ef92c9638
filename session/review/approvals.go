package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// defaultExpiry is the lifetime of a request that names no other one.
const defaultExpiry = 24 * time.Hour

// ApprovalsOf names the file with the approvals of a session.
func ApprovalsOf(name string) reffile.File {
	return reffile.File{Ref: approval.Ref(name), Name: approval.LogFile}
}

// PolicyFile names the file with the policy of a repository.
var PolicyFile = reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}

// Policy is the policy of a repository. While it is not valid, no request is granted, and nothing that it may protect
// can be changed.
type Policy struct {
	approval.Policy
	Invalid error // why the policy is not valid; nil if it is valid
}

// ReadPolicy returns the policy in the file PolicyFile; err is the error of reading the file. An error that means that
// there is no such file makes the policy invalid; other errors are returned.
func ReadPolicy(file []byte, err error) (p Policy, _ error) {
	switch {
	case errors.Is(err, reffile.ErrNotFile), errors.Is(err, odb.ErrTooLarge):
		p.Invalid = err
	case err != nil:
		return p, err
	default:
		p.Policy, p.Invalid = approval.ParsePolicy(file)
	}
	return p, nil
}

// Source reads a session, and the repository that has the branches. Its errors that are the fault of the request, or of
// the state of the session or the branch, are of type *Problem.
type Source interface {
	// Checkpoint returns the checkpoint of the session with a name; "" stands for the newest one.
	Checkpoint(ctx context.Context, name string) (session.Checkpoint, error)
	// Uncommitted returns the files in which a checkpoint differs from its HEAD.
	Uncommitted(ctx context.Context, p session.Checkpoint) ([]string, error)
	// Join joins the HEAD of a checkpoint with a branch by a fast-forward or a merge. The branch has the commit base,
	// "" if it does not exist, and the full name target. Relate says what the result is.
	Join(ctx context.Context, p session.Checkpoint, base, target string) (Joined, error)
	// Paths returns the paths that the change of a request touches.
	Paths(ctx context.Context, request approval.Record) ([]string, error)
}

// Joined is the result of joining a commit of a session with a branch.
type Joined struct {
	Tree    string // tree of the branch afterwards
	Forward bool   // the branch can be moved by a fast-forward
	None    bool   // the branch has the commit already
}

// Relate says how the commit head of a session and the commit tip of a branch are joined, whose best common ancestors
// are bases: by a fast-forward, not at all because the branch has the commit already, or otherwise by a merge. It
// returns a Problem if they cannot be merged.
func Relate(bases []object.ID, head, tip object.ID, target string) (forward, none bool, err error) {
	switch {
	case len(bases) == 0:
		err = conflict(mergeFirst(target), "the session and branch %s have no common history", Short(target))
	case len(bases) > 1:
		err = conflict(mergeFirst(target), "the session and branch %s were merged crosswise, "+
			"so that a merge has several possible bases", Short(target))
	}
	return err == nil && bases[0] == tip, err == nil && bases[0] == head, err
}

// Conflicts returns the Problem of a merge with conflicts, nil if there are none.
func Conflicts(paths []string, target string) error {
	if len(paths) == 0 {
		return nil
	}
	return &Problem{Kind: Conflict, Paths: paths, Hint: mergeFirst(target),
		Text: "the merge with branch " + Short(target) + " has conflicts: " + Some(paths, namedPaths)}
}

// mergeFirst returns the hint for commits that cannot be merged.
func mergeFirst(target string) string {
	return "merge branch " + Short(target) + " into the session with git, and commit"
}

// Nothing returns the Problem of a branch that has all commits of a session already.
func Nothing(target, name string) error {
	return conflict("commit changes first, or name another branch", "branch %s already has all commits of session %s",
		Short(target), name)
}

// Branch returns the full name of a branch, whose name may begin with refs/heads/; "" stands for the default branch
// standard.
func Branch(name, standard string) (string, error) {
	full := heads + Short(cmp.Or(name, standard))
	if !refname.Valid(full) {
		return "", &Problem{Kind: Invalid, Hint: "name another branch",
			Text: fmt.Sprintf("%.200q cannot be the name of a branch", name)}
	}
	return full, nil
}

// Committed returns a Problem unless all files of a checkpoint are in the commit of its HEAD. Only commits can be
// pushed to a branch.
func Committed(ctx context.Context, s Source, p session.Checkpoint) error {
	if p.Head.IsZero() {
		return conflict("commit the changes with git first", "session has no commit")
	}
	paths, err := s.Uncommitted(ctx, p)
	if err != nil || len(paths) == 0 {
		return err
	}
	return conflict("commit them with git, or remove them; only commits can be pushed to a branch",
		"changes are not committed: %s", Some(paths, namedPaths))
}

// Review is the state of the approvals of a session at one moment. A single goroutine uses it.
type Review struct {
	Source
	Session string
	Log     approval.Log
	Policy  Policy
	Newest  session.Checkpoint // newest checkpoint of the session that is known; zero if there is none
	Default string             // name of the default branch; "" if the repository names none
	Now     time.Time
	// Tip returns the present commit of a branch by its full name; "" if the branch does not exist.
	Tip func(target string) string

	paths map[string][]string // results of Paths by the ids of requests
}

// Approval is a request with its present state.
type Approval struct {
	approval.Verdict
	Tip   string // present commit of the branch; "" if it does not exist, and for approval.Delete
	Moved bool   // the branch is not at the commit that was reviewed, so a new request is necessary
	// Counted reports, after a grant, whether it counts. A grant by a user who may not grant does not.
	Counted bool
}

// Request is what a user asks an approval for.
type Request struct {
	Action     approval.Action
	Checkpoint string   // name of the checkpoint, which must be the newest one; "" for the newest one
	Branch     string   // branch that is changed; "" for the default branch
	Reviewers  []string // users who are asked; the policy decides who may grant
	Expires    time.Duration
	Text       string
}

// Request returns the record of a new request, without its actor and token. The subject of the record is the content
// that the request is for: the checkpoint, the branch with its present commit, and the tree that the branch will have.
func (r *Review) Request(ctx context.Context, q Request) (record approval.Record, err error) {
	record = approval.Record{Op: approval.Request, Reviewers: q.Reviewers, Text: q.Text,
		Time: r.Now.UTC().Truncate(time.Millisecond)}
	record.Expires = record.Time.Add(cmp.Or(q.Expires, defaultExpiry))
	p, err := r.Checkpoint(ctx, q.Checkpoint)
	if err != nil {
		return record, err
	}
	s := &approval.Subject{Action: q.Action}
	if s.Reviews(p); s.VoidedBy(r.Newest) {
		hint := "run artifactfs session fork " + control.ShellWord(r.Session+"@"+string(p.ID)) +
			" DIR, and request the approval for the fork"
		return record, &Problem{Kind: Conflict, Object: "checkpoint " + string(p.ID), Hint: hint,
			Text: "session has a newer checkpoint, " + string(r.Newest.ID) + ", which would void the request"}
	}
	if record.Subject = s; s.Action == approval.Delete {
		s.Tree = p.Tree.String()
		return record, nil
	}
	if s.Target, err = Branch(q.Branch, r.Default); err != nil {
		return record, err
	}
	if err := Committed(ctx, r, p); err != nil {
		return record, err
	}
	s.Base = r.Tip(s.Target)
	j, err := r.Join(ctx, p, s.Base, s.Target)
	if err == nil && j.None {
		err = Nothing(s.Target, r.Session)
	}
	s.Tree = j.Tree
	return record, err
}

// Answer returns the record of a grant, a denial or a withdrawal by a user, without the token. The parameter request is
// the id of the request, or the beginning of the id. A grant is refused unless the request is for the present state of
// the session and of the branch.
func (r *Review) Answer(ctx context.Context, op approval.Op, request, actor, text string) (approval.Record, error) {
	record := approval.Record{Op: op, Actor: actor, Text: text}
	found, ok := r.Log.Find(request)
	if !ok {
		return record, &Problem{Kind: Missing, Object: "request " + request, Text: fmt.Sprintf(
			"no request of session %s has an id that begins with %.40q, or several have", r.Session, request)}
	}
	if record.Request = found.ID; op != approval.Grant {
		return record, nil
	}
	why, err := r.ungrantable(ctx, found, actor)
	if why != "" && err == nil {
		err = &Problem{Kind: Conflict, Object: "request " + found.ID, Text: why,
			Hint: "the session's user can request the approval again"}
	}
	return record, err
}

// ungrantable returns why a user cannot grant a request, "" if that is possible.
func (r *Review) ungrantable(ctx context.Context, request approval.Record, actor string) (why string, err error) {
	if r.Policy.Invalid != nil {
		return "the policy of the repository is not valid: " + r.Policy.Invalid.Error(), nil
	}
	a, err := r.State(ctx, request)
	if err != nil {
		return "", err
	}
	switch a.Status {
	case approval.Denied:
		// The reviewer who has denied the request may change the decision.
		if a.Denials[0].Actor != actor || len(a.Denials) > 1 {
			return "request was denied by " + a.Denials[0].Actor, nil
		}
	case approval.Withdrawn:
		return "request was withdrawn", nil
	case approval.Expired:
		return "request has expired at " + a.Expires.UTC().Format(time.RFC3339), nil
	case approval.Void:
		return "request is void, because the session was changed after the review: its newest checkpoint is " +
			string(r.Newest.ID), nil
	}
	s := request.Subject
	if a.Moved {
		return "branch " + Short(s.Target) + " has moved from " + brief(s.Base) + " to " + brief(a.Tip) +
			" since the request", nil
	}
	p, tree, err := Result(ctx, r, request)
	switch {
	case err != nil:
		return "", err
	case s.Action != approval.Delete && s.Commit != p.Head.String():
		return "request is for the commit " + cmp.Or(s.Commit, "of no name") + ", but HEAD of its checkpoint is " +
			p.Head.String(), nil
	case tree != s.Tree:
		return "request is for the tree " + s.Tree + ", but its checkpoint results in the tree " + tree, nil
	}
	return "", nil
}

// brief returns the beginning of the id of a commit.
func brief(commit string) string { return cmp.Or(commit[:min(len(commit), 10)], "no commit") }

// Result returns the checkpoint of a request, and the tree that results from it and from the base of the request.
func Result(ctx context.Context, from Source, request approval.Record) (p session.Checkpoint, tree string, err error) {
	s := request.Subject
	p, err = from.Checkpoint(ctx, s.Checkpoint)
	switch {
	case err != nil:
		return p, "", err
	case s.Action == approval.Delete:
		return p, p.Tree.String(), nil
	case p.Head.IsZero():
		return p, "", conflict("", "checkpoint %s has no commit", p.ID)
	}
	j, err := from.Join(ctx, p, s.Base, s.Target)
	return p, j.Tree, err
}

// State returns the state of a request. If the policy has rules for paths, the paths of the change are read.
func (r *Review) State(ctx context.Context, request approval.Record) (a Approval, err error) {
	s := request.Subject
	if s.Action != approval.Delete {
		a.Tip = r.Tip(s.Target)
		a.Moved = a.Tip != s.Base
	}
	a.Verdict = r.Policy.Judge(r.Log, request, nil, r.Newest, r.Now)
	switch {
	case a.Status != approval.Open && a.Status != approval.Granted:
		return a, nil
	case r.Policy.Invalid != nil:
		a.Status, a.Missing = approval.Open, "a valid policy: "+r.Policy.Invalid.Error()
		return a, nil
	case s.Action == approval.Delete || !r.Policy.NeedsPaths(s.Target):
		return a, nil
	}
	paths, known := r.paths[request.ID]
	if !known {
		var why *Problem
		paths, err = r.Paths(ctx, request)
		if errors.As(err, &why) { // for example, the branch was rewritten and its old commit removed
			a.Status, a.Missing = approval.Open, "a new request: the changed files cannot be read: "+why.Text
			return a, nil
		}
		if err != nil {
			return a, err
		}
		if r.paths == nil {
			r.paths = map[string][]string{}
		}
		r.paths[request.ID] = paths
	}
	a.Verdict = r.Policy.Judge(r.Log, request, paths, r.Newest, r.Now)
	return a, nil
}

// Added continues with a log that has one more record, the last one, and returns the state of the request to which the
// record belongs.
func (r *Review) Added(ctx context.Context, l approval.Log) (a Approval, err error) {
	added := l.Records[len(l.Records)-1]
	request := added
	if added.Op != approval.Request {
		request, _ = l.Find(added.Request)
	}
	var was Approval
	if added.Op == approval.Grant {
		r.Log = l
		r.Log.Records = l.Records[:len(l.Records)-1]
		if was, err = r.State(ctx, request); err != nil {
			return a, err
		}
	}
	r.Log = l
	a, err = r.State(ctx, request)
	a.Counted = added.Op == approval.Grant && (was.Status == approval.Granted || a.Missing != was.Missing)
	return a, err
}

// States returns the states of all requests, the newest first.
func (r *Review) States(ctx context.Context) (all []Approval, err error) {
	for _, record := range slices.Backward(r.Log.Records) {
		if record.Op != approval.Request {
			continue
		}
		a, err := r.State(ctx, record)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}
