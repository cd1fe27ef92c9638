package main

import (
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func TestAnnotate(t *testing.T) {
	a, s, _ := newWork(t)
	a.env = []string{"ARTIFACTFS_ACTOR=alice"}
	mount := a.dir + "/app"
	for _, c := range []struct {
		args string
		want control.SessionAnnotateRequest
	}{
		{"-C app -m text", control.SessionAnnotateRequest{Of: mount, Op: "open", Text: "text"}},
		{"@~1 -C app -m text", control.SessionAnnotateRequest{Of: mount, Op: "open", ID: "@~1", Text: "text"}},
		{"-C app --path a/b.go:12-14 -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Path: "a/b.go", Line: 12,
			End: 14, Text: "x"}},
		{"-C app --path a:b:7 -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Path: "a:b", Line: 7,
			End: 7, Text: "x"}},
		{"-C app --path a:b -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Path: "a:b", Text: "x"}},
		{"-C app --path a:3-2 -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Path: "a:3-2", Text: "x"}},
		{"-C work --path ./a -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Path: "a", Text: "x"}},
		{"-C app --commit HEAD --path a -m x", control.SessionAnnotateRequest{Of: mount, Op: "open", Commit: "HEAD",
			Path: "a", Text: "x"}},
		{"-C app --reply 01J9 -m x", control.SessionAnnotateRequest{Of: mount, Op: "reply", Thread: "01J9", Text: "x"}},
		{"work@ --resolve 01J9", control.SessionAnnotateRequest{Of: mount, Op: "resolve", Thread: "01J9"}},
		{"-C app --reopen 01J9 -m x", control.SessionAnnotateRequest{Of: mount, Op: "reopen", Thread: "01J9", Text: "x"}},
		{"--session-remote /r.git work --path a:1 -m x",
			control.SessionAnnotateRequest{Of: "work", SessionRemote: "/r.git", Op: "open", Path: "a", Line: 1,
				End: 1, Text: "x"}},
		{"https://git.example/r.git#session=work@good -m x",
			control.SessionAnnotateRequest{Of: "work", SessionRemote: "https://git.example/r.git", Op: "open",
				ID: "good", Text: "x"}},
	} {
		c.want.Actor = "alice"
		r := a.run(append([]string{"session", "annotate"}, strings.Fields(c.args)...)...)
		want := checkpointA + "\n"
		switch c.want.Op {
		case "resolve":
			want = "resolved " + checkpointB + "\n"
		case "reopen":
			want = "reopened " + checkpointB + "\n"
		}
		if q := last[control.SessionAnnotateRequest](t, s); r.stdout != want || q != c.want ||
			!strings.Contains(r.stderr, "1 text looked like a secret") {
			t.Errorf("annotate %s: got %+v and the request %+v, want %+v", c.args, r, q, c.want)
		}
	}
	for args, want := range map[string]string{
		"-C app":                                  "TEXT is missing",
		"-C app --reply 01J9":                     "TEXT is missing",
		"-C app --reply 01J9 --path a":            "omit --path",
		"-C app --path ../a -m x":                 "not in the mount",
		"-C app --path . -m x":                    "root of the working tree",
		"@~1 -C app --resolve 01J9":               "not to a checkpoint",
		"@~1 -C app --commit HEAD -m x":           "got both",
		"-C app --reply 01J9 --resolve 01J9 -m x": "got several",
	} {
		if r := a.run(append([]string{"session", "annotate"}, strings.Fields(args)...)...); r.code != control.ExitUsage ||
			!strings.Contains(r.stderr, want) {
			t.Errorf("annotate %.60s: got %+v, want an error with %q", args, r, want)
		}
	}
}

func TestAnnotations(t *testing.T) {
	a, s, _ := newWork(t)
	hour := time.Now().Add(-time.Hour)
	s.set(func() {
		s.threads = []control.AnnotationThread{
			{ID: checkpointA, State: "open", On: control.AnnotationPlace{Checkpoint: checkpointB, Path: "old.go", Line: 3,
				End: 4, Quote: "a\n\tb"},
				Now: &control.AnnotationPlace{State: "moved", Path: "new.go", Line: 5, End: 6},
				Annotations: []control.Annotation{{Actor: "alice", Time: hour, Op: "open", Text: "why?\nreally \x1b[31m"},
					{Actor: "bob", Time: hour, Op: "reopen"}}},
			{ID: checkpointB, State: "resolved", On: control.AnnotationPlace{Commit: strings.Repeat("1", 40), Path: "a",
				Line: 1, End: 1},
				Now:         &control.AnnotationPlace{State: "outdated"},
				Annotations: []control.Annotation{{Actor: "alice", Time: hour, Op: "resolve", Text: "done"}}},
			{ID: checkpointB, State: "open",
				Annotations: []control.Annotation{{Actor: "alice", Time: hour, Op: "open", Text: "x"}}},
		}
	})
	want := checkpointA +
		"  open  new.go:5-6 (was old.go:3-4)\n  > a\n  > \tb\n  alice, 60 min ago: why?\n    really  [31m\n  bob, 60 min ago reopened\n\n" +
		checkpointB + "  resolved  a:1 (outdated; see commit 111111111111)\n  alice, 60 min ago resolved: done\n\n" +
		checkpointB + "  open  session\n  alice, 60 min ago: x\n"
	if got := a.ok("session", "annotations", "@~1", "-C", "app", "--all", "--path", "src/"); got != want {
		t.Errorf("session annotations printed\n%q, want\n%q", got, want)
	}
	if q := last[control.SessionAnnotationsRequest](t,
		s); q != (control.SessionAnnotationsRequest{Of: a.dir + "/app", ID: "@~1", All: true, Path: "src"}) {
		t.Errorf("request of the command: got %+v", q)
	}
	a.ok("session", "annotations", "--session-remote", "/r.git", "work@good")
	if q := last[control.SessionAnnotationsRequest](t,
		s); q != (control.SessionAnnotationsRequest{Of: "work", SessionRemote: "/r.git", ID: "good"}) {
		t.Errorf("request of the command: got %+v", q)
	}
}
