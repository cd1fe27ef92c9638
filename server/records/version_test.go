package records

import (
	"errors"
	"fmt"
	"testing"
)

// backup copies the rows of all repositories. It returns a function that restores them, as if a standby were promoted
// that lacks the later changes.
func backup(t *testing.T, db *DB) (restore func()) {
	run := func(format string) {
		do(t, db.write(t.Context(), "back up", func(tx *tx) error {
			for _, table := range []string{"refs", "links"} {
				if err := tx.script(t.Context(), fmt.Sprintf(format, table)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	do(t, db.write(t.Context(), "back up", func(tx *tx) error {
		return tx.script(t.Context(), "CREATE TABLE saved AS SELECT id, generation, collections, stamps FROM repos")
	}))
	run("CREATE TABLE saved_%[1]s AS SELECT * FROM %[1]s")
	return func() {
		run("DELETE FROM %[1]s; INSERT INTO %[1]s SELECT * FROM saved_%[1]s")
		do(t, db.write(t.Context(), "restore", func(tx *tx) error {
			return tx.script(t.Context(), `UPDATE repos SET generation = (SELECT generation FROM saved s WHERE s.id = repos.id),
				collections = (SELECT collections FROM saved s WHERE s.id = repos.id), stamps = (SELECT stamps FROM saved s WHERE s.id = repos.id)`)
		}))
	}
}

// TestVersionsAreNotUsedAgain restores an older state of the database. A push that was checked against the lost changes
// must be refused, even if the generation has increased again to the same number.
func TestVersionsAreNotUsedAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "r", Ref{"refs/heads/main", oid(0)})
		version := func() Version {
			r, err := db.Repos.ByID(ctx, id)
			do(t, err)
			return r.Version
		}
		n := 0
		try := func(v Version) error {
			n++
			_, err := db.Repos.Push(ctx, Push{RepoID: id, Version: v,
				Updates: []RefUpdate{{fmt.Sprintf("refs/heads/b%d", n), zeros, oid(n)}}})
			return err
		}
		kept := version()
		do(t, try(kept))
		last := version()
		restore := backup(t, db)
		do(t, try(last))
		lost := version()
		do(t, try(lost))
		restore()
		if now := version(); now != last {
			t.Fatalf("restored version is %v, want %v", now, last)
		}
		for range 4 {
			now := version()
			if now == lost {
				t.Errorf("version %v was used again", lost)
			}
			if err := try(lost); !errors.Is(err, ErrCollected) {
				t.Errorf("push that was checked with %v to %v: got %v, want ErrCollected", lost, now, err)
			}
			if err := db.Packs.Collect(ctx, id, lost, nil, nil); !errors.Is(err, ErrChanged) {
				t.Errorf("collection of %v at %v: got %v, want ErrChanged", lost, now, err)
			}
			fork := Creation{Repo: Repo{ID: NewID(), Namespace: "ns", Name: NewID()}, Parent: id,
				Refs: []Ref{{"refs/heads/a", oid(1)}}, Version: lost}
			if err := db.Repos.Create(ctx, fork); !errors.Is(err, ErrCollected) {
				t.Errorf("fork that was checked with %v at %v: got %v, want ErrCollected", lost, now, err)
			}
			fork.Version = kept
			do(t, db.Repos.Create(ctx, fork))
			do(t, try(kept)) // an older version of the same history
		}
		for range 2 * stamps {
			do(t, try(version()))
		}
		do(t, try(kept)) // a version whose stamp was removed
		do(t, db.Packs.Collect(ctx, id, version(), nil, nil))
		if err := try(kept); !errors.Is(err, ErrCollected) {
			t.Errorf("push after a collection: got %v, want ErrCollected", err)
		}
	})
}

// TestEachChangeHasAStamp checks that each change that increases the generation of a repository also gets a stamp.
func TestEachChangeHasAStamp(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "r", Ref{"refs/heads/main", oid(0)})
		seen := map[string]bool{}
		look := func(what string, generations int64, change func() error) {
			t.Helper()
			before, err := db.Repos.ByID(ctx, id)
			do(t, err)
			seen[before.Stamp] = true
			do(t, change())
			s, err := db.Repos.Snapshot(ctx, id)
			do(t, err)
			if v := s.Repo.Version; v.Generation != before.Generation+generations || seen[v.Stamp] || len(v.Stamp) != stampSize {
				t.Errorf("version after %s is %v, before %v", what, v, before.Version)
			}
		}
		pack := begin(t, db)
		look("push", 1, func() error {
			push(t, db, Push{RepoID: id, Pack: pack, Updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}})
			return nil
		})
		look("change of the default branch", 1, func() error { return db.Repos.SetDefaultBranch(ctx, id, "a") })
		look("repack", 1, func() error { return db.Packs.Replace(ctx, id, []string{pack.ID}, []Pack{*begin(t, db)}) })
		look("import", 1, func() error {
			do(t, db.Imports.Begin(ctx, Import{RepoID: id}, Cause{}))
			m, err := db.Imports.Take(ctx, id)
			do(t, err)
			_, err = db.Imports.Finish(ctx, Imported{Import: m, Push: Push{RepoID: id}})
			return err
		})
	})
}

// TestRowsWithoutStamps changes a repository in a database that was created by an older program, so that its row has no
// stamp.
func TestRowsWithoutStamps(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "r", Ref{"refs/heads/main", oid(0)})
		do(t, db.write(ctx, "remove stamps", func(tx *tx) error {
			return tx.script(ctx, "UPDATE repos SET stamps = '', generation = 500")
		}))
		old, err := db.Repos.ByID(ctx, id)
		do(t, err)
		for n := range 3 {
			_, err := db.Repos.Push(ctx, Push{RepoID: id, Version: old.Version,
				Updates: []RefUpdate{{fmt.Sprintf("refs/heads/b%d", n), zeros, oid(n)}}})
			do(t, err)
		}
		if now, err := db.Repos.ByID(ctx, id); err != nil || now.Generation != 503 || len(now.Stamp) != stampSize {
			t.Errorf("version %v, %v", now.Version, err)
		}
	})
}
