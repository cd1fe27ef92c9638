package review

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// acts returns the events about changes of sessions since the last call: the types without their prefix, and some
// fields of the payload.
func (w *world) acts(after *int64) (list []string) {
	w.Helper()
	all, err := w.bed.DB.Events.After(w.Context(), *after, "ns", "r", 1000)
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range all {
		*after = e.Seq
		kind, ours := strings.CutPrefix(e.Type, "artifactfs.")
		if !ours {
			continue
		}
		var body struct {
			Payload struct{ Session, Op, Actor, Branch, Request, Name string }
			Actor   struct{ TokenID string }
		}
		if err := json.Unmarshal(e.Body, &body); err != nil || body.Actor.TokenID == "" {
			w.Errorf("event %s: %v", e.Body, err)
		}
		p := body.Payload
		list = append(list,
			strings.Join(strings.Fields(fmt.Sprint(kind, " ", p.Session, " ", p.Op, " ", p.Actor, " ", p.Branch, " ", p.Name)),
				" "))
	}
	return list
}

// TestEvents checks that a change of a session causes one event, whether it is made by the server or by a push of stock
// git.
func TestEvents(t *testing.T) {
	w := newWorld(t, object.SHA1)
	base, head, _ := w.work("work")
	var after int64
	w.acts(&after)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wants := func(want ...string) {
		t.Helper()
		if got := w.acts(&after); !slices.Equal(got, want) {
			t.Errorf("events: got %q, want %q", got, want)
		}
	}
	made, err := w.Annotate(t.Context(), w.ann, w.repo, "work", Annotation{Op: annotate.Open, Text: "x"})
	must(err)
	wants("session.annotated work open ann")
	file := []byte(w.show(session.AnnotationsRef("work"), annotate.LogFile) + "\n")
	file, _, err = annotate.Append(file, annotate.Act{Op: annotate.Resolve, Thread: made.ID, Actor: "owner"}, time.Now())
	must(err)
	w.push(session.AnnotationsRef("work"), w.commit(w.git("rev-parse", "refs/shown"),
		map[string]string{annotate.LogFile: string(file)}))
	wants("session.annotated work resolve owner")
	must(w.SetPolicy(t.Context(), w.owner, w.repo, `{"version":1,"branches":[{"match":"main","quorum":1}]}`, nil))
	a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge})
	must(err)
	for _, op := range []approval.Op{approval.Deny, approval.Withdraw, approval.Grant} {
		_, err = w.Answer(t.Context(), w.bob, w.repo, "work", op, a.Request.ID, "")
		must(err)
	}
	wants("policy.changed", "session.approval.requested work ann main", "session.approval.denied work bob main",
		"session.approval.withdrawn work bob main", "session.approval.granted work bob main")
	w.push("refs/heads/main", head)
	wants("session.merged work main")
	w.push("refs/heads/plain", base)
	_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "plain"})
	must(err)
	wants("session.merged work plain")

	_, err = w.Pin(t.Context(), w.ann, w.repo, "work", "good", "")
	must(err)
	must(w.Unpin(t.Context(), w.ann, w.repo, "work", "good"))
	for _, state := range []session.LifeState{session.Closed, session.Archived, session.Open} {
		_, err = w.Change(t.Context(), w.ann, w.repo, "work", lifecycle.Change{State: state})
		must(err)
	}
	_, err = w.Delete(t.Context(), w.ann, w.repo, "work")
	must(err)
	wants("session.pinned work good", "session.unpinned work good", "session.closed work ann", "session.archived work ann",
		"session.reopened work ann", "session.deleted work")
}

// TestAuditAndRefusal checks that a refused change of a session causes no event, and that an audit entry is written for
// a change that is made.
func TestAuditAndRefusal(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.work("work")
	var after int64
	w.acts(&after)
	if _, err := w.Merge(t.Context(), w.ann, w.repo, "none", Merge{}); err == nil {
		t.Error("merge of a missing session: got no error")
	}
	w.is(w.SetPolicy(t.Context(), w.ann, w.repo, `{"version":1}`, nil), Forbidden, "only an owner")
	if got := w.acts(&after); len(got) > 0 {
		t.Errorf("events of acts that were refused: got %q", got)
	}
	done := false
	by := w.ann
	by.Done = func() { done = true }
	if _, err := w.Pin(t.Context(), by, w.repo, "work", "good", ""); err != nil || !done {
		t.Errorf("pin: got %v, done %t", err, done)
	}
	entries, err := w.bed.DB.Audit.After(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	last := entries[len(entries)-1]
	if last.Cause != (records.Cause{TokenID: w.ann.Token.ID, Actor: "ann", Method: "POST", Target: "/test"}) ||
		!strings.Contains(last.Detail, "refs/afs/pin/work/good") {
		t.Errorf("audit entry of a pin: got %+v", last)
	}
}
