package records

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSessionOf(t *testing.T) {
	for ref, want := range map[string]string{
		"refs/afs/meta/work": "work", "refs/afs/j/work/main/000001": "work", "refs/heads/afs/work/main": "work",
		"refs/afs/tags/work/v1": "work",
		"refs/heads/main":       "", "refs/tags/v1": "", "refs/afs/trash/work/1/afs/meta/work": "",
		"refs/afs/cache/entries/00/work": "",
		"refs/afs/archived/_/work":       "", "refs/afs/policy": "", "refs/afs/owner": "", "refs/notes/agent": "",
	} {
		if got := SessionOf(ref); got != want {
			t.Errorf("session of %s: got %q, want %q", ref, got, want)
		}
	}
}

// TestArchives checks that an archived session has no refs, that its bundle is in use until it is reopened, and that no
// ref of the session can be created in the meantime.
func TestArchives(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		now := time.Now().UTC().Truncate(time.Microsecond)
		db.clock = func() time.Time { return now }
		refs := []Ref{{"refs/afs/j/work/main/000001", oid(1)}, {"refs/afs/meta/work", oid(2)},
			{"refs/heads/afs/work/main", oid(3)}}
		id := create(t, db, "a", append([]Ref{{"refs/afs/meta/other", oid(4)}, {"refs/heads/main", oid(5)}}, refs...)...)
		all := refsOf(t, db, id)
		version := func() Version {
			r, err := db.Repos.ByID(ctx, id)
			do(t, err)
			return r.Version
		}
		bundle := func() Pack {
			p := *begin(t, db)
			p.Extensions = []string{".pack", ".idx"}
			return p
		}
		var events []RefUpdate
		note := func(done []RefUpdate) []Event {
			events = append(events, done...)
			return []Event{{Type: "pushed", Namespace: "ns", Repo: "a", Body: []byte("{}")}}
		}
		put := func(v Version, s ...Archiving) []error {
			t.Helper()
			results, err := db.Archives.Put(ctx, id, v, s, Cause{Actor: "upkeep"}, note)
			do(t, err)
			return results
		}
		work := Archiving{Archive: Archive{Session: "work", Pack: bundle(), Changed: now.Add(-time.Hour), Info: "{}"},
			Refs: refs, Bases: []string{oid(5)}}
		stale := work
		stale.Refs = refs[:2]
		if got := put(version(), stale); !errors.Is(got[0], ErrChanged) || refsOf(t, db, id) != all {
			t.Errorf("archive a session with another ref: got %v", got)
		}
		if _, err := db.Archives.Put(ctx, id, Version{Generation: 99}, []Archiving{work}, Cause{}, note); !errors.Is(err,
			ErrCollected) {
			t.Errorf("archive with an unknown version: got %v", err)
		}
		before := version()
		if got := put(before, work, stale); got[0] != nil || !errors.Is(got[1], ErrChanged) {
			t.Fatalf("archive: got %v", got)
		}
		if got := refsOf(t, db, id); strings.Contains(got, "work") || !strings.Contains(got, "refs/afs/archived/_/"+oid(5)) ||
			version() == before {
			t.Errorf("refs after archiving: got %s", got)
		}
		if len(events) != 3 {
			t.Errorf("events: got %v", events)
		}
		row, err := db.Archives.Get(ctx, id, "work")
		if do(t, err); row.Pack.ID != work.Pack.ID || !row.Archived.Equal(now) || !row.Changed.Equal(work.Changed) ||
			row.Info != "{}" {
			t.Errorf("row: got %+v", row)
		}
		if own, _, err := db.Repos.Size(ctx, id); err != nil || own != 100 {
			t.Errorf("size: got %d, %v, want that of the bundle", own, err)
		}
		list, err := db.Archives.List(ctx, id, "", 10)
		if do(t, err); len(list) != 1 {
			t.Errorf("list: got %v", list)
		}
		if list, err = db.Archives.List(ctx, id, "work", 10); err != nil || len(list) != 0 {
			t.Errorf("list after the last name: got %v, %v", list, err)
		}
		unused := func() (n int) {
			packs, err := db.Packs.Unused(ctx, now.Add(time.Hour), 10)
			do(t, err)
			for _, p := range packs {
				if p.ID == work.Pack.ID {
					n++
				}
			}
			return n
		}
		if unused() != 0 {
			t.Error("the bundle of an archived session counts as unused")
		}
		texts := push(t, db,
			Push{RepoID: id, Updates: []RefUpdate{{"refs/afs/meta/work", zeros, oid(2)}, {"refs/heads/x", zeros, oid(2)}}})
		if !strings.Contains(texts[0], "session work is archived") || texts[1] != "" {
			t.Errorf("push of an archived session: got %q", texts)
		}
		back := Restoring{RepoID: id, Session: "work", Bundle: work.Pack.ID, Version: version(), Refs: refs,
			Packs: []Pack{bundle()}, Events: note}
		other := back
		other.Bundle = "none"
		if err := db.Archives.Take(ctx, other); !errors.Is(err, ErrChanged) {
			t.Errorf("reopen with another bundle: got %v", err)
		}
		other = back
		other.Refs = []Ref{{"refs/heads/main", oid(3)}}
		if err := db.Archives.Take(ctx, other); !errors.Is(err, ErrExists) {
			t.Errorf("reopen with a ref that exists: got %v", err)
		}
		do(t, db.Archives.Take(ctx, back))
		push(t, db, Push{RepoID: id, Updates: []RefUpdate{{"refs/heads/x", oid(2), zeros}}})
		if got := refsOf(t, db, id); got != all || unused() != 1 || len(packIDs(t, db, id)) != 1 {
			t.Errorf("after reopening: got %s, unused %d", got, unused())
		}
		if err := db.Archives.Take(ctx, back); !errors.Is(err, ErrNotFound) {
			t.Errorf("reopen again: got %v", err)
		}
		// The bundle of a repository that is deleted becomes unused.
		work.Pack = bundle()
		put(version(), work)
		do(t, db.Repos.Delete(ctx, id, nil, Cause{}))
		if _, err := db.Archives.Get(ctx, id, "work"); !errors.Is(err, ErrNotFound) || unused() != 1 {
			t.Errorf("after the deletion of the repository: got %v, unused %d", err, unused())
		}
	})
}

func TestRetention(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		if err := db.Retention.Set(ctx, "ns", "{}", Cause{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("retention of a namespace that does not exist: got %v", err)
		}
		create(t, db, "a")
		for _, rules := range []string{`{"a":1}`, `{"a":2}`} {
			do(t, db.Retention.Set(ctx, "NS", rules, Cause{}))
			if got, err := db.Retention.Get(ctx, "ns"); err != nil || got != rules {
				t.Errorf("rules: got %q, %v, want %q", got, err, rules)
			}
		}
		if got, err := db.Retention.Namespaces(ctx); err != nil || len(got) != 1 || got[0] != "ns" {
			t.Errorf("namespaces: got %v, %v", got, err)
		}
		do(t, db.Retention.Set(ctx, "ns", "", Cause{}))
		if _, err := db.Retention.Get(ctx, "ns"); !errors.Is(err, ErrNotFound) {
			t.Errorf("removed rules: got %v", err)
		}
	})
}
