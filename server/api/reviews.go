package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
)

type annotationInfo struct {
	ID    string `json:"id"`
	At    string `json:"at"`
	Actor string `json:"actor"`
	Op    string `json:"op"`
	Text  string `json:"text"`
}

type onInfo struct {
	Checkpoint *string `json:"checkpoint"`
	Commit     *string `json:"commit"`
	Path       *string `json:"path"`
	Blob       *string `json:"blob"`
	Line       int     `json:"line"`
	End        int     `json:"end"`
	Quote      string  `json:"quote"`
}

type nowInfo struct {
	State string  `json:"state"`
	Path  *string `json:"path"`
	Blob  *string `json:"blob"`
	Line  int     `json:"line"`
	End   int     `json:"end"`
}

type threadInfo struct {
	ID          string           `json:"id"`
	State       string           `json:"state"`
	On          onInfo           `json:"on"`
	Now         *nowInfo         `json:"now,omitempty"`
	Annotations []annotationInfo `json:"annotations"`
}

func showThread(t annotate.Thread, now *annotate.Now) threadInfo {
	i := threadInfo{ID: t.ID, State: "open",
		On: onInfo{optional(t.On.Checkpoint), optional(t.On.Commit), optional(t.On.Path),
			optional(t.On.Blob), t.On.Line, t.On.End, t.On.Quote}}
	if t.Resolved {
		i.State = "resolved"
	}
	if now != nil {
		i.Now = &nowInfo{State: string(now.State), Path: optional(now.Path), Line: now.Line, End: now.End}
		if !now.Blob.IsZero() {
			i.Now.Blob = optional(now.Blob.String())
		}
	}
	for _, a := range t.Acts {
		i.Annotations = append(i.Annotations, annotationInfo{a.ID, timeText(a.Time), a.Actor, string(a.Op), a.Text})
	}
	return i
}

func listAnnotations(c *call) error {
	q := c.query()
	checkpoint, state := q.text("checkpoint"), q.option("state", "all", "open", "resolved")
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		all, err := c.a.o.Review.Threads(ctx, by(c), c.of, c.params["session"], checkpoint)
		if err != nil {
			return err
		}
		list := []threadInfo{}
		for _, t := range all.List {
			if i := showThread(t.Thread, t.Now); state == "all" || state == i.State {
				list = append(list, i)
			}
		}
		return c.send(http.StatusOK, list, pages(1, max(1, len(list)), len(list), len(list)))
	})
}

// annotateSession begins a thread of annotations, or adds an annotation to one.
func annotateSession(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	a := review.Annotation{Thread: in.text("thread"), Checkpoint: in.text("checkpoint"), Commit: in.text("commit"),
		Path: in.text("path"),
		Line: in.number("line", 0), End: in.number("end", 0)}
	a.Op = annotate.Op(in.option("op", string(annotate.Open), string(annotate.Open), string(annotate.Reply),
		string(annotate.Resolve),
		string(annotate.Reopen)))
	if text := in.given("text"); text != nil {
		a.Text = *text
	} else if a.Op == annotate.Open || a.Op == annotate.Reply {
		in.required("text")
	}
	if a.Op != annotate.Open {
		in.required("thread")
	}
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		made, err := c.a.o.Review.Annotate(ctx, by(c), c.of, c.params["session"], a)
		if err != nil {
			return err
		}
		return c.send(http.StatusCreated, struct {
			ID       string     `json:"id"`
			Redacted int64      `json:"redacted"`
			Thread   threadInfo `json:"thread"`
		}{made.ID, made.Redacted, showThread(made.Thread, nil)}, nil)
	})
}

type voteInfo struct {
	ID      string `json:"id"`
	Actor   string `json:"actor"`
	TokenID string `json:"token_id"`
	At      string `json:"at"`
	Text    string `json:"text"`
}

type approvalInfo struct {
	ID         string     `json:"id"`
	Session    string     `json:"session"`
	Action     string     `json:"action"`
	Status     string     `json:"status"`
	Missing    string     `json:"missing"`
	Checkpoint string     `json:"checkpoint"`
	Branch     *string    `json:"branch"`
	Base       *string    `json:"base"`
	Tree       string     `json:"tree"`
	Moved      bool       `json:"moved"`
	Actor      string     `json:"actor"`
	Text       string     `json:"text"`
	Reviewers  []string   `json:"reviewers"`
	Requested  string     `json:"requested_at"`
	Expires    string     `json:"expires_at"`
	Grants     []voteInfo `json:"grants"`
	Denials    []voteInfo `json:"denials"`
	Counted    bool       `json:"counted"`
}

func showApproval(a review.Approval) approvalInfo {
	r, sub := a.Request, a.Request.Subject
	i := approvalInfo{ID: r.ID, Session: r.Session, Action: string(sub.Action), Status: string(a.Status),
		Missing:    a.Missing,
		Checkpoint: sub.Checkpoint, Branch: optional(strings.TrimPrefix(sub.Target, "refs/heads/")), Base: optional(sub.Base),
		Tree:  sub.Tree,
		Moved: a.Moved, Actor: r.Actor, Text: r.Text, Reviewers: r.Reviewers, Requested: timeText(r.Time),
		Expires: timeText(a.Expires),
		Grants:  votes(a.Grants), Denials: votes(a.Denials), Counted: a.Counted}
	if i.Reviewers == nil {
		i.Reviewers = []string{}
	}
	return i
}

func votes(records []approval.Record) []voteInfo {
	list := []voteInfo{}
	for _, r := range records {
		list = append(list, voteInfo{r.ID, r.Actor, r.Token, timeText(r.Time), r.Text})
	}
	return list
}

func listApprovals(c *call) error {
	return look(c, func(ctx context.Context) error {
		all, err := c.a.o.Review.Approvals(ctx, by(c), c.of, c.params["session"])
		if err != nil {
			return err
		}
		list := []approvalInfo{}
		for _, a := range all {
			list = append(list, showApproval(a))
		}
		return c.send(http.StatusOK, list, pages(1, max(1, len(list)), len(list), len(list)))
	})
}

func requestApproval(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	r := review.ApprovalRequest{Checkpoint: in.text("checkpoint"), Branch: in.text("branch"),
		Reviewers: in.texts("reviewers"),
		Text:      in.text("text"),
		Action: approval.Action(in.option("action", string(approval.Merge), string(approval.Merge),
			string(approval.Promote), string(approval.Delete)))}
	if n := in.number("ttl", 0); n >= 0 {
		r.Expires = time.Duration(n) * time.Second
	} else {
		in.refuse(invalid("ttl", "Too small: expected number to be >=0"))
	}
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		a, err := c.a.o.Review.RequestApproval(ctx, by(c), c.of, c.params["session"], r)
		if err != nil {
			return err
		}
		return c.send(http.StatusCreated, showApproval(a), nil)
	})
}

// answerRequest returns the handler of a route that grants, denies or withdraws a request.
func answerRequest(op approval.Op) func(c *call) error {
	return func(c *call) error {
		in, err := c.body()
		if err != nil {
			return err
		}
		text := in.text("text")
		if err := in.err(); err != nil {
			return err
		}
		return look(c, func(ctx context.Context) error {
			a, err := c.a.o.Review.Answer(ctx, by(c), c.of, c.params["session"], op, c.params["request"], text)
			if err != nil {
				return err
			}
			return c.send(http.StatusOK, showApproval(a), nil)
		})
	}
}

func mergeSession(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	m := review.Merge{Branch: in.text("branch"), Checkpoint: in.text("checkpoint"), Expect: in.text("expect"),
		Method: review.Method(in.option("method", string(review.FastForward), string(review.FastForward),
			string(review.Squash),
			string(review.MergeCommit)))}
	if text := in.given("message"); text != nil {
		m.Message = *text
	}
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		made, err := c.a.o.Review.Merge(ctx, by(c), c.of, c.params["session"], m)
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, struct {
			Session    string  `json:"session"`
			Checkpoint string  `json:"checkpoint"`
			Method     string  `json:"method"`
			Branch     string  `json:"branch"`
			Before     *string `json:"before"`
			After      string  `json:"after"`
			Commits    int     `json:"commits"`
		}{made.Session, made.Checkpoint, string(made.Method), made.Branch, optional(made.Old), made.New, made.Commits}, nil)
	})
}

// policyInfo describes the policy of a repository: the text of its file, the commit of the file, and the reason why the
// policy is not valid, if it is not.
type policyInfo struct {
	Policy  json.RawMessage `json:"policy"`
	Commit  *string         `json:"commit"`
	Problem *string         `json:"problem"`
}

func getPolicy(c *call) error {
	return look(c, func(ctx context.Context) error { return sendPolicy(ctx, c) })
}

// sendPolicy sends the policy of the repository. If its text is not JSON, it is sent as a JSON string.
func sendPolicy(ctx context.Context, c *call) error {
	p, err := c.a.o.Review.Policy(ctx, by(c), c.of)
	if err != nil {
		return err
	}
	i := policyInfo{Commit: optional(p.Commit), Problem: optional(p.Problem)}
	switch {
	case json.Valid([]byte(p.Text)):
		i.Policy = json.RawMessage(p.Text)
	case p.Text != "":
		i.Policy, _ = json.Marshal(p.Text) // encoding a string never fails
	}
	return c.send(http.StatusOK, i, nil)
}

func setPolicy(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	if in.object("policy") == nil {
		in.refuse(invalid("policy", "Invalid input: expected object, received %s", kindOf(in.in["policy"])))
	}
	expect := in.given("expect")
	if err := in.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		if err := c.a.o.Review.SetPolicy(ctx, by(c), c.of, string(in.in["policy"]), expect); err != nil {
			return err
		}
		return sendPolicy(ctx, c)
	})
}
