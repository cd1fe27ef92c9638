package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/object"
)

// refsLeft lists the refs of a session remote outside of the trash, without branches and tags that are not the session's alone:
// they stay, and the command reports that.
func (w *world) refsLeft(path string) (left []string) {
	for name := range w.refsIn(path) {
		if !strings.HasPrefix(name, "refs/afs/trash/") && name != "refs/heads/topic" && name != "refs/tags/t1" {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	return left
}

// A deleted session is removed here and on the session remote, and can be restored completely, also from another machine.
func TestSessionIsDeletedAndBroughtBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"thin", "shared"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			r := w.repo("r.git", object.SHA1)
			must[object.ID](t)(r.Sized(3, 3))
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			base := r
			if mode == "thin" {
				base = nil
			}
			c := w.sessionRemote("http", base)
			own := w.refsLeft(c.Path)
			m := w.bare(url, append(c.flags("work"), "--wait", "git")...)
			w.sh(m.Dir, "git switch -qc topic && echo new >new && git add new && git commit -qm new && git tag -am t t1 && echo more >more")
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
			w.ok("session", "delete", "work", "--yes")
			if left := w.refsLeft(c.Path); !slices.Equal(left, own) {
				t.Errorf("refs left on the session remote: %v, want %v", left, own)
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

			w.ok("session", "undelete", "work")
			again := w.bare(url, append(c.flags("work"), "--wait", "git")...)
			w.same("brought back", before, w.look(again.Dir))
			again.sync()
			w.unmount(again)
			w.sound(c.Path)

			// Another machine deletes and restores the session, which restores it on the session remote only, without its approvals.
			w.git(c.Path, "update-ref", "refs/afs/approvals/work", "refs/afs/meta/work")
			o.ok("session", "delete", "work", "--session-remote", c.arg, "--yes")
			if left := w.refsLeft(c.Path); !slices.Equal(left, own) {
				t.Errorf("refs left after it was deleted from elsewhere: %v, want %v", left, own)
			}
			o.ok("session", "undelete", "work", "--session-remote", c.arg)
			if refs := w.refsIn(c.Path); refs["refs/afs/approvals/work"] != (object.ID{}) {
				t.Error("the approvals of the deleted session are back")
			}
			third := o.bare(url, append(c.flags("work"), "--wait", "git")...)
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
	if !strings.Contains(out, "one: dropped 0 checkpoints, kept ") || !strings.Contains(out, "two: dropped 0 checkpoints, kept ") {
		t.Errorf("session gc --all printed %q", out)
	}
}
