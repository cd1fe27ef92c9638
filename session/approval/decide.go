package approval

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// Status is the state of a request.
type Status string

const (
	Open      Status = "open"      // waits for reviewers
	Granted   Status = "granted"   // has the approvals that the policy requires
	Denied    Status = "denied"    // a reviewer has denied the request
	Withdrawn Status = "withdrawn" // the user who requested has taken it back
	Expired   Status = "expired"
	Void      Status = "void" // the session has other contents than at the checkpoint that was reviewed (Subject.VoidedBy)
)

// Verdict is the state of a request at one moment, computed from the records of the session and the policy.
type Verdict struct {
	Request Record
	Status  Status
	Grants  []Record // the grants that are in force, oldest first
	Denials []Record // the denials that are in force, oldest first
	Missing string   // approvals that are missing for the status Granted, as a text for people; "" if none
	Expires time.Time
}

// Change is a change of a repository that a policy may protect: an update of a branch, or the deletion of a session.
type Change struct {
	Branch string   // full name of the branch
	Base   string   // commit of the branch before the change; "" if it does not exist
	Tree   string   // tree of the branch after the change
	Paths  []string // paths whose files differ between the trees of Base and of the change
	// Covers returns "" if a request covers the new commit of the branch, otherwise the reason why it does not.
	Covers func(request Record) string

	Session string             // session that is deleted; "" for a change of a branch
	Newest  session.Checkpoint // newest checkpoint of the session that is deleted
}

// Refused is the reason why a change is not allowed, as a text for people.
type Refused string

func (r Refused) Error() string { return string(r) }

// Check returns the request whose approvals allow a change, or the zero Record if the change needs no approval. It
// returns an error of type Refused if the policy does not allow the change. logs are the approvals of all sessions in
// the repository. The function newest returns the newest checkpoint of a session in the repository, or the zero
// Checkpoint if there is none. It is called once for each session with a request for the change. If it fails, the
// requests of this session do not allow the change, and Check returns the error if no other request does.
func (p Policy) Check(c Change, logs []Log, newest func(name string) (session.Checkpoint, error),
	now time.Time) (Record, error) {
	needs := p.needs(c)
	if len(needs) == 0 {
		return Record{}, nil
	}
	var best Verdict
	var uncovered, failed error
	for _, l := range logs {
		requests := slices.DeleteFunc(slices.Clone(l.Records), func(r Record) bool { return r.Op != Request || !c.is(r) })
		if len(requests) == 0 {
			continue
		}
		at, err := newest(l.Session)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		for i := range requests {
			r := &requests[i]
			v := l.judge(*r, needs, at, now)
			if v.Status == Granted {
				why := ""
				if c.Session == "" {
					why = c.Covers(*r)
				}
				if why == "" {
					return *r, nil
				}
				uncovered = Refused(fmt.Sprintf("%s is protected: request %s %s", strings.TrimPrefix(c.Branch, "refs/heads/"), r.ID,
					why))
			}
			if best.Request.ID == "" || cmp.Or(cmp.Compare(rank(v.Status), rank(best.Status)),
				cmp.Compare(r.ID, best.Request.ID)) > 0 {
				best = v
			}
		}
	}
	return Record{}, cmp.Or(failed, uncovered, error(c.refuse(needs, best)))
}

// rank returns a number that is larger the nearer the status of a request is to Granted.
func rank(s Status) int {
	return slices.Index([]Status{Withdrawn, Expired, Void, Denied, Open, Granted}, s)
}

// is reports whether a request asks for exactly this change.
func (c Change) is(r Record) bool {
	s := r.Subject
	if c.Session != "" {
		return s.Action == Delete && r.Session == c.Session && string(c.Newest.ID) >= s.Checkpoint && !s.VoidedBy(c.Newest)
	}
	return s.Action != Delete && s.Target == c.Branch && s.Base == c.Base && s.Tree == c.Tree
}

// refuse returns the reason why a change is not allowed. best is the request that is nearest to being granted, zero if
// no request asks for this change.
func (c Change) refuse(needs []Need, best Verdict) Refused {
	what, of := strings.TrimPrefix(c.Branch, "refs/heads/")+" is protected", "this tree and base"
	if c.Session != "" {
		what, of = "session "+c.Session+" is protected", "its deletion with its newest checkpoint"
	}
	if best.Request.ID == "" {
		return Refused(what + " and needs an approval of " + of + " by " + describe(needs))
	}
	reason := map[Status]string{
		Open: "needs " + best.Missing, Denied: "was denied", Withdrawn: "was withdrawn",
		Expired: "has expired", Void: "is void, because the session was changed after the review",
	}[best.Status]
	if best.Status == Denied {
		reason += " by " + best.Denials[0].Actor
	}
	return Refused(fmt.Sprintf("%s: request %s %s", what, best.Request.ID, reason))
}

// describe returns the approvals that rules require as a text, such as "2 users of alice, bob".
func describe(needs []Need) string {
	var texts []string
	for _, n := range needs {
		text := fmt.Sprintf("%d user", n.Quorum)
		if n.Quorum > 1 {
			text += "s"
		}
		if len(n.Reviewers) > 0 {
			text += " of " + strings.Join(n.Reviewers, ", ")
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, " and by ")
}

// Judge returns the state of a request. The parameter paths are the paths that the requested change touches. newest is
// the newest checkpoint of the session in the repository, or the zero Checkpoint if there is none.
func (p Policy) Judge(l Log, request Record, paths []string, newest session.Checkpoint, now time.Time) Verdict {
	c := Change{Branch: request.Subject.Target, Paths: paths}
	if request.Subject.Action == Delete {
		c.Session = request.Session
	}
	return l.judge(request, p.needs(c), newest, now)
}

// judge returns the state of a request under the rules that match its change. If no rule matches, one grant is enough.
func (l Log) judge(request Record, needs []Need, newest session.Checkpoint, now time.Time) Verdict {
	if len(needs) == 0 {
		needs = []Need{{Quorum: 1}}
	}
	v := Verdict{Request: request, Expires: request.Expires}
	for _, n := range needs {
		ttl := cmp.Or(time.Duration(n.TTL), DefaultTTL)
		if end := request.Time.Add(ttl); end.Before(v.Expires) {
			v.Expires = end
		}
	}
	// votes returns the last grant or denial of each user for a request, oldest first, and reports whether the request
	// was withdrawn.
	votes, withdrawn := l.votes(request)
	for _, r := range votes {
		entitled := slices.ContainsFunc(needs, func(n Need) bool { return n.entitles(r.Actor) })
		switch {
		case !entitled:
		case r.Op == Grant:
			v.Grants = append(v.Grants, r)
		default:
			v.Denials = append(v.Denials, r)
		}
	}
	var missing []string
	for _, n := range needs {
		if text := n.missing(request, v.Grants); text != "" {
			missing = append(missing, text)
		}
	}
	v.Missing = strings.Join(missing, ", and ")
	switch {
	case withdrawn:
		v.Status = Withdrawn
	case len(v.Denials) > 0:
		v.Status = Denied
	case request.Subject.VoidedBy(newest):
		v.Status = Void
	case !now.Before(v.Expires):
		v.Status = Expired
	case v.Missing != "":
		v.Status = Open
	default:
		v.Status = Granted
	}
	return v
}

// votes returns the last grant or denial of each user, oldest first, and reports whether the request was withdrawn.
func (l Log) votes(request Record) (votes []Record, withdrawn bool) {
	for _, r := range l.Records {
		if r.Request != request.ID {
			continue
		}
		if r.Op == Withdraw && r.Actor == request.Actor {
			withdrawn = true
		}
		votes = slices.DeleteFunc(votes, func(v Record) bool { return v.Actor == r.Actor })
		if r.Op != Withdraw {
			votes = append(votes, r)
		}
	}
	return votes, withdrawn
}

// entitles reports whether a user may grant or deny requests under the rule.
func (n Need) entitles(actor string) bool {
	return len(n.Reviewers) == 0 || slices.Contains(n.Reviewers, actor)
}

// missing returns a text that states how many approvals a request still needs under the rule, "" if it needs none. Only
// one grant for each token counts, so that one user cannot grant under two names.
func (n Need) missing(request Record, grants []Record) string {
	tokens := map[string]bool{"": false}
	count := 0
	for _, g := range grants {
		own := g.Actor == request.Actor || g.Token != "" && g.Token == request.Token
		if !n.entitles(g.Actor) || own && !n.Self || tokens[g.Token] {
			continue
		}
		tokens[g.Token] = g.Token != ""
		count++
	}
	if count >= n.Quorum {
		return ""
	}
	text := fmt.Sprintf("%d more", n.Quorum-count)
	if n.Quorum-count == 1 {
		text += " approval"
	} else {
		text += " approvals"
	}
	if len(n.Reviewers) > 0 {
		text += " of " + strings.Join(n.Reviewers, ", ")
	}
	return text
}
