package writeback

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// await waits until a ref of the session remote points to id, or does not exist if id is "".
func (r *testRemote) await(ref, id string) {
	r.t.Helper()
	await.Until(r.t, ref+" is "+id, func() bool { return r.ref(ref) == id })
}

// TestPlainNamesOfOthersAreKept checks that on a session remote with branches of users, the branches and tags of the
// session have other names, and may be rewritten.
func TestPlainNamesOfOthersAreKept(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	to.removeOwner()
	before := run(t, to.dir, "", "for-each-ref", "refs/heads", "refs/tags")
	p.copier()
	q := p.queue(to, QueueOptions{})
	ours := func(branch string) string { return "refs/heads/afs/" + sessionName + "/" + branch }
	to.await(ours("main"), p.Commit("a", "one").String())
	amended := p.Commit("a", "two", "--amend")
	to.await(ours("main"), amended.String())
	run(t, p.Work, "", "tag", "v1")
	run(t, p.Work, "", "branch", "feature")
	to.await(session.TagsPrefix(sessionName)+"v1", amended.String())
	to.await(ours("feature"), amended.String())
	// git cannot have the branches feature and feature/x at the same time, in either repository.
	run(t, p.Work, "", "branch", "-m", "feature", "feature/x")
	to.await(ours("feature/x"), amended.String())
	to.await(ours("feature"), "")
	run(t, p.Work, "", "reset", "-q", "--hard", "HEAD~1")
	to.await(ours("main"), p.Base.String())
	wantSync(t, q)
	run(t, p.Work, "", "branch", "-D", "feature/x")
	run(t, p.Work, "", "tag", "-d", "v1")
	to.await(ours("feature/x"), "")
	to.await(session.TagsPrefix(sessionName)+"v1", "")
	wantSync(t, q)
	now := run(t, to.dir, "", "for-each-ref", "refs/heads", "refs/tags")
	now = strings.Join(slices.DeleteFunc(strings.Split(now, "\n"),
		func(line string) bool { return strings.Contains(line, "refs/heads/afs/") }), "\n")
	if now != before {
		t.Errorf("branches and tags of users:\ngot %s\nwant %s", now, before)
	}
	if st := q.Status(); len(st.Diverged) > 0 || st.Layout.Pattern() != "afs/s1/{branch}" {
		t.Errorf("status: got %+v", st)
	}
	// If a user has a branch named afs, no branch below afs/ can be created: the session's branches are pushed to other
	// names.
	run(t, p.Work, "", "branch", "blocked", amended.String())
	to.await(ours("blocked"), amended.String())
	for _, ref := range strings.Fields(run(t, to.dir, "", "for-each-ref", "--format=%(refname)", "refs/heads/afs")) {
		run(t, to.dir, "", "update-ref", "-d", ref)
	}
	run(t, to.dir, "", "update-ref", "refs/heads/afs", p.Base.String())
	three := p.Commit("a", "three")
	p.Carried(three)
	wantSync(t, q)
	diverged := session.DivergedRef(sessionName, "refs/heads/main")
	to.await(diverged, three.String())
	if st := q.Status(); !slices.Contains(st.Diverged,
		Diverged{Ref: "refs/heads/main", There: ours("main"), Ours: diverged, InWay: "refs/heads/afs"}) {
		t.Errorf("diverged refs: got %+v", st.Diverged)
	}
}

// TestOneSessionOwnsPlainNames checks that exactly one session becomes the owner of the plain names if several sessions
// push to an empty session remote at the same time.
func TestOneSessionOwnsPlainNames(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	var owners, others []string
	type one struct {
		name  string
		queue *Queue
	}
	var all []one
	for i := range 6 {
		name := fmt.Sprintf("s%d", i)
		repo, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"),
			session.RepoOptions{Format: object.SHA1, Session: name, Remote: "file://" + p.Origin.Path,
				Borrow: []string{p.Store + "/objects"}, Fresh: []string{p.Git + "/objects"}})
		if err != nil {
			t.Fatal(err)
		}
		defer repo.Close()
		id := object.MustID(run(t, p.Work, "", "commit-tree", "-m", name, run(t, p.Work, "", "mktree")))
		copies := session.NewCopier(repo)
		if err := copies.Commits(t.Context(), []object.ID{id}); err != nil {
			t.Fatal(err)
		}
		if err := repo.Write(t.Context(), copies.Objects()); err != nil {
			t.Fatal(err)
		}
		if err := repo.Update(t.Context(), []session.RefChange{{Name: "refs/heads/main", New: id}}); err != nil {
			t.Fatal(err)
		}
		all = append(all, one{name, nil})
		q, err := NewQueue(QueueOptions{Repo: repo, Dir: t.TempDir(), Remote: to.open(transport.Options{})})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		all[i].queue = q
	}
	for _, s := range all {
		wantSync(t, s.queue)
		if st := s.queue.Status(); len(st.Diverged) > 0 || len(st.Refused) > 0 {
			t.Errorf("status of session %s: got %+v", s.name, st)
		} else if st.Layout.Own {
			owners = append(owners, s.name)
		} else {
			others = append(others, "refs/heads/afs/"+s.name+"/main")
		}
	}
	if len(owners) != 1 {
		t.Fatalf("owners of the plain names: %q, want one", owners)
	}
	want := append(others, "refs/heads/main")
	slices.Sort(want)
	if got := strings.Fields(run(t, to.dir, "", "for-each-ref", "--format=%(refname)", "refs/heads")); !slices.Equal(got,
		want) {
		t.Errorf("branches on the session remote: got %q, want %q", got, want)
	}
}

// TestNotesAreMerged checks that notes that two sessions add at the same time are merged, on the session remote and in
// the mounts, because all sessions share one notes ref.
func TestNotesAreMerged(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			p := newPlace(t, f)
			to := newTestRemote(t, "http", f, p.Origin.Path)
			p.copier()
			brought := make(chan [2]object.ID, 10)
			bring := func(_ context.Context, ref string, old, merged object.ID) error { // does the same as the daemon
				pack := exec.Command("sh", "-ec",
					fmt.Sprintf("printf '%%s\\n^%%s\\n' %s %s | git --git-dir=%s pack-objects -q --revs --stdout | git --git-dir=%s unpack-objects -q", merged, old, p.Session, p.Git))
				pack.Env = gittest.Env()
				if out, err := pack.CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				_, err := try(t, p.Git, "", "update-ref", ref, merged.String(), old.String())
				brought <- [2]object.ID{old, merged}
				return err
			}
			q := p.queue(to, QueueOptions{Notes: bring})
			const ref = "refs/notes/agent"
			note := func(dir, text string) string {
				run(t, dir, "", "-c", "user.name=a", "-c", "user.email=a@b", "notes", "--ref=agent", "append", "-m", text,
					p.Base.String())
				return run(t, dir, "", "rev-parse", ref)
			}
			first := note(p.Work, "ours")
			to.await(ref, first)
			note(to.dir, "theirs")
			second := note(p.Work, "ours again")
			await.Until(t, "the notes are merged", func() bool {
				out, err := try(t, to.dir, "", "notes", "--ref=agent", "show", p.Base.String())
				return err == nil && strings.Contains(out, "theirs") && strings.Contains(out, "ours again")
			})
			got := <-brought
			if got[0].String() != second {
				t.Errorf("merged notes replace %s, want %s", got[0], second)
			}
			wantSync(t, q)
			here := run(t, p.Work, "", "notes", "--ref=agent", "show", p.Base.String())
			if there := run(t, to.dir, "", "notes", "--ref=agent", "show", p.Base.String()); here != there ||
				strings.Count(here, "\n") < 2 {
				t.Errorf("note in the mount: got %q, want the note on the session remote, %q", here, there)
			}
			if st := q.Status(); len(st.Diverged) > 0 {
				t.Errorf("status: got %+v", st)
			}
			// Notes are never rewound or removed on the session remote.
			tip := to.ref(ref)
			run(t, p.Work, "", "update-ref", "-d", ref)
			await.Until(t, "the notes are removed here", func() bool { return p.InSession(ref) == "" })
			wantSync(t, q)
			if got := to.ref(ref); got != tip {
				t.Errorf("notes on the session remote after their removal here: got %q, want %q", got, tip)
			}
			third := note(p.Work, "new beginning")
			await.Until(t, "new notes after the removal are merged", func() bool {
				_, err := try(t, to.dir, "", "merge-base", "--is-ancestor", third, ref)
				return err == nil
			})
			if _, err := try(t, to.dir, "", "merge-base", "--is-ancestor", tip, ref); err != nil {
				t.Errorf("new notes have replaced those on the session remote")
			}
			run(t, to.dir, "", "fsck", "--strict")
		})
	}
}

// TestContendedNotes checks that a session whose push of a notes ref is refused, because another session was
// faster, pushes its notes to its diverged name. The other sessions merge the notes of all diverged names, so that each
// session is refused only a few times.
func TestContendedNotes(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	const ref, other = "refs/notes/agent", "refs/afs/diverged/other/notes/agent"
	note := func(dir, name, text string) string {
		run(t, dir, "", "-c", "user.name=a", "-c", "user.email=a@b", "notes", "--ref="+name, "append", "-m", text,
			p.Base.String())
		return run(t, dir, "", "rev-parse", "refs/notes/"+name)
	}
	winner := note(to.dir, "winner", "of the winner")
	run(t, to.dir, "", "update-ref", other, note(to.dir, "loser", "of another loser"))
	run(t, to.dir, "", "update-ref", "-d", "refs/notes/winner")
	run(t, to.dir, "", "update-ref", "-d", "refs/notes/loser")
	hook := fmt.Sprintf(`#!/bin/sh
cat >>pushed
grep -q %[1]s pushed || exit 0
[ -e lost ] || { touch lost; unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY; git update-ref %[1]s %[2]s; }
`, ref, winner)
	if err := os.WriteFile(filepath.Join(to.dir, "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	q := p.queue(to, QueueOptions{})
	note(p.Work, "agent", "ours")
	await.Until(t, "the notes of all three sessions are merged", func() bool {
		out, err := try(t, to.dir, "", "notes", "--ref=agent", "show", p.Base.String())
		return err == nil && strings.Contains(out, "of the winner") && strings.Contains(out, "of another loser") &&
			strings.Contains(out, "ours")
	})
	wantSync(t, q)
	pushed, err := os.ReadFile(filepath.Join(to.dir, "pushed"))
	if own := session.DivergedRef(q.o.Repo.Session(), ref); err != nil || !strings.Contains(string(pushed), own) {
		t.Errorf("pushes after a lost race: got %s, want one of %s", pushed, own)
	} else if got := to.ref(own); got != "" {
		t.Errorf("ref %s after the merge: got %s, want none", own, got)
	}
	if got := to.ref(other); got == "" {
		t.Errorf("ref %s was removed, but only its own session may remove it", other)
	}
	if st := q.Status(); len(st.Diverged) > 0 || st.Pending > 0 {
		t.Errorf("status after the merge: got %d diverged, %d pending, want none", len(st.Diverged), st.Pending)
	}
	run(t, to.dir, "", "fsck", "--strict")
}

// TestDivergedNameOfAnEarlierProcess checks that a session removes its diverged name even if the process that has
// pushed it was killed before the answer, or ran on another host. The name is kept if its notes are not part of the
// notes ref.
func TestDivergedNameOfAnEarlierProcess(t *testing.T) {
	for _, c := range []struct {
		name           string
		sent, contains bool // whether the ledger contains the push, and the notes ref the notes of the diverged name
	}{{"killed before the answer", true, true}, {"other host", false, true}, {"other notes", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t, object.SHA1)
			to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
			p.copier()
			const ref = "refs/notes/agent"
			note := func(dir, name, text string) object.ID {
				run(t, dir, "", "-c", "user.name=a", "-c", "user.email=a@b", "notes", "--ref="+name, "append", "-m", text,
					p.Base.String())
				return object.MustID(run(t, dir, "", "rev-parse", "refs/notes/"+name))
			}
			q := p.queue(to, QueueOptions{})
			value := note(p.Work, "agent", "ours")
			to.await(ref, value.String())
			wantSync(t, q)
			q.Close()
			own := session.DivergedRef(sessionName, ref)
			if !c.contains {
				value = note(to.dir, "foreign", "of another process")
			}
			run(t, to.dir, "", "update-ref", own, value.String())
			if c.sent {
				l := q.record.now().clone()
				l.refs[own] = remoteRef{sent: []object.ID{value}}
				if err := l.write(q.o.Repo); err != nil {
					t.Fatal(err)
				}
			}
			q = p.queue(to, QueueOptions{})
			latest := note(p.Work, "agent", "more of ours")
			to.await(ref, latest.String())
			wantSync(t, q)
			if got := to.ref(own); (got == "") != c.contains {
				t.Errorf("diverged name after the notes were pushed: got %q; its value %s is part of the notes: %t", got,
					value, c.contains)
			}
		})
	}
}
