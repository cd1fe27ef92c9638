package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

func TestListShowsAllSessions(t *testing.T) {
	w := newWorld(t)
	two := w.session("two", control.RemoteEmbedded, map[string]string{"b": "new\n"}, map[string]string{"c": ""})
	w.session("one", control.RemoteEmbedded)
	two.change(func(m *session.Meta) { m.State, m.Title = session.Closed, "the second" })
	reply, err := w.Sessions(t.Context())
	w.must(err)
	if len(reply.Sessions) != 2 {
		t.Fatalf("got %d sessions, want 2: %+v", len(reply.Sessions), reply.Sessions)
	}
	first, second := reply.Sessions[0], reply.Sessions[1]
	if first.Name != "one" || first.Checkpoints != 0 || first.Last != nil || first.State != string(session.Open) {
		t.Errorf("session without checkpoints: got %+v", first)
	}
	if second.Name != "two" || second.Checkpoints != 2 || second.State != string(session.Closed) ||
		second.Title != "the second" {
		t.Errorf("session with two checkpoints: got %+v", second)
	}
	if second.Last == nil || second.Last.ID != string(two.last.ID) || !second.Last.Synced ||
		second.Base != w.base.String() {
		t.Errorf("newest checkpoint: got %+v, want %s, which the embedded session remote has", second.Last, two.last.ID)
	}
	if second.Mounted || second.Dir != "/srv/two" || second.Remote != w.origin.Path {
		t.Errorf("place of the session: got mounted %v, %s, %s", second.Mounted, second.Dir, second.Remote)
	}
}

func TestLog(t *testing.T) {
	w := newWorld(t)
	s := w.session("s", control.RemoteEmbedded, map[string]string{"b": "1"}, map[string]string{"b": "2"},
		map[string]string{"b": "3"})
	reply, err := w.SessionLog(t.Context(), control.SessionLogRequest{Of: "s", Limit: 2})
	w.must(err)
	if len(reply.Checkpoints) != 2 || reply.Checkpoints[0].ID != string(s.last.ID) ||
		reply.Checkpoints[1].ID != string(s.last.Prev) {
		t.Errorf("two newest checkpoints: got %+v", reply.Checkpoints)
	}
	// A session can also be named by the directory of its last mount.
	if reply, err = w.SessionLog(t.Context(), control.SessionLogRequest{Of: "/srv/s"}); err != nil ||
		len(reply.Checkpoints) != 3 {
		t.Errorf("all checkpoints: got %d, %v, want 3", len(reply.Checkpoints), err)
	}
	_, err = w.SessionLog(t.Context(), control.SessionLogRequest{Of: "unknown"})
	w.code("log of an unknown session", err, control.CodeNotFound)
}

func TestShow(t *testing.T) {
	w := newWorld(t)
	s := w.session("s", control.RemoteEmbedded, map[string]string{"b": "1", "d": "new"}, map[string]string{"c": ""})
	for id, want := range map[string][]string{
		"": {"D c"}, "@": {"D c"}, "@~1": {"M b", "A d"}, string(s.last.Prev): {"M b", "A d"},
	} {
		reply, err := w.SessionShow(t.Context(), control.SessionShowRequest{Of: "s", ID: id})
		if err != nil || !slices.Equal(named(reply.Changes), want) {
			t.Errorf("changes of checkpoint %q: got %q, %v, want %q", id, named(reply.Changes), err, want)
		}
		// In this test, the index of a checkpoint is equal to the working tree, and HEAD is the base commit.
		staged := []string{"M b", "D c", "A d"}
		if id == "@~1" || id == string(s.last.Prev) {
			staged = want
		}
		if !slices.Equal(named(reply.Staged), staged) || reply.RemoteBranch != "refs/heads/main" {
			t.Errorf("checkpoint %q: got staged %q and branch %q", id, named(reply.Staged), reply.RemoteBranch)
		}
	}
	for _, id := range []string{"@~2", "nopin", "01ARZ3NDEKTSV4RRFFQ69G5FAV"} {
		_, err := w.SessionShow(t.Context(), control.SessionShowRequest{Of: "s", ID: id})
		w.code("show of checkpoint "+id, err, control.CodeNotFound)
	}
}

func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.session("s", control.RemoteEmbedded, map[string]string{"b": "1\n2\n", "d": "new"},
		map[string]string{"c": "", "b": "3\n"})
	w.session("other", control.RemoteEmbedded, map[string]string{"a": "x\n"})
	for what, c := range map[string]struct {
		r    control.SessionDiffRequest
		want []string
	}{
		"base and newest": {control.SessionDiffRequest{Of: "s"}, []string{"M b", "D c", "A d"}},
		"base and older":  {control.SessionDiffRequest{Of: "s", B: "@~1"}, []string{"M b", "A d"}},
		"two checkpoints": {control.SessionDiffRequest{Of: "s", A: "@~1", B: "@"}, []string{"M b", "D c"}},
		"backwards":       {control.SessionDiffRequest{Of: "s", A: "@", B: "@~1"}, []string{"M b", "A c"}},
		"the same":        {control.SessionDiffRequest{Of: "s", A: "@", B: "@"}, nil},
		"a checkpoint of another": {control.SessionDiffRequest{Of: "s", AOf: "other", A: "@", B: "@~1"},
			[]string{"M a", "M b", "A d"}},
	} {
		reply, err := w.SessionDiff(t.Context(), c.r)
		if err != nil || !slices.Equal(named(reply.Changes), c.want) {
			t.Errorf("%s: got %q, %v, want %q", what, named(reply.Changes), err, c.want)
		}
	}
	reply, err := w.SessionDiff(t.Context(), control.SessionDiffRequest{Of: "s", AOf: "other", A: "@", B: "@~1",
		Stat: true, Patch: true})
	w.must(err)
	i := slices.IndexFunc(reply.Changes, func(c control.PathChange) bool { return c.Path == "b" })
	if c := reply.Changes[i]; c.Added != 2 || c.Removed != 1 {
		t.Errorf("lines of b: got %+v, want 2 added and 1 removed", c)
	}
	if !strings.Contains(reply.Patch, "--- a/b\n+++ b/b\n@@ -1 +1,2 @@\n-b\n+1\n+2\n") ||
		!strings.Contains(reply.Patch, "\n-x\n+one\n") {
		t.Errorf("patch: got %s", reply.Patch)
	}
	_, err = w.SessionDiff(t.Context(), control.SessionDiffRequest{Of: "s", A: "@~9", B: "@"})
	w.code("diff of an unknown checkpoint", err, control.CodeNotFound)
}

func TestCompare(t *testing.T) {
	w := newWorld(t)
	lines := strings.SplitAfter(base["a"], "\n")
	with := func(line int, text string) string {
		l := slices.Clone(lines)
		l[line] = text
		return strings.Join(l, "")
	}
	w.session("x", control.RemoteEmbedded, map[string]string{"a": with(0, "ONE\n"), "b": "x\n", "c": "same\n", "x": "x\n"})
	w.session("y", control.RemoteEmbedded, map[string]string{"a": with(6, "SEVEN\n"), "b": "y\n", "c": "same\n"})
	reply, err := w.SessionCompare(t.Context(),
		control.SessionCompareRequest{Sides: []control.CompareSide{{Of: "x"}, {Of: "y"}}})
	w.must(err)
	got := map[string]control.Verdict{}
	for _, p := range reply.Shared {
		got[p.Path] = p.Verdict
	}
	want := map[string]control.Verdict{"a": control.VerdictClean, "b": control.VerdictConflict, "c": control.VerdictSame}
	for path, verdict := range want {
		if got[path] != verdict {
			t.Errorf("verdict on %s: got %q, want %q", path, got[path], verdict)
		}
	}
	if len(got) != len(want) {
		t.Errorf("shared paths: got %v, want %v", got, want)
	}
	x := reply.Sides[0]
	if x.Checkpoint.Session != "x" || x.Added != 1 || x.Modified != 3 || x.Removed != 0 || x.LinesAdded != 4 ||
		x.Base != w.base.String() {
		t.Errorf("side x: got %+v, want one added and three modified files with four lines", x)
	}
	if !slices.Equal(x.Users, []string{"ann@x"}) {
		t.Errorf("users of x: got %q", x.Users)
	}
	_, err = w.SessionCompare(t.Context(),
		control.SessionCompareRequest{Sides: []control.CompareSide{{Of: "x"}, {Of: "z"}}})
	w.code("compare with an unknown session", err, control.CodeNotFound)
}

// TestSessionOfSessionRemote checks that a session that exists only on a session remote can be read like a session of
// this host.
func TestSessionOfSessionRemote(t *testing.T) {
	w := newWorld(t)
	far := w.far()
	s := w.session("s", far, map[string]string{"b": "1", "d": "new"}, map[string]string{"c": ""})
	s.push()
	elsewhere := w.beside()
	on, err := elsewhere.SessionsOn(t.Context(), control.SessionsOnRequest{SessionRemote: far})
	if err != nil || len(on.Sessions) != 1 || on.Sessions[0].Name != "s" || on.Sessions[0].Base != w.base.String() {
		t.Errorf("sessions of the session remote: got %+v, %v, want s", on.Sessions, err)
	}
	show, err := elsewhere.SessionShow(t.Context(), control.SessionShowRequest{Of: "s", SessionRemote: far})
	if err != nil || !slices.Equal(named(show.Changes), []string{"D c"}) || show.ID != string(s.last.ID) {
		t.Errorf("newest checkpoint: got %s with %q, %v, want %s, which removes c", show.ID, named(show.Changes),
			err, s.last.ID)
	}
	diff, err := elsewhere.SessionDiff(t.Context(), control.SessionDiffRequest{Of: "s", SessionRemote: far, Patch: true})
	if err != nil || !slices.Equal(named(diff.Changes), []string{"M b", "D c", "A d"}) ||
		!strings.Contains(diff.Patch, "\n+new\n") {
		t.Errorf("changes since the base: got %q, %v, and the patch %s", named(diff.Changes), err, diff.Patch)
	}
	_, err = elsewhere.SessionShow(t.Context(), control.SessionShowRequest{Of: "t", SessionRemote: far})
	w.code("show of a session that the session remote lacks", err, control.CodeNotFound)
}
