package integration

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// reported returns the error object on the last line of the output of a failed command with --json.
func (w *world) reported(r result) control.ReportedError {
	w.Helper()
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var report map[string]control.ReportedError
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &report); err != nil || len(report) != 1 ||
		report["error"].Code == "" {
		w.Fatalf("last line of stdout is not an error object (%v): %s", err, r)
	}
	return report["error"]
}

func TestErrorsAsJSON(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("errors"))
	s := w.serve(gittest.ServerOptions{})
	good := s.URL("r.git")
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	closed := l.Addr().String()
	l.Close()
	m := w.bare(good)
	dir := w.place("m")
	mount := func(remote string, args ...string) []string {
		return append([]string{"mount", remote, dir, "--json"}, args...)
	}
	for _, c := range []struct {
		name      string
		fault     *gittest.Fault
		args      []string
		exit      int
		code      control.ErrorCode
		retryable bool
	}{
		{"no credentials", &gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "right"}, mount(good),
			control.ExitRemote, control.CodeAuth, false},
		{"forbidden", &gittest.Fault{Kind: gittest.Status, Status: http.StatusForbidden}, mount(good), control.ExitRemote,
			control.CodeRefused, false},
		{"no such repository", nil, mount(s.URL("other.git")), control.ExitRemote, control.CodeNotFound, false},
		{"no such ref", nil, mount(good, "--ref", "mian"), control.ExitRemote, control.CodeNotFound, false},
		{"refused connection", nil, mount("http://" + closed + "/r.git"), control.ExitRemote, control.CodeUnreachable, true},
		{"limited", &gittest.Fault{Kind: gittest.Status, Status: http.StatusTooManyRequests, RetryAfter: time.Hour},
			mount(good, "--timeout", "2s"), control.ExitRemote, control.CodeRateLimited, true},
		{"unknown scheme", nil, mount("ftp://host.invalid/r.git"), control.ExitUsage, control.CodeUsage, false},
		{"unknown flag", nil, []string{"mount", good, "--bogus", "--json"}, control.ExitUsage, control.CodeUsage, false},
		{"mounted already", nil, []string{"mount", good, m.Dir, "--json"}, control.ExitFailed, control.CodeConflict, false},
		{"nothing mounted", nil, []string{"status", dir, "--json"}, control.ExitNotMounted, control.CodeNotMounted, false},
		{"no such session", nil, []string{"session", "log", "-C", "none-such", "--json"}, control.ExitNotMounted,
			control.CodeNotFound, false},
		{"no such checkpoint", nil, []string{"session", "show", "none-such", "-C", m.Dir, "--json"}, control.ExitNotMounted,
			control.CodeNotFound, false},
		{"unmount of nothing, after the result", nil, []string{"unmount", dir, "--json"}, control.ExitNotMounted,
			control.CodeNotMounted, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{TB: t, root: w.root, state: w.state, repos: w.repos}
			if c.fault != nil {
				defer s.Inject(*c.fault).Remove()
			}
			r := w.afs(c.args...)
			e := w.reported(r)
			if r.code != c.exit || e.Code != c.code || e.Retryable != c.retryable {
				t.Errorf("got exit code %d and %+v, want %d and code %q, retryable %v", r.code, e, c.exit, c.code, c.retryable)
			}
			if first, _, _ := strings.Cut(r.stderr, "\n"); first != "artifactfs: "+e.Message {
				t.Errorf("message: got %q, want the one on stderr: %q", e.Message, first)
			}
			if e.Hint != "" && !strings.Contains(r.stderr, "hint: "+e.Hint+"\n") {
				t.Errorf("hint %q is not the one of stderr: %s", e.Hint, r.stderr)
			}
		})
	}

	t.Run("no daemon", func(t *testing.T) {
		w := &world{TB: t, root: w.root, state: w.state}
		e := w.reported(w.afs("status", "--socket", filepath.Join(w.root, "none.sock"), "--json"))
		if e.Code != control.CodeNoDaemon || !e.Retryable {
			t.Errorf("status of a socket without a daemon: got %+v, want code %q, retryable", e, control.CodeNoDaemon)
		}
	})
}

func TestVersionFlag(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"--version"}, {"--version", "--json"}} {
		if got, want := w.ok(args...), w.ok(append([]string{"version"}, args[1:]...)...); got != want {
			t.Errorf("%v: got %q, want %q as of the version command", args, got, want)
		}
	}
}
