package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// upstream is a repository whose branch is moved by the test.
type upstream struct {
	w    *world
	repo *gittest.Repo
	served
	round int
}

func (w *world) upstream() *upstream {
	w.Helper()
	u := &upstream{w: w, repo: w.repo("r.git", object.SHA1)}
	files := map[string]gittest.File{"README": {Data: []byte("round 0\n")}, "gone": {Data: []byte("gone\n")}}
	for i := range 300 {
		files[fmt.Sprintf("d%02d/f%03d", i%20, i)] = gittest.File{Data: fmt.Appendf(nil, "file %d\n", i)}
	}
	w.commit(u.repo, map[string]gittest.File{"README": {Data: []byte("first\n")}})
	w.commit(u.repo, files)
	u.served = w.serve(gittest.ServerOptions{})
	return u
}

// push moves main upstream.
func (u *upstream) push() object.ID {
	u.w.Helper()
	u.round++
	text := fmt.Appendf(nil, "round %d\n", u.round)
	return u.w.commit(u.repo, map[string]gittest.File{
		"README": {Data: text}, "d03/f003": {Data: text}, "tool": {Data: text, Mode: "100755"},
		"gone":                          {Delete: u.round == 1, Data: text},
		fmt.Sprintf("new/n%d", u.round): {Data: text},
	})
}

// rewind moves the branch of the upstream repository back by one commit.
func (u *upstream) rewind() object.ID {
	u.w.Helper()
	u.w.git(u.repo.Path, "update-ref", "refs/heads/main", "main~1")
	return must[object.ID](u.w)(object.ParseID(u.w.git(u.repo.Path, "rev-parse", "main")))
}

// refresh runs artifactfs refresh and returns the number of requests and contents that it fetched.
func (m mounted) refresh(s served) (reply control.RefreshReply, requests, blobs int) {
	m.w.Helper()
	s.forget()
	out := m.w.ok("refresh", m.Dir, "--json")
	if err := json.Unmarshal([]byte(out), &reply); err != nil {
		m.w.Fatalf("refresh printed %q: %v", out, err)
	}
	requests, blobs = s.cost()
	return reply, requests, blobs
}

// isAt compares a mount with a clone of the branch.
func (m mounted) isAt(u *upstream, commit object.ID) {
	m.w.Helper()
	for _, name := range []string{"HEAD", "main", "origin/main"} {
		if got := m.w.git(m.Dir, "rev-parse", name); got != commit.String() {
			m.w.Errorf("%s: got %s, want %s", name, got, commit)
		}
	}
	if out := m.w.git(m.Dir, "status", "--porcelain"); out != "" {
		m.w.Errorf("git status after the mount followed the branch:\n%s", out)
	}
	if out, err := exec.Command("diff", "-r", "--exclude=.git", m.Dir,
		m.w.clone(u.URL("r.git"))).CombinedOutput(); err != nil {
		m.w.Errorf("mount and clone differ: %v\n%s", err, out)
	}
}

// A mount with --follow moves with the branch: one request for the refs, one fetch, no contents.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"read-only", "writable"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			u := w.upstream()
			args := []string{"--follow", "--follow-interval", "1h", "--prefetch", "none", "--history", "full"}
			if kind == "read-only" {
				args = append(args, "--read-only")
			}
			m := w.mount(u.URL("r.git"), args...)
			m.await("the remote was asked once",
				func(st control.MountStatus) bool { return st.Follow != nil && st.Follow.Commit != "" })
			w.wantFile(m.path("README"), "round 0\n") // now the kernel has cached it
			w.wantFile(m.path("gone"), "gone\n")
			if _, requests, blobs := m.refresh(u.served); requests != 1 || blobs != 0 {
				t.Errorf("refresh without news: %d requests, %d contents; want 1, 0", requests, blobs)
			}
			before := w.git(m.Dir, "rev-parse", "HEAD")
			tip := u.push()
			reply, requests, blobs := m.refresh(u.served)
			if !reply.Moved || reply.From != before || reply.To != tip.String() || reply.Paths != 5 ||
				requests > 2 || blobs != 0 {
				t.Errorf("refresh after a push: %+v, %d requests, %d contents; want a move from %s to %s, 5 paths, 2 requests, no content", reply, requests, blobs, before, tip)
			}
			m.isAt(u, tip)
			if got, want := w.git(m.Dir, "rev-list", "--count", "HEAD"), "3"; got != want {
				t.Errorf("commits of HEAD: got %s, want %s", got, want)
			}
			u.push()
			tip = u.push()
			if reply, _, _ := m.refresh(u.served); !reply.Moved {
				t.Errorf("refresh after two pushes: %+v, want a move", reply)
			}
			m.isAt(u, tip)
			tip = u.rewind()
			if reply, _, _ := m.refresh(u.served); !reply.Moved {
				t.Errorf("refresh after the branch was rewound: %+v, want a move", reply)
			}
			m.isAt(u, tip)
			if st := m.status(); st.Session.Checkpoints > 0 {
				t.Errorf("checkpoints of moves alone: got %d, want none", st.Session.Checkpoints)
			}
			if r := w.afs("unmount", m.Dir); r.code != 0 || strings.Contains(r.stderr, "kept") {
				t.Errorf("unmount of a mount in which nothing was changed: %s", r)
			}
		})
	}
}

// A writable mount does not follow while it contains changes of the user, and reports which.
func TestFollowWaitsForWork(t *testing.T) {
	w := newWorld(t)
	u := w.upstream()
	m := w.mount(u.URL("r.git"), "--follow=main", "--follow-interval", "1h", "--prefetch", "none", "--history", "full")
	m.await("the remote was asked once",
		func(st control.MountStatus) bool { return st.Follow != nil && st.Follow.Commit != "" })
	stays := func(why string) {
		t.Helper()
		before := w.git(m.Dir, "rev-parse", "HEAD")
		reply, _, _ := m.refresh(u.served)
		if reply.Moved || !strings.Contains(reply.Why, why) || w.git(m.Dir, "rev-parse", "HEAD") != before {
			t.Errorf("refresh: %+v, want no move, because of %q", reply, why)
		}
		if st := m.status(); st.Follow.Why != reply.Why || st.Follow.Commit != reply.To {
			t.Errorf("status: %+v, want the reply of refresh: %+v", st.Follow, reply)
		}
	}
	moves := func(tip object.ID) {
		t.Helper()
		if reply, _, _ := m.refresh(u.served); !reply.Moved {
			t.Errorf("refresh: %+v, want a move", reply)
		}
		m.isAt(u, tip)
	}
	tip := u.push()
	if err := os.WriteFile(m.path("d07/f007"), []byte("mine\n"), 0o644); err != nil { // not one that the push changed
		t.Fatal(err)
	}
	stays("local changes: d07/f007")
	w.git(m.Dir, "checkout", "--", "d07/f007")
	moves(tip)
	if err := os.WriteFile(m.path("mine"), []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tip = u.push()
	stays("local changes: mine")
	w.git(m.Dir, "add", "mine")
	w.git(m.Dir, "-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "mine")
	stays("commits of its own")
	w.git(m.Dir, "reset", "-q", "--hard", "HEAD~1")
	w.git(m.Dir, "switch", "-q", "-c", "other")
	stays("HEAD is not on main")
	w.git(m.Dir, "switch", "-q", "main")
	moves(tip)
}

// The daemon polls the remote, and continues after a takeover.
func TestFollowByItself(t *testing.T) {
	w := newWorld(t)
	u := w.upstream()
	m := w.mount(u.URL("r.git"), "--follow", "--follow-interval", "100ms", "--prefetch", "none", "--history", "full",
		"--read-only")
	m.await("the remote was asked once",
		func(st control.MountStatus) bool { return st.Follow != nil && st.Follow.Commit != "" })
	stop, read := make(chan struct{}), make(chan error, 1)
	go func() { // a reader sees one round or another
		for {
			select {
			case <-stop:
				read <- nil
				return
			default:
			}
			if text, err := os.ReadFile(m.path("README")); err != nil || !strings.HasPrefix(string(text), "round ") ||
				!strings.HasSuffix(string(text), "\n") {
				read <- fmt.Errorf("read %q, %v", text, err)
				return
			}
		}
	}()
	at := func(tip object.ID) {
		t.Helper()
		w.until("the mount is at "+tip.String(), func() bool { return w.git(m.Dir, "rev-parse", "HEAD") == tip.String() })
	}
	for range 3 {
		at(u.push())
	}
	old := w.serving()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.until("another process serves", func() bool { pid := w.victim().Serving(); return pid != 0 && pid != old })
	at(u.push())
	close(stop)
	if err := <-read; err != nil {
		t.Error(err)
	}
	m.isAt(u, must[object.ID](t)(object.ParseID(w.git(u.repo.Path, "rev-parse", "main"))))
}

// In a mount without --follow, refresh fetches and prints the command that moves to the new commit.
func TestRefreshWithoutFollowing(t *testing.T) {
	w := newWorld(t)
	u := w.upstream()
	m := w.mount(u.URL("r.git"), "--prefetch", "none", "--history", "full")
	u.push()
	tip := u.push()
	r := w.afs("refresh", m.Dir)
	if r.code != 0 || !strings.Contains(r.stdout, "2 commits ahead") ||
		!strings.Contains(r.stderr, "hint: git merge --ff-only origin/main") {
		t.Errorf("refresh: %s", r)
	}
	if got := w.git(m.Dir, "rev-parse", "origin/main"); got != tip.String() {
		t.Errorf("origin/main: got %s, want %s", got, tip)
	}
	w.wantFile(m.path("README"), "round 0\n")
	w.git(m.Dir, "merge", "-q", "--ff-only", "origin/main")
	m.isAt(u, tip)
	if r := w.afs("mount", u.URL("r.git"), w.place("m"), "--follow=main", "--ref", "v1"); r.code != control.ExitUsage {
		t.Errorf("mount of two branches: %s", r)
	}
}

// After a forced push, refresh states the same numbers of commits as git status in a clone, and its hints are commands
// that work. The name of the remote is that of clone.defaultRemoteName.
func TestRefreshOfRewrittenBranch(t *testing.T) {
	for _, name := range []string{"origin", "up"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.env = append(w.env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=clone.defaultRemoteName", "GIT_CONFIG_VALUE_0="+name)
			u := w.upstream()
			u.push()
			m := w.mount(u.URL("r.git"), "--prefetch", "none", "--history", "full", "--wait", "git")
			clone := w.clone(u.URL("r.git"), "--origin", name)
			check := func(what, distance, hint string, args ...string) {
				t.Helper()
				r := w.afs("refresh", m.Dir)
				if r.code != 0 || !strings.Contains(r.stdout, name+"/main is at ") || !strings.Contains(r.stdout, distance) ||
					!strings.Contains(r.stderr, hint) {
					t.Errorf("refresh %s: got %s, want %q and %q", what, r, distance, hint)
				}
				w.git(clone, "fetch", "--quiet")
				for _, dir := range []string{m.Dir, clone} {
					w.git(dir, args...)
				}
				if got, want := w.git(m.Dir, "status", "--branch", "--porcelain=v2"),
					w.git(clone, "status", "--branch", "--porcelain=v2"); got != want {
					t.Errorf("git status %s and %v: got\n%s\nwant\n%s", what, args, got, want)
				}
			}
			u.rewind()
			check("after the branch was moved back", ", 1 commit behind", "git reset --keep "+name+"/main does the same",
				"reset", "--keep", name+"/main")
			u.push()
			check("after a new commit", ", 1 commit ahead", "git merge --ff-only "+name+"/main", "merge", "-q",
				"--ff-only", name+"/main")
			u.rewind()
			u.round += 10
			u.push()
			u.push()
			check("after a forced push", "; they have diverged: 1 commit and 2 commits are on one side only",
				"git reset --keep "+name+"/main takes that over",
				"status")
			check("once more", "; they have diverged: 1 commit and 2 commits", "git reset --keep "+name+"/main takes that over",
				"reset", "--keep", name+"/main")
			for _, dir := range []string{m.Dir, clone} {
				w.sh(dir,
					"echo own >own && git add own && GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' git commit -qm own")
			}
			check("with a commit of its own", ", 1 commit behind", "git push publishes", "status")
			u.rewind()
			u.round += 10
			u.push()
			check("after a forced push beside an own commit", "they have diverged: 2 commits and 1 commit",
				"git pull --rebase", "status")
			if got := w.git(m.Dir, "-c", "user.name=x", "-c", "user.email=x", "pull", "--rebase",
				"-q"); strings.Contains(got, "CONFLICT") {
				t.Errorf("git pull --rebase: got %s", got)
			}
			if got := w.git(m.Dir, "rev-list", "--count", name+"/main..HEAD"); got != "1" {
				t.Errorf("commits of the branch after git pull --rebase: got %s, want its own one", got)
			}
			w.git(m.Dir, "switch", "-qc", "other")
			if r := w.afs("refresh", m.Dir); r.code != 0 || strings.Contains(r.stderr, "hint") {
				t.Errorf("refresh on another branch: got %s, want no hint", r)
			}
		})
	}
}
