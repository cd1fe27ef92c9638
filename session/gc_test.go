package session_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// lane creates checkpoints in a Repo. Each checkpoint has a file of its own, and one file that all checkpoints have.
type lane struct {
	t    *testing.T
	r    *session.Repo
	name string
	last session.Checkpoint
}

func (l *lane) checkpoint(at time.Time, segment int) session.Checkpoint {
	l.t.Helper()
	f := l.r.Format()
	blob := outgoing(l.t, f, object.Blob, fmt.Sprintf("%s %s %x", l.name, at, rand.Uint64()))
	all := outgoing(l.t, f, object.Blob, "all have it\n")
	tree := outgoing(l.t, f, object.Tree,
		string(session.EncodeTree([]object.TreeEntry{{Name: "own", Mode: object.ModeFile, ID: blob.ID},
			{Name: "all", Mode: object.ModeFile, ID: all.ID}})))
	state, objects, err := session.EncodeState(f, session.State{Index: session.Index{Tree: tree.ID}}, nil, at)
	if err != nil {
		l.t.Fatal(err)
	}
	p := session.Checkpoint{ID: session.NewCheckpointID(at), Tree: tree.ID, State: state, Session: l.r.Session(),
		Lane: l.name, Segment: segment, Reason: session.Idle, Time: at.Truncate(time.Second).UTC(), Prev: l.last.ID}
	parent := object.ID{}
	change := session.RefChange{Name: session.SegmentRef(p.Session, l.name, segment)}
	if l.last.Segment == segment {
		parent, change.Old = l.last.Commit, l.last.Commit
	}
	commit := outgoing(l.t, f, object.Commit, string(p.Encode(parent)))
	p.Commit, change.New = commit.ID, commit.ID
	if err := l.r.Write(context.Background(), append(objects, blob, all, tree, commit)); err != nil {
		l.t.Fatal(err)
	}
	if err := l.r.Update(context.Background(), []session.RefChange{change}); err != nil {
		l.t.Fatal(err)
	}
	l.last = p
	return p
}

func ids(checkpoints []session.Checkpoint) (list []session.CheckpointID) {
	for _, p := range checkpoints {
		list = append(list, p.ID)
	}
	return list
}

func checkpoints(t *testing.T, r *session.Repo) []session.Checkpoint {
	t.Helper()
	all, err := r.Checkpoints(0)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const day = 24 * time.Hour

func TestGCKeepsWhatItsRulesSay(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		r := open(t, filepath.Join(t.TempDir(), "s.git"), session.RepoOptions{Format: f, Session: "s"})
		ctx := t.Context()
		now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
		l := &lane{t: t, r: r, name: "main"}
		var made []session.Checkpoint
		for i, at := range []time.Duration{50 * day, 40*day + time.Hour, 40 * day, 20*day + 2*time.Hour, 20*day + time.Hour,
			20 * day, 8*day + time.Hour, 8 * day, 6 * day, time.Hour} {
			made = append(made, l.checkpoint(now.Add(-at), []int{1, 2, 2, 3, 3, 3, 4, 4, 4, 5}[i]))
		}
		other := &lane{t: t, r: r, name: "main-far-1234"}
		lone := other.checkpoint(now.Add(-60*day), 1)
		if err := session.SetPin(ctx, r, "s", "good", made[4]); err != nil {
			t.Fatal(err)
		}
		user := commits(t, r, 2)
		if err := r.Update(ctx, []session.RefChange{{Name: "refs/heads/main", New: user[0]},
			{Name: session.KeptPrefix("s") + "x", New: user[1]}}); err != nil {
			t.Fatal(err)
		}
		// in the order of their creation, the newest first
		want := []session.CheckpointID{lone.ID, made[9].ID, made[8].ID, made[7].ID, made[5].ID, made[4].ID}
		dry, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now, DryRun: true})
		if err != nil || dry.Kept != 6 || len(dry.Dropped) != 5 || len(checkpoints(t, r)) != 11 {
			t.Fatalf("dry run of gc: got %+v, %v, want 6 kept and 5 dropped, and 11 checkpoints left", dry, err)
		}
		if !slices.Equal(ids(dry.Dropped), []session.CheckpointID{made[6].ID, made[3].ID, made[2].ID, made[1].ID,
			made[0].ID}) {
			t.Errorf("dry run of gc: got dropped checkpoints %v", ids(dry.Dropped))
		}
		done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now})
		if err != nil || done.Kept != 6 || len(done.Dropped) != 5 || done.Bytes <= 0 {
			t.Fatalf("gc: got %+v, %v, want 6 kept and 5 dropped", done, err)
		}
		left := checkpoints(t, r)
		if !slices.Equal(ids(left), want) {
			t.Errorf("checkpoints after gc: got %v\nwant %v", ids(left), want)
		}
		for _, p := range left {
			if _, err := r.State(p); err != nil {
				t.Error(err)
			}
			was := slices.IndexFunc(made, func(o session.Checkpoint) bool { return o.ID == p.ID })
			if was >= 0 && (p.Tree != made[was].Tree || p.State != made[was].State || !p.Time.Equal(made[was].Time) ||
				p.Segment != made[was].Segment) {
				t.Errorf("checkpoint after gc: got %+v, before gc it was %+v", p, made[was])
			}
		}
		pin, err := r.Find("good")
		if err != nil || pin.ID != made[4].ID {
			t.Errorf("find pin good: got %+v, %v", pin, err)
		}
		for _, gone := range done.Dropped {
			if r.Owned(gone.Tree) {
				t.Errorf("gc did not remove the tree of the dropped checkpoint %s", gone.ID)
			}
		}
		for _, id := range user {
			if !r.Owned(id) {
				t.Errorf("gc removed the commit %s of a branch", id)
			}
		}
		git(t, r.Dir(), "fsck", "--strict")
		again, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now})
		if err != nil || len(again.Dropped) != 0 || again.Bytes != 0 {
			t.Errorf("second gc: got %+v, %v, want nothing dropped", again, err)
		}
		l.last = left[0]
		l.checkpoint(now, 6)
		git(t, r.Dir(), "fsck", "--strict")
	}
}

func TestGCOfAnArchivedSession(t *testing.T) {
	r := begun(t)
	ctx, now := t.Context(), time.Now()
	l := &lane{t: t, r: r, name: "main"}
	a := l.checkpoint(now.Add(-3*time.Minute), 1)
	l.checkpoint(now.Add(-2*time.Minute), 1)
	c := l.checkpoint(now.Add(-time.Minute), 1)
	if err := session.SetPin(ctx, r, "s", "good", a); err != nil {
		t.Fatal(err)
	}
	if err := session.RemovePin(ctx, r, "s", "bad"); err == nil {
		t.Error("RemovePin of a pin that does not exist: got no error")
	}
	if _, err := transit(ctx, r, "s", session.Transition{State: session.Archived}); err != nil {
		t.Fatal(err)
	}
	if done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now}); err != nil || len(done.Dropped) != 1 {
		t.Errorf("gc of the archived session: got %+v, %v, want 1 dropped", done, err)
	}
	if got := checkpoints(t, r); !slices.Equal(ids(got), []session.CheckpointID{c.ID, a.ID}) || got[0].Prev != a.ID {
		t.Errorf("checkpoints after gc of the archived session: got %+v", got)
	}
	if err := session.RemovePin(ctx, r, "s", "good"); err != nil {
		t.Error(err)
	}
	if done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now}); err != nil || len(done.Dropped) != 1 {
		t.Errorf("gc after the unpin: got %+v, %v, want 1 dropped", done, err)
	}
	git(t, r.Dir(), "fsck", "--strict")
}

func TestGCLeavesTheLanesOfOthersAlone(t *testing.T) {
	r := begun(t)
	ctx, now, w := t.Context(), time.Now(), here(t, t.TempDir())
	if _, err := claim(r, writerOnOtherHost(t), nil); err != nil {
		t.Fatal(err)
	}
	l := &lane{t: t, r: r, name: "main"}
	for i := range 3 {
		l.checkpoint(now.Add(time.Duration(i-100)*day), 1)
	}
	if done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now, Writer: w}); err != nil ||
		len(done.Dropped) != 0 {
		t.Errorf("gc while another host holds the lane: got %+v, %v, want none dropped", done, err)
	}
	if _, err := claim(r, w, takeOver); err != nil {
		t.Fatal(err)
	}
	if done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now, Writer: w}); err != nil ||
		len(done.Dropped) != 2 {
		t.Errorf("gc by the writer that holds the lane: got %+v, %v, want 2 dropped", done, err)
	}
}

// TestGCKeepsForeignObjects checks that gc keeps a base checkpoint with all its objects, and objects that stock git
// has pushed, which are in other files.
func TestGCKeepsForeignObjects(t *testing.T) {
	r := begun(t)
	ctx, now := t.Context(), time.Now()
	l := &lane{t: t, r: r, name: "main"}
	base := l.checkpoint(now.Add(-100*day), 1)
	l.checkpoint(now.Add(-99*day), 2)
	if err := r.Update(ctx, []session.RefChange{{Name: session.BaseRef("s"), New: base.Commit}}); err != nil {
		t.Fatal(err)
	}
	tree := strings.TrimSpace(git(t, r.Dir(), "rev-parse", base.Tree.String()+":own"))
	loose, err := gittest.Git(ctx, r.Dir(), "commit-tree", "-m", "x", base.Tree.String())
	if err != nil {
		t.Fatal(err)
	}
	git(t, r.Dir(), "update-ref", "refs/heads/pushed", strings.TrimSpace(loose))
	if done, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now}); err != nil || len(done.Dropped) != 1 {
		t.Errorf("gc beside a commit that git pushed: got %+v, %v, want 1 dropped", done, err)
	}
	if !r.Owned(object.MustID(tree)) {
		t.Error("gc removed a file of the checkpoint that BaseRef keeps")
	}
	git(t, r.Dir(), "fsck", "--strict")
	if err := r.Update(ctx, []session.RefChange{{Name: session.BaseRef("s"), Old: base.Commit}}); err != nil {
		t.Fatal(err)
	}
	if _, err := session.GC(ctx, r, session.GCOptions{Session: "s", Now: now}); err != nil ||
		!r.Owned(object.MustID(tree)) {
		t.Errorf("gc removed the tree of a loose commit: %v", err)
	}
	git(t, r.Dir(), "fsck", "--strict")
}

// TestGCBesideWriters checks that no object that is reachable from a ref is lost if other processes write objects and
// change refs while gc runs.
func TestGCBesideWriters(t *testing.T) {
	r := begun(t)
	now := time.Now()
	l := &lane{t: t, r: r, name: "main"}
	for i := range 40 {
		l.checkpoint(now.Add(-100*day+time.Duration(i)*time.Minute), 1)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	var tips []object.ID
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			func() {
				defer r.Working()()
				// The writers create the same objects repeatedly, so some exist already without being reachable from a ref.
				tree := outgoing(t, r.Format(), object.Tree,
					string(session.EncodeTree([]object.TreeEntry{{Name: "f", Mode: object.ModeFile,
						ID: outgoing(t, r.Format(), object.Blob, fmt.Sprint(n%3)).ID}})))
				c := outgoing(t, r.Format(), object.Commit,
					fmt.Sprintf("tree %s\nauthor a <a> %d +0000\ncommitter a <a> %d +0000\n\nm\n", tree.ID, n%5, n%5))
				if err := r.Write(context.Background(), []odb.Outgoing{outgoing(t, r.Format(), object.Blob, fmt.Sprint(n%3)), tree,
					c}); err != nil {
					t.Error(err)
				}
				if err := r.Update(context.Background(),
					[]session.RefChange{{Name: "refs/heads/w", New: c.ID, Force: true}}); err != nil {
					t.Error(err)
				}
				tips = append(tips, c.ID)
			}()
		}
	}()
	for i := range 5 {
		if _, err := session.GC(t.Context(), r, session.GCOptions{Session: "s", Now: now,
			Keep: session.Retention{All: time.Duration(110-2*i) * day, Daily: 1}}); err != nil {
			t.Error(err)
		}
		git(t, r.Dir(), "fsck")
	}
	close(stop)
	<-stopped
	if len(tips) == 0 {
		t.Fatal("no object was written while gc ran")
	}
	git(t, r.Dir(), "fsck", "--strict")
}

func FuzzPackTable(f *testing.F) {
	dir := f.TempDir()
	r, err := session.OpenRepo(filepath.Join(dir, "s.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		f.Fatal(err)
	}
	blob, err := session.Outgoing(object.SHA1, object.Blob, []byte("x"))
	if err != nil {
		f.Fatal(err)
	}
	if err := r.Write(context.Background(), []odb.Outgoing{blob}); err != nil {
		f.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(r.Dir(), "objects/pack/*.idx"))
	for _, n := range names {
		text, err := os.ReadFile(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	r.Close()
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := session.FindInPackTable(object.SHA1, text, blob.ID)
		if err != nil && found {
			t.Fatal("found an object in an invalid index")
		}
	})
}

func BenchmarkGC(b *testing.B) {
	const checkpoints = 1000
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		r, err := session.OpenRepo(filepath.Join(dir, "s.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		fillWithCheckpoints(b, r, checkpoints, now)
		b.StartTimer()
		done, err := session.GC(context.Background(), r,
			session.GCOptions{Session: "s", Now: now, Keep: session.Retention{All: 30 * day, Daily: 30 * day}})
		if err != nil || len(done.Dropped) < checkpoints/2 {
			b.Fatalf("gc: got %+v, %v", done, err)
		}
		b.ReportMetric(float64(len(done.Dropped)), "dropped")
		r.Close()
	}
}

// fillWithCheckpoints writes n checkpoints of a tree of 1,000 files in one pack. Each checkpoint changes one file.
func fillWithCheckpoints(b *testing.B, r *session.Repo, n int, now time.Time) {
	f := r.Format()
	var all []odb.Outgoing
	add := func(typ object.Type, content []byte) object.ID {
		o, err := session.Outgoing(f, typ, content)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, o)
		return o.ID
	}
	var entries []object.TreeEntry
	for i := range 1000 {
		entries = append(entries, object.TreeEntry{Name: fmt.Sprintf("file%04d", i), Mode: object.ModeFile,
			ID: add(object.Blob, fmt.Appendf(nil, "%d\n", i))})
	}
	var changes []session.RefChange
	var last session.Checkpoint
	for i := range n {
		at := now.Add(-60*day + time.Duration(i)*time.Hour)
		entries[i%1000].ID = add(object.Blob, fmt.Appendf(nil, "point %d\n", i))
		tree := add(object.Tree, session.EncodeTree(entries))
		state, objects, err := session.EncodeState(f, session.State{Index: session.Index{Tree: tree}}, nil, at)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, objects...)
		p := session.Checkpoint{ID: session.NewCheckpointID(at), Tree: tree, State: state, Session: "s", Lane: "main",
			Segment: 1 + i/200, Reason: session.Idle, Time: at, Prev: last.ID}
		parent := object.ID{}
		if last.Segment == p.Segment {
			parent = last.Commit
		}
		p.Commit = add(object.Commit, p.Encode(parent))
		if i%200 == 199 || i == n-1 {
			changes = append(changes, session.RefChange{Name: session.SegmentRef("s", "main", p.Segment), New: p.Commit})
		}
		last = p
	}
	if err := r.Write(context.Background(), all); err != nil {
		b.Fatal(err)
	}
	if err := r.Update(context.Background(), changes); err != nil {
		b.Fatal(err)
	}
}
