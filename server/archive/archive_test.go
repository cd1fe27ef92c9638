package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/upkeep"
	"github.com/artifactfs/artifactfs/session"
)

// world is a repository of a server, to which a test adds sessions.
type world struct {
	testing.TB
	bed    *replicatest.Bed
	repo   *replicatest.Repo
	a      *Archiver
	format object.Format
	main   object.ID
}

func newWorld(t testing.TB, f object.Format) *world {
	bed := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := &world{TB: t, bed: bed, repo: bed.Create(t, "app", f), format: f}
	w.a = New(Options{Records: bed.DB, Objects: bed.Objects, Replicas: bed.Set})
	w.repo.Push(t, "main", map[string]gittest.File{"big": {Data: []byte(noise(200_000))}})
	w.main = w.repo.Push(t, "main", map[string]gittest.File{"a": {Data: []byte("1")}})
	return w
}

// noise returns a text of n bytes that cannot be compressed.
func noise(n int) string {
	var b strings.Builder
	for x := uint64(1); b.Len() < n; x = x*6364136223846793005 + 1442695040888963407 {
		b.WriteByte(byte(x >> 33))
	}
	return b.String()
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// set pushes a ref to the server.
func (w *world) set(name string, id object.ID) {
	w.Helper()
	w.ok(w.repo.Update(w.Context(), name, "", id.String()))
}

// add creates a session with a branch, a checkpoint and metadata.
func (w *world) add(name string, state session.LifeState, p profile.Profile) {
	w.Helper()
	gittest.Must(w, w.repo.Path, "update-ref", "refs/heads/afs/"+name+"/main", w.main.String())
	head := w.repo.Push(w, "x-"+name, map[string]gittest.File{name: {Data: []byte(noise(50_000) + name)}})
	_ = head
	now := time.Now().UTC()
	m := session.Meta{Version: 1, Session: name, Format: w.format.String(), Began: now.Add(-time.Hour), State: state,
		Lanes: []session.Lane{}, Profile: p}
	if state == session.Active {
		m.Lanes = append(m.Lanes, session.Lane{Name: "main", Segment: 1, Since: now.Add(-time.Hour),
			Writer: session.Writer{Host: "elsewhere"}})
	}
	m.Transitions = []session.Transition{{State: session.Active, Time: now.Add(-time.Hour), Actor: "me"}}
	id, all, err := m.Encode(w.format, object.ID{}, now)
	w.ok(err)
	c := session.Checkpoint{ID: session.NewCheckpointID(now), Session: name, Lane: "main", Segment: 1,
		Time: now.Add(-time.Minute), Tree: w.tree(head), State: head, Head: head}
	point, err := session.Outgoing(w.format, object.Commit, c.Encode(object.ID{}))
	w.ok(err)
	w.write(append(all, point))
	w.set(session.MetaRef(name), id)
	w.set(session.SegmentRef(name, "main", 1), point.ID)
	w.set("refs/heads/afs/"+name+"/main", head)
	w.set("refs/heads/afs/"+name+"/start", w.main)
	w.ok(w.repo.Update(w.Context(), "refs/heads/x-"+name, head.String(), ""))
	gittest.Must(w, w.repo.Path, "update-ref", "-d", "refs/heads/x-"+name)
}

func (w *world) tree(commit object.ID) object.ID {
	id, err := object.ParseIDOf(w.format, gittest.Must(w, w.repo.Path, "rev-parse", commit.String()+"^{tree}"))
	w.ok(err)
	return id
}

// write stores objects as a pack in the clone.
func (w *world) write(all []odb.Outgoing) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "x.pack")
	w.ok(writePack(w.Context(), file, w.format, all))
	out := gittest.Must(w, w.repo.Path, "index-pack", file)
	hash := strings.TrimPrefix(out, "pack\t")
	for _, x := range []string{".pack", ".idx"} {
		w.ok(os.Rename(strings.TrimSuffix(file, ".pack")+x, filepath.Join(w.repo.Path, "objects", "pack", "pack-"+hash+x)))
	}
}

func (w *world) refs() map[string]string {
	w.Helper()
	refs, err := w.bed.DB.Repos.Refs(w.Context(), w.repo.ID)
	w.ok(err)
	all := map[string]string{}
	for _, r := range refs {
		all[r.Name] = r.ID
	}
	return all
}

// collect removes garbage from the repository at once.
func (w *world) collect() {
	w.Helper()
	times := upkeep.Default()
	times.Check, times.Grace, times.Unused, times.Crowd = 0, 0, 0, 2
	worker := upkeep.New(upkeep.Options{Records: w.bed.DB, Objects: w.bed.Objects, Replicas: w.bed.Set, Times: times})
	for range 3 {
		w.ok(worker.Round(w.Context()))
	}
}

func (w *world) size() int64 {
	w.Helper()
	_, bytes, err := w.bed.DB.Packs.Totals(w.Context(), w.repo.ID)
	w.ok(err)
	return bytes
}

func (w *world) archive(names ...string) []error {
	w.Helper()
	results, err := w.a.Archive(w.Context(), w.repo.ID, names, By{})
	w.ok(err)
	return results
}

// TestArchiveAndReopen checks that archiving a session removes its refs from the repository, whose packs get smaller,
// and that reopening it restores the same refs and objects, even if its base commit was removed as garbage in the
// meantime.
func TestArchiveAndReopen(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorld(t, f)
			w.add("work", session.Closed, profile.Profile{Title: "Fix", Owner: "alice"})
			w.add("other", session.Paused, profile.Profile{})
			before, full := w.refs(), w.size()
			if got := w.archive("work", "none", "other"); got[0] != nil || !errors.Is(got[1], records.ErrNotFound) ||
				got[2] != nil {
				t.Fatalf("archive: got %v", got)
			}
			for name := range w.refs() {
				if records.SessionOf(name) != "" {
					t.Errorf("%s remains", name)
				}
			}
			row, err := w.bed.DB.Archives.Get(t.Context(), w.repo.ID, "work")
			w.ok(err)
			if i := InfoOf(row); i.Title != "Fix" || i.State != session.Closed || row.Pack.Bytes > 60_000 ||
				row.Pack.Bytes < 50_000 {
				t.Errorf("row: got %+v, %+v, want a bundle without the base", row, i)
			}
			// Stock git can read the bundle.
			bundle := filepath.Join(t.TempDir(), "b")
			w.ok(w.bed.Objects.Get(t.Context(), row.Pack.Key(records.BundleExtension), bundle))
			gittest.Must(t, w.repo.Path, "bundle", "verify", bundle)
			if heads := gittest.Must(t, w.repo.Path, "bundle", "list-heads", bundle); strings.Count(heads, "\n") != 3 {
				t.Errorf("bundle: got %s", heads)
			}
			// Rewrite the branch, so that it does not contain the base commit of the sessions any more.
			fresh := w.repo.Push(t, "fresh", map[string]gittest.File{"b": {Data: []byte("2")}})
			w.ok(w.repo.Update(t.Context(), "refs/heads/main", w.main.String(), ""))
			w.set("refs/heads/main", fresh)
			w.collect()
			if n := w.size(); n > full-90_000 {
				t.Errorf("packs of the repository: %d bytes, %d with the sessions", n, full)
			}
			w.ok(w.a.Reopen(t.Context(), w.repo.ID, "work", By{Actor: "bob", Reason: "again"}))
			w.ok(w.a.Reopen(t.Context(), w.repo.ID, "other", By{}))
			for range 2 { // the repository contains the objects until the garbage collection removes them
				w.ok(w.archive("other")[0])
				w.ok(w.a.Reopen(t.Context(), w.repo.ID, "other", By{}))
			}
			after := w.refs()
			for name, id := range before {
				if records.SessionOf(name) != "" && after[name] != id && name != session.MetaRef("work") {
					t.Errorf("%s: got %s, want %s", name, after[name], id)
				}
			}
			on, err := w.bed.Set.Acquire(t.Context(), w.repo.ID)
			w.ok(err)
			defer on.Release()
			gittest.Must(t, on.Dir, "fsck", "--strict", "--no-dangling")
			text := gittest.Must(t, on.Dir, "cat-file", "-p", session.MetaRef("work")+":transitions.jsonl")
			if !strings.Contains(text, `"state":"paused"`) || !strings.Contains(text, `"actor":"bob","reason":"again"`) {
				t.Errorf("history of the reopened session: got %s", text)
			}
			w.collect()
			if err := w.bed.Objects.Get(t.Context(), row.Pack.Key(records.BundleExtension),
				filepath.Join(t.TempDir(), "c")); err == nil {
				t.Error("the bundle of a reopened session was not removed")
			}
			if err := w.a.Reopen(t.Context(), w.repo.ID, "work", By{}); !errors.Is(err, records.ErrNotFound) {
				t.Errorf("reopen again: got %v", err)
			}
		})
	}
}

func TestSessionsThatAreNotArchived(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.add("held", session.Closed, profile.Profile{Hold: &profile.Hold{Reason: "audit", By: "alice", Since: time.Now()}})
	w.add("busy", session.Active, profile.Profile{})
	before := fmt.Sprint(w.refs())
	got := w.archive("held", "busy")
	var held *profile.OnHoldError
	var refused *Refused
	if !errors.As(got[0], &held) || !errors.As(got[1], &refused) || fmt.Sprint(w.refs()) != before {
		t.Errorf("archive a session on hold and an active one: got %v", got)
	}
}

// TestArchivedSessionToTrash checks that an archived session that is deleted is in the trash, as any other session.
func TestArchivedSessionToTrash(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.add("work", session.Closed, profile.Profile{})
	before := w.refs()
	if err := w.archive("work")[0]; err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	w.ok(w.a.Trash(t.Context(), w.repo.ID, "work", By{}, now))
	after := w.refs()
	for name, id := range before {
		if records.SessionOf(name) != "" && after["refs/afs/trash/work/1800000000/"+strings.TrimPrefix(name, "refs/")] != id {
			t.Errorf("%s is not in the trash: %v", name, after)
		}
	}
}

// stops is an object store that returns an error when the n-th file is stored, as if the process was killed then.
type stops struct {
	left int
	replicatestStore
}

type replicatestStore interface {
	Put(ctx context.Context, key, path string) error
	Get(ctx context.Context, key, path string) error
	Delete(ctx context.Context, key string) error
	Ready(ctx context.Context) error
	Shared() bool
}

func (s *stops) Put(ctx context.Context, key, path string) error {
	if s.left--; s.left < 0 {
		return errors.New("killed")
	}
	return s.replicatestStore.Put(ctx, key, path)
}

// TestArchiveThatDies checks that a process that dies while it archives sessions changes nothing, and that the files
// that it has stored are removed later.
func TestArchiveThatDies(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.add("one", session.Closed, profile.Profile{})
	w.add("two", session.Closed, profile.Profile{})
	before := fmt.Sprint(w.refs())
	for n := range 2 { // in one case the first bundle is not stored, in the other the second one
		w.a.o.Objects = &stops{n, w.bed.Objects}
		if _, err := w.a.Archive(t.Context(), w.repo.ID, []string{"one", "two"}, By{}); err == nil {
			t.Fatal("the store did not fail")
		}
		if got := fmt.Sprint(w.refs()); got != before {
			t.Errorf("refs after file %d: got %s", n, got)
		}
	}
	w.collect()
	w.a.o.Objects = w.bed.Objects
	w.ok(filepath.WalkDir(filepath.Join(w.bed.Dir, "objects"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, records.BundleExtension) {
			t.Errorf("%s remains", path)
		}
		return err
	}))
}

// TestErase checks that old records of a transcript are erased in the repository and in the archive, and that the files
// that contain them are removed.
func TestErase(t *testing.T) {
	for _, archived := range []bool{false, true} {
		w := newWorld(t, object.SHA1)
		w.add("work", session.Closed, profile.Profile{})
		line := func(day, text string) string {
			at, _ := time.Parse(time.DateOnly, day)
			return fmt.Sprintf(`{"id":%q,"time":%q,"point":"","session":"work","lane":"main","record":{"type":"prompt","text":%q}}`+"\n",
				session.NewCheckpointID(at), at.Format(time.RFC3339), text)
		}
		head := w.repo.Push(t, "talk",
			map[string]gittest.File{"2026-01-01/none.jsonl": {Data: []byte(line("2026-01-01", "old sentence"))},
				"2026-03-01/none.jsonl":         {Data: []byte(line("2026-03-01", "new sentence"))},
				".memory/2026-01-01/none.jsonl": {Data: []byte(line("2026-01-01", "old memory"))},
				".memory/2026-03-01/none.jsonl": {Data: []byte(line("2026-03-01", "new memory"))}})
		w.set(session.TranscriptRef("work"), head)
		w.ok(w.repo.Update(t.Context(), "refs/heads/talk", head.String(), ""))
		on, err := w.bed.Set.Acquire(t.Context(), w.repo.ID)
		w.ok(err)
		store, err := odb.Open(filepath.Join(on.Dir, "objects"), w.format)
		w.ok(err)
		if got := OldestRecords(store, w.format, session.Meta{Session: "work"},
			[]records.Ref{{Name: session.TranscriptRef("work"), ID: head.String()}}); got.Format(time.DateOnly) != "2026-01-01" {
			t.Errorf("oldest records: got %s", got)
		}
		store.Close()
		on.Release()
		old := records.Archive{}
		if archived {
			w.ok(w.archive("work")[0])
			old, err = w.bed.DB.Archives.Get(t.Context(), w.repo.ID, "work")
			if w.ok(err); InfoOf(old).Records.Format(time.DateOnly) != "2026-01-01" {
				t.Errorf("description: got %+v", InfoOf(old))
			}
		}
		before := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		w.ok(w.a.Erase(t.Context(), w.repo.ID, "work", archived, before, By{Actor: Rules, Reason: "rule 1"}))
		if archived {
			now, err := w.bed.DB.Archives.Get(t.Context(), w.repo.ID, "work")
			if w.ok(err); InfoOf(now).Records.Format(time.DateOnly) != "2026-03-01" || !now.Archived.Equal(old.Archived) ||
				now.Pack.ID == old.Pack.ID {
				t.Errorf("row after the erasure: got %+v", now)
			}
			w.collect()
			if err := w.bed.Objects.Get(t.Context(), old.Pack.Key(records.BundleExtension),
				filepath.Join(t.TempDir(), "x")); err == nil {
				t.Error("the old bundle remains")
			}
			w.ok(w.a.Reopen(t.Context(), w.repo.ID, "work", By{}))
		}
		on, err = w.bed.Set.Acquire(t.Context(), w.repo.ID)
		w.ok(err)
		memory := gittest.Must(t, on.Dir, "ls-tree", "-r", "--name-only", session.TranscriptRef("work"), ".memory/")
		if strings.TrimSpace(memory) != ".memory/2026-03-01/none.jsonl" {
			t.Errorf("memory of agents after the erasure: got %s", memory)
		}
		text := gittest.Must(t, on.Dir, "cat-file", "-p", session.TranscriptRef("work")+":2026-01-01/none.jsonl") +
			gittest.Must(t, on.Dir, "cat-file", "-p", session.TranscriptRef("work")+":2026-03-01/none.jsonl")
		if strings.Contains(text, "old sentence") || !strings.Contains(text, "new sentence") ||
			!strings.Contains(text, `"by":"retention"`) {
			t.Errorf("transcript: got %s", text)
		}
		if meta := gittest.Must(t, on.Dir, "cat-file", "-p",
			session.MetaRef("work")+":"+session.MetaFile); !strings.Contains(meta, `"before": "2026-02-01T00:00:00Z"`) {
			t.Errorf("metadata: got %s", meta)
		}
		on.Release()
	}
}
