package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// serving starts "artifactfs serve" with the flags and returns its URL and a function that stops it.
func (a *afs) serving(flags ...string) (url string, output func() string) {
	a.t.Helper()
	cmd := a.command(append([]string{"serve", "--listen", "127.0.0.1:0", "--json"}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	stopped := false
	stop := func() string {
		a.t.Helper()
		if !stopped {
			stopped = true
			cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				a.t.Errorf("serve: %v\n%s", err, &stderr)
			}
		}
		return stderr.String()
	}
	a.t.Cleanup(func() { stop() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		a.t.Fatalf("serve printed nothing: %v", err)
	}
	var reply struct{ URL string }
	if err := json.Unmarshal(line, &reply); err != nil {
		a.t.Fatalf("serve printed %s: %v", line, err)
	}
	return reply.URL, stop
}

// The commands find the server of this host and its token, and do what their names say.
func TestServerCommands(t *testing.T) {
	a := newAfs(t)
	url, stop := a.serving()
	if got := a.ok("repo", "create", "team/app", "--description", "the app"); !strings.HasPrefix(got,
		"created team/app\n  remote    "+url+"/git/team/app.git\n  token     not shown, ") || strings.Contains(got, "art_v1_") {
		t.Errorf("repo create printed\n%s", got)
	}
	if got := a.ok("repo", "create", "team/temporary", "--json"); !strings.Contains(got, `"token":"art_v1_`) {
		t.Errorf("repo create --json printed\n%s", got)
	}
	a.ok("repo", "delete", "team/temporary", "--yes")
	for _, c := range []struct {
		args string
		code int
		want string // in stdout, or stderr if code is not 0
	}{
		{"repo create team/app", 1, "artifactfs: create repository team/app: repo already exists: app\n"},
		{"repo create team/app --exist-ok", 0, "team/app\n  remote    " + url},
		{"repo create team/-", 2, "artifactfs: create repository team/-: Invalid repo name"},
		{"repo create app", 2, "want NAMESPACE/NAME\nhint: artifactfs repo create --help\n"},
		{"repo show team/app", 0, "  about     the app\n"},
		{"repo show team/none", 3, "artifactfs: show repository team/none: Repository not found\n"},
		{"repo fork team/app trial", 0,
			"forked team/app to team/trial\n  remote    " + url + "/git/team/trial.git\n  token     not shown, "},
		{"repo fork team/app people/trial", 0, "forked team/app to people/trial\n"},
		{"repo list team --sort name --ascending", 0,
			"NAME   BRANCH  STATUS  PUSHED  SOURCE              REMOTE\napp    main    ready   never   -                   " +
				url},
		{"repo list team --limit 1 --json", 0, `{"repos":[{"id":`},
		{"repo list none", 3, "namespace none"},
		{"repo list none --json", 3, "namespace none"},
		{"repo list team --search nothing", 0, ""},
		{"repo delete team/trial", 2, "deletion must be confirmed, but standard input is not a terminal\nhint: add --yes"},
		{"repo delete team/trial --yes", 0, "deleted team/trial\n"},
		{"namespace list", 0, "NAME    REPOSITORIES  JURISDICTION  UPDATED\npeople  1"},
		{"namespace create other --jurisdiction eu", 0, "created namespace other\n"},
		{"namespace show other", 0, "  place     eu\n"},
		{"namespace delete other --yes", 0, "deleted other\n"},
		{"namespace delete people --yes", 1, "artifactfs: delete namespace people: "},
		{"token create team/app --refs =no-push", 2, "glob is empty"},
		{"token create team/app --refs refs/heads/*=no-way", 2, "want GLOB or GLOB=DENIAL"},
		{"token create team/app --ttl 1s", 2, "ttl must be between 60 and 31536000 seconds"},
		{"token list team/app --json", 0, `{"tokens":[{"id":`},
		{"token revoke team/app none", 3, "artifactfs: revoke token none: Token not found\n"},
		{"--server " + url + " repo list team", 0, "app "},
		{"repo list team --server http://127.0.0.1:1", 3, "hint: artifactfs serve starts a server"},
		{"repo list team --server nowhere", 2, "URL must begin with http or https"},
		{"serve --listen nowhere", 2, "want HOST:PORT"},
		{"serve --tls-cert x", 2, "--tls-cert and --tls-key must be given together"},
		{"serve --account x", 2, "want 32 hexadecimal digits"},
		{"serve --git-processes -1", 2, "invalid number -1 for --git-processes"},
		{"serve --git-time -1s", 2, "invalid time -1s for --git-time"},
		{"serve --git-memory 10M", 2, "invalid size 10M for --git-memory: want at least 64M"},
		{"serve --max-push-size none", 2, "invalid size"},
		{"serve --listen 127.0.0.1:0", 1, "another server uses this directory\nhint: --data DIR"},
		{"serve --data other --listen " + strings.TrimPrefix(url, "http://"), 1,
			"another program listens at this address\nhint: --listen"},
	} {
		r := a.run(strings.Fields(c.args)...)
		got := r.stdout
		if c.code != 0 {
			got = r.stderr
		}
		if r.code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%s: exit %d\n%s%s\nwant exit %d with %q", c.args, r.code, r.stdout, r.stderr, c.code, c.want)
		}
	}

	token := a.run("token", "create", "team/app", "--scope", "read", "--ttl", "1h", "--label", "ci", "--refs",
		"refs/heads/**=no-delete")
	if !regexp.MustCompile(`^art_v1_[0-9a-f]{40}\?expires=[0-9]+\n$`).MatchString(token.stdout) {
		t.Errorf("token create printed %q", token.stdout)
	}
	var list struct {
		Tokens []struct{ ID, Label, Scope string }
	}
	if err := json.Unmarshal([]byte(a.ok("token", "list", "team/app", "--json")), &list); err != nil ||
		len(list.Tokens) != 2 ||
		list.Tokens[0].Label != "ci" || list.Tokens[0].Scope != "read" {
		t.Fatalf("token list: got %+v, %v", list, err)
	}
	a.ok("token", "revoke", "team/app", list.Tokens[0].ID)
	if got := a.ok("token", "list", "team/app", "--which", "revoked"); !strings.Contains(got,
		list.Tokens[0].ID+"  read   revoked") {
		t.Errorf("token list --which revoked printed\n%s", got)
	}

	old := list.Tokens[1].ID
	rotated := a.run("token", "rotate", "team/app", old)
	if !regexp.MustCompile(`^art_v1_[0-9a-f]{40}\?expires=[0-9]+\n$`).MatchString(rotated.stdout) ||
		!strings.Contains(rotated.stderr, "(write) expires ") {
		t.Errorf("token rotate printed %q and %q", rotated.stdout, rotated.stderr)
	}
	if got := a.ok("token", "list", "team/app"); strings.Contains(got, old) || strings.Count(got, "active") != 1 {
		t.Errorf("tokens after the rotation:\n%s", got)
	}
	if r := a.run("token", "rotate", "team", old); r.code == 0 || !strings.Contains(r.stderr, "Token is not active") {
		t.Errorf("rotation of a token that was rotated: exit %d\n%s", r.code, r.stderr)
	}

	owner := a.run("namespace", "token", "team", "--ttl", "1h")
	if !strings.HasPrefix(owner.stdout, "afs_owner_") ||
		!strings.Contains(owner.stderr, "(owner of team, write) expires ") {
		t.Errorf("namespace token printed %q and %q", owner.stdout, owner.stderr)
	}
	limited := newAfs(t)
	limited.env = []string{"ARTIFACTFS_SERVER=" + url, "ARTIFACTFS_SERVER_TOKEN=" + strings.TrimSpace(owner.stdout)}
	limited.ok("repo", "create", "team/own")
	if r := limited.run("repo", "list", "people"); r.code != 3 || !strings.Contains(r.stderr, "Authentication error") {
		t.Errorf("repo list of a namespace of others: exit %d\n%s", r.code, r.stderr)
	}

	admin, err := os.ReadFile(filepath.Join(a.state, "server", "admin-token"))
	if err != nil {
		t.Fatal(err)
	}
	if log := stop(); strings.Contains(log, "afs_admin_") || strings.Contains(log, "art_v1_") {
		t.Errorf("the log has a token:\n%s", log)
	}
	// On another host, here with another state directory, the variables select the server.
	url, _ = a.serving()
	away := newAfs(t)
	if r := away.run("repo", "list", "team", "--server", url); r.code != 3 ||
		!strings.Contains(r.stderr, "hint: set $ARTIFACTFS_SERVER_TOKEN") {
		t.Errorf("repo list without a token: exit %d\n%s", r.code, r.stderr)
	}
	away.env = []string{"ARTIFACTFS_SERVER=" + url, "ARTIFACTFS_SERVER_TOKEN=" + strings.TrimSpace(string(admin))}
	if got := away.ok("repo", "show", "team/app"); !strings.Contains(got, url) {
		t.Errorf("repo show with variables printed\n%s", got)
	}
	// A token for one server is not sent to another one.
	other := newAfs(t)
	otherURL, _ := other.serving()
	if r := away.run("repo", "list", "team", "--server", otherURL); r.code != 3 ||
		!strings.Contains(r.stderr, "Authentication error") {
		t.Errorf("repo list of another server: exit %d\n%s", r.code, r.stderr)
	}
}

// Only a terminal gets the admin token.
func TestAdminTokenOnTerminal(t *testing.T) {
	for _, flags := range [][]string{{"--background"}, {"--background", "--json"}} {
		a := newAfs(t)
		terminal, shown := newTerminal(t)
		cmd := a.command(append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
		cmd.Stdout = terminal
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.run("serve", "--stop") })
		terminal.Close()
		text, _ := io.ReadAll(shown) // it ends with EIO
		if !strings.Contains(string(text), "afs_admin_") {
			t.Errorf("serve %v on a terminal printed\n%s", flags, text)
		}
	}
}

// newTerminal returns a new terminal, and the file from which what it shows is read.
func newTerminal(t *testing.T) (terminal, shown *os.File) {
	t.Helper()
	shown, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shown.Close() })
	if err := unix.IoctlSetPointerInt(int(shown.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(shown.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return terminal, shown
}

// A server in the background is ready when the command returns, and ends after `serve --stop`.
func TestServerInBackground(t *testing.T) {
	a := newAfs(t)
	got := a.ok("serve", "--background", "--listen", "127.0.0.1:0", "--account", strings.Repeat("0f", 16),
		"--max-push-size", "1K")
	if !strings.Contains(got, "  account   0f0f") || strings.Contains(got, "afs_admin_") ||
		!strings.Contains(got, "  token     the new admin token is in "+filepath.Join(a.state, "server", "admin-token")) {
		t.Errorf("serve --background printed\n%s", got)
	}
	t.Cleanup(func() { a.run("serve", "--stop") })
	a.ok("repo", "create", "team/app")
	_, rest, _ := strings.Cut(got, "serving at ")
	url, _, _ := strings.Cut(rest, "\n")
	command := strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " refs/heads/main\x00report-status"
	body := fmt.Sprintf("%04x%s0000%s", 4+len(command), command, strings.Repeat("x", 2<<10))
	push, err := http.NewRequest("POST", url+"/git/team/app.git/git-receive-pack", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	push.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	push.Header.Set("Authorization", "Bearer "+strings.TrimSpace(a.run("token", "create", "team/app").stdout))
	if resp, err := http.DefaultClient.Do(push); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("push of 2 KiB: got %v, %v", resp, err)
	}
	if r := a.run("serve", "--background", "--listen", "127.0.0.1:0"); r.code != 1 ||
		!strings.Contains(r.stderr, "another server uses this directory") {
		t.Errorf("second server: exit %d\n%s", r.code, r.stderr)
	}
	if token := a.ok("serve", "--new-admin-token"); !strings.HasPrefix(token, "afs_admin_") {
		t.Errorf("serve --new-admin-token printed %q", token)
	}
	a.ok("repo", "show", "team/app") // by the new token, which is in the file now
	if got := a.ok("serve", "--stop"); got != "stopped server of "+filepath.Join(a.state, "server")+"\n" {
		t.Errorf("serve --stop printed %q", got)
	}
	if r := a.run("serve", "--stop"); r.code != 1 ||
		!strings.Contains(r.stderr, "no server is running with this directory") {
		t.Errorf("serve --stop without a server: exit %d\n%s", r.code, r.stderr)
	}
}
