package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// refsLeft lists the refs of a session remote outside of the trash, without branches and tags that are not the
// session's alone: they stay, and the command reports that.
func (w *world) refsLeft(path string) (left []string) {
	for name := range w.refsIn(path) {
		if !strings.HasPrefix(name, "refs/afs/trash/") && name != "refs/heads/topic" && name != "refs/tags/t1" {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	return left
}

// newSessionRemote serves a repository, and makes a session remote: an empty one, in which sessions are thin, or one in
// the mode "shared", which has the contents of the repository.
func newSessionRemote(t *testing.T, mode string) (w *world, url string, c *carried) {
	t.Helper()
	w = newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(3, 3))
	url = w.serve(gittest.ServerOptions{}).URL("r.git")
	if mode == "thin" {
		r = nil
	}
	return w, url, w.sessionRemote("http", r)
}

// A deleted session is removed here and on the session remote, and can be restored completely, also from another
// machine.
func TestSessionIsDeletedAndBroughtBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"thin", "shared"} {
		t.Run(mode, func(t *testing.T) {
			w, url, c := newSessionRemote(t, mode)
			own := w.refsLeft(c.Path)
			m := w.bare(url, append(c.flags("work"), "--wait", "git")...)
			w.sh(m.Dir,
				"git switch -qc topic && echo new >new && git add new && git commit -qm new && git tag -am t t1 && echo more >more")
			m.checkpoint("--sync")
			before := w.look(m.Dir)

			mounted := w.afs("session", "delete", "work", "--yes")
			if mounted.code == 0 || !strings.Contains(mounted.stderr, "mounted at "+m.Dir) {
				t.Errorf("delete of a mounted session: got %s", mounted)
			}
			o := w.elsewhere()
			held := o.afs("session", "delete", "work", "--session-remote", c.arg, "--yes")
			if held.code == 0 || !strings.Contains(held.stderr, "--take-over") {
				t.Errorf("delete of a session that another machine holds: got %s", held)
			}
			w.unmount(m)
			if r := w.afs("session", "delete", "work"); r.code != control.ExitUsage || !strings.Contains(r.stderr, "--yes") {
				t.Errorf("delete without --yes and a terminal: got %s", r)
			}
			deleted := w.afs("session", "delete", "work", "--yes")
			if left := w.refsLeft(c.Path); deleted.code != 0 || !slices.Equal(left, own) {
				t.Errorf("refs left on the session remote: %v, want %v, after %s", left, own, deleted)
			}
			if exists(filepath.Join(w.state, "mounts", "work")) {
				t.Error("the session is still in the state directory")
			}
			var there, here control.SessionTrashReply
			w.json(&here, "session", "list", "--deleted")
			o.json(&there, "session", "list", "--deleted", "--session-remote", c.arg)
			if len(here.Deleted) != 1 || len(there.Deleted) != 1 || there.Deleted[0].Name != "work" {
				t.Errorf("deleted sessions: got %+v in the state directory, %+v on the session remote", here, there)
			}
			if r := w.afs("session", "delete", "work", "--yes"); r.code != control.ExitNotMounted {
				t.Errorf("second delete: got %s", r)
			}

			again := w.mountAgain(restoring(deleted.stderr), m.Dir)
			w.same("brought back", before, w.look(again.Dir))
			again.sync()
			w.unmount(again)
			w.sound(c.Path)

			// Another machine deletes and restores the session, which restores it on the session remote only, without its
			// approvals.
			w.git(c.Path, "update-ref", "refs/afs/approvals/work", "refs/afs/meta/work")
			deleted = o.afs("session", "delete", "work", "--session-remote", c.arg, "--yes")
			if left := w.refsLeft(c.Path); deleted.code != 0 || !slices.Equal(left, own) {
				t.Errorf("refs left after it was deleted from elsewhere: %v, want %v, after %s", left, own, deleted)
			}
			dir := o.place("third")
			third := o.mountAgain(restoring(deleted.stderr)+" --mount "+dir, dir)
			if refs := w.refsIn(c.Path); refs["refs/afs/approvals/work"] != (object.ID{}) {
				t.Error("the approvals of the deleted session are back")
			}
			w.same("brought back elsewhere", before, o.look(third.Dir))

			// Discarding the session deletes it on the session remote, too.
			o.ok("unmount", "--discard", "--yes", third.Dir)
			if left := w.refsLeft(c.Path); !slices.Equal(left, own) {
				t.Errorf("refs left after it was discarded: %v, want %v", left, own)
			}
			// Deleted sessions that are older than a week are removed with the next delete.
			for name, id := range w.refsIn(c.Path) {
				if strings.HasPrefix(name, "refs/afs/trash/work/") {
					_, rest, _ := strings.Cut(strings.TrimPrefix(name, "refs/afs/trash/work/"), "/")
					w.git(c.Path, "update-ref", "-d", name)
					w.git(c.Path, "update-ref", "refs/afs/trash/work/1000000000/"+rest, id.String())
				}
			}
			m = w.bare(url, "--session", "other", "--session-remote", c.arg, "--wait", "git")
			w.sh(m.Dir, "echo x >x")
			m.checkpoint("--sync")
			w.unmount(m)
			w.ok("session", "delete", "other", "--yes")
			for name := range w.refsIn(c.Path) {
				if strings.HasPrefix(name, "refs/afs/trash/work/") {
					t.Errorf("%s still exists", name)
				}
			}
			if err := os.RemoveAll(filepath.Join(w.state, "trash")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A session that another machine has deleted on the session remote does not exist again because this machine mounts or
// pushes it. The commands that the error names restore it, or continue its work in a new session.
func TestSessionDeletedElsewhere(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"thin", "shared"} {
		t.Run(mode, func(t *testing.T) {
			w, url, c := newSessionRemote(t, mode)
			own := w.refsLeft(c.Path)
			flags := append(c.flags("work"), "--wait", "git", "--checkpoint", "off")
			m := w.bare(url, flags...)
			w.sh(m.Dir, "git switch -qc topic && echo new >new && git add new && git commit -qm new && echo more >more")
			m.checkpoint("--sync")
			before := w.look(m.Dir)
			w.unmount(m)
			o := w.elsewhere()
			o.ok("session", "delete", "work", "--session-remote", c.arg, "--yes")
			refs := func() []string {
				return strings.Fields(w.git(c.Path, "for-each-ref", "--format=%(refname)", "refs/afs/meta", "refs/afs/thin",
					"refs/afs/j"))
			}
			has := func(name string) bool { return slices.Contains(refs(), "refs/afs/meta/"+name) }
			gone := func(when string) {
				t.Helper()
				if left := w.refsLeft(c.Path); !slices.Equal(left, own) || len(refs()) > 0 {
					t.Errorf("refs of the session remote %s: got %v and %v, want %v", when, left, refs(), own)
				}
			}
			refused := w.afs(append([]string{"mount", url, m.Dir}, flags...)...)
			undelete := "artifactfs session undelete work --session-remote " + c.arg
			if refused.code == 0 || !strings.Contains(refused.stderr, "session work was deleted on "+c.arg) ||
				!strings.Contains(refused.stderr, undelete+" restores") ||
				!strings.Contains(refused.stderr, "artifactfs session fork work@ DIR continues") {
				t.Fatalf("mount of a session that was deleted elsewhere: got %s", refused)
			}
			gone("after the mount was refused")
			w.ok("session", "pin", "-C", "work", "here")
			gone("after a change of the session on this host")

			fork := w.place("fork")
			w.ok("session", "fork", "work@", fork, "--session", "other", "--wait", "git", "--checkpoint", "off")
			forked := mounted{control.MountReply{Dir: fork}, w}
			w.same("continued in a new session", before, w.look(fork))
			w.sh(fork, "echo other >other")
			forked.checkpoint("--sync")
			gone("after the session was forked")
			w.unmount(forked)
			w.ok(strings.Fields(strings.TrimPrefix(undelete, "artifactfs "))...)
			again := w.bare(url, flags...)
			w.same("restored", before, w.look(again.Dir))
			w.sh(again.Dir, "echo 2 >more")
			again.checkpoint("--sync")

			// The session is mounted here while it is deleted.
			o.ok("session", "delete", "work", "--session-remote", c.arg, "--yes", "--take-over")
			w.sh(again.Dir, "echo 3 >more")
			sync := w.afs("checkpoint", again.Dir, "--sync")
			if sync.code != control.ExitUnsynced || !strings.Contains(sync.stderr, "session work was deleted on "+c.arg) {
				t.Errorf("checkpoint --sync of a session that was deleted meanwhile: got %s", sync)
			}
			if got := w.ok("status", again.Dir); !strings.Contains(got, undelete+" restores") {
				t.Errorf("status: got\n%swant the command %s", got, undelete)
			}
			if has("work") {
				t.Errorf("refs after a push: got %v, want no session work", refs())
			}
			w.ok(strings.Fields(strings.TrimPrefix(undelete, "artifactfs "))...)
			w.sh(again.Dir, "echo 4 >more")
			again.checkpoint("--sync")
			w.sound(c.Path)
			if !has("work") {
				t.Errorf("refs after the session was restored: got %v, want the session work", refs())
			}
		})
	}
}

// session gc --all collects each session of the host.
func TestSessionGCOfAll(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for _, name := range []string{"one", "two"} {
		m := w.bare(url, "--session", name, "--wait", "git")
		w.sh(m.Dir, "echo x >x")
		m.checkpoint()
		w.unmount(m)
	}
	out := w.ok("session", "gc", "--all")
	if !strings.Contains(out, "one: dropped 0 checkpoints, kept ") ||
		!strings.Contains(out, "two: dropped 0 checkpoints, kept ") {
		t.Errorf("session gc --all printed %q", out)
	}
}

// A forge makes the first branch that is pushed its default branch, and refuses a push that deletes it as a whole. This
// branch stays, and everything else of the session is deleted, and restored.
func TestSessionIsDeletedOnForge(t *testing.T) {
	t.Parallel()
	w, url, c := newSessionRemote(t, "thin")
	m := w.bare(url, append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "echo new >new")
	m.checkpoint("--sync")
	before := w.look(m.Dir)
	w.unmount(m)
	const branch = "refs/heads/afs/work/readable"
	hook := "#!/bin/sh\nwhile read -r old new ref; do case $new$ref in 0000*" + branch +
		") echo 'it is the default branch' >&2; exit 1;; esac; done\n"
	check(t, os.MkdirAll(filepath.Join(c.Path, "hooks"), 0o755))
	check(t, os.WriteFile(filepath.Join(c.Path, "hooks", "pre-receive"), []byte(hook), 0o755))
	w.git(c.Path, "symbolic-ref", "HEAD", branch)
	if r := w.afs("session", "delete", "work", "--yes"); r.code != 0 || !strings.Contains(r.stderr, branch+" stays") {
		t.Errorf("session delete: got %s, want the name of the branch that stays", r)
	}
	if left := w.refsLeft(c.Path); !slices.Equal(left, []string{branch}) {
		t.Errorf("refs left on the session remote: %v", left)
	}
	w.ok("session", "undelete", "work")
	again := w.bare(url, append(c.flags("work"), "--wait", "git")...)
	w.same("brought back", before, w.look(again.Dir))
	w.sh(again.Dir, "echo more >more")
	again.checkpoint("--sync")
	w.unmount(again)
	w.ok("session", "delete", "work", "--yes")

	// A new session of the same name works.
	next := w.bare(url, append(c.flags("work"), "--wait", "git")...)
	w.sh(next.Dir, "echo next >next")
	next.checkpoint("--sync")
	if got := w.git(c.Path, "log", "--format=%s", "--", "more"); strings.Contains(got, "more") ||
		w.git(c.Path, "show", "HEAD:next") != "next" {
		t.Errorf("default branch after a new session: got %q", got)
	}
	w.unmount(next)
}
