package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
	"github.com/artifactfs/artifactfs/session"
)

func init() { workday.Main() }

// carried is a session remote whose path on disk the test knows.
type carried struct {
	w    *world
	name string // "embedded", or the transport
	arg  string // argument of --session-remote; "": the option is not used
	*gittest.Receiver
	server *gittest.Server // nil: the transport needs none
	based  bool            // it contains the history of the mounted remote
}

// sessionRemote creates an empty session remote for the transport "path", "http" or "ssh". If base is not nil, the
// session remote contains the objects and refs of base.
func (w *world) sessionRemote(scheme string, base *gittest.Repo) *carried {
	w.Helper()
	c := &carried{w: w, name: scheme, based: base != nil}
	path := filepath.Join(w.root, "carried-"+scheme, "s.git")
	check2(w, os.MkdirAll(filepath.Dir(path), 0o755))
	c.Receiver = must[*gittest.Receiver](w)(gittest.NewReceiver(path, gittest.RepoOptions{}))
	if base != nil {
		w.git(path, "fetch", "--quiet", base.Path, "refs/heads/*:refs/heads/*", "refs/tags/*:refs/tags/*")
	}
	o := gittest.ServerOptions{Root: filepath.Dir(path)}
	switch scheme {
	case "path":
		c.arg = path
	case "http":
		c.server = must[*gittest.Server](w)(gittest.Serve(o))
	case "ssh":
		s, command, err := gittest.ServeSSH(o)
		if err != nil {
			w.Fatal(err)
		}
		c.server = s
		w.env = append(w.env, "GIT_SSH_COMMAND="+command)
	}
	if c.server != nil {
		w.Cleanup(func() { // unmount pushes to the session remote, which must still be reachable
			if r := w.afs("unmount", "--all"); r.code != 0 {
				w.Errorf("unmount before the session remote is stopped: %s", r)
			}
			c.server.Close()
		})
		c.arg = c.server.URL("s.git")
	}
	return c
}

// own makes a session the owner of the plain branch names on a session remote.
func (c *carried) own(name string) {
	c.w.Helper()
	c.w.sh(c.Path, "git update-ref "+session.OwnerRef+" $(echo "+name+" | git hash-object -w --stdin)")
}

// flags returns the flags of mount. A session remote that contains the base belongs to the session, like one that was
// created for it.
func (c *carried) flags(name string) []string {
	if c.based {
		c.own(name)
	}
	return []string{"--session", name, "--session-remote", c.arg}
}

// elsewhere returns the same world with a new, empty state directory, which stands for another machine.
func (w *world) elsewhere() *world {
	other := *w
	other.state = w.place("state")
	w.Cleanup(func() {
		if r := other.afs("unmount", "--all"); r.code != 0 && r.code != control.ExitUnsynced {
			w.Errorf("unmount elsewhere: %s", r)
		}
		if log, err := os.ReadFile(other.logFile()); w.Failed() && err == nil {
			w.Logf("the daemon's log elsewhere:\n%s", log[max(0, len(log)-16<<10):])
		}
	})
	return &other
}

// json runs a command, which must succeed, and decodes its output.
func (w *world) json(into any, args ...string) {
	w.Helper()
	if out := w.ok(append(args, "--json")...); json.Unmarshal([]byte(out), into) != nil {
		w.Fatalf("artifactfs %s printed %.200q", strings.Join(args, " "), out)
	}
}

func (m mounted) checkpoint(args ...string) control.CheckpointReply {
	m.w.Helper()
	var p control.CheckpointReply
	m.w.json(&p, append([]string{"checkpoint", m.Dir}, args...)...)
	return p
}

func (m mounted) sync() {
	m.w.Helper()
	m.w.ok("sync", m.Dir, "--timeout", "100s")
}

// pushed waits until nothing of the session is pending, and returns the status of the session. With a policy that makes
// checkpoints, there may be another one after a sync.
func (m mounted) pushed() control.SessionStatus {
	m.w.Helper()
	return m.await("nothing is pending", func(s control.MountStatus) bool { return s.Session.Pending == 0 }).Session
}

func (m mounted) checkpoints() []control.Checkpoint {
	m.w.Helper()
	var l control.SessionLogReply
	m.w.json(&l, "session", "log", m.Dir)
	return l.Checkpoints
}

// look returns the state of a working tree as stock git prints it.
func (w *world) look(dir string) workday.State {
	w.Helper()
	return must[workday.State](w)(workday.Look(context.Background(), dir))
}

// same compares two results of look.
func (w *world) same(what string, was, is workday.State) {
	w.Helper()
	if d := was.Differs(is); d != "" {
		w.Errorf("%s differs: %s", what, d)
	}
}

// sh runs a script of shell tools and stock git in a directory.
func (w *world) sh(dir, script string) string {
	w.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir, cmd.Env = dir, append(gittest.Env(), "GIT_EDITOR=true")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("run %s: %v: %s", script, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// sound checks a repository with git fsck.
func (w *world) sound(dir string) {
	w.Helper()
	cmd := exec.Command("git", "fsck", "--full", "--no-dangling", "--no-progress")
	cmd.Dir, cmd.Env = dir, gittest.Env()
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "notice: ") {
			w.Errorf("git fsck in %s: %s", dir, line)
		}
	}
	if err != nil {
		w.Errorf("git fsck in %s: %v", dir, err)
	}
}

// users returns the user's refs, by their full names.
func users(refs map[string]object.ID) map[string]object.ID {
	own := map[string]object.ID{}
	for name, id := range refs {
		if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") ||
			strings.HasPrefix(name, "refs/notes/") {
			own[name] = id
		}
	}
	return own
}

// refsIn returns the user's refs in a git directory, as stock git prints them.
func (w *world) refsIn(dir string) map[string]object.ID {
	w.Helper()
	return users(must[map[string]object.ID](w)((&gittest.Repo{Path: dir}).Refs()))
}

// has reports whether a commit is reachable from a ref of a repository.
func (w *world) has(dir, commit string) bool {
	w.Helper()
	return slices.Contains(strings.Split(w.git(dir, "rev-list", "--all"), "\n"), commit)
}

// carriedWithin is the longest time until a ref is pushed, on an idle machine. `make bench BENCH=-session` measures the
// actual time.
const carriedWithin = 5 * time.Second

// reached returns how long git ls-remote of the session remote takes, which shows how busy the machine is now.
func (c *carried) reached() time.Duration {
	c.w.Helper()
	cmd := exec.Command("git", "ls-remote", c.arg)
	cmd.Dir, cmd.Env = c.w.root, append(gittest.Env(), c.w.env...)
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		c.w.Fatalf("git ls-remote: %v: %s", err, out)
	}
	return time.Since(start)
}

// Each command that moves a branch, tag or note in a mount also moves it on the session remote, for every kind of
// session remote.
func TestSessionCarriesCommits(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"embedded", "path", "http"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			r := w.repo("r.git", object.SHA1)
			must[object.ID](t)(r.Sized(6, 6))
			must[[]object.ID](t)(r.History(5))
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			flags := []string{"--wait", "git", "--checkpoint", "off"}
			var c *carried
			if kind != "embedded" {
				c = w.sessionRemote(kind, r)
				flags = append(flags, c.flags("work")...)
			} else {
				flags = append(flags, "--session", "work")
			}
			m := w.mount(url, flags...)
			git, theirs := m.gitDir(), filepath.Join(w.state, "mounts", "work", "session.git")
			if c != nil {
				theirs = c.Path
			}
			base := w.refsIn(r.Path)
			there := func() map[string]object.ID {
				if !exists(filepath.Join(theirs, "HEAD")) {
					return nil
				}
				return w.refsIn(theirs)
			}
			var old []string
			slowest := time.Duration(0)
			for _, script := range []string{
				"echo new >new && echo more >>d0001/f0001.txt && git add -A && git commit -qm first",
				"mv d0002 moved && rm d0003/f0001.txt && git add -A && git commit -qm second",
				"git commit -q --amend -m 'second, amended'",
				"git switch -qc side HEAD~1 && echo side >side && git add -A && git commit -qm side",
				"git rebase -q main",
				"git switch -q main && git merge -q --no-ff -m merge side",
				"git tag light && git tag -am annotated heavy && git notes add -m note",
				"git branch -q -D side && git pack-refs --all && git gc -q",
				"git update-ref refs/heads/raw HEAD~1",
				"git notes append -m more && git tag -d light && git branch -m raw renamed",
			} {
				old = append(old, w.git(m.Dir, "rev-parse", "main"))
				w.sh(m.Dir, script)
				at := now()
				want := w.refsIn(git)
				since := time.Now()
				w.until("the refs are on the session remote after "+script, func() bool {
					if time.Since(since) > patience/2 {
						t.Logf("%s: wanted %v, there are %v; status %+v", script, want, there(), m.status().Session)
						since = time.Now()
					}
					got := there()
					for name, id := range want {
						// the embedded session remote has only the refs that were moved
						if got[name] != id && !(c == nil && base[name] == id) {
							return false
						}
					}
					for name := range got {
						if want[name].IsZero() {
							return false
						}
					}
					return true
				})
				took, within := at.elapsed(), carriedWithin
				if took > within && c != nil {
					within += 5 * c.reached()
				}
				if slowest = max(slowest, took); took > within {
					t.Errorf("pushing took %s, want at most %s: %s", took, within, script)
				}
			}
			t.Logf("the slowest of them was there %s after the command", slowest.Round(time.Millisecond))
			for _, id := range old {
				if !w.has(theirs, id) && id != base["refs/heads/main"].String() {
					t.Errorf("commit %s, the previous value of main, is not on the session remote", id)
				}
			}
			if c != nil {
				last := map[string]object.ID{}
				for _, u := range must[[]gittest.Update](t)(c.Updates()) {
					if was, seen := last[u.Ref]; seen && u.Old != was {
						t.Errorf("ref %s was moved from %s to %s, but was %s", u.Ref, u.Old, u.New, was)
					}
					last[u.Ref] = u.New
				}
			}

			// Stock git can fsck the session remote, and clone it. The embedded one lacks the contents of the base, so a clone
			// of the mounted remote fetches from it.
			w.sound(theirs)
			from := theirs
			if c == nil {
				from = r.Path
			}
			clone := w.clone(from)
			w.until("git fetch works, because the contents that commits use again are here", func() bool {
				_, err := gittest.Git(t.Context(), clone, "fetch", "--quiet", theirs, "+refs/heads/*:refs/remotes/origin/*")
				return err == nil
			})
			w.sound(clone)
			if got, want := w.git(clone, "rev-parse", "origin/main"), w.git(m.Dir, "rev-parse", "main"); got != want {
				t.Errorf("main of a clone of the session remote: got %s, want %s", got, want)
			}
			w.git(clone, "checkout", "--quiet", "origin/main")
			if got, want := w.git(clone, "rev-parse", "HEAD^{tree}"), w.git(m.Dir, "write-tree"); got != want {
				t.Errorf("tree of a clone of the session remote: got %s, want %s", got, want)
			}
			if out := w.git(m.Dir, "status", "--porcelain"); out != "" {
				t.Errorf("status: %s", out)
			}
			if out := w.git(m.Dir, "for-each-ref") + w.git(m.Dir, "remote", "--verbose"); strings.Contains(out, "refs/afs") ||
				strings.Contains(out, "session") {
				t.Errorf("git in the mount prints %s", out)
			}
			m.sync()
			if st := m.status().Session; st.Pending != 0 || st.Error != "" || len(st.Diverged) > 0 || st.Name != "work" ||
				c != nil && st.LastSync == nil {
				t.Errorf("status: got %+v", st)
			}
		})
	}
}

// Refs that tools write through .git are pushed like those that git writes.
func TestSessionCarriesWhatOthersWrite(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(3, 3))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git", "--session", "work")
	theirs := filepath.Join(w.state, "mounts", "work", "session.git")
	arrives := func(ref, want string) {
		t.Helper()
		w.until(ref+" is on the session remote", func() bool {
			id, err := gittest.Git(t.Context(), theirs, "rev-parse", "--verify", "--quiet", ref)
			return err == nil && id == want
		})
	}
	linked := w.place("linked")
	w.sh(m.Dir, "git worktree add -q -b linked "+linked)
	w.sh(linked, "echo linked >linked && git add linked && git commit -qm linked")
	arrives("refs/heads/linked", w.git(linked, "rev-parse", "HEAD"))

	clone := w.clone(r.Path)
	w.sh(clone, "git commit -q --allow-empty -m elsewhere")
	w.sh(m.Dir, "git fetch -q "+clone+" HEAD:refs/heads/fetched")
	arrives("refs/heads/fetched", w.git(clone, "rev-parse", "HEAD"))

	// As libraries do: a file below refs that is renamed into place, and a pack that is written without git.
	w.sh(clone, "git commit -q --allow-empty -m packed && git bundle create -q ../packed.bundle HEAD~1..HEAD")
	id := w.git(clone, "rev-parse", "HEAD")
	w.sh(m.Dir, "git bundle unbundle "+filepath.Join(filepath.Dir(clone), "packed.bundle"))
	check(t, os.MkdirAll(filepath.Join(m.gitDir(), "refs", "heads", "deep"), 0o755))
	check(t, os.WriteFile(filepath.Join(m.gitDir(), "new"), []byte(id+"\n"), 0o644))
	check(t, os.Rename(filepath.Join(m.gitDir(), "new"), filepath.Join(m.gitDir(), "refs", "heads", "deep", "written")))
	arrives("refs/heads/deep/written", id)
	w.sound(theirs)
	w.sh(m.Dir, "git worktree remove "+linked)
}

// A checkpoint reads the git directory and does not change it.
func TestCheckpointsTouchNothingOfGit(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(5, 5))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git", "--history", "full", "--session", "work",
		"--checkpoint", "off",
		"--prefetch", "none") // when contents arrive, the daemon adds their sizes to the index
	w.sh(m.Dir,
		"echo a >a && git add a && git commit -qm a && echo b >>a && git stash -q && echo c >>a && git add a && echo d >>a && echo e >e && git status -s")
	m.checkpoint("--sync")
	w.sh(m.Dir, "echo more >>a; echo f >f")
	before := w.sh(m.gitDir(), "find . -type f | sort | xargs sha256sum; find . -printf '%p %i %m %T@\n' | sort")
	requests := m.status().Network
	p := m.checkpoint()
	if !p.Made {
		t.Errorf("checkpoint: got %+v, want one that was made", p)
	}
	if again := m.checkpoint(); again.Made || again.ID != p.ID {
		t.Errorf("checkpoint without a change: got %+v, want %+v", again, p)
	}
	if after := w.sh(m.gitDir(),
		"find . -type f | sort | xargs sha256sum; find . -printf '%p %i %m %T@\n' | sort"); after != before {
		t.Errorf("the git directory was changed:\n%s", diffLines(before, after))
	}
	if now := m.status().Network; now != requests {
		t.Errorf("a checkpoint sent requests to the remote: got %+v, want %+v", now, requests)
	}
	if tree := w.look(m.Dir).Tree; p.Tree != tree {
		t.Errorf("tree of the checkpoint: got %s, want git's %s", p.Tree, tree)
	}
}

// diffLines returns the lines that only one of two texts has.
func diffLines(a, b string) string {
	var out strings.Builder
	in := func(text string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(text) {
			set[line] = true
		}
		return set
	}
	inA, inB := in(a), in(b)
	for line := range strings.Lines(a) {
		if !inB[line] {
			fmt.Fprintf(&out, "- %s", line)
		}
	}
	for line := range strings.Lines(b) {
		if !inA[line] {
			fmt.Fprintf(&out, "+ %s", line)
		}
	}
	return out.String()
}
