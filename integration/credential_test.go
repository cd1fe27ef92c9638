package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/gittest"
	"github.com/artifactfs/artifactfs/object"
)

// private serves a repository that takes pushes, to those alone who log in as user with the password.
func (w *world) private(name string) (s served, r *gittest.Receiver, locked *gittest.Injection) {
	w.Helper()
	r = must[*gittest.Receiver](w)(gittest.NewReceiver(filepath.Join(w.repos, name), gittest.RepoOptions{Format: object.SHA1}))
	w.commit(r.Repo, sample(name))
	s = w.serve(gittest.ServerOptions{})
	return s, r, s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
}

// asUser is a URL with the user's name.
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

// fetchAndPush is what must work in the mount of a private repository; $1 names the branch.
const fetchAndPush = `git fetch -q origin
git checkout -q -b "$1"
git commit -q --allow-empty -m "$1"
git push -q origin "$1"
git ls-remote origin "refs/heads/$1"`

func logsIn(branch string) string { return "set -- " + branch + "\n" + fetchAndPush }

// git in a mount logs in as the mount does, whichever way that was told, also in a container, in a linked worktree and after
// the daemon has died; and the secret is nowhere.
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
		out, err = w.gitIn(m.Dir, "git worktree add -q --detach ../linked-"+c.name+"\ncd ../linked-"+c.name+"\n"+logsIn(c.name+"-linked"))
		pushed("a linked worktree of a mount by "+c.name+", after a takeover", c.name+"-linked", out, err)
		if config, err := w.gitIn(m.Dir, "git config --list --show-origin"); err != nil || strings.Contains(config, password) {
			t.Errorf("configuration of a mount by %s: %v\n%s", c.name, err, config)
		}
		w.unmount(m)
		if stop := watch; stop != nil { // it takes a processor
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

// The token goes to the host that it was given for, and to users who may use the mount.
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
	for _, other := range []string{"http://localhost:1/r.git", strings.Replace(s.URL("r.git"), "http:", "https:", 1), strings.Replace(s.URL("r.git"), "127.0.0.1", "127.0.0.2", 1)} {
		if out := fill(other); strings.Contains(out, password) {
			t.Errorf("credential of %s: got the remote's", other)
		}
		// Nor is it answered to a program that asks without git.
		cmd := exec.Command(binary, "credential", "helper", m.gitDir(), "get")
		scheme, rest, _ := strings.Cut(other, "://")
		cmd.Stdin = strings.NewReader("protocol=" + scheme + "\nhost=" + strings.TrimSuffix(rest, "/r.git") + "\n\n")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), password) {
			t.Errorf("the helper asked for %s: %v, %s", other, err, out)
		}
	}
	socket := filepath.Join(m.gitDir(), "artifactfs-credential")
	letIn(t, m.gitDir())
	w.check(os.Chmod(socket, 0o777)) // the daemon asks who it is all the same
	cmd := exec.Command(binary, "credential", "helper", m.gitDir(), "get")
	cmd.Stdin = strings.NewReader("protocol=http\nhost=" + strings.TrimPrefix(strings.TrimSuffix(s.URL("r.git"), "/r.git"), "http://") + "\n\n")
	if out, err := runAsNobody(cmd); err == nil || strings.Contains(out, password) {
		t.Errorf("another user asked the helper: %v, %q", err, out)
	}
}
