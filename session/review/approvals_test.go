package review

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
)

var (
	now  = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	base = strings.Repeat("b", 40)
)

// id returns an object id that consists of one repeated digit.
func id(digit string) object.ID { return object.MustID(strings.Repeat(digit, 40)) }

// fake is a Source that returns one fixed result for each method.
type fake struct {
	points      map[string]session.Checkpoint
	uncommitted []string
	joined      Joined
	touched     []string
	failed      error // error that Paths returns
	asked       int   // number of calls of Paths
}

func (f *fake) Checkpoint(_ context.Context, name string) (session.Checkpoint, error) {
	p, ok := f.points[name]
	if !ok {
		return p, &Problem{Kind: Missing, Text: "no checkpoint"}
	}
	return p, nil
}

func (f *fake) Uncommitted(context.Context, session.Checkpoint) ([]string, error) {
	return f.uncommitted, nil
}

func (f *fake) Join(context.Context, session.Checkpoint, string, string) (Joined, error) {
	return f.joined, nil
}

func (f *fake) Paths(context.Context, approval.Record) ([]string, error) {
	f.asked++
	return f.touched, f.failed
}

// world is a Review of the session "work", which reads the fake.
type world struct {
	*testing.T
	*fake
	*Review
	file []byte
}

func newWorld(t *testing.T) *world {
	t.Helper()
	p := session.Checkpoint{ID: session.NewCheckpointID(now.Add(-time.Hour)), Session: "work", Tree: id("1"),
		Head: id("2")}
	f := &fake{points: map[string]session.Checkpoint{"": p, string(p.ID): p},
		joined: Joined{Tree: id("3").String(), Forward: true}}
	r := &Review{Source: f, Session: "work", Log: approval.Log{Session: "work"}, Newest: p, Default: "main", Now: now,
		Tip: func(string) string { return base }}
	return &world{T: t, fake: f, Review: r}
}

// policy sets the policy of the repository.
func (w *world) policy(text string) {
	w.Helper()
	var err error
	if w.Policy, err = ReadPolicy([]byte(text), nil); err != nil {
		w.Fatal(err)
	}
}

// add adds a record of the user actor to the log, and returns the state of its request.
func (w *world) add(record approval.Record, actor string) Approval {
	w.Helper()
	l := w.Log
	record.Actor = actor
	file, _, err := l.Append(w.file, record, now)
	if err != nil {
		w.Fatal(err)
	}
	w.file = file
	a, err := w.Added(w.Context(), l)
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// answer grants, denies or withdraws a request, as the user actor.
func (w *world) answer(op approval.Op, a Approval, actor string) Approval {
	w.Helper()
	record, err := w.Answer(w.Context(), op, a.Request.ID, actor, "")
	if err != nil {
		w.Fatal(err)
	}
	return w.add(record, actor)
}

// requested requests approval of a merge.
func (w *world) requested() Approval {
	w.Helper()
	record, err := w.Review.Request(w.Context(), Request{Action: approval.Merge})
	if err != nil {
		w.Fatal(err)
	}
	return w.add(record, "ann")
}

// is fails the test unless err is a *Problem of this kind with this text.
func (w *world) is(err error, kind Kind, text string) {
	w.Helper()
	var p *Problem
	if !errors.As(err, &p) || p.Kind != kind || !strings.Contains(p.Error(), text) {
		w.Errorf("got %v (%+v), want a problem of the kind %d with %q", err, p, kind, text)
	}
}

func TestRequest(t *testing.T) {
	w := newWorld(t)
	for _, branch := range []string{"", "main", "refs/heads/main"} {
		record, err := w.Review.Request(t.Context(), Request{Action: approval.Merge, Branch: branch})
		s := record.Subject
		if err != nil || s.Target != "refs/heads/main" || s.Base != base || s.Tree != id("3").String() ||
			s.Commit != id("2").String() ||
			s.Files != id("1").String() || !record.Expires.Equal(now.Add(24*time.Hour)) {
			t.Errorf("request for branch %q: got %+v, %v, subject %+v", branch, record, err, s)
		}
	}
	record, err := w.Review.Request(t.Context(), Request{Action: approval.Delete, Expires: time.Hour})
	if err != nil || record.Subject.Tree != id("1").String() || record.Subject.Target != "" ||
		!record.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("request to delete: got %+v, %v, subject %+v", record, err, record.Subject)
	}
	problem := func(q Request, kind Kind, text string, change func(w *world)) {
		t.Helper()
		w := newWorld(t)
		change(w)
		q.Action = approval.Merge
		_, err := w.Review.Request(t.Context(), q)
		w.is(err, kind, text)
	}
	none := func(*world) {}
	problem(Request{Branch: "a..b"}, Invalid, `"a..b" cannot be the name of a branch`, none)
	problem(Request{Checkpoint: "x"}, Missing, "no checkpoint", none)
	problem(Request{}, Conflict, "changes are not committed: a, b, c and 2 more",
		func(w *world) { w.uncommitted = strings.Split("abcde", "") })
	problem(Request{}, Conflict, "branch main already has all commits of session work",
		func(w *world) { w.joined.None = true })
	problem(Request{}, Conflict, "session has no commit", func(w *world) {
		p := w.Newest
		p.Head = object.ID{}
		w.Newest, w.points[""] = p, p
	})
	problem(Request{}, Conflict, "session has a newer checkpoint", func(w *world) {
		w.Newest.ID, w.Newest.Tree = session.NewCheckpointID(now), id("4")
	})
}

func TestAnswer(t *testing.T) {
	w := newWorld(t)
	w.policy(`{"version":1,"branches":[{"match":"main","quorum":1}]}`)
	a := w.requested()
	if a = w.answer(approval.Grant, a, "ann"); a.Counted || a.Status != approval.Open || a.Missing != "1 more approval" {
		t.Errorf("grant by the user who asked: got %+v", a)
	}
	if a = w.answer(approval.Deny, a, "bob"); a.Counted || a.Status != approval.Denied {
		t.Errorf("denial: got %+v", a)
	}
	grant := func(text string, change func(w *world)) {
		t.Helper()
		was, source := *w.Review, *w.fake
		change(w)
		_, err := w.Answer(t.Context(), approval.Grant, a.Request.ID, "carol", "")
		w.is(err, Conflict, text)
		*w.Review, *w.fake = was, source
	}
	grant("request was denied by bob", func(*world) {})
	if a = w.answer(approval.Grant, a, "bob"); !a.Counted || a.Status != approval.Granted {
		t.Errorf("grant instead of the denial: got %+v", a)
	}
	if a = w.answer(approval.Grant, a, "carol"); !a.Counted {
		t.Errorf("grant of a granted request: got %+v", a)
	}
	grant("request is void", func(w *world) { w.Newest.ID, w.Newest.Tree = session.NewCheckpointID(now), id("4") })
	grant("request has expired at 2026-11-02T12:00:00Z", func(w *world) { w.Now = now.Add(24 * time.Hour) })
	grant("branch main has moved from bbbbbbbbbb to no commit since",
		func(w *world) { w.Tip = func(string) string { return "" } })
	grant("its checkpoint results in the tree 5", func(w *world) { w.joined.Tree = id("5").String() })
	grant("policy of the repository is not valid", func(w *world) { w.policy(`{"version":9}`) })
	grant("but HEAD of its checkpoint is 6", func(w *world) {
		p := w.Newest
		p.Head = id("6")
		w.points = map[string]session.Checkpoint{string(p.ID): p}
	})
	_, err := w.Answer(t.Context(), approval.Deny, "9", "bob", "")
	w.is(err, Missing, `no request of session work has an id that begins with "9"`)
	if a = w.answer(approval.Withdraw, a, "ann"); a.Status != approval.Withdrawn {
		t.Errorf("withdrawal: got %+v", a)
	}
	grant("request was withdrawn", func(*world) {})
}

// TestStates checks the states of requests. While the policy is invalid, or the changed files cannot be read, no
// request is granted.
func TestStates(t *testing.T) {
	w := newWorld(t)
	w.policy(`{"version":1,"branches":[{"match":"main","paths":["/infra/**"],"quorum":2}]}`)
	first := w.requested()
	if first.Missing != "1 more approval" || w.asked != 1 {
		t.Errorf("request for other paths: got %+v after %d questions", first, w.asked)
	}
	w.touched = []string{"infra/x"}
	second := w.requested()
	if second.Missing != "2 more approvals" {
		t.Errorf("request for protected paths: got %+v", second)
	}
	w.answer(approval.Grant, first, "bob")
	if w.asked != 2 {
		t.Errorf("paths were read %d times, want once for each request", w.asked)
	}
	all, err := w.States(t.Context())
	if err != nil || len(all) != 2 || all[0].Request.ID != second.Request.ID || all[1].Status != approval.Granted ||
		all[0].Moved {
		t.Errorf("states: got %+v, %v, want the newest first", all, err)
	}
	w.failed = &Problem{Text: "commit is missing"}
	if third := w.requested(); third.Status != approval.Open ||
		third.Missing != "a new request: the changed files cannot be read: commit is missing" {
		t.Errorf("request whose files cannot be read: got %+v", third)
	}
	failed := errors.New("disk")
	record := all[0].Request
	w.failed, w.Review.paths = failed, nil
	if _, err := w.State(t.Context(), record); !errors.Is(err, failed) {
		t.Errorf("state after a failure: got %v", err)
	}
	for _, lacks := range []error{reffile.ErrNotFile, approval.ErrPolicy} {
		w.policy(`{"version":9}`)
		if lacks == reffile.ErrNotFile {
			if w.Policy, err = ReadPolicy(nil, lacks); err != nil {
				t.Fatal(err)
			}
		}
		if all, err = w.States(t.Context()); err != nil || all[2].Status != approval.Open ||
			!strings.HasPrefix(all[2].Missing, "a valid policy: ") {
			t.Errorf("state with the policy %v: got %+v, %v", lacks, all, err)
		}
	}
	if _, err := ReadPolicy(nil, failed); !errors.Is(err, failed) {
		t.Errorf("policy after a failure: got %v", err)
	}
}

func TestRelate(t *testing.T) {
	head, tip := id("1"), id("2")
	for what, c := range map[string]struct {
		bases         []object.ID
		forward, none bool
		problem       string
	}{
		"fast-forward": {bases: []object.ID{tip}, forward: true},
		"nothing":      {bases: []object.ID{head}, none: true},
		"merge":        {bases: []object.ID{id("3")}},
		"unrelated":    {problem: "the session and branch main have no common history"},
		"crosswise":    {bases: []object.ID{head, tip}, problem: "have several merge bases"},
	} {
		forward, none, err := Relate(c.bases, head, tip, "refs/heads/main")
		if forward != c.forward || none != c.none || (err != nil) != (c.problem != "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: got %v, %v, %v", what, forward, none, err)
		}
	}
	var p *Problem
	if err := Conflicts([]string{"a", "b", "c", "d"}, "refs/heads/main"); !errors.As(err, &p) ||
		!slices.Equal(p.Paths, []string{"a", "b", "c", "d"}) ||
		p.Text != "the merge with branch main has conflicts: a, b, c and 1 more" {
		t.Errorf("conflicts: got %v", err)
	}
	if err := Conflicts(nil, "refs/heads/main"); err != nil {
		t.Errorf("no conflicts: got %v", err)
	}
}

func TestSome(t *testing.T) {
	if got := Some([]string{"a", "b"}, 2); got != "a, b" {
		t.Errorf("paths: got %q", got)
	}
	if got := Some(make([]string, 25), 20); !strings.HasSuffix(got, " and 5 more") {
		t.Errorf("many paths: got %q", got)
	}
}
