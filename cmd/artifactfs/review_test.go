package main

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// The names that the commands of "session review" had before do the same, but no help page and no completion lists them.
func TestFormerNamesOfReview(t *testing.T) {
	a, s, _ := newWork(t)
	for now, old := range map[string]string{
		"request -C app --for merge --into stable": "request-approval -C app --for merge --into stable",
		"grant 01m80q -C app":                      "grant 01m80q -C app",
		"deny 01m80q -C app -m no":                 "deny 01m80q -C app -m no",
	} {
		want := a.run(append([]string{"session", "review"}, strings.Fields(now)...)...)
		asked := last[control.SessionApproveRequest](t, s)
		if got := a.run(append([]string{"session"}, strings.Fields(old)...)...); got != want || got.code != 0 {
			t.Errorf("session %s: got %+v, want %+v, as of session review %s", old, got, want, now)
		}
		got := last[control.SessionApproveRequest](t, s)
		if got.Op != asked.Op || got.Request != asked.Request || got.Text != asked.Text {
			t.Errorf("session %s requested %+v, want %+v", old, got, asked)
		}
	}
	if got := a.ok("session", "approvals", "app"); got != a.ok("session", "review", "list", "app") {
		t.Errorf("session approvals: got %q, want what session review list prints", got)
	}
	hint := "hint: artifactfs session review request --help\n"
	if r := a.run("session", "request-approval"); r.code != control.ExitUsage || !strings.HasSuffix(r.stderr, hint) {
		t.Errorf("session request-approval without --for: got %+v, want %q", r, hint)
	}
	hint = "hint: did you mean session review?\n"
	if r := a.run("session", "withdraw", "01m80q"); r.code != control.ExitUsage || !strings.HasSuffix(r.stderr, hint) {
		t.Errorf("session withdraw: got %+v, want %q", r, hint)
	}
	shown := a.ok("session", "--help", "--all") + a.run("__complete", "session", "").stdout
	for _, old := range []string{"request-approval", "\ngrant\t", "\n  grant ", "\ndeny\t", "\n  deny ", "\napprovals\t",
		"\n  approvals "} {
		if strings.Contains(shown, old) {
			t.Errorf("help or completion of session shows %q:\n%s", old, shown)
		}
	}
	got := a.run("__complete", "session", "review", "").stdout
	if !strings.HasPrefix(got, "request\t") || !strings.Contains(got, "\nwithdraw\t") {
		t.Errorf("completion of session review: got %q", got)
	}
	former := "This is the former name of artifactfs session review grant.\n"
	if got := a.ok("session", "grant", "--help"); !strings.HasPrefix(got, former) {
		t.Errorf("session grant --help: got %q", got)
	}
}
