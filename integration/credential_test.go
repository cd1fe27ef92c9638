package integration

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// private serves a repository that accepts fetches and pushes only with the name user and the password.
func (w *world) private(name string) (s served, r *gittest.Receiver, locked *gittest.Injection) {
	w.Helper()
	r = must[*gittest.Receiver](w)(gittest.NewReceiver(filepath.Join(w.repos, name),
		gittest.RepoOptions{Format: object.SHA1}))
	w.commit(r.Repo, sample(name))
	s = w.serve(gittest.ServerOptions{})
	return s, r, s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
}

// asUser returns the URL with the user's name.
func asUser(url string) string { return strings.Replace(url, "://", "://user@", 1) }

// gitIn runs a script with stock git in dir, with nothing of the user's configuration.
func (w *world) gitIn(dir, script string, env ...string) (string, error) {
	w.Helper()
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir, cmd.Env = dir, append(gittest.Env(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal to ask at
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// fetchAndPush is a script that must work in the mount of a private repository; $1 names the branch.
const fetchAndPush = `git fetch -q origin
git checkout -q -b "$1"
git commit -q --allow-empty -m "$1"
git push -q origin "$1"
git ls-remote origin "refs/heads/$1"`

func logsIn(branch string) string { return "set -- " + branch + "\n" + fetchAndPush }

// git in a mount uses the credentials of the mount, however they were passed, also in a container, in a linked worktree
// and after the daemon has died. The password is in no file and in no command line.
func TestGitLogsInAsTheMount(t *testing.T) {
	w := newWorld(t)
	s, r, _ := w.private("r.git")
	url := s.URL("r.git")
	file := filepath.Join(w.root, "token")
	w.check(os.WriteFile(file, []byte(password+"\n"), 0o600))
	watch := w.watchCommandLines()
	pushed := func(what, branch, out string, err error) {
		t.Helper()
		tip, ok := must[map[string]object.ID](t)(r.Refs())["refs/heads/"+branch]
		if err != nil || !ok || !strings.Contains(out, tip.String()) {
			t.Errorf("fetch and push of %s: %v\n%s", what, err, out)
		}
	}
	for _, c := range []struct {
		name, url string
		env, args []string
	}{
		{"url", withSecret(url), nil, nil},
		{"environment", asUser(url), []string{"ARTIFACTFS_TOKEN=" + password}, nil},
		{"file", asUser(url), nil, []string{"--token-file", file}},
	} {
		w.env = c.env
		m := w.mount(c.url, c.args...)
		w.env = nil
		out, err := w.gitIn(m.Dir, logsIn(c.name))
		pushed("a mount by "+c.name, c.name, out, err)
		syscall.Kill(w.serving(), syscall.SIGKILL)
		out, err = w.gitIn(m.Dir, "git worktree add -q --detach ../linked-"+c.name+"\ncd ../linked-"+c.name+"\n"+
			logsIn(c.name+"-linked"))
		pushed("a linked worktree of a mount by "+c.name+", after a takeover", c.name+"-linked", out, err)
		if config, err := w.gitIn(m.Dir, "git config --list --show-origin"); err != nil ||
			strings.Contains(config, password) {
			t.Errorf("configuration of a mount by %s: %v\n%s", c.name, err, config)
		}
		w.unmount(m)
		if stop := watch; stop != nil { // watching takes a whole processor
			watch = nil
			if lines := stop(); strings.Contains(lines, password) {
				t.Errorf("the password is in a command line:\n%s", lines)
			}
		}
	}
	inside := w.mount(withSecret(url), "--git-dir", "inside")
	boxed := filepath.Join(w.root, "boxed")
	w.check(os.WriteFile(boxed, []byte(logsIn("boxed")), 0o644))
	res := w.script(strings.Replace(box, " --net", "", 1), inside.Dir, boxed) // with the network of the host
	pushed("a container", "boxed", res.stdout+res.stderr, nil)
	w.noSecret()
}

// The token is sent only to the host that it is for, and returned only to users who may use the mount.
func TestTokenStaysWithItsHost(t *testing.T) {
	w := newWorld(t)
	letIn(t, w.root)
	s, _, _ := w.private("r.git")
	m := w.mount(withSecret(s.URL("r.git")), "--wait", "git", "--allow-other")
	ask := `printf 'url=%s\n\n' "$1" | git credential fill`
	fill := func(url string) string {
		t.Helper()
		out, _ := w.gitIn(m.Dir, "set -- "+url+"\n"+ask)
		return out
	}
	if out := fill(s.URL("r.git")); !strings.Contains(out, "username=user\npassword="+password) {
		t.Errorf("credential of the remote: got %q", out)
	}
	for _, other := range []string{"http://localhost:1/r.git", strings.Replace(s.URL("r.git"), "http:", "https:", 1),
		strings.Replace(s.URL("r.git"), "127.0.0.1", "127.0.0.2", 1)} {
		if out := fill(other); strings.Contains(out, password) {
			t.Errorf("credential of %s: got the remote's", other)
		}
		// A program that asks the helper without git does not get the token either.
		cmd := exec.Command(binary, "credential", "helper", m.gitDir(), "get")
		scheme, rest, _ := strings.Cut(other, "://")
		cmd.Stdin = strings.NewReader("protocol=" + scheme + "\nhost=" + strings.TrimSuffix(rest, "/r.git") + "\n\n")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), password) {
			t.Errorf("credential helper for %s: got %v, %s, want no credential", other, err, out)
		}
	}
	socket := filepath.Join(m.gitDir(), "artifactfs-credential")
	letIn(t, m.gitDir())
	w.check(os.Chmod(socket, 0o777)) // the daemon checks the user of the connection anyway
	cmd := exec.Command(binary, "credential", "helper", m.gitDir(), "get")
	cmd.Stdin = strings.NewReader("protocol=http\nhost=" + strings.TrimPrefix(strings.TrimSuffix(s.URL("r.git"), "/r.git"),
		"http://") + "\n\n")
	if out, err := runAsNobody(cmd); err == nil || strings.Contains(out, password) {
		t.Errorf("credential helper run by another user: got %v, %q, want no credential", err, out)
	}
}

// rotate makes the server refuse the previous password and accept another.
func (w *world) rotate(s served, locked *gittest.Injection, to string) *gittest.Injection {
	locked.Remove()
	return s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: to})
}

// setToken replaces the token of a mount; the command reads the new one from stdin.
func (w *world) setToken(token string, args ...string) result {
	w.Helper()
	return w.script(`t=$1; shift; printf '%s\n' "$t" | artifactfs credential set "$@"`,
		append([]string{token}, args...)...)
}

// A new token takes effect at once for all mounts that had the old one, and after the daemon has died. A refused token
// changes nothing.
func TestRotatedToken(t *testing.T) {
	w := newWorld(t)
	s, r, locked := w.private("r.git")
	must[*gittest.Receiver](w)(gittest.NewReceiver(filepath.Join(w.repos, "s.git"),
		gittest.RepoOptions{Format: object.SHA1}))
	url, files := s.URL("r.git"), sample("r.git")
	lazy := []string{"--history", "none", "--prefetch", "none", "--wait", "git"}
	m := w.mount(withSecret(url), append(lazy, "--session", "one", "--session-remote", s.URL("s.git"))...)
	other := w.mount(withSecret(url), lazy...)
	reads := func(m mounted, what, path string) {
		t.Helper()
		if got, err := os.ReadFile(m.path(path)); err != nil || string(got) != string(files[path].Data) {
			t.Errorf("read %s: %v", what, err)
		}
	}
	locked = w.rotate(s, locked, "second-"+password)
	if _, err := os.ReadFile(m.path("d0/sub/f0")); err == nil {
		t.Error("read with the old token: got no error")
	}
	if out, err := w.gitIn(m.Dir, "git fetch origin"); err == nil {
		t.Errorf("fetch with the old token: %s", out)
	}
	w.refusal(w.setToken("wrong-"+password, m.Dir), 3, "authentication failed",
		"the mount continues to use the previous token")
	w.refusal(w.setToken("", m.Dir), 2, "stdin was empty", "")
	res := w.setToken("second-"+password, m.Dir)
	if res.code != 0 || !strings.Contains(res.stdout, url+" has a new token, for 2 mounts") {
		t.Error(res)
	}
	reads(m, "with the new token", "d0/sub/f0")
	reads(other, "in another mount with the same login", "d1/sub/f1")
	syscall.Kill(w.serving(), syscall.SIGKILL)
	reads(m, "with the new token, after a takeover", "d2/sub/f2")
	out, err := w.gitIn(m.Dir, logsIn("rotated"))
	if tip := must[map[string]object.ID](t)(r.Refs())["refs/heads/rotated"]; err != nil ||
		!strings.Contains(out, tip.String()) {
		t.Errorf("fetch and push with the new token: %v\n%s", err, out)
	}
	w.ok("sync", m.Dir)

	// A token file is read again when its token is refused, and the error names the file when it is empty.
	file := filepath.Join(w.root, "token")
	w.check(os.WriteFile(file, []byte("second-"+password+"\n"), 0o600))
	w.ok("credential", "set", m.Dir, "--token-file", file)
	locked = w.rotate(s, locked, "third-"+password)
	w.check(os.WriteFile(file, nil, 0o600))
	if out, err := w.gitIn(m.Dir, "git fetch origin"); err == nil ||
		!strings.Contains(out, "token file "+file+": the file is empty") {
		t.Errorf("fetch with an empty token file: %v, %s", err, out)
	}
	r2 := w.afs("mount", asUser(url), w.place("m"), "--token-file", file)
	w.refusal(r2, 3, "token file "+file+": the file is empty", "")
	w.check(os.WriteFile(file, []byte("third-"+password+"\n"), 0o600))
	reads(other, "with the file's new token", "d3/sub/f3")
	if out, err := w.gitIn(m.Dir, "git fetch origin"); err != nil {
		t.Errorf("fetch with the file's new token: %v, %s", err, out)
	}
	w.unmount(m)
	locked.Remove()
	w.noSecret()
}

// A session remote on another host has its own token, which can be replaced. Neither host receives the token of the
// other.
func TestTokenOfTheSessionRemote(t *testing.T) {
	w := newWorld(t)
	s, _, _ := w.private("r.git")
	c := w.sessionRemote("http", nil)
	locked := c.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "of-" + password})
	file := filepath.Join(w.root, "token")
	w.check(os.WriteFile(file, []byte("of-"+password), 0o600))
	w.env = append(w.env, "ARTIFACTFS_TOKEN="+password)
	m := w.mount(asUser(s.URL("r.git")), "--session", "one", "--session-remote", asUser(c.arg), "--session-token-file",
		file, "--wait", "git")
	w.env = nil
	w.sh(m.Dir, "echo 1 >work && git add work && git commit -qm 1")
	w.ok("sync", m.Dir)
	if out, err := w.gitIn(m.Dir, "git ls-remote "+c.arg); err != nil || !strings.Contains(out, "refs/") {
		t.Errorf("git ls-remote of the session remote: %v, %s", err, out)
	}
	locked.Remove()
	locked = c.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "new-" + password})
	w.sh(m.Dir, "echo 2 >work && git commit -qam 2")
	if r := w.afs("sync", m.Dir, "--timeout", "300ms"); r.code == 0 {
		t.Errorf("sync with the old token of the session remote: %s", r)
	}
	if r := w.setToken("new-"+password, m.Dir, "--for-session-remote"); r.code != 0 ||
		!strings.Contains(r.stdout, "for 1 mount") {
		t.Error(r)
	}
	syscall.Kill(w.serving(), syscall.SIGKILL)
	w.ok("sync", m.Dir)
	if out, err := w.gitIn(m.Dir, "git fetch origin"); err != nil {
		t.Errorf("fetch after the session remote has a new token: %v, %s", err, out)
	}
	w.unmount(m)
	locked.Remove()
	w.noSecret()
}

// guarded is a git server behind a proxy that records the passwords that clients send. The server accepts one password.
type guarded struct {
	url string

	mu   sync.Mutex
	seen map[string]bool
}

// guard puts a proxy before the server at a URL.
func (w *world) guard(at string) *guarded {
	w.Helper()
	u := must[*url.URL](w)(url.Parse(at))
	g := &guarded{seen: map[string]bool{}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: u.Scheme, Host: u.Host})
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	s := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		g.mu.Lock()
		g.seen[password] = true
		g.mu.Unlock()
		proxy.ServeHTTP(answer, r)
	}))
	w.Cleanup(func() {
		w.afs("unmount", "--all")
		s.Close()
	})
	g.url = asUser(s.URL + u.Path)
	return g
}

// only checks that no other password than the parameter own was sent since the last call.
func (g *guarded) only(t *testing.T, args []string, own string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.seen, "")
	delete(g.seen, own)
	if len(g.seen) > 0 {
		t.Errorf("artifactfs %s sent %q to a host whose password is %s", strings.Join(args, " "),
			slices.Collect(maps.Keys(g.seen)), own)
	}
	clear(g.seen)
}

// Commands that open the session remote and another repository send to each host only the token that is for it.
func TestTokensOfTwoHosts(t *testing.T) {
	w := newWorld(t)
	s, r, _ := w.private("r.git")
	old := w.git(r.Path, "rev-parse", "main")
	w.commit(r.Repo, map[string]gittest.File{"upstream": {Data: []byte("upstream\n")}})
	c := w.sessionRemote("http", r.Repo)
	c.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "of-" + password})
	source, first := w.guard(s.URL("r.git")), w.guard(c.arg)
	other := w.guard(s.URL("r.git")) // a third host, for which no token is known
	file := filepath.Join(w.root, "token")
	w.check(os.WriteFile(file, []byte("of-"+password), 0o600))
	w.env = append(w.env, "ARTIFACTFS_TOKEN="+password)
	flags := func(name string) []string {
		return []string{"--session", name, "--session-remote", first.url, "--session-token-file", file, "--wait", "git",
			"--checkpoint", "off"}
	}
	one := w.bare(source.url, flags("one")...)
	two := w.bare(source.url, append(flags("two"), "--ref", old)...)
	w.env = nil
	for _, m := range []mounted{one, two} {
		w.sh(m.Dir, "echo "+m.Session+" >"+m.Session+" && git add . && git commit -qam "+m.Session)
		m.checkpoint("--sync")
	}
	third := filepath.Join(w.root, "third")
	w.check(os.WriteFile(third, []byte("third-"+password), 0o600))
	fork := func(n int) string { return filepath.Join(w.root, fmt.Sprint("fork-", n)) }
	parent := strings.Replace(first.url, "user@", "user:of-"+password+"@", 1) + "#session=one"
	for _, c := range []struct {
		code int
		args []string
	}{
		// reads the history between the two commits from the mounted remote
		{0, []string{"session", "compare", "one", "two"}},
		{0, []string{"session", "diff", "one@", "two@"}},
		{0, []string{"session", "annotate", "-C", "one", "-m", "text"}},
		{0, []string{"session", "annotations", "-C", "one"}},
		{0, []string{"session", "cache", "put", "-C", "one", "key", file}},
		{0, []string{"session", "review", "request", "-C", "one", "--for", "merge"}},
		{0, []string{"session", "review", "request", "-C", "one", "--for", "promote"}},
		{control.ExitRemote, []string{"session", "review", "request", "-C", "one", "--for", "promote", "--to",
			other.url + ":main"}},
		{0, []string{"session", "review", "list", "-C", "one"}},
		{0, []string{"session", "promote", "-C", "one", "--to", ":copy"}},
		{control.ExitRemote, []string{"session", "promote", "-C", "one", "--to", other.url + ":copy"}},
		{0, []string{"session", "fork", "-C", "one", fork(1), "--session-remote", first.url}},
		{0, []string{"session", "fork", "-C", "one", fork(2), "--session-remote", other.url}},
		{0, []string{"session", "fork", "-C", "one", fork(3), "--session-remote", control.RemoteOrigin}},
		{0, []string{"session", "fork", parent, fork(4), "--session-remote", other.url, "--session-token-file", third}},
		{0, []string{"session", "link", "-C", "one"}},
		{0, []string{"session", "merge", "-C", "one", "two"}},
		{0, []string{"unmount", two.Dir}},
		{0, []string{"session", "resume", "two", "--session-remote", first.url, "--session-token-file", file}},
	} {
		result := w.afs(c.args...)
		if result.code != c.code {
			t.Errorf("got %s, want exit code %d", result, c.code)
		}
		source.only(t, c.args, password)
		first.only(t, c.args, "of-"+password)
		other.only(t, c.args, "third-"+password)
	}
	w.noSecret()
}

// Credentials in the environment of the mount command are used for that mount, although a daemon without them already
// runs, and git in the mount needs no such environment. They are on no disk and not in the environment of the daemon.
func TestCallersEnvironmentCounts(t *testing.T) {
	w := newWorld(t)
	s, r, _ := w.private("r.git")
	url, files := s.URL("r.git"), sample("r.git")
	askpass := filepath.Join(w.root, "askpass")
	w.check(writeProgram(askpass, []byte("#!/bin/sh\ncase $1 in Username*) echo user;; *) echo \"$CI_WORD\";; esac\n")))
	sshRoot := filepath.Join(w.root, "ssh")
	shared := must[*gittest.Receiver](w)(gittest.NewReceiver(filepath.Join(sshRoot, "k.git"),
		gittest.RepoOptions{Format: object.SHA1}))
	w.commit(shared.Repo, sample("k.git"))
	ssh, command, err := gittest.ServeSSH(gittest.ServerOptions{Root: sshRoot})
	w.check(err)
	w.Cleanup(func() { w.afs("unmount", "--all"); ssh.Close() })
	lazy := []string{"--prefetch", "none", "--wait", "git"}
	header := "GIT_CONFIG_VALUE_0=Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+password))
	for i, c := range []struct {
		name, url string
		env       []string // of the mount command alone
		git       []string // of git in the mount
	}{
		// starts the daemon
		{"header", url, []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", header}, nil},
		{"askpass", url, []string{"GIT_ASKPASS=" + askpass, "CI_WORD=" + password}, nil},
		{"helper", url, []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=credential.helper",
			`GIT_CONFIG_VALUE_0=!f() { echo username=user; echo "password=$CI_TOKEN"; }; f`, "CI_TOKEN=" + password}, nil},
		{"ssh", ssh.URL("k.git"), []string{"GIT_SSH_COMMAND=" + command}, []string{"GIT_SSH_COMMAND=" + command}},
	} {
		w.env = c.env
		m := w.mount(c.url, lazy...)
		w.env = nil
		syscall.Kill(w.serving(), syscall.SIGKILL) // and the next worker has the credentials, too
		path, want, where := fmt.Sprintf("d%d/sub/f%d", i, i), files, r
		if c.name == "ssh" {
			want, where = sample("k.git"), shared
		}
		if got, err := os.ReadFile(m.path(path)); err != nil || string(got) != string(want[path].Data) {
			t.Errorf("%s: read %s: %v", c.name, path, err)
		}
		out, err := w.gitIn(m.Dir, logsIn(c.name), c.git...)
		if tip := must[map[string]object.ID](t)(where.Refs())["refs/heads/"+c.name]; err != nil ||
			!strings.Contains(out, tip.String()) {
			t.Errorf("%s: fetch and push: %v\n%s", c.name, err, out)
		}
		w.unmount(m)
		for _, pid := range daemonsBelow(w.root) {
			if env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); strings.Contains(string(env), password) ||
				strings.Contains(string(env), "Authorization") {
				t.Errorf("%s: the environment of process %d contains a credential", c.name, pid)
			}
		}
	}
	w.env = []string{"GIT_CONFIG_COUNT=0"}
	// the environment of one mount command does not count for another mount
	if res := w.afs("mount", url, w.place("m")); res.code != 3 {
		t.Errorf("mount without credentials: %s", res)
	}
	w.noSecret()
}

// Submodules on the same host, with a relative or an absolute URL, use the credentials of the mount around them, and
// its new token when that is replaced. Another host never receives the token.
func TestSubmodulesLogInAsTheMountAround(t *testing.T) {
	w, server := nested(t)
	other, heard := newWorld(t), make(chan string, 64)
	foreign := other.repo("foreign.git", object.SHA1)
	tip := other.commit(foreign, sample("foreign"))
	far := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		select {
		case heard <- r.Header.Get("Authorization"):
		default:
		}
		rw.Header().Set("WWW-Authenticate", "Basic")
		rw.WriteHeader(http.StatusUnauthorized)
	}))
	defer far.Close()
	around := w.repo("around.git", object.SHA1)
	outer :=
		must[map[string]object.ID](t)((&gittest.Repo{Path: filepath.Join(w.repos, "outer.git")}).Refs())["refs/heads/main"]
	w.commit(around, map[string]gittest.File{
		"outer": {Data: []byte(outer.String()), Mode: "160000"},
		"far":   {Data: []byte(tip.String()), Mode: "160000"},
		".gitmodules": {Data: []byte("[submodule \"outer\"]\n\tpath = outer\n\turl = " + server.URL("outer.git") + "\n" +
			"[submodule \"far\"]\n\tpath = far\n\turl = " + far.URL + "/foreign.git\n")},
	})
	locked := server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
	m := w.bare(withSecret(server.URL("around.git")), "--recurse-submodules")
	lib, inner := m.path("outer/vendor/lib"), m.path("outer/vendor/lib/in/inner")
	w.wantFile(filepath.Join(lib, "lib.txt"), "lib\n")
	locked = w.rotate(server, locked, "next-"+password)
	if r := w.setToken("next-"+password, m.Dir); r.code != 0 || !strings.Contains(r.stdout, "for 4 mounts") {
		t.Error(r)
	}
	w.wantFile(filepath.Join(inner, "inner.txt"), "inner\n")
	for _, dir := range []string{m.Dir, lib, inner} {
		if out, err := w.gitIn(dir, "git fetch -q origin"); err != nil {
			t.Errorf("fetch in %s: %v, %s", dir, err, out)
		}
	}
	far.Close() // waits for its handlers
	close(heard)
	n := 0
	for header := range heard {
		if n++; header != "" {
			t.Errorf("another host received the header %q", header)
		}
	}
	if n == 0 {
		t.Error("no request for the submodule on another host arrived")
	}
	locked.Remove()
	w.noSecret()
}
