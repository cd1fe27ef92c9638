package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// here returns a Writer for this process, which is alive.
func here(t *testing.T, stateDir string) session.Writer {
	t.Helper()
	w, err := session.Here(stateDir, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// transit changes the state of a session, and returns the metadata after the change.
func transit(ctx context.Context, r *session.Repo, name string, to session.Transition) (session.Meta, error) {
	return session.ChangeMeta(ctx, r, name, func(m *session.Meta, now time.Time) error { return m.Become(to, now) })
}

// dead returns a Writer whose process has ended.
func dead(t *testing.T, stateDir string) session.Writer {
	t.Helper()
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := session.Here(stateDir, cmd.Process.Pid)
	cmd.Process.Kill()
	if err != nil {
		t.Fatal(err)
	}
	for w.Life() == session.Lives { // the process is dead even before its parent has waited for it
		runtime.Gosched()
	}
	cmd.Wait()
	return w
}

// writerOnOtherHost returns a Writer on another host, so that it cannot be found out whether its process runs.
func writerOnOtherHost(t *testing.T) session.Writer {
	w := here(t, t.TempDir())
	w.Machine, w.Boot, w.Host = strings.Repeat("f", 32), "another", "far"
	return w
}

func begun(t *testing.T) *session.Repo {
	t.Helper()
	r := open(t, filepath.Join(t.TempDir(), "s.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
	m, err := session.CreateMeta(t.Context(), r,
		session.Meta{Session: "s", Remote: "https://example.org/app", Ref: "refs/heads/main"}, "joe")
	if err != nil || m.State != session.Open {
		t.Fatalf("create the session: got %+v, %v", m, err)
	}
	return r
}

func claim(r *session.Repo, w session.Writer, more func(*session.ClaimRequest)) (session.Claimed, error) {
	q := session.ClaimRequest{Session: "s", Writer: w, Actor: "joe", Reason: "mounted"}
	if more != nil {
		more(&q)
	}
	return session.Claim(context.Background(), r, q)
}

func takeOver(q *session.ClaimRequest) { q.TakeOver = true }

// historyText returns the history of a session as text.
func historyText(t *testing.T, r *session.Repo) string {
	t.Helper()
	m, _, err := session.ReadMeta(r, "s")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, tr := range m.Transitions {
		all = append(all, string(tr.State)+":"+tr.Reason)
	}
	return strings.Join(all, " ") + " = " + string(m.State)
}

func TestWriters(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	w := here(t, a)
	if w.Life() != session.Lives || w.PID != os.Getpid() || w.Started == 0 || w.Boot == "" || len(w.State) != 32 {
		t.Errorf("writer of this process: got %+v, life %v", w, w.Life())
	}
	if again := here(t, a); again != w {
		t.Errorf("writer of the same state directory: got %+v, then %+v", w, again)
	}
	if other := here(t, b); other.Same(w) || !w.Same(w) || (session.Writer{}).Same(session.Writer{}) {
		t.Errorf("writers of two state directories: got %+v and %+v, want that they are not the same", w, other)
	}
	if d := dead(t, a); d.Life() != session.Dead || !d.Same(w) {
		t.Errorf("writer of an ended process: got %+v, life %v, want dead", d, d.Life())
	}
	reused := w
	reused.Started++
	if reused.Life() != session.Dead {
		t.Error("a process with the same PID and another start time counts as the writer's process")
	}
	if f := writerOnOtherHost(t); f.Life() != session.Unknown {
		t.Errorf("writer on another host: got %+v, life %v, want unknown", f, f.Life())
	}
	namespace := w
	namespace.PIDs = "pid:[1]"
	if namespace.Life() != session.Unknown {
		t.Errorf("writer in another PID namespace: got life %v, want unknown", namespace.Life())
	}
	if err := os.WriteFile(filepath.Join(a, "writer-id"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := here(t, a); len(again.State) != 32 || again.State == w.State {
		t.Errorf("writer after the file of the ID was truncated: got %+v, want a new ID", again)
	}
	var wg sync.WaitGroup
	c := t.TempDir()
	names := make([]string, 8)
	for i := range names {
		wg.Go(func() { names[i] = here(t, c).State })
	}
	wg.Wait()
	for _, n := range names {
		if n != names[0] {
			t.Errorf("IDs that concurrent calls got for one state directory: got %q, want equal ones", names)
		}
	}
	t.Setenv("ARTIFACTFS_ACTOR", " robot ")
	if got := session.Actor(); got != "robot" {
		t.Errorf("actor is %q, want robot", got)
	}
}

func TestLifeOfASession(t *testing.T) {
	r := begun(t)
	ctx, w := t.Context(), here(t, t.TempDir())
	c, err := claim(r, w, nil)
	if err != nil || c.Lane.Name != "main" || c.Lane.Segment != 1 || c.Interrupted || c.TookOver ||
		c.Meta.State != session.Active {
		t.Fatalf("first claim: got %+v, %v", c, err)
	}
	before, _ := r.Ref(session.MetaRef("s"))
	if _, err := claim(r, w, nil); err != nil {
		t.Fatal(err)
	}
	if after, _ := r.Ref(session.MetaRef("s")); after != before {
		t.Error("second claim by the same writer: the metadata changed")
	}
	if m, err := session.Release(ctx, r, "s", "main", w, "unmounted", "joe"); err != nil || m.State != session.Paused {
		t.Errorf("release the claim: got %+v, %v, want state paused", m, err)
	}
	if m, err := session.Release(ctx, r, "s", "main", w, "unmounted", "joe"); err != nil || len(m.Transitions) != 3 {
		t.Errorf("second release: got %+v, %v, want no further transition", m, err)
	}
	if c, err = claim(r, w, nil); err != nil || c.Interrupted || c.Lane.Segment != 1 {
		t.Errorf("claim after the release: got %+v, %v, want segment 1, not interrupted", c, err)
	}
	elsewhere := here(t, t.TempDir())
	var held *session.HeldError
	if _, err := claim(r, elsewhere, nil); !errors.As(err, &held) || held.Writer != w || held.Life != session.Lives {
		t.Errorf("claim by a second writer: got %v, want that the first writer, which lives, holds the session", err)
	}
	if _, err := session.Release(ctx, r, "s", "main", elsewhere, "", ""); err != nil {
		t.Error(err)
	}
	if c, err = claim(r, elsewhere, takeOver); err != nil || !c.TookOver || c.Lane.Segment != 2 {
		t.Errorf("claim with take-over: got %+v, %v, want segment 2", c, err)
	}
	if m, err := session.Release(ctx, r, "s", "main", w, "unmounted", "joe"); err != nil || m.State != session.Active {
		t.Errorf("release by a writer that lost the lane: got %+v, %v, want state active", m, err)
	}
	for _, to := range []session.LifeState{session.Paused, session.Closed, session.Archived} {
		if _, err := transit(ctx, r, "s", session.Transition{State: to}); !errors.As(err, &held) {
			t.Errorf("transit to %s while a writer holds the lane: got %v, want HeldError", to, err)
		}
	}
	session.Release(ctx, r, "s", "main", elsewhere, "unmounted", "joe")
	for _, to := range []session.LifeState{session.Closed, session.Closed, session.Archived, session.Open,
		session.Archived, session.Open, session.Open} {
		if _, err := transit(ctx, r, "s", session.Transition{State: to, Actor: "joe", Reason: "merged"}); err != nil {
			t.Errorf("transit to %s: %v", to, err)
		}
		if to == session.Open {
			continue
		}
		if _, err := claim(r, w, takeOver); !errors.Is(err, session.ErrClosed) {
			t.Errorf("claim in the state %s: got %v, want ErrClosed", to, err)
		}
	}
	want := "open:begun active:mounted paused:unmounted resumed:mounted paused:taken over by " + w.Host +
		" resumed:mounted paused:unmounted" +
		" closed:merged archived:merged paused:merged archived:merged paused:merged = paused"
	if got := historyText(t, r); got != want {
		t.Errorf("transitions: got %s\nwant %s", got, want)
	}
	git(t, r.Dir(), "fsck", "--strict")
	if n := strings.Count(git(t, r.Dir(), "log", "--format=%H", session.MetaRef("s")), "\n"); n < 10 {
		t.Errorf("versions of the metadata: got %d, want at least 10", n)
	}
	var bad *session.TransitionError
	if _, err := transit(ctx, r, "s", session.Transition{State: session.Resumed}); !errors.As(err, &bad) {
		t.Error(err)
	}
	if _, _, err := session.ReadMeta(r, "t"); !errors.Is(err, session.ErrNoMeta) {
		t.Error(err)
	}
}

func TestCrashIsRecordedAsPause(t *testing.T) {
	r := begun(t)
	state := t.TempDir()
	if _, err := claim(r, dead(t, state), nil); err != nil {
		t.Fatal(err)
	}
	if m, _, _ := session.ReadMeta(r, "s"); !m.Interrupted(time.Now()) {
		t.Error("session whose writer died: not reported as interrupted")
	}
	if c, err := claim(r, here(t, t.TempDir()), nil); err != nil || !c.Interrupted || c.TookOver || c.Lane.Segment != 2 {
		t.Errorf("claim after the writer died: got %+v, %v, want segment 2, interrupted", c, err)
	}
	if m, _, _ := session.ReadMeta(r, "s"); m.Interrupted(time.Now()) {
		t.Error("session that a new writer has claimed: reported as interrupted")
	}
	want := "open:begun active:mounted paused:interrupted resumed:mounted = active"
	if got := historyText(t, r); got != want {
		t.Errorf("transitions: got %s, want %s", got, want)
	}
	r = begun(t)
	claim(r, dead(t, state), nil)
	if m, err := transit(t.Context(), r, "s", session.Transition{State: session.Paused, Actor: "joe",
		Reason: "it is gone"}); err != nil || m.State != session.Paused {
		t.Errorf("pause the session of a dead writer: got %+v, %v", m, err)
	}
	if got, want := historyText(t, r), "open:begun active:mounted paused:interrupted = paused"; got != want {
		t.Errorf("transitions: got %s, want %s", got, want)
	}
	// A writer whose process cannot be checked keeps the lane, unless the caller asks to take over.
	r = begun(t)
	claim(r, writerOnOtherHost(t), nil)
	var held *session.HeldError
	if _, err := claim(r, here(t, state), nil); !errors.As(err, &held) || held.Life != session.Unknown ||
		!strings.Contains(err.Error(), "host far holds session s since ") {
		t.Errorf("claim a session that another host holds: got %v, want HeldError that names the host", err)
	}
}

// TestLostLaneIsReplaced checks the case that two machines write to one session: the second has taken over the
// lane, and the first, which learns this later, continues in another lane.
func TestLostLaneIsReplaced(t *testing.T) {
	ours := begun(t)
	w, other := here(t, t.TempDir()), writerOnOtherHost(t)
	if _, err := claim(ours, w, nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "theirs.git")
	git(t, ".", "clone", "--quiet", "--mirror", ours.Dir(), dir)
	theirs := open(t, dir, session.RepoOptions{Format: object.SHA1, Session: "s"})
	if c, err := claim(theirs, other, takeOver); err != nil || c.Previous.Writer != w ||
		c.Previous.Segment != c.Lane.Segment-1 {
		t.Fatalf("take over the lane: got %+v, %v, want the writer and the segment before it", c, err)
	}
	if c, err := claim(theirs, other, nil); err != nil || c.Previous.Writer != (session.Writer{}) {
		t.Errorf("claim the own lane again: got %+v, %v, want no writer before it", c, err)
	}
	if _, err := transit(t.Context(), ours, "s", session.Transition{State: session.Paused}); err == nil {
		t.Error("a session was paused while its writer runs")
	}
	git(t, ours.Dir(), "fetch", "--quiet", dir, "+"+session.MetaRef("s")+":refs/afs/theirs")
	id, err := ours.Ref("refs/afs/theirs")
	if err != nil {
		t.Fatal(err)
	}
	m, lane, err := session.Yield(t.Context(), ours,
		session.YieldRequest{Session: "s", Lane: "main", Writer: w, Theirs: id, Actor: "joe"})
	if err != nil || !strings.HasPrefix(lane.Name, "main-") || session.ValidName(lane.Name) != nil ||
		!lane.Writer.Same(w) || m.State != session.Active {
		t.Fatalf("yield the lane: got %+v, %+v, %v, want a new lane of this writer", m, lane, err)
	}
	if m.Lanes[0].Writer != other || len(m.Lanes) != 2 {
		t.Errorf("lanes after the yield: got %+v, want two, the first with the other writer", m.Lanes)
	}
	// The local version is a successor of the remote one, so that the session remote accepts it.
	git(t, ours.Dir(), "merge-base", "--is-ancestor", "refs/afs/theirs", session.MetaRef("s"))
	if c, err := claim(ours, w, func(q *session.ClaimRequest) { q.Lane = lane.Name }); err != nil || c.Interrupted {
		t.Errorf("claim the new lane: got %+v, %v", c, err)
	}
	if m, err := session.Release(t.Context(), ours, "s", lane.Name, w, "unmounted", "joe"); err != nil ||
		m.State != session.Active {
		t.Errorf("release the new lane while the other writer works: got %+v, %v, want state active", m, err)
	}
	// The other writer merges this version. It has nothing to add, so it writes no new version.
	git(t, theirs.Dir(), "fetch", "--quiet", ours.Dir(), "+"+session.MetaRef("s")+":refs/afs/theirs")
	back, err := theirs.Ref("refs/afs/theirs")
	if err != nil {
		t.Fatal(err)
	}
	if _, l, err := session.Yield(t.Context(), theirs,
		session.YieldRequest{Session: "s", Lane: "main", Writer: other, Theirs: back}); err != nil || l.Name != "main" ||
		l.Writer != other {
		t.Errorf("yield in the other repository: got %+v, %v, want the main lane of the other writer", l, err)
	}
	if now, _ := theirs.Ref(session.MetaRef("s")); now != back {
		t.Errorf("metadata in the other repository: got commit %s, want %s", now, back)
	}
	// The writer keeps a lane that was not taken over.
	again, l, err := session.Yield(t.Context(), ours,
		session.YieldRequest{Session: "s", Lane: lane.Name, Writer: w, Theirs: id, Actor: "joe"})
	if err != nil || l.Name != lane.Name {
		t.Errorf("yield a lane that was not taken over: got %+v, %+v, %v, want the same lane", again, l, err)
	}
	git(t, ours.Dir(), "fsck", "--strict")
}

// TestClosedWhileMounted checks the case that another host closes the session after the lease of a writer that still
// runs: the history shows that the session becomes active again.
func TestClosedWhileMounted(t *testing.T) {
	ours := begun(t)
	w := here(t, t.TempDir())
	if _, err := claim(ours, w, nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "theirs.git")
	git(t, ".", "clone", "--quiet", "--mirror", ours.Dir(), dir)
	theirs := open(t, dir, session.RepoOptions{Format: object.SHA1, Session: "s"})
	if _, err := session.ChangeMeta(t.Context(), theirs, "s", func(m *session.Meta, now time.Time) error {
		m.Lanes[0].Left = &now
		return m.Become(session.Transition{State: session.Closed, Actor: "bob", Reason: "done"}, now)
	}); err != nil {
		t.Fatal(err)
	}
	git(t, ours.Dir(), "fetch", "--quiet", dir, "+"+session.MetaRef("s")+":refs/afs/theirs")
	id, err := ours.Ref("refs/afs/theirs")
	if err != nil {
		t.Fatal(err)
	}
	q := session.YieldRequest{Session: "s", Lane: "main", Writer: w, Theirs: id, Actor: "joe"}
	m, lane, err := session.Yield(t.Context(), ours, q)
	if err != nil || lane.Name != "main" || lane.Left != nil || m.State != session.Active {
		t.Fatalf("yield: got %+v, %+v, %v, want the main lane of an active session", m, lane, err)
	}
	last := m.Transitions[len(m.Transitions)-1]
	if before := m.Transitions[len(m.Transitions)-2]; before.State != session.Closed || last.State != session.Resumed ||
		!strings.HasPrefix(last.Reason, "still mounted on ") || last.Actor != "joe" {
		t.Errorf("last transitions: got %+v and %+v, want closed by bob, and then resumed", before, last)
	}
	again, _, err := session.Yield(t.Context(), ours, q)
	if err != nil || again.State != session.Active || len(again.Transitions) != len(m.Transitions) {
		t.Errorf("yield again: got %+v, %v", again, err)
	}
}

func TestClaimsAtTheSameTime(t *testing.T) {
	r := begun(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	writers := make([]session.Writer, 6)
	for i := range writers {
		writers[i] = here(t, t.TempDir())
	}
	for _, w := range writers {
		wg.Go(func() {
			_, err := claim(r, w, nil)
			var held *session.HeldError
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.As(err, &held):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("concurrent claims of one lane: %d succeeded, want 1", won)
	}
}

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "main", "before-rename", "v1.2_x", "0"} {
		if err := session.ValidName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".a", "-a", "a/b", "a..b", "a.lock", "a.", "a b", "ä", "@",
		strings.Repeat("a", 129)} {
		if session.ValidName(bad) == nil {
			t.Errorf("ValidName(%q): got nil, want an error", bad)
		}
	}
}

func FuzzParseMeta(f *testing.F) {
	m := session.Meta{Version: 1, Session: "s", Format: "sha1", Began: time.Unix(1, 0).UTC(), State: session.Active,
		Lanes: []session.Lane{{Name: "main", Segment: 3}}}
	text, err := json.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, []byte(`{"state":"open","time":"2026-11-22T03:04:05Z","actor":"joe","reason":"begun"}`+"\n"))
	f.Add([]byte(`{"version":2}`), []byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, text, transitions []byte) {
		m, err := session.ParseMeta(text, transitions)
		if err != nil {
			if !errors.Is(err, session.ErrNotMeta) && !errors.Is(err, session.ErrNewerMeta) {
				t.Fatal(err)
			}
			return
		}
		for _, l := range m.Lanes {
			if session.ValidName(l.Name) != nil {
				t.Fatalf("ParseMeta accepted the invalid lane name %q", l.Name)
			}
		}
	})
}

func TestContinuedMountIsNoPause(t *testing.T) {
	r := begun(t)
	state := t.TempDir()
	if _, err := claim(r, dead(t, state), nil); err != nil {
		t.Fatal(err)
	}
	w := here(t, state)
	c, err := claim(r, w, func(q *session.ClaimRequest) { q.Continued = true })
	if err != nil || c.Interrupted || c.Lane.Writer != w {
		t.Errorf("claim by a process that continues the mount: got %+v, %v, want the new writer, not interrupted", c, err)
	}
	if got, want := historyText(t, r), "open:begun active:mounted = active"; got != want {
		t.Errorf("history: got %q, want %q", got, want)
	}
	var held *session.HeldError
	if _, err := claim(r, here(t, t.TempDir()), func(q *session.ClaimRequest) { q.Continued = true }); !errors.As(err,
		&held) {
		t.Errorf("claim by another state directory: got %v, want that the writer holds the session", err)
	}
}
