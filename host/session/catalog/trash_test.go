package catalog

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/trash"
)

// refs returns the names of the refs below refs/afs/ of the session remote far, except those in the trash.
func (w *world) refs(far string) (names []string) {
	w.t.Helper()
	all := gittest.Must(w.t, far, "for-each-ref", "--format=%(refname)", session.Prefix)
	for _, name := range strings.Fields(all) {
		if !strings.HasPrefix(name, session.Prefix+"trash/") {
			names = append(names, name)
		}
	}
	return names
}

func (w *world) delete(r control.SessionDeleteRequest) control.SessionDeleteReply {
	w.t.Helper()
	reply, err := w.SessionDelete(w.t.Context(), r)
	w.must(err)
	return reply
}

func (w *world) undelete(name, remote string) control.SessionDeleteReply {
	w.t.Helper()
	reply, err := w.SessionUndelete(w.t.Context(), control.SessionUndeleteRequest{Session: name, Remote: remote})
	w.must(err)
	return reply
}

// listed returns the names of the sessions in the trash of this host if remote is "", and otherwise of a session
// remote.
func (w *world) listed(remote string) (names []string) {
	w.t.Helper()
	reply, err := w.SessionTrash(w.t.Context(), control.SessionTrashRequest{Remote: remote})
	w.must(err)
	for _, d := range reply.Deleted {
		if left := time.Until(d.Until); left > trash.Keep || left < trash.Keep-time.Hour {
			w.t.Errorf("session %s can be restored for %v, want about %v", d.Name, left, trash.Keep)
		}
		names = append(names, d.Name)
	}
	return names
}

func TestDeleteOnThisHost(t *testing.T) {
	w := newWorld(t)
	s := w.session("s", control.RemoteEmbedded, map[string]string{"b": "1"})
	w.session("other", control.RemoteEmbedded)
	reply := w.delete(control.SessionDeleteRequest{Of: "/srv/s"})
	if reply.Session != "s" || !reply.Local || reply.Refs != 0 {
		t.Errorf("delete: got %+v, want session s of this host", reply)
	}
	if got := statedirtest.Names(t, w.Homes); got != "other" || !slices.Equal(w.listed(""), []string{"s"}) {
		t.Errorf("after the deletion: got sessions %q and trash %q, want other and s", got, w.listed(""))
	}
	_, err := w.SessionDelete(t.Context(), control.SessionDeleteRequest{Of: "s"})
	w.code("second delete", err, control.CodeNotFound)
	if reply := w.undelete("s", ""); !reply.Local {
		t.Errorf("undelete: got %+v, want a session of this host", reply)
	}
	log, err := w.SessionLog(t.Context(), control.SessionLogRequest{Of: "s"})
	if err != nil || len(log.Checkpoints) != 1 || log.Checkpoints[0].ID != string(s.last.ID) || len(w.listed("")) != 0 {
		t.Errorf("restored session: got %+v, %v, and the trash %q", log.Checkpoints, err, w.listed(""))
	}
	_, err = w.SessionUndelete(t.Context(), control.SessionUndeleteRequest{Session: "s"})
	w.code("second undelete", err, control.CodeNotFound)
}

// TestUndeleteBesideNewSession checks that undelete does not overwrite a new session with the name of the deleted one.
func TestUndeleteBesideNewSession(t *testing.T) {
	w := newWorld(t)
	w.session("s", control.RemoteEmbedded, map[string]string{"b": "old"})
	w.delete(control.SessionDeleteRequest{Of: "s"})
	s := w.session("s", control.RemoteEmbedded, map[string]string{"b": "new"}, map[string]string{"b": "newer"})
	_, err := w.SessionUndelete(t.Context(), control.SessionUndeleteRequest{Session: "s"})
	w.code("undelete beside a new session", err, control.CodeConflict)
	log, err := w.SessionLog(t.Context(), control.SessionLogRequest{Of: "s"})
	if err != nil || len(log.Checkpoints) != 2 || log.Checkpoints[0].ID != string(s.last.ID) {
		t.Errorf("the new session: got %+v, %v, want its two checkpoints", log.Checkpoints, err)
	}
}

// The time of a deletion chooses among sessions of one name, on this host and on the session remote.
func TestUndeleteByTime(t *testing.T) {
	for name, pushed := range map[string]bool{"pushed": true, "here": false} {
		t.Run(name, func(t *testing.T) { undeleteByTime(t, pushed) })
	}
}

// undeleteByTime deletes two sessions of one name, and restores the first. If it was not pushed, only the second is in
// the trash of the session remote.
func undeleteByTime(t *testing.T, pushed bool) {
	w := newWorld(t)
	far, first := w.far(), time.Now().Add(-time.Hour)
	var all []*made
	for i, text := range []string{"first", "second"} {
		s := w.session("s", far, map[string]string{"b": text})
		if i > 0 || pushed {
			s.push()
		}
		_, err := w.sessionDelete(t.Context(), control.SessionDeleteRequest{Of: "s"}, first.Add(time.Duration(i)*time.Minute))
		w.must(err)
		all = append(all, s)
	}
	reply, err := w.SessionUndelete(t.Context(), control.SessionUndeleteRequest{Session: "s", Deleted: first})
	if err != nil || !reply.Local || reply.Refs > 0 != pushed {
		t.Fatalf("undelete of the first session: got %+v, %v", reply, err)
	}
	log, err := w.SessionLog(t.Context(), control.SessionLogRequest{Of: "s"})
	if err != nil || len(log.Checkpoints) != 1 || log.Checkpoints[0].ID != string(all[0].last.ID) {
		t.Errorf("restored session: got %+v, %v, want the first", log.Checkpoints, err)
	}
	_, err = w.SessionUndelete(t.Context(), control.SessionUndeleteRequest{Session: "s", Deleted: first})
	w.code("undelete of what is not in the trash", err, control.CodeNotFound)
}

func TestDeleteOnSessionRemote(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	s := w.session("s", far, map[string]string{"b": "1"})
	s.push()
	w.session("other", far, map[string]string{"b": "2"}).push()
	before := w.refs(far)
	reply := w.delete(control.SessionDeleteRequest{Of: "s"})
	want := []string{session.SegmentRef("other", "main", 1), session.MetaRef("other")}
	if got := w.refs(far); !slices.Equal(got, want) || reply.Refs != 2 || !reply.Local {
		t.Errorf("delete: got %+v, and the refs %q, want 2 refs less: %q", reply, got, want)
	}
	if !slices.Equal(w.listed(far), []string{"s"}) || !slices.Equal(w.listed(""), []string{"s"}) {
		t.Errorf("trash: got %q on the session remote and %q on this host, want s", w.listed(far), w.listed(""))
	}
	reply = w.undelete("s", "")
	if got := w.refs(far); !slices.Equal(got, before) || !reply.Local || reply.Refs != 2 {
		t.Errorf("undelete: got %+v and the refs %q, want 2 changed refs: %q", reply, got, before)
	}
	if len(w.listed(far)) != 0 || len(w.listed("")) != 0 {
		t.Errorf("trash after undelete: got %q on the session remote and %q on this host", w.listed(far), w.listed(""))
	}
}

// The base ref of a tree of a clone is removed if it has the base commit, and only then.
func TestDropBase(t *testing.T) {
	w := newWorld(t)
	far, name := w.far(), session.BaseRef("s")
	r := control.MountRequest{Remote: far, Session: "s", SessionOptions: control.SessionOptions{Remote: control.RemoteOrigin}}
	w.must(w.DropBase(t.Context(), r, w.base.String())) // there is none
	other := gittest.Must(t, far, "-c", "user.name=A", "-c", "user.email=a@b.invalid", "commit-tree", "-m", "other", "main^{tree}")
	for commit, left := range map[string]int{w.base.String(): 0, other: 1} {
		gittest.Must(t, far, "update-ref", name, commit)
		w.must(w.DropBase(t.Context(), r, w.base.String()))
		if got := w.refs(far); len(got) != left {
			t.Errorf("base ref at %s of a session that began at %s: got %q left, want %d", commit, w.base, got, left)
		}
	}
}

// TestDeleteFromElsewhere deletes and restores a session from a host that has never mounted it.
func TestDeleteFromElsewhere(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	w.session("s", far, map[string]string{"b": "1"}).push()
	before := w.refs(far)
	elsewhere := w.beside()
	_, err := elsewhere.SessionDelete(t.Context(), control.SessionDeleteRequest{Of: "t", Remote: far})
	w.code("delete of an unknown session", err, control.CodeNotFound)
	if reply := elsewhere.delete(control.SessionDeleteRequest{Of: "s", Remote: far}); reply.Local || reply.Refs != 2 {
		t.Errorf("delete from elsewhere: got %+v, want 2 refs", reply)
	}
	if got := w.refs(far); len(got) != 0 || statedirtest.Names(t, w.Homes) != "s" {
		t.Errorf("after the deletion: got the refs %q and the homes %q", got, statedirtest.Names(t, w.Homes))
	}
	if reply := elsewhere.undelete("s", far); reply.Local || reply.Refs != 2 {
		t.Errorf("undelete from elsewhere: got %+v, want 2 refs", reply)
	}
	if got := w.refs(far); !slices.Equal(got, before) {
		t.Errorf("refs after undelete: got %q, want %q", got, before)
	}
}

// TestDeleteIsRefused checks that a session is not deleted if it is on hold, mounted, or claimed by another machine.
func TestDeleteIsRefused(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	s := w.session("s", far, map[string]string{"b": "1"})
	s.push()
	before := w.refs(far)
	refused := func(what string, want error, r control.SessionDeleteRequest) {
		t.Helper()
		if _, err := w.SessionDelete(t.Context(), r); err == nil {
			t.Errorf("delete of a session that is %s: got nil, want an error", what)
		} else if want != nil && !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("delete of a session that is %s: got %v, want an error with %q", what, err, want)
		}
		if got := w.refs(far); !slices.Equal(got, before) || statedirtest.Names(t, w.Homes) != "s" {
			t.Fatalf("after the refusal, because it is %s: got %q and the homes %q", what, got, statedirtest.Names(t, w.Homes))
		}
	}
	w.mounts["s"] = &Mounted{Session: "s", Dir: "/srv/s", Writable: true}
	refused("mounted", errors.New("/srv/s"), control.SessionDeleteRequest{Of: "s"})
	delete(w.mounts, "s")
	away := session.Writer{Machine: "m", Host: "far", Boot: "b", State: "s", PIDs: "p", PID: 1}
	s.change(func(m *session.Meta) {
		m.State, m.Lanes = session.Active, []session.Lane{{Name: "main", Writer: away, Segment: 1}}
	})
	s.push()
	refused("used by another machine", errors.New("host far"), control.SessionDeleteRequest{Of: "s"})
	s.change(func(m *session.Meta) { m.Hold = &profile.Hold{Reason: "audit", By: "bob", Since: time.Now()} })
	refused("on hold on this host", errors.New("audit"), control.SessionDeleteRequest{Of: "s", TakeOver: true})
	s.push()
	if err := os.RemoveAll(s.home); err != nil {
		t.Fatal(err)
	}
	elsewhere := w.beside()
	if _, err := elsewhere.SessionDelete(t.Context(),
		control.SessionDeleteRequest{Of: "s", Remote: far, TakeOver: true}); err == nil ||
		!strings.Contains(err.Error(), "audit") || !slices.Equal(w.refs(far), before) {
		t.Errorf("delete of a session on hold from elsewhere: got %v and the refs %q", err, w.refs(far))
	}
}

func TestTakeOverDeletesClaimedSession(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	s := w.session("s", far, map[string]string{"b": "1"})
	away := session.Writer{Machine: "m", Host: "far", Boot: "b", State: "s", PIDs: "p", PID: 1}
	s.change(func(m *session.Meta) {
		m.State, m.Lanes = session.Active, []session.Lane{{Name: "main", Writer: away, Segment: 1}}
	})
	s.push()
	if reply := w.delete(control.SessionDeleteRequest{Of: "s", TakeOver: true}); reply.Refs != 2 || len(w.refs(far)) != 0 {
		t.Errorf("delete: got %+v, and the refs %q, want none", reply, w.refs(far))
	}
}
