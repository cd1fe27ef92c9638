package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
	rules "github.com/artifactfs/artifactfs/session/review"
)

const (
	maxPolicy   = 1 << 20 // maximum size, in bytes, of a policy that is read
	maxRequests = 30      // maximum number of requests for approval on a page, the newest ones
)

// reviewPanel shows the review of a session: its threads, the requests for approval, and the policy that applies to it.
type reviewPanel struct {
	Threads     []threadView
	Summary     string // number of threads, as text for people; "" if there are none
	MoreThreads int
	Requests    []requestView
	More        int    // number of requests that are not shown
	Damaged     string // reason why the requests cannot be read
	Rules       []ruleView
	Policy      string // sentence about the policy if it has no rules for the session
	Do          *doing
	Comment     commentForm
	Branch      string // default branch of the repository

	asked  bool   // whether the session has requests for approval
	policy policy // of the repository
	newest string // newest checkpoint of the session; "" if there is none
}

// requestView is a request for approval and its state.
type requestView struct {
	approval.Verdict
	ID, By, Text string
	What         string // change for which the approval is requested, such as "merge into main"
	Why          string // explanation of the state; "" if none is needed
	Checkpoint   string
	Link         string // path of the page of the checkpoint
	Diff         string // path of the difference that was reviewed
	Reviewers    string
	Votes        []voteView
	Do           *doing
	Answers      []approval.Op // operations by which the user may answer the request
}

// voteView is a grant or a denial that is in force.
type voteView struct {
	Verb, Actor, Text string
	Time              time.Time
}

// ruleView is a rule of the policy.
type ruleView struct {
	What string // branch, or branch and paths, such as "main, changes of infra/**"
	Need string
}

// policy is the policy of a repository.
type policy struct {
	rules.Policy
	exists bool
}

// policyOf reads the policy of the repository.
func policyOf(ctx context.Context, g gitread.Repo, refs map[string]string) (r policy, err error) {
	commit := refs[approval.PolicyRef]
	if commit == "" {
		return r, nil
	}
	var file []byte
	err = g.Contents(ctx, []string{commit + ":" + approval.PolicyFile}, maxPolicy,
		func(_ int, c read.Content) { file = c.Bytes })
	if err != nil {
		return r, fmt.Errorf("read policy: %w", err)
	}
	if r.exists = true; file == nil {
		err = fmt.Errorf("%s: %w %s", approval.PolicyRef, reffile.ErrNotFile, approval.PolicyFile)
	}
	r.Policy, err = rules.ReadPolicy(file, err)
	return r, err
}

// reviewOf returns the review of a session without the requests and the rules, which addRequests adds. newest is the
// newest checkpoint of the session, or "" if there is none.
func (p *place) reviewOf(ctx context.Context, g gitread.Repo, refs map[string]string, name, newest string,
	threads []threadView) (
	*reviewPanel, error) {
	r := &reviewPanel{Threads: chosen(threads), Summary: summaryOf(threads), Do: p.doing(refs, name),
		Branch: p.repo.DefaultBranch, newest: newest, asked: p.u.o.Acts != nil && refs[approval.Ref(name)] != ""}
	r.MoreThreads = len(threads) - len(r.Threads)
	r.Comment = commentForm{Do: r.Do, Label: "Comment on the session"}
	var err error
	r.policy, err = policyOf(ctx, g, refs)
	return r, err
}

// addRequests adds the requests for approval of a session, the newest first, and the rules of the policy, to its
// review. The visit must not have a place, because the requests are read with another one: if memory were short, all
// places could be those of visits that wait for it.
func (p *place) addRequests(ctx context.Context, r *reviewPanel, name string) error {
	all, damaged, err := p.approvals(ctx, r, name)
	if err != nil {
		return err
	}
	r.Damaged = shown(damaged)
	r.More = max(0, len(all)-maxRequests)
	branches := []string{"refs/heads/" + p.repo.DefaultBranch}
	for _, a := range all[:len(all)-r.More] {
		r.Requests = append(r.Requests, p.requestView(a, r.newest))
		if target := a.Request.Subject.Target; target != "" {
			branches = append(branches, target)
		}
	}
	self := r.addRules(r.policy, branches, name)
	for i, request := range r.Requests {
		r.Requests[i].Do, r.Requests[i].Answers = r.Do, r.Do.answers(request.Verdict, self)
	}
	return nil
}

// approvals returns the requests of a session, the newest first. If they cannot be read, damaged is the reason.
func (p *place) approvals(ctx context.Context, r *reviewPanel,
	name string) (all []review.Approval, damaged string, err error) {
	if !r.asked {
		return nil, "", nil
	}
	all, err = p.u.o.Acts.Approvals(ctx, p.by(), p.repo, name)
	var problem *review.Problem
	if errors.As(err, &problem) {
		return nil, problem.Text, nil
	}
	return all, "", err
}

// actions are the words for the actions that need an approval.
var actions = map[approval.Action]string{
	approval.Merge: "merge into", approval.Promote: "promote to", approval.Delete: "delete the session",
}

// requestView returns a request in the form in which a page shows it. newest is the newest checkpoint of the session.
func (p *place) requestView(a review.Approval, newest string) requestView {
	v, r, s := a.Verdict, a.Request, a.Request.Subject
	branch := strings.TrimPrefix(s.Target, "refs/heads/")
	what := strings.TrimSpace(actions[s.Action] + " " + shown(branch))
	view := requestView{What: what, Verdict: v, ID: r.ID, By: clip(r.Actor, 80), Text: shown(r.Text),
		Checkpoint: s.Checkpoint,
		Reviewers:  shown(strings.Join(r.Reviewers, ", "))}
	if s.Checkpoint != "" {
		view.Link = p.sessionPath(r.Session) + query("at", s.Checkpoint)
	}
	if s.Base != "" && s.Checkpoint != "" {
		view.Diff = p.path + "/diff" + query("a", s.Base, "b", r.Session+"@"+s.Checkpoint)
	}
	for _, vote := range v.Grants {
		view.Votes = append(view.Votes, voteView{"granted", clip(vote.Actor, 80), shown(vote.Text), vote.Time})
	}
	for _, vote := range v.Denials {
		view.Votes = append(view.Votes, voteView{"denied", clip(vote.Actor, 80), shown(vote.Text), vote.Time})
	}
	waits := v.Status == approval.Open || v.Status == approval.Granted
	switch {
	case v.Status == approval.Void:
		view.Why = "The session was changed after the review: its newest checkpoint is " + newest +
			". A new request is necessary."
	case waits && a.Moved:
		view.Why = fmt.Sprintf("%s has moved from %s to %s since the request, so a new request is necessary.", shown(branch),
			cmp.Or(short(s.Base), "no commit"), cmp.Or(short(a.Tip), "no commit"))
	case v.Status == approval.Open && v.Missing != "":
		view.Why = "It needs " + shown(v.Missing) + "."
	}
	return view
}

// addRules adds the rules of the policy for branches, by their full names, and for the deletion of the session. It
// reports whether one of the rules lets users grant their own requests.
func (r *reviewPanel) addRules(policy policy, branches []string, name string) (self bool) {
	switch {
	case !policy.exists:
		r.Policy = "The repository has no policy: no change needs an approval."
		return false
	case policy.Invalid != nil:
		r.Policy = "The policy cannot be applied, so the server refuses what it may protect: " + shown(policy.Invalid.Error())
		return false
	}
	for _, rule := range policy.Branches {
		matches := func(branch string) bool { return refname.Match(rule.Match, strings.TrimPrefix(branch, "refs/heads/")) }
		if !slices.ContainsFunc(branches, matches) {
			continue
		}
		what := "changes of " + rule.Match
		if len(rule.Paths) > 0 {
			what += " that touch " + strings.Join(rule.Paths, ", ")
		}
		r.Rules = append(r.Rules, ruleView{shown(what), needText(rule.Need)})
		self = self || rule.Self
	}
	for _, rule := range policy.Sessions {
		if refname.Match(rule.Match, name) {
			r.Rules = append(r.Rules, ruleView{"deletion of this session", needText(rule.Need)})
			self = self || rule.Self
		}
	}
	if len(r.Rules) == 0 {
		r.Policy = "The policy of the repository has no rule for this session and the default branch."
	}
	return self
}

// needText returns the requirements of a rule as text for people.
func needText(n approval.Need) string {
	text := number(n.Quorum, "approval", "approvals")
	if len(n.Reviewers) > 0 {
		text += " by " + strings.Join(n.Reviewers, ", ")
	}
	if n.Self {
		text += "; who requests may approve too"
	}
	return shown(text + "; requests are valid for " + lasting(cmp.Or(time.Duration(n.TTL), approval.DefaultTTL)))
}
