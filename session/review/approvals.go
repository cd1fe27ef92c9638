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

// defaultExpiry is the lifetime of a request for approval if the user sets no other.
const defaultExpiry = 24 * time.Hour

// ApprovalsOf returns the file on a session remote that contains the approvals of the session name.
func ApprovalsOf(name string) reffile.File {
	return reffile.File{Ref: approval.Ref(name), Name: approval.LogFile}
}

// PolicyFile is the file on a session remote that contains the policy of the repository.
var PolicyFile = reffile.File{Ref: approval.PolicyRef, Name: approval.PolicyFile}

// Policy is the policy of a repository. While it is invalid, no request is granted, and the branches and sessions that
// it may protect cannot be changed.
type Policy struct {
	approval.Policy
	Invalid error // reason why the policy is invalid; nil if it is valid
}

// ReadPolicy parses the contents of the policy file. err is the error with which the file was read. An error that shows
// that the ref does not contain a valid file makes the policy invalid; other errors are returned.
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

// Source reads a session, and the repository that has the branches. Errors that are caused by the request, or by the
// state of the session or the branch, have the type *Problem.
type Source interface {
	// Checkpoint returns the checkpoint of the session with a name; "" stands for the newest one.
	Checkpoint(ctx context.Context, name string) (session.Checkpoint, error)
	// Uncommitted returns the files in which a checkpoint differs from its HEAD.
	Uncommitted(ctx context.Context, p session.Checkpoint) ([]string, error)
	// Join computes the result of a fast-forward or merge of the HEAD of a checkpoint into a branch, without changing
	// the branch. base is the commit of the branch, "" if it does not exist, and target is its full name. See Relate.
	Join(ctx context.Context, p session.Checkpoint, base, target string) (Joined, error)
	// Paths returns the paths that the change of a request touches.
	Paths(ctx context.Context, request approval.Record) ([]string, error)
}

// Joined describes the result of a fast-forward or merge of a commit of a session into a branch.
type Joined struct {
	Tree    string // tree of the branch after the merge
	Forward bool   // a fast-forward is possible
	None    bool   // the branch already has the commit, so there is nothing to merge
}

// Relate decides how the commit head of a session is merged into a branch with the commit tip. bases are the best
// common ancestors of the two. forward is true if a fast-forward is possible, and none is true if the branch already
// has the commit. Relate returns a *Problem if the commits cannot be merged.
func Relate(bases []object.ID, head, tip object.ID, target string) (forward, none bool, err error) {
	switch {
	case len(bases) == 0:
		err = conflict(mergeFirst(target), "the session and branch %s have no common history", Short(target))
	case len(bases) > 1:
		err = conflict(mergeFirst(target), "the session and branch %s have several merge bases, "+
			"because each was merged into the other", Short(target))
	}
	return err == nil && bases[0] == tip, err == nil && bases[0] == head, err
}

// Conflicts returns a *Problem for a merge with conflicts in the given paths, or nil if there are none.
func Conflicts(paths []string, target string) error {
	if len(paths) == 0 {
		return nil
	}
	return &Problem{Kind: Conflict, Paths: paths, Hint: mergeFirst(target),
		Text: "the merge with branch " + Short(target) + " has conflicts: " + Some(paths, namedPaths)}
}

// mergeFirst returns the hint for a user whose commits cannot be merged into a branch.
func mergeFirst(target string) string {
	return "merge branch " + Short(target) + " into the session with git, and commit"
}

// Nothing returns the *Problem that a branch already has all commits of the session name.
func Nothing(target, name string) error {
	return conflict("commit changes first, or name another branch", "branch %s already has all commits of session %s",
		Short(target), name)
}

// Branch returns the full name of a branch. The parameter name may be the full or the short name; "" stands for the
// default branch, whose name is standard. Branch returns a *Problem if the name is invalid.
func Branch(name, standard string) (string, error) {
	full := heads + Short(cmp.Or(name, standard))
	if !refname.Valid(full) {
		return "", &Problem{Kind: Invalid, Hint: "name another branch",
			Text: fmt.Sprintf("%.200q cannot be the name of a branch", name)}
	}
	return full, nil
}

// Committed returns a *Problem if a checkpoint has files that are not committed in its HEAD, because only commits can
// be pushed to a branch.
func Committed(ctx context.Context, s Source, p session.Checkpoint) error {
	if p.Head.IsZero() {
		return conflict("commit the changes with git first", "session has no commit")
	}
	paths, err := s.Uncommitted(ctx, p)
	if err != nil || len(paths) == 0 {
		return err
	}
	return conflict("commit the changes with git, or remove them; only commits can be pushed to a branch",
		"changes are not committed: %s", Some(paths, namedPaths))
}

// Review contains the approvals of a session, and all that is needed to decide about them at one moment. It must not be
// used by several goroutines at the same time.
type Review struct {
	Source
	Session string
	Log     approval.Log
	Policy  Policy
	Newest  session.Checkpoint // newest known checkpoint of the session; zero if there is none
	Default string             // name of the default branch; "" if the repository names none
	Now     time.Time
	// Tip returns the present commit of a branch by its full name; "" if the branch does not exist.
	Tip func(target string) string

	paths map[string][]string // results of the method Paths by the id of the request
}

// Approval is a request for approval with its present state.
type Approval struct {
	approval.Verdict
	Tip   string // present commit of the branch; "" if it does not exist, and for approval.Delete
	Moved bool   // the branch has another commit than the request states as its base, so a new request is necessary
	// Counted states, after a grant, whether the grant counts. A grant by a user who may not grant does not count.
	Counted bool
}

// Request contains the parameters of a request for approval.
type Request struct {
	Action     approval.Action
	Checkpoint string   // name of the newest checkpoint; "": the newest checkpoint, whatever its name is
	Branch     string   // branch that is to be changed; "" for the default branch
	Reviewers  []string // users who are asked; the policy decides who may grant
	Expires    time.Duration
	Text       string
}

// Request returns the record of a new request, without its actor and token. The subject of the record states what is to
// be approved: the checkpoint, the branch with its present commit, and the tree that the branch will have. Request
// returns a *Problem if the request is not possible.
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

// Answer returns the record of a grant, a denial or a withdrawal by the user actor, without the token. The parameter
// request is the id of the request, or the beginning of the id. Answer returns a *Problem for a grant if the session or
// the branch has changed since the request.
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

// ungrantable returns the reason why the user actor cannot grant a request, "" if the user can.
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
		return "request is for the commit " + cmp.Or(s.Commit, "(none)") + ", but HEAD of its checkpoint is " +
			p.Head.String(), nil
	case tree != s.Tree:
		return "request is for the tree " + s.Tree + ", but its checkpoint results in the tree " + tree, nil
	}
	return "", nil
}

// brief returns the first ten digits of the id of a commit, or "no commit" if it is "".
func brief(commit string) string { return cmp.Or(commit[:min(len(commit), 10)], "no commit") }

// Result returns the checkpoint that a request names, and the tree that the branch would have after the requested
// change. For a deletion, it is the tree of the checkpoint.
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

// State returns the present state of a request. If the policy has rules for paths, State reads which paths the
// requested change touches.
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

// Added replaces the log by l, which has one more record, and returns the state of the request to which this record
// belongs.
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
