package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// The names that the commands of "session review" had before do the same, but no help page and no completion lists
// them.
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

// A token that is given to a command speaks for its user, also about the session of a mount, whose own token may be of
// somebody else.
func TestGivenTokenInMount(t *testing.T) {
	a, s, f := newWork(t)
	f.mounts[0].Session.SessionRemote = "https://git.example.org/work.git"
	token := filepath.Join(a.dir, "token")
	if err := os.WriteFile(token, []byte("bob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.env = []string{"ARTIFACTFS_SESSION_TOKEN=alice"}
	const of, alice, bob = "work", "https://x:alice@git.example.org/work.git", "https://x:bob@git.example.org/work.git"
	for _, c := range []struct{ command, of, at string }{
		{"session review grant 01m80q -C app", of, alice},
		{"session review deny 01m80q -C app -m no --token-file " + token, of, bob},
		{"session review request -C app --for merge --into stable", of, alice},
	} {
		if r := a.run(strings.Fields(c.command)...); r.code != 0 {
			t.Errorf("%s: got %+v", c.command, r)
		}
		if got := last[control.SessionApproveRequest](t, s); got.Of != c.of || got.SessionRemote != c.at {
			t.Errorf("%s: requested of %q at %q, want %q at %q", c.command, got.Of, got.SessionRemote, c.of, c.at)
		}
	}
	if r := a.run("session", "annotate", "-C", "app", "-m", "right"); r.code != 0 {
		t.Errorf("session annotate: got %+v", r)
	}
	if got := last[control.SessionAnnotateRequest](t, s); got.Of != of || got.SessionRemote != alice {
		t.Errorf("session annotate: requested of %q at %q, want %q at %q", got.Of, got.SessionRemote, of, alice)
	}
	if r := a.run("session", "review", "list", "app"); r.code != 0 {
		t.Errorf("session review list: got %+v", r)
	}
	if got := last[control.SessionApprovalsRequest](t, s); got.Of != of || got.SessionRemote != alice {
		t.Errorf("session review list: requested of %q at %q, want %q at %q", got.Of, got.SessionRemote, of, alice)
	}
	a.env = nil
	if r := a.run("session", "review", "grant", "01m80q", "-C", "app"); r.code != 0 {
		t.Errorf("grant without a token: got %+v", r)
	}
	if got := last[control.SessionApproveRequest](t, s); got.Of != a.dir+"/app" || got.SessionRemote != "" {
		t.Errorf("grant without a token: requested of %q at %q, want the mount", got.Of, got.SessionRemote)
	}
}
