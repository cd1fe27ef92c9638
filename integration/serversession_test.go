package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// hosted returns a server, a client of its REST API, and a world whose commands use the server. The server's repository
// team/app has the history of r.git from newTravelled.
func hosted(t *testing.T) (*world, *cluster, *client.Client) {
	t.Helper()
	w, r := newTravelled(t)
	c := newLoneServer(w)
	api := c.api()
	made := must[client.Created](t)(api.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "app"}))
	if _, err := gitAs(context.Background(), r.Path, made.Token, "push", "--quiet", made.Remote,
		"refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	w.env = append(w.env, "ARTIFACTFS_SERVER="+c.proxy.url(), "ARTIFACTFS_SERVER_TOKEN="+c.token)
	w.Cleanup(func() { // before the server is stopped, because unmount pushes to it
		if r := w.afs("unmount", "--all"); r.code != 0 {
			w.Errorf("unmount before the server is stopped: %s", r)
		}
	})
	return w, c, api
}

// noToken reports an error if the text contains a token of the server.
func noToken(t *testing.T, what, text string) {
	t.Helper()
	for _, prefix := range []string{"art_v1_", "afs_admin_"} {
		if i := strings.Index(text, prefix); i >= 0 {
			t.Errorf("%s has a token: ...%.300s", what, text[max(0, i-200):])
		}
	}
}

// Filters are programs of the user, and get neither the token for the REST API nor any other variable of artifactfs.
func TestFiltersGetNoToken(t *testing.T) {
	t.Parallel()
	w, c, _ := hosted(t)
	m := w.bare("team/app", "--create", "--session", "first", "--wait", "git")
	w.sh(m.Dir, "echo '*.filtered filter=shown' >.gitattributes && echo text >a.filtered && git add . && git commit -qm filtered && git push -q origin HEAD:main")
	w.unmount(m)
	shown := filepath.Join(w.root, "environment")
	w.env = append(w.env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=filter.shown.smudge",
		"GIT_CONFIG_VALUE_0=env >"+shown+"; cat", "KEPT_FOR_FILTERS=yes")
	again := w.bare("team/app", "--create", "--session", "second", "--wait", "git")
	if got := w.sh(again.Dir, "cat a.filtered"); got != "text" {
		t.Errorf("filtered file: got %q", got)
	}
	env := string(must[[]byte](t)(os.ReadFile(shown)))
	if !strings.Contains(env, "KEPT_FOR_FILTERS=yes\n") {
		t.Errorf("environment of a filter: got %q, want that of the mount", env)
	}
	if strings.Contains(env, c.token) || strings.Contains(env, "ARTIFACTFS_") {
		t.Errorf("a filter has variables of artifactfs: %q", env)
	}
}

// A session on a private repository of the server can be resumed on another machine after the first machine has died,
// and a fork of the repository from a checkpoint of the session has its files. Commands get no token except the one for
// the REST API.
func TestSessionsOnServer(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	stop := w.watchCommandLines()
	m := w.bare("team/app", "--create", "--session", "work", "--session-branches", "as-is", "--wait", "git")
	w.sh(m.Dir, "ls -R >/dev/null; find . -name .git -prune -o -type f -print >/dev/null; git status --short")
	if n := m.status().Blobs.Fetched; n != 0 {
		t.Errorf("listing and git status fetched %d blobs", n)
	}
	w.sh(m.Dir, "cat d0000/f0000.txt >/dev/null")
	if n := m.status().Blobs.Fetched; n == 0 || n > 6 {
		t.Errorf("reading one file fetched %d blobs", n)
	}
	w.sh(m.Dir, everything)
	p := m.checkpoint("--sync", "-m", "before the end")
	before := w.look(m.Dir)
	if st := m.pushed(); st.Mode != "shared" {
		t.Errorf("session: got %+v, want mode shared", st)
	}
	if strings.Contains(stop(), c.token) {
		t.Error("a command line, or the environment of git, has the token of the REST API")
	}
	alone := *w // without the server
	alone.root = w.state
	alone.killDaemon()
	for _, dir := range mountsBelow(w.root) {
		w.umount(dir)
	}

	o := w.elsewhere()
	again := o.bare("team/app", "--create", "--session", "work", "--take-over", "--wait", "git")
	if !again.Resumed {
		t.Errorf("reply of mount elsewhere: got %+v, want a resumed session", again.MountReply)
	}
	w.same("resumed elsewhere", before, o.look(again.Dir))

	fork := must[client.Created](t)(api.Fork(t.Context(), "team", "app",
		client.Fork{Name: "retry", Checkpoint: "work@" + p.ID}))
	if err := api.DeleteRepo(t.Context(), "team", "none"); err == nil {
		t.Error("deleting a repository that never existed succeeded")
	}
	third := w.elsewhere()
	f := third.bare("team/retry", "--create", "--wait", "git")
	if got := third.git(f.Dir, "rev-parse", "HEAD^{tree}"); got != p.Tree {
		t.Errorf("tree of the fork: got %s, want that of the checkpoint, %s", got, p.Tree)
	}
	if n := f.status().Blobs.Fetched; n != 0 {
		t.Errorf("mounting the fork fetched %d blobs", n)
	}
	if got := third.git(f.Dir, "ls-remote", "origin", "refs/heads/main"); !strings.HasPrefix(got,
		third.git(f.Dir, "rev-parse", "HEAD")) {
		t.Errorf("git ls-remote in the fork: got %q", got)
	}
	third.sh(f.Dir, "echo tried >tried && git add tried && git commit -qm tried")
	f.sync()
	// The fork stays complete without its parent.
	o.unmount(again)
	if err := api.DeleteRepo(t.Context(), "team", "app"); err != nil {
		t.Fatal(err)
	}
	clone := w.place("clone")
	if _, err := gitAs(context.Background(), w.root, fork.Token, "clone", "--quiet", fork.Remote, clone); err != nil {
		t.Fatal(err)
	}
	w.git(clone, "fsck", "--strict", "--no-dangling")
	third.unmount(f)

	for _, state := range []*world{w, o, third} {
		for _, name := range must[[]string](t)(filepath.Glob(filepath.Join(state.state, "server-tokens", "*"))) {
			noToken(t, name, string(must[[]byte](t)(os.ReadFile(name))))
		}
		noToken(t, "log of a daemon", string(must[[]byte](t)(os.ReadFile(state.logFile()))))
	}
	noToken(t, "log of the server", strings.ReplaceAll(string(must[[]byte](t)(os.ReadFile(c.nodes[0].data+".log"))),
		c.token, ""))
}

// A session whose session remote is another private repository of the server than the mounted one is resumed and forked
// on another machine with no token except the one for the REST API.
func TestSessionBesideItsBase(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	app, work := c.proxy.url()+"/git/team/app.git", c.proxy.url()+"/git/team/work.git"
	m := w.bare(app, "--create=session-remote", "--session-remote", "team/work", "--session", "fix")
	w.sh(m.Dir, "echo fixed >fixed")
	w.unmount(m)
	if s := must[client.Session](t)(api.Extensions().Repository("team", "work").Session(t.Context(),
		"fix")); s.Remote != app {
		t.Errorf("mounted repository of the session: got %q, want %q", s.Remote, app)
	}
	for name, args := range map[string][]string{
		"resume": {"session", "resume", "fix", "DIR", "--session-remote", work},
		"link":   {"session", "resume", work + "#session=fix", "DIR"},
		"fork":   {"session", "fork", work + "#session=fix", "DIR"},
		"mount":  {"mount", work + "#session=fix", "DIR"},
	} {
		o := w.elsewhere()
		dir := o.place(name)
		args[slices.Index(args, "DIR")] = dir
		if r := o.afs(args...); r.code != 0 {
			t.Fatalf("%s: %s", name, r)
		}
		if got := o.sh(dir, "cat fixed"); strings.TrimSpace(got) != "fixed" {
			t.Errorf("%s: got %q", name, got)
		}
		if r := o.afs("unmount", "--all"); r.code != 0 {
			t.Fatalf("%s: unmount: %s", name, r)
		}
	}
}

// A session can be based on a commit that another session has made and pushed. If both are mounted on one host, the
// other session has this commit in its own repository; the mount must not rely on that.
func TestSessionBasedOnCommitOfAnother(t *testing.T) {
	t.Parallel()
	w, c, _ := hosted(t)
	app := c.proxy.url() + "/git/team/app.git"
	one := w.bare("team/app", "--create", "--session", "one", "--session-branches", "as-is")
	w.sh(one.Dir, "echo one >one && git add one && git commit -qm one")
	one.sync()
	w.unmount(one)
	two := w.bare(app, "--create=session-remote", "--session-remote", "team/work", "--session", "two")
	if got := w.git(two.Dir, "log", "-1", "--format=%s"); got != "one" {
		t.Fatalf("newest commit of the mounted branch: got %q", got)
	}
	w.sh(two.Dir, "echo two >two")
	w.unmount(two)

	o := w.elsewhere()
	first, second := o.place("first"), o.place("second")
	for _, args := range [][]string{{"session", "resume", app + "#session=one", first},
		{"session", "resume", c.proxy.url() + "/git/team/work.git#session=two", second}} {
		if r := o.afs(args...); r.code != 0 {
			t.Fatalf("%q: %s", args, r)
		}
	}
	o.sh(second, "echo three >three")
	for _, args := range [][]string{{"checkpoint", second}, {"unmount", first}, {"checkpoint", second, "--sync"},
		{"unmount", second}} {
		if r := o.afs(args...); r.code != 0 {
			t.Errorf("%q: %s", args, r)
		}
	}
}

// A mount makes a new token when its token was revoked, and its tokens allow only what it needs.
func TestMountRenewsItsToken(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	revoke := func() (n int) {
		t.Helper()
		for token, err := range api.Tokens(t.Context(), "team", "app", "active") {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(token.Label, "mount on ") {
				continue
			}
			n++
			if err := api.RevokeToken(t.Context(), "team", token.ID); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	if n := revoke(); n != 1 {
		t.Errorf("the mount made %d tokens, want 1", n)
	}
	w.sh(m.Dir, "cat d0001/f0001.txt >/dev/null && echo x >x && git add x && git commit -qm x")
	m.sync()
	if out, err := w.gitIn(m.Dir, "git fetch origin && git ls-remote origin"); err != nil {
		t.Errorf("git in the mount after the token was replaced: %v\n%s", err, out)
	}
	// A worker that takes over the mount can make tokens, too.
	alone := *w // without the server
	alone.root = w.state
	check(t, syscall.Kill(alone.serving(), syscall.SIGKILL))
	if n := revoke(); n != 1 {
		t.Errorf("after one token was revoked the mount has %d, want 1", n)
	}
	w.sh(m.Dir, "cat d0004/f0001.txt >/dev/null && echo y >y && git add y && git commit -qm y")
	m.sync()
	// git's credential helper gets a token for this repository only from the daemon.
	out, err := w.gitIn(m.Dir,
		"printf 'protocol=http\\nhost=%s\\n\\n' \"$(git config remote.origin.url | cut -d/ -f3)\" | git credential fill")
	if err != nil || !strings.Contains(out, "password=art_v1_") || strings.Contains(out, "afs_admin_") {
		t.Errorf("git credential fill: got %v and %q", err, out)
	}
	w.unmount(m)
	// The hint of unmount is a command without --create, which makes tokens, too.
	plain := w.bare(m.Remote, "--session", "work")
	w.sh(plain.Dir, "cat d0002/f0002.txt >/dev/null")
	read := w.bare("team/app", "--create", "--read-only")
	w.sh(read.Dir, "cat d0003/f0003.txt >/dev/null")
	scopes := []string{}
	for token, err := range api.Tokens(t.Context(), "team", "app", "active") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(token.Label, "mount on ") {
			scopes = append(scopes, token.Scope)
		}
	}
	if !slices.Contains(scopes, client.Read) {
		t.Errorf("tokens after a read-only mount: got scopes %v, want read among them", scopes)
	}
}

// A session of a repository of another server stores only its own objects on this server, in a repository that the
// mount creates.
func TestThinSessionOnServer(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	s := w.serve(gittest.ServerOptions{})
	flags := []string{"--session", "thin", "--session-remote", "team/work", "--create=session-remote", "--wait", "git"}
	m := w.bare(s.URL("r.git"), flags...)
	w.sh(m.Dir, everything)
	m.checkpoint("--sync")
	before := w.look(m.Dir)
	if st := m.pushed(); st.Mode != "thin" {
		t.Errorf("session: got %+v, want mode thin", st)
	}
	w.unmount(m)
	usage := must[client.Usage](t)(api.Extensions().Usage(t.Context(), "team", "work", "", ""))
	if usage.Stored == nil || usage.Stored.Own == 0 || usage.Stored.Own > 100_000 {
		t.Errorf("stored for the session: got %+v, want less than 100 kB", usage.Stored)
	}
	o := w.elsewhere()
	again := o.bare(s.URL("r.git"), flags...)
	w.same("resumed elsewhere", before, o.look(again.Dir))
	o.unmount(again)
	// The tokens of the session allow it to change its own refs only. The token that the server made with the repository
	// is revoked.
	for token, err := range api.Tokens(t.Context(), "team", "work", "active") {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(token.Label, "mount on ") || token.Session != "thin" || len(token.Refs) == 0 {
			t.Errorf("valid token of the session's repository: got %+v, want one of the mount for the session thin only", token)
		}
	}
}

// A sandbox that is configured by variables only creates its own repository on the server, and its program sees no
// token.
func TestSandboxOnServer(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	w.sh(w.root, "mkdir bin && ln -s "+binary+" bin/artifactfs")
	w.env = append(w.env, "ARTIFACTFS_CREATE=remote", "ARTIFACTFS_REMOTE=boxes/one", "ARTIFACTFS_DIR="+w.place("box"),
		"ARTIFACTFS_STATE="+w.state,
		"PATH="+filepath.Join(w.root, "bin")+":"+os.Getenv("PATH"))
	out := must[string](t)(w.gitIn(w.root, must[string](t)(filepath.Abs("../contrib/container/artifactfs-hook"))+
		` sh -c 'echo made >made && git add made && git commit -qm made && ! env | grep ^ARTIFACTFS_SERVER; tr "\0" "\n" </proc/$PPID/environ'`, w.env...))
	if strings.Contains(out, c.token) || strings.Contains(out, "art_v1_") {
		t.Errorf("the program in the sandbox sees a token:\n%s", out)
	}
	commits := must[[]client.Commit](t)(api.Log(t.Context(), "boxes", "one", "", 0, 0))
	if len(commits) != 1 || commits[0].Message != "made" {
		t.Errorf("log of the repository: got %+v, want one commit", commits)
	}
}

// The server works with stock git and with mounts of a repository of SHA-256 object ids.
func TestServerHasStockGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newLoneServer(w)
	r := w.repo("r.git", object.SHA256)
	must[object.ID](t)(r.Sized(3, 3))
	api := c.api()
	made := must[client.Created](t)(api.CreateRepo(t.Context(), "team",
		client.CreateRepo{Name: "wide", ObjectFormat: "sha256"}))
	git := func(args ...string) string {
		t.Helper()
		return must[string](t)(gitAs(context.Background(), r.Path, made.Token, args...))
	}
	git("push", "--quiet", "--atomic", made.Remote, "refs/heads/main", "refs/heads/main:refs/notes/commits",
		"refs/heads/main:refs/afs/x/y")
	if got := strings.Count(git("ls-remote", made.Remote), "refs/"); got != 3 {
		t.Errorf("ls-remote: got %d refs, want 3", got)
	}
	for _, version := range []string{"0", "1", "2"} {
		clone := w.place("clone")
		git("-c", "protocol.version="+version, "clone", "--quiet", "--filter=blob:none", made.Remote, clone)
		w.git(clone, "fsck", "--no-dangling")
	}
	w.env = append(w.env, "ARTIFACTFS_SERVER="+c.proxy.url(), "ARTIFACTFS_SERVER_TOKEN="+c.token)
	w.Cleanup(func() { w.afs("unmount", "--all") })
	m := w.bare("team/wide", "--create", "--wait", "git")
	if got, want := w.git(m.Dir, "rev-parse", "HEAD"), w.git(r.Path, "rev-parse", "main"); got != want {
		t.Errorf("HEAD of the mount: got %s, want %s", got, want)
	}
	w.unmount(m)
}
