package ui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session/approval"
)

const (
	maxLog      = 16 << 20 // bytes of a file of approvals or of a policy that is read
	maxRequests = 30       // requests for approval that a page shows, the newest ones
)

// reviewPanel is the review of a session: its threads, the requests for approval, and the policy that applies to it.
type reviewPanel struct {
	Threads  []threadView
	Summary  string // number of threads for people, "" for none
	Requests []requestView
	More     int    // requests that are not shown
	Damaged  string // why the requests cannot be read
	Rules    []ruleView
	Policy   string // a sentence about the policy if there are no rules
}

// requestView is a request for approval and its state.
type requestView struct {
	approval.Verdict
	ID, By, Text string
	What         string // "merge into main"
	Why          string // what the state means, "" if the state is enough
	Checkpoint   string
	Link         string // path of the page of the checkpoint
	Diff         string // path of the difference that was reviewed
	Reviewers    string
	Votes        []voteView
}

// voteView is a grant or a denial that is in force.
type voteView struct {
	Verb, Actor, Text string
	Time              time.Time
}

// ruleView is a rule of the policy.
type ruleView struct {
	What string // "main", or "main, changes of infra/**"
	Need string
}

// rules are the policy of a repository.
type rules struct {
	approval.Policy
	problem error // why the policy is not valid; nil if it is
	exists  bool
}

// policyOf reads the policy of the repository.
func policyOf(ctx context.Context, g gitread.Repo, refs map[string]string) (r rules, err error) {
	commit := refs[approval.PolicyRef]
	if commit == "" {
		return r, nil
	}
	var file []byte
	err = g.Contents(ctx, []string{commit + ":" + approval.PolicyFile}, maxLog, func(_ int, c gitread.Content) { file = c.Bytes })
	if err != nil {
		return r, fmt.Errorf("read policy: %w", err)
	}
	r.exists = true
	if file == nil {
		r.problem = fmt.Errorf("%s does not contain %s", approval.PolicyRef, approval.PolicyFile)
		return r, nil
	}
	r.Policy, r.problem = approval.ParsePolicy(file)
	return r, nil
}

// review reads the review of a session. newest is its newest checkpoint, "" if there is none.
func (p *place) review(ctx context.Context, g gitread.Repo, refs map[string]string, name, newest string, threads []threadView) (
	*reviewPanel, error) {
	r := &reviewPanel{Threads: threads, Summary: summaryOf(threads)}
	policy, err := policyOf(ctx, g, refs)
	if err != nil {
		return nil, err
	}
	branches, err := p.requests(ctx, g, refs, name, newest, policy, r)
	if err != nil {
		return nil, err
	}
	r.addRules(policy, append(branches, "refs/heads/"+p.repo.DefaultBranch), name)
	return r, nil
}

// requests adds the requests for approval, the newest first, and returns the full names of their branches.
func (p *place) requests(ctx context.Context, g gitread.Repo, refs map[string]string, name, newest string, policy rules,
	panel *reviewPanel) (branches []string, err error) {
	commit := refs[approval.Ref(name)]
	if commit == "" {
		return nil, nil
	}
	var file []byte
	err = g.Contents(ctx, []string{commit + ":" + approval.LogFile}, maxLog, func(_ int, c gitread.Content) { file = c.Bytes })
	if err != nil {
		return nil, fmt.Errorf("read approvals: %w", err)
	}
	log, err := approval.ParseLog(name, file)
	if err != nil {
		panel.Damaged = err.Error()
		return nil, nil
	}
	for _, record := range slices.Backward(log.Records) {
		if record.Op != approval.Request {
			continue
		}
		if len(panel.Requests) == maxRequests {
			panel.More++
			continue
		}
		v, err := p.judge(ctx, g, policy, log, record, newest)
		if err != nil {
			return nil, err
		}
		panel.Requests = append(panel.Requests, p.requestView(v, refs, newest))
		if record.Subject.Target != "" {
			branches = append(branches, record.Subject.Target)
		}
	}
	return branches, nil
}

// judge returns the state of a request. If the policy has rules for paths, the trees before and after the change are compared. No request
// is granted while the policy is not valid, or while that comparison is not possible.
func (p *place) judge(ctx context.Context, g gitread.Repo, policy rules, log approval.Log, r approval.Record, newest string) (
	approval.Verdict, error) {
	now, s := p.u.o.Now(), r.Subject
	v := policy.Judge(log, r, nil, newest, now)
	switch {
	case v.Status != approval.Open && v.Status != approval.Granted:
		return v, nil
	case policy.problem != nil:
		v.Status, v.Missing = approval.Open, "a valid policy"
		return v, nil
	case s.Action == approval.Delete || !policy.NeedsPaths(s.Target):
		return v, nil
	}
	base := s.Base
	if base == "" {
		id, err := object.ParseID(s.Tree)
		if err != nil {
			return v, err
		}
		base = object.EmptyTree(id.Format()).String()
	}
	d, err := g.Changes(ctx, base, s.Tree, maxFiles)
	if ctx.Err() != nil {
		return v, ctx.Err()
	}
	if err != nil || d.Truncated { // the tree of a merge may not have been pushed yet
		v.Status, v.Missing = approval.Open, "the changed files, which the server cannot compare, to find the rules for them"
		return v, nil
	}
	var paths []string
	for _, c := range d.Changes {
		paths = append(paths, c.Path)
		if c.OldPath != "" {
			paths = append(paths, c.OldPath)
		}
	}
	return policy.Judge(log, r, paths, newest, now), nil
}

// actions are the words for the acts that need an approval.
var actions = map[approval.Action]string{
	approval.Merge: "merge into", approval.Promote: "promote to", approval.Delete: "delete the session",
}

// requestView returns a request as a page shows it.
func (p *place) requestView(v approval.Verdict, refs map[string]string, newest string) requestView {
	r, s := v.Request, v.Request.Subject
	branch := strings.TrimPrefix(s.Target, "refs/heads/")
	what := strings.TrimSpace(actions[s.Action] + " " + shown(branch))
	view := requestView{What: what, Verdict: v, ID: r.ID, By: clip(r.Actor, 80), Text: shown(r.Text), Checkpoint: s.Checkpoint,
		Reviewers: shown(strings.Join(r.Reviewers, ", "))}
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
	switch tip := refs[s.Target]; {
	case v.Status == approval.Void:
		view.Why = "The session has a newer checkpoint, " + newest + ", than the one that was reviewed. A new request is necessary."
	case waits && s.Action != approval.Delete && tip != s.Base:
		view.Why = fmt.Sprintf("%s has moved from %s to %s since the request, so a new request is necessary.", shown(branch),
			cmp.Or(short(s.Base), "no commit"), cmp.Or(short(tip), "no commit"))
	case v.Status == approval.Open && v.Missing != "":
		view.Why = "It needs " + shown(v.Missing) + "."
	}
	return view
}

// addRules adds the rules of the policy for branches, by their full names, and for the deletion of the session.
func (r *reviewPanel) addRules(policy rules, branches []string, name string) {
	switch {
	case !policy.exists:
		r.Policy = "The repository has no policy: no change needs an approval."
		return
	case policy.problem != nil:
		r.Policy = "The policy cannot be applied, so the server refuses what it may protect: " + shown(policy.problem.Error())
		return
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
	}
	for _, rule := range policy.Sessions {
		if refname.Match(rule.Match, name) {
			r.Rules = append(r.Rules, ruleView{"deletion of this session", needText(rule.Need)})
		}
	}
	if len(r.Rules) == 0 {
		r.Policy = "The policy of the repository has no rule for this session and the default branch."
	}
}

// needText returns what a rule requires, for people.
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
