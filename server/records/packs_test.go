package records

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// packIDs returns the ids of the packs of a repository.
func packIDs(t testing.TB, db *DB, id string) (ids []string) {
	t.Helper()
	s, err := db.Repos.Snapshot(t.Context(), id)
	do(t, err)
	for _, p := range s.Packs {
		ids = append(ids, p.ID)
	}
	return ids
}

func TestPackIsUnusedAfterItsLastLink(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		start := time.Now().UTC().Truncate(time.Microsecond)
		now := start
		db.clock = func() time.Time { return now }
		// unused checks that exactly the packs in want are unused since before a time, and that exactly these can be
		// forgotten.
		unused := func(when string, before time.Time, want ...*Pack) {
			t.Helper()
			got, err := db.Packs.Unused(ctx, before, 10)
			do(t, err)
			var ids, wanted []string
			for _, p := range got {
				ids = append(ids, p.ID)
			}
			for _, p := range want {
				wanted = append(wanted, p.ID)
			}
			if !slices.Equal(ids, wanted) {
				t.Errorf("unused packs %s: got %v, want %v", when, ids, wanted)
			}
		}
		pack := begin(t, db)
		if err := db.Packs.Begin(ctx, *pack); !errors.Is(err, ErrExists) {
			t.Errorf("record a pack twice: got %v, want ErrExists", err)
		}
		unused("before grace has passed", start)
		unused("when recorded only", start.Add(1*time.Second), pack)
		a := create(t, db, "a")
		pack.Bytes, pack.Extensions = 999, []string{".pack"}
		push(t, db, Push{RepoID: a, Pack: pack, Updates: []RefUpdate{{"refs/heads/main", zeros, oid(1)}}})
		if s, err := db.Repos.Snapshot(ctx, a); err != nil || len(s.Packs) != 1 || s.Packs[0].Bytes != 999 ||
			len(s.Packs[0].Extensions) != 1 {
			t.Errorf("pack has not the values of the push: %+v, %v", s.Packs, err)
		}
		b := NewID()
		do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: b, Namespace: "ns", Name: "b"}, Parent: a, All: true}))
		now = start.Add(time.Hour)
		do(t, db.Repos.Delete(ctx, a, nil, Cause{}))
		unused("while a fork has it", start.Add(10*time.Hour))
		if ok, err := db.Packs.Condemn(ctx, pack.ID, start.Add(10*time.Hour)); ok || err != nil {
			t.Errorf("condemn pack of a fork: got %v, %v", ok, err)
		}
		now = start.Add(2 * time.Hour)
		do(t, db.Repos.Delete(ctx, b, nil, Cause{}))
		unused("within grace of the last deletion", now)
		unused("after grace of the last deletion", now.Add(time.Microsecond), pack)
		if ok, err := db.Packs.Condemn(ctx, pack.ID, now); ok || err != nil {
			t.Errorf("condemn pack within grace: got %v, %v", ok, err)
		}
		if ok, err := db.Packs.Condemn(ctx, pack.ID, now.Add(time.Second)); !ok || err != nil {
			t.Errorf("condemn pack after grace: got %v, %v", ok, err)
		}
		c := create(t, db, "c")
		if _, err := db.Repos.Push(ctx, Push{RepoID: c, Pack: pack,
			Updates: []RefUpdate{{"refs/heads/main", zeros, oid(1)}}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("push a condemned pack: got %v, want ErrUnavailable", err)
		}
		unused("when condemned", start, pack)
		do(t, db.Packs.Forget(ctx, pack.ID))
		unused("when forgotten", now.Add(time.Hour))
		if _, err := db.Repos.Push(ctx, Push{RepoID: c, Pack: pack,
			Updates: []RefUpdate{{"refs/heads/main", zeros, oid(1)}}}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("push a forgotten pack: got %v, want ErrUnavailable", err)
		}
		if got := refsOf(t, db, c); got != "" {
			t.Errorf("refs after the push that failed: got %q", got)
		}
	})
}

func TestPackIsListedIfNeeded(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		for name, c := range map[string]struct {
			updates []RefUpdate
			want    int
		}{
			"failed":     {[]RefUpdate{{"refs/heads/a", oid(9), oid(1)}}, 0},
			"removal":    {[]RefUpdate{{"refs/heads/x", oid(0), zeros}}, 0},
			"one of two": {[]RefUpdate{{"refs/heads/a", oid(9), oid(1)}, {"refs/heads/b", zeros, oid(1)}}, 1},
		} {
			id := create(t, db, NewID(), Ref{"refs/heads/x", oid(0)})
			push(t, db, Push{RepoID: id, Pack: begin(t, db), Updates: c.updates})
			if got := packIDs(t, db, id); len(got) != c.want {
				t.Errorf("%s: got %d packs, want %d", name, len(got), c.want)
			}
		}
	})
}

func TestReplace(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "a")
		var old []string
		for i := range 3 {
			p := begin(t, db)
			push(t, db, Push{RepoID: id, Pack: p, Updates: []RefUpdate{{fmt.Sprintf("refs/heads/%d", i), zeros, oid(1)}}})
			old = append(old, p.ID)
		}
		if ids, err := db.Repos.Crowded(ctx, 3, 10); err != nil || !slices.Equal(ids, []string{id}) {
			t.Errorf("repositories with 3 packs: got %v, %v", ids, err)
		}
		if ids, err := db.Repos.Crowded(ctx, 4, 10); err != nil || len(ids) != 0 {
			t.Errorf("repositories with 4 packs: got %v, %v", ids, err)
		}
		before, err := db.Repos.ByID(ctx, id)
		do(t, err)
		joined := begin(t, db)
		do(t, db.Packs.Replace(ctx, id, old[:2], []Pack{*joined}))
		if got := packIDs(t, db, id); !slices.Equal(got, []string{old[2], joined.ID}) {
			t.Errorf("packs: got %v, want %s and %s", got, old[2], joined.ID)
		}
		other := begin(t, db)
		if err := db.Packs.Replace(ctx, id, []string{old[2], old[0]}, []Pack{*other}); !errors.Is(err, ErrNotFound) {
			t.Errorf("replace a pack that was replaced: got %v, want ErrNotFound", err)
		}
		if got := packIDs(t, db, id); !slices.Equal(got, []string{old[2], joined.ID}) {
			t.Errorf("packs after a replacement that failed: got %v", got)
		}
		if err := db.Packs.Collect(ctx, id, before.Version, []string{old[2], joined.ID},
			[]Pack{*other}); !errors.Is(err, ErrChanged) {
			t.Errorf("collect garbage of a repository that has changed: got %v, want ErrChanged", err)
		}
		now, err := db.Repos.ByID(ctx, id)
		do(t, err)
		do(t, db.Packs.Collect(ctx, id, now.Version, []string{old[2], joined.ID}, []Pack{*other}))
		after, err := db.Repos.ByID(ctx, id)
		do(t, err)
		if after.Generation != before.Generation+2 || after.Collections != 1 {
			t.Errorf("got generation %d and collections %d, want %d and 1", after.Generation, after.Collections,
				before.Generation+2)
		}
		late := Creation{Repo: Repo{ID: NewID(), Namespace: "ns", Name: "late"}, Parent: id,
			Refs: []Ref{{"refs/heads/a", oid(1)}}}
		if err := db.Repos.Create(ctx, late); !errors.Is(err, ErrCollected) {
			t.Errorf("fork with refs that were looked up before the collection: got %v, want ErrCollected", err)
		}
		late.Version = after.Version
		do(t, db.Repos.Create(ctx, late))
		if packs, err := db.Packs.Unused(ctx, time.Now().Add(time.Hour), 10); err != nil || len(packs) != 4 {
			t.Errorf("unused packs: got %v, %v, want 4", packs, err)
		}
	})
}

func TestUnswept(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		a, b := create(t, db, "a"), create(t, db, "b")
		want := func(what string, since time.Time, want ...string) {
			t.Helper()
			got, err := db.Repos.Unswept(ctx, since, 10)
			slices.Sort(got)
			slices.Sort(want)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: got %q, %v, want %q", what, got, err, want)
			}
		}
		now := time.Now().Add(time.Minute)
		want("new repositories", now, a, b)
		do(t, db.Repos.Swept(ctx, a, now))
		want("one was swept", now.Add(time.Hour), b)
		garbage := begin(t, db)
		garbage.Extensions = append(garbage.Extensions, GarbageExtension)
		push(t, db, Push{RepoID: a, Pack: garbage, Updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}})
		want("garbage is kept", now.Add(time.Hour), a, b)
		want("a short time later", now, b)
	})
}
