package review

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
)

var formats = []object.Format{object.SHA1, object.SHA256}

func TestAnnotate(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			w := newWorld(t, format)
			_, head, point := w.work("work")
			a, err := w.Annotate(t.Context(), w.ann, w.repo, "work",
				Annotation{Op: annotate.Open, Path: "f", Line: 2, End: 3, Text: "why?"})
			if err != nil {
				t.Fatal(err)
			}
			on := a.Thread.On
			if a.ID != a.Thread.ID || on.Checkpoint != point || on.Path != "f" || on.Line != 2 || on.End != 3 ||
				on.Quote != "one\ntwo" {
				t.Errorf("new thread: got %+v", a)
			}
			for _, next := range []Annotation{{Op: annotate.Reply, Thread: a.ID[:20], Text: "because"},
				{Op: annotate.Resolve, Thread: a.ID}} {
				if a, err = w.Annotate(t.Context(), w.bob, w.repo, "work", next); err != nil {
					t.Fatal(err)
				}
			}
			if acts := a.Thread.Acts; len(acts) != 3 || !a.Thread.Resolved || acts[0].Actor != "ann" || acts[1].Actor != "bob" {
				t.Errorf("thread after reply and resolve: got %+v", a.Thread)
			}
			if a, err = w.Annotate(t.Context(), w.bob, w.repo, "work",
				Annotation{Op: annotate.Open, Commit: head, Text: "token ghp_" +
					strings.Repeat("a", 36)}); err != nil || a.Thread.On.Commit != head || a.Redacted != 1 {
				t.Errorf("thread about a commit: got %+v, %v", a, err)
			}
			file := w.show(session.AnnotationsRef("work"), annotate.LogFile)
			if n := len(annotate.Parse([]byte(file))); n != 4 || strings.Contains(file, "ghp_") {
				t.Errorf("file on the server: got %d acts: %s", n, file)
			}
		})
	}
}

func TestAnnotateProblems(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, head, point := w.work("work")
	none := strings.Repeat("1", 40)
	for _, c := range []struct {
		session string
		a       Annotation
		kind    Kind
		text    string
	}{
		{"play", Annotation{Op: annotate.Open, Text: "x"}, Missing, `no session "play"`},
		{"../x", Annotation{Op: annotate.Open, Text: "x"}, Missing, "no session"},
		{"work", Annotation{Op: annotate.Open}, Invalid, "text is empty"},
		{"work", Annotation{Op: "close", Thread: point, Text: "x"}, Missing, "no such thread"},
		{"work", Annotation{Op: annotate.Reply, Thread: point, Text: "x"}, Missing, "no such thread"},
		{"work", Annotation{Op: annotate.Open, Checkpoint: "01M8ZZZZ", Text: "x"}, Missing, "no checkpoint"},
		{"work", Annotation{Op: annotate.Open, Checkpoint: "a b", Text: "x"}, Invalid, "invalid name"},
		{"work", Annotation{Op: annotate.Open, Commit: "main", Text: "x"}, Invalid, "full id"},
		{"work", Annotation{Op: annotate.Open, Commit: none, Text: "x"}, Missing, "no commit"},
		{"work", Annotation{Op: annotate.Open, Commit: head, Checkpoint: point, Text: "x"}, Invalid, "not about both"},
		{"work", Annotation{Op: annotate.Open, Path: "none", Text: "x"}, Missing, "does not contain this file"},
		{"work", Annotation{Op: annotate.Open, Path: "../f", Text: "x"}, Missing, "does not contain this file"},
		{"work", Annotation{Op: annotate.Open, Path: "f", Line: 4, End: 5, Text: "x"}, Invalid, "of a file of 4 lines"},
		{"work", Annotation{Op: annotate.Open, Path: "f", Line: -1, Text: "x"}, Invalid, "of a file of 4 lines"},
	} {
		_, err := w.Annotate(t.Context(), w.ann, w.repo, c.session, c.a)
		w.is(err, c.kind, c.text)
	}
	if id := w.ref(session.AnnotationsRef("work")); id != "" {
		t.Errorf("annotations after problems: got %s, want none", id)
	}
}

// TestTokens checks that a token allows the same changes of a session by the REST API as by a push.
func TestTokens(t *testing.T) {
	w := newWorld(t, object.SHA1)
	base, _, _ := w.work("work")
	w.session("play", base, false)
	comment := Annotation{Op: annotate.Open, Text: "x"}
	reader, _ := w.token(records.Token{RepoID: w.repo.ID, Scope: records.ReadScope})
	_, err := w.Annotate(t.Context(), reader, w.repo, "work", comment)
	w.is(err, Forbidden, "reading only")
	rules, err := access.SessionRules("work")
	if err != nil {
		t.Fatal(err)
	}
	bound, _ := w.token(records.Token{RepoID: w.repo.ID, Session: "work", Rules: rules, Actor: "agent"})
	if _, err := w.Annotate(t.Context(), bound, w.repo, "work", comment); err != nil {
		t.Errorf("annotation of its own session: %v", err)
	}
	_, err = w.Annotate(t.Context(), bound, w.repo, "play", comment)
	w.is(err, Forbidden, "token does not allow pushes to this ref")
	a, err := w.RequestApproval(t.Context(), bound, w.repo, "work", ApprovalRequest{Action: approval.Merge})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Answer(t.Context(), bound, w.repo, "work", approval.Grant, a.Request.ID, "")
	w.is(err, Forbidden, "a token of a session can request and withdraw, but not grant")
	if err := w.bed.DB.Tokens.Revoke(t.Context(), bound.Token.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if _, err = w.Annotate(t.Context(), bound, w.repo, "work", comment); err == nil {
		t.Error("annotation with a revoked token: got no error")
	}
	frozen := w.repo
	frozen.ReadOnly = true
	_, err = w.Annotate(t.Context(), w.ann, frozen, "work", comment)
	w.is(err, Forbidden, "the repository is read-only")
}

// TestActsAtOnce checks that no change of a session is lost if several are made at the same time.
func TestActsAtOnce(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.work("work")
	const users, each = 4, 3
	var all sync.WaitGroup
	for u := range users {
		all.Go(func() {
			for i := range each {
				_, err := w.Annotate(t.Context(), w.ann, w.repo, "work",
					Annotation{Op: annotate.Open, Text: fmt.Sprintf("%d %d", u, i)})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := len(annotate.Parse([]byte(w.show(session.AnnotationsRef("work"), annotate.LogFile)))); n != users*each {
		t.Errorf("annotations: got %d, want %d", n, users*each)
	}
	w.git("fsck", "--strict")
}

func TestApprovals(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			w := newWorld(t, format)
			base, head, point := w.work("work")
			w.push(approval.PolicyRef,
				w.commit("", map[string]string{approval.PolicyFile: `{"version":1,"branches":[{"match":"main","quorum":1}]}`}))
			a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work",
				ApprovalRequest{Action: approval.Merge, Text: "please"})
			if err != nil {
				t.Fatal(err)
			}
			sub := a.Request.Subject
			if a.Status != approval.Open || a.Missing != "1 more approval" || sub.Checkpoint != point || sub.Base != base ||
				sub.Target != "refs/heads/main" ||
				sub.Tree != w.git("rev-parse", head+"^{tree}") || a.Tip != base || a.Moved {
				t.Errorf("request: got %+v, subject %+v", a, sub)
			}
			if a, err = w.Answer(t.Context(), w.ann, w.repo, "work", approval.Grant, a.Request.ID, ""); err != nil ||
				a.Counted || a.Status != approval.Open {
				t.Errorf("grant by the user who asked: got %+v, %v", a, err)
			}
			if a, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Deny, a.Request.ID, "no"); err != nil ||
				a.Status != approval.Denied {
				t.Errorf("denial: got %+v, %v", a, err)
			}
			_, err = w.Answer(t.Context(), w.owner, w.repo, "work", approval.Grant, a.Request.ID, "")
			w.is(err, Conflict, "request was denied by bob")
			if a, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID[:24], ""); err != nil ||
				!a.Counted || a.Status != approval.Granted {
				t.Errorf("grant instead of the denial: got %+v, %v", a, err)
			}
			w.push("refs/heads/main", head) // the policy allows the push now
			all, err := w.Approvals(t.Context(), w.ann, w.repo, "work")
			if err != nil || len(all) != 1 || !all[0].Moved || all[0].Tip != head {
				t.Errorf("approvals after the merge: got %+v, %v", all, err)
			}
			_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge})
			w.is(err, Conflict, "branch main already has all commits")
			if a, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work",
				ApprovalRequest{Action: approval.Delete}); err != nil {
				t.Fatal(err)
			}
			if a, err = w.Answer(t.Context(), w.ann, w.repo, "work", approval.Withdraw, a.Request.ID, ""); err != nil ||
				a.Status != approval.Withdrawn {
				t.Errorf("withdrawal: got %+v, %v", a, err)
			}
			_, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, "")
			w.is(err, Conflict, "request was withdrawn")
		})
	}
}

// TestApprovalOfMerge checks that a request names the tree that results from the merge, and that a grant is refused if
// the merge has another result by then.
func TestApprovalOfMerge(t *testing.T) {
	w := newWorld(t, object.SHA1)
	base, head, _ := w.work("work")
	w.push(approval.PolicyRef,
		w.commit("",
			map[string]string{approval.PolicyFile: `{"version":1,"branches":[{"match":"main","paths":["/f"],"quorum":1}]}`}))
	other := w.commit(base, map[string]string{"f": "one\ntwo\nthree\n", "g": "G\n"})
	w.push("refs/heads/next", other)
	a, err := w.RequestApproval(t.Context(), w.ann, w.repo, "work",
		ApprovalRequest{Action: approval.Merge, Branch: "next"})
	if err != nil {
		t.Fatal(err)
	}
	want := w.git("rev-parse", w.commit("", map[string]string{"f": "zero\none\ntwo\nthree\n", "g": "G\n"})+"^{tree}")
	if a.Request.Subject.Tree != want {
		t.Errorf("tree of the merge: got %s, want %s", a.Request.Subject.Tree, want)
	}
	w.push("refs/heads/next", base)
	_, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, "")
	w.is(err, Conflict, "branch next has moved")
	w.push("refs/heads/next", other)
	if a, err = w.Answer(t.Context(), w.bob, w.repo, "work", approval.Grant, a.Request.ID, ""); err != nil ||
		a.Status != approval.Granted {
		t.Errorf("grant of a merge: got %+v, %v", a, err)
	}
	w.push("refs/heads/next", w.commit(base, map[string]string{"f": "ZERO\none\ntwo\nthree\n", "g": "g\n"}))
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge, Branch: "next"})
	if p := w.is(err, Conflict, "the merge with branch next has conflicts: f"); len(p.Paths) != 1 || p.Paths[0] != "f" {
		t.Errorf("paths with conflicts: got %q", p.Paths)
	}
	w.push("refs/heads/next", w.commit("", map[string]string{"x": "x"}))
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge, Branch: "next"})
	w.is(err, Conflict, "no common history")
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge, Branch: "a..b"})
	w.is(err, Invalid, "cannot be the name of a branch")
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work",
		ApprovalRequest{Action: approval.Merge, Branch: "refs/heads/next"})
	w.is(err, Conflict, "no common history")
	// Changes that are not committed cannot be merged, and a checkpoint that is not the newest one cannot be approved.
	w.checkpoint("work", other, head)
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work", ApprovalRequest{Action: approval.Merge})
	w.is(err, Conflict, "not committed: f, g")
	_, err = w.RequestApproval(t.Context(), w.ann, w.repo, "work",
		ApprovalRequest{Action: approval.Merge, Checkpoint: a.Request.Subject.Checkpoint})
	w.is(err, Missing, "no checkpoint") // the new checkpoint has no parent
}

// TestThreads checks that threads of annotations are found at their lines in other checkpoints.
func TestThreads(t *testing.T) {
	w := newWorld(t, object.SHA1)
	_, head, point := w.work("work")
	w.session("empty", head, false)
	if all, err := w.Threads(t.Context(), w.ann, w.repo, "empty", ""); err != nil || all.Checkpoint != "" ||
		len(all.List) != 0 {
		t.Errorf("threads of a session without a checkpoint: got %+v, %v", all, err)
	}
	// If the session has no checkpoint, a file is that of the base commit of the session.
	if a, err := w.Annotate(t.Context(), w.ann, w.repo, "empty",
		Annotation{Op: annotate.Open, Path: "f", Line: 2, Text: "x"}); err != nil ||
		a.Thread.On.Commit != head || a.Thread.On.Checkpoint != "" || a.Thread.On.Quote != "one" {
		t.Errorf("annotation without a checkpoint: got %+v, %v", a.Thread.On, err)
	}
	if all, err := w.Threads(t.Context(), w.ann, w.repo, "empty", ""); err != nil || all.Checkpoint != "" ||
		all.List[0].Now.State != annotate.Same {
		t.Errorf("thread without a checkpoint: got %+v, %v", all, err)
	}
	for _, a := range []Annotation{{Path: "f", Line: 2, Text: "one"}, {Path: "g", Text: "two"}, {Text: "three"}} {
		a.Op = annotate.Open
		if _, err := w.Annotate(t.Context(), w.ann, w.repo, "work", a); err != nil {
			t.Fatal(err)
		}
	}
	next := w.commit(head, map[string]string{"moved": "x\nzero\none\ntwo\nthree\n", "g": "g\n"})
	later := w.checkpoint("work", next, next)
	all, err := w.Threads(t.Context(), w.ann, w.repo, "work", "")
	if err != nil || all.Checkpoint != later || len(all.List) != 3 {
		t.Fatalf("threads: got %+v, %v; checkpoints %s, %s", all, err, point, later)
	}
	if now := all.List[0].Now; now.State != annotate.Moved || now.Path != "moved" || now.Line != 3 {
		t.Errorf("moved line: got %+v", now)
	}
	if now := all.List[1].Now; now.State != annotate.Same || all.List[2].Now != nil {
		t.Errorf("other threads: got %+v, %+v", now, all.List[2].Now)
	}
	// Of two files with the same contents, the one with the same name is the renamed file.
	f := w.git("rev-parse", head+":f")
	dir := w.input("100644 blob "+f+"\tf\n", "mktree")
	tree := w.input("100644 blob "+f+"\ta\n040000 tree "+dir+"\td\n", "mktree")
	next = w.git("commit-tree", "-m", "twice", "-p", next, tree)
	w.checkpoint("work", next, next)
	if all, err = w.Threads(t.Context(), w.ann, w.repo, "work", ""); err != nil || all.List[0].Now.Path != "d/f" ||
		all.List[0].Now.Line != 2 {
		t.Errorf("line of a file that exists twice: got %+v, %v", all.List[0].Now, err)
	}
	_, err = w.Threads(t.Context(), w.ann, w.repo, "work", "01M8ZZZZ")
	w.is(err, Missing, "no checkpoint")
}
