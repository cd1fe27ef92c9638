package review

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/cacheentry"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

func TestMerge(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			w := newWorld(t, format)
			base, head, point := w.work("work")
			other := w.commit(base, map[string]string{"f": "one\ntwo\nthree\n", "g": "G\n"})
			for _, branch := range []string{"merged", "squashed", "behind"} {
				w.push("refs/heads/"+branch, other)
			}
			m, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Expect: base})
			if err != nil || m.Old != base || m.New != head || m.Branch != "main" || m.Checkpoint != point || m.Commits != 1 ||
				m.Method != FastForward {
				t.Errorf("fast-forward: got %+v, %v", m, err)
			}
			if m, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "new"}); err != nil || m.Old != "" ||
				m.New != head {
				t.Errorf("new branch: got %+v, %v", m, err)
			}
			if m, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "merged", Method: MergeCommit}); err != nil {
				t.Fatal(err)
			}
			w.git("fetch", "-q", w.url, "merged", "squashed")
			if got := w.git("log", "-1", "--format=%P %an %ae %cn %s", m.New); got != other+" "+head+
				" ann ann@artifactfs.invalid ann Merge session work into merged" {
				t.Errorf("merge commit: got %q", got)
			}
			if got := w.git("show", m.New+":f") + w.git("show", m.New+":g"); got != "zero\none\ntwo\nthreeG" {
				t.Errorf("files after the merge: got %q", got)
			}
			if m, err = w.Merge(t.Context(), w.ann, w.repo, "work",
				Merge{Branch: "squashed", Method: Squash, Message: "all\n"}); err != nil {
				t.Fatal(err)
			}
			w.git("fetch", "-q", w.url, "squashed")
			if got := w.git("log", "-1", "--format=%P %s", m.New); got != other+" all" ||
				w.git("show", m.New+":f") != "zero\none\ntwo\nthree" {
				t.Errorf("squashed commit: got %q", got)
			}
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "behind"})
			w.is(err, Conflict, "not a fast-forward: branch behind has commits")
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "behind", Expect: base, Method: Squash})
			if p := w.is(err, Conflict, "not at "+base[:12]+" as expected"); p.Now != other {
				t.Errorf("present commit: got %q, want %s", p.Now, other)
			}
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{})
			w.is(err, Conflict, "branch main already has all commits")
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "none", Method: Squash})
			w.is(err, Conflict, "there is no branch none")
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: "rebase"})
			w.is(err, Invalid, "not a method")
			w.push("refs/heads/behind", w.commit(base, map[string]string{"f": "ZERO\none\ntwo\nthree\n"}))
			_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Branch: "behind", Method: MergeCommit})
			if p := w.is(err, Conflict, "the merge with branch behind has conflicts: f"); len(p.Paths) != 1 {
				t.Errorf("paths with conflicts: got %q", p.Paths)
			}
			w.git("fetch", "-q", w.url, "+refs/heads/*:refs/heads/*")
			w.git("fsck", "--strict")
		})
	}
}

// TestSquashTwice checks that a squash after a squash contains only the later changes.
func TestSquashTwice(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, head, _ := w.work("work")
	if _, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash})
	w.is(err, Conflict, "already has all commits")
	next := w.commit(head, map[string]string{"f": "0\none\ntwo\nthree\n", "g": "g\n"})
	next = w.git("commit-tree", "-m", "fixup! commit", "-p", next, next+"^{tree}")
	next = w.git("commit-tree", "-m", "last", "-p", next, next+"^{tree}")
	w.checkpoint("work", next, next)
	m, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash})
	if err != nil || m.Commits != 3 {
		t.Fatalf("second squash: got %+v, %v", m, err)
	}
	w.git("fetch", "-q", w.url, "main")
	if got := w.git("show", m.New+":f"); got != "0\none\ntwo\nthree" {
		t.Errorf("file after the second squash: got %q", got)
	}
	if got := w.git("log", "-1", "--format=%B", m.New); got != "commit\n\n* commit\n* fixup! commit\n* last\n" {
		t.Errorf("message of the second squash: got %q, want the commits after the first one", got)
	}
}

// TestMergeAfterSquash checks that a merge after a squash contains only the later changes, even if they are in the same
// lines.
func TestMergeAfterSquash(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, head, _ := w.work("work")
	if _, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash}); err != nil {
		t.Fatal(err)
	}
	next := w.commit(head, map[string]string{"f": "0\none\ntwo\nthree\n", "g": "g\n"})
	w.checkpoint("work", next, next)
	m, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: MergeCommit})
	if err != nil || m.Commits != 2 {
		t.Fatalf("merge after a squash: got %+v, %v", m, err)
	}
	w.git("fetch", "-q", w.url, "main")
	if got := w.git("log", "-1", "--format=%P", m.New); got != m.Old+" "+next ||
		w.git("rev-parse", m.New+"^{tree}") != w.git("rev-parse", next+"^{tree}") {
		t.Errorf("commit of the merge: got parents %s, want the files of the session", got)
	}
}

// TestMergeThroughGate checks that a merge into a protected branch needs an approval of exactly its result.
func TestMergeThroughGate(t *testing.T) {
	w := newWorld(t, object.SHA1)
	base, _, _ := w.work("work")
	if err := w.SetPolicy(t.Context(), w.owner, w.repo, `{"version":1,"branches":[{"match":"main","quorum":1}]}`,
		new("")); err != nil {
		t.Fatal(err)
	}
	w.push("refs/heads/side", w.commit(base, map[string]string{"f": "one\ntwo\nthree\n", "g": "G\n"}))
	_, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{})
	w.is(err, Refused, "main is protected and needs an approval of this tree and base by 1 user")
	a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash})
	w.is(err, Refused, "request "+a.Request.ID+" needs 1 more approval")
	if _, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, ""); err != nil {
		t.Fatal(err)
	}
	m, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash})
	if err != nil {
		t.Fatalf("approved merge: %v", err)
	}
	if m.New == m.Old {
		t.Error("the merge has not moved the branch")
	}
}

// TestApprovalAfterSquash checks that a request for a merge after a squash names the tree that results from the merge,
// even if the session has changed the same lines again.
func TestApprovalAfterSquash(t *testing.T) {
	for _, method := range []Method{Squash, MergeCommit} {
		w := newWorld(t, object.SHA1)
		_, head, _ := w.work("work")
		if _, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: Squash}); err != nil {
			t.Fatal(err)
		}
		if err := w.SetPolicy(t.Context(), w.owner, w.repo, `{"version":1,"branches":[{"match":"main","quorum":1}]}`,
			new("")); err != nil {
			t.Fatal(err)
		}
		next := w.commit(head, map[string]string{"f": "0\none\ntwo\nthree\n", "g": "g\n"})
		w.checkpoint("work", next, next)
		a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, ""); err != nil {
			t.Fatal(err)
		}
		m, err := w.Merge(t.Context(), w.ann, w.repo, "work", Merge{Method: method})
		if err != nil {
			t.Errorf("approved merge with the method %s: %v", method, err)
			continue
		}
		w.git("fetch", "-q", w.url, "main")
		if w.git("rev-parse", m.New+"^{tree}") != w.git("rev-parse", next+"^{tree}") {
			t.Errorf("method %s: the branch does not have the files of the session", method)
		}
	}
}

func TestPolicy(t *testing.T) {
	w := newWorld(t, object.SHA1)
	if p, err := w.Policy(t.Context(), w.ann, w.repo); err != nil || p != (Policy{}) {
		t.Errorf("policy of a new repository: got %+v, %v", p, err)
	}
	const text = `{"version":1}`
	w.is(w.SetPolicy(t.Context(), w.ann, w.repo, text, nil), Forbidden,
		"only an owner or admin token can change the policy")
	w.is(w.SetPolicy(t.Context(), w.owner, w.repo, `{"version":2}`, nil), Invalid, "version 2 is not known")
	if err := w.SetPolicy(t.Context(), w.owner, w.repo, text, nil); err != nil {
		t.Fatal(err)
	}
	p, err := w.Policy(t.Context(), w.ann, w.repo)
	if err != nil || p.Text != text || p.Commit != w.ref(approval.PolicyRef) || p.Problem != "" {
		t.Errorf("policy: got %+v, %v", p, err)
	}
	if got := w.is(w.SetPolicy(t.Context(), w.owner, w.repo, text, new("")), Conflict,
		"changed by others"); got.Now != p.Commit {
		t.Errorf("present policy: got %q, want %s", got.Now, p.Commit)
	}
}

func TestPins(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, _, point := w.work("work")
	if id, err := w.Pin(t.Context(), w.ann, w.repo, "work", "good", ""); err != nil || id != point {
		t.Errorf("pin: got %s, %v", id, err)
	}
	ref := session.PinPrefix("work") + "good"
	if w.ref(ref) != w.ref(session.SegmentRef("work", "main", 1)) {
		t.Error("pin does not point to the checkpoint")
	}
	if a, err := w.Pin(t.Context(), w.ann, w.repo, "work", "better", "good"); err != nil || a != point {
		t.Errorf("pin of a pin: got %s, %v", a, err)
	}
	_, err := w.Pin(t.Context(), w.ann, w.repo, "work", "10m", "")
	w.is(err, Invalid, "invalid pin name")
	if err := w.Unpin(t.Context(), w.ann, w.repo, "work", "good"); err != nil || w.ref(ref) != "" {
		t.Errorf("unpin: got %v, ref %q", err, w.ref(ref))
	}
	w.is(w.Unpin(t.Context(), w.ann, w.repo, "work", "good"), Missing, "has no pin")
}

func TestChange(t *testing.T) {
	w := newWorld(t, object.SHA1)
	base, _, _ := w.work("work")
	m, err := w.Change(t.Context(), w.ann, w.repo, "work",
		lifecycle.Change{State: session.Closed, Reason: "done", Profile: &profile.Change{Title: new("T")}})
	if err != nil || m.State != session.Closed || m.Title != "T" {
		t.Fatalf("close: got %+v, %v", m, err)
	}
	text := w.show(session.MetaRef("work"), "transitions.jsonl")
	if !strings.Contains(text, `"state":"closed"`) || !strings.Contains(text, `"actor":"ann","reason":"done"`) {
		t.Errorf("transitions: got %s", text)
	}
	before := w.ref(session.MetaRef("work"))
	if _, err = w.Change(t.Context(), w.ann, w.repo, "work", lifecycle.Change{State: session.Closed}); err != nil ||
		w.ref(session.MetaRef("work")) != before {
		t.Errorf("second close: got %v", err)
	}
	_, err = w.Change(t.Context(), w.ann, w.repo, "work", lifecycle.Change{State: session.Paused})
	w.is(err, Conflict, "session work is closed and cannot become paused")
	if m, err = w.Change(t.Context(), w.ann, w.repo, "work", lifecycle.Change{State: session.Open}); err != nil ||
		m.State != session.Open {
		t.Errorf("reopen: got %s, %v", m.State, err)
	}
	_, err = w.Change(t.Context(), w.ann, w.repo, "work",
		lifecycle.Change{Profile: &profile.Change{AddTags: []string{"a b"}}})
	w.is(err, Invalid, "invalid tag")
	rules, err := access.SessionRules("work")
	if err != nil {
		t.Fatal(err)
	}
	bound, _ := w.token(records.Token{RepoID: w.repo.ID, Session: "work", Rules: rules})
	_, err = w.Change(t.Context(), bound, w.repo, "work", lifecycle.Change{Profile: &profile.Change{Owner: new("me")}})
	w.is(err, Forbidden, "cannot change owner")
	w.session("used", base, true)
	_, err = w.Change(t.Context(), w.ann, w.repo, "used", lifecycle.Change{State: session.Closed})
	w.is(err, Conflict, "host desk holds session used")
	_, err = w.Delete(t.Context(), w.ann, w.repo, "used")
	w.is(err, Conflict, "host desk holds session used")
	_, err = w.Change(t.Context(), w.ann, w.repo, "none", lifecycle.Change{State: session.Closed})
	w.is(err, Missing, "no session")
}

func TestDelete(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, head, _ := w.work("work")
	w.push("refs/heads/afs/work/main", head)
	if _, err := w.Change(t.Context(), w.ann, w.repo, "work",
		lifecycle.Change{Profile: &profile.Change{Hold: new("audit")}}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Delete(t.Context(), w.ann, w.repo, "work")
	w.is(err, Conflict, "session work is on hold")
	if _, err := w.Change(t.Context(), w.owner, w.repo, "work",
		lifecycle.Change{Profile: &profile.Change{Hold: new("")}}); err != nil {
		t.Fatal(err)
	}
	if err := w.SetPolicy(t.Context(), w.owner, w.repo, `{"version":1,"sessions":[{"match":"work","quorum":1}]}`,
		nil); err != nil {
		t.Fatal(err)
	}
	_, err = w.Delete(t.Context(), w.ann, w.repo, "work")
	w.is(err, Refused, "session work is protected and needs an approval")
	a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Delete})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, ""); err != nil {
		t.Fatal(err)
	}
	d, err := w.Delete(t.Context(), w.ann, w.repo, "work")
	if err != nil || d.Refs != 4 || len(d.Kept) != 0 {
		t.Fatalf("deletion: got %+v, %v", d, err)
	}
	refs := w.git("ls-remote", w.url)
	for _, want := range []string{"refs/afs/trash/work/", "/heads/afs/work/main", "/afs/meta/work", "refs/heads/main"} {
		if !strings.Contains(refs, want) {
			t.Errorf("refs after the deletion lack %s: %s", want, refs)
		}
	}
	if strings.Contains(refs, "\trefs/afs/meta/work") || strings.Contains(refs, "\trefs/heads/afs/") {
		t.Errorf("refs after the deletion: got %s", refs)
	}
}

func TestCacheEntries(t *testing.T) {
	w := newWorld(t, object.SHA256)
	value := func(text string) cacheentry.Value {
		return cacheentry.Value{Size: int64(len(text)),
			Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
	}
	c := w.Entries(w.ann, w.repo)
	one, err := c.Put(t.Context(), cacheentry.PutRequest{Key: "test/1", Value: value("one"), TTL: time.Hour,
		Expect: cacheentry.None, Actor: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	var conflict *cacheentry.ConflictError
	if _, err = c.Put(t.Context(), cacheentry.PutRequest{Key: "test/1", Value: value("two"), Expect: cacheentry.None,
		Actor: "ann"}); !errors.As(err, &conflict) ||
		conflict.Present.Hash != one.Hash {
		t.Errorf("entry that exists: got %v", err)
	}
	if _, err = c.Put(t.Context(), cacheentry.PutRequest{Key: "test/1", Value: value("two"), Expect: one.Hash,
		Actor: "ann"}); err != nil {
		t.Error(err)
	}
	var text bytes.Buffer
	if _, err := c.Get(t.Context(), "test/1", &text); err != nil || text.String() != "two" {
		t.Errorf("value: got %q, %v", &text, err)
	}
	reader, _ := w.token(records.Token{RepoID: w.repo.ID, Scope: records.ReadScope})
	w.is(w.Entries(reader, w.repo).Delete(t.Context(), "test/1", ""), Forbidden, "reading only")
	if l, err := c.List(t.Context(), "test/", false); err != nil || len(l.Entries) != 1 || l.Damaged != 0 {
		t.Errorf("list: got %+v, %v", l, err)
	}
	if err := c.Delete(t.Context(), "test/1", ""); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), "test/1", ""); !errors.Is(err, cacheentry.ErrNone) {
		t.Errorf("second deletion: got %v", err)
	}
}
