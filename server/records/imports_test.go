package records

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// importOf returns the record of an import, and that of its repository.
func importOf(t *testing.T, db *DB, id string) (Import, Repo) {
	t.Helper()
	m, err := db.Imports.Get(t.Context(), id)
	do(t, err)
	r, err := db.Repos.ByID(t.Context(), id)
	do(t, err)
	return m, r
}

func TestAnImportEndsInOneStep(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		id := NewID()
		do(t, db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: id, Namespace: "ns", Name: "r", Status: Importing}}))
		m := Import{RepoID: id, URL: "https://example.com/r.git", Branch: "b", Depth: 2, Secret: "s", State: "queued"}
		do(t, db.Imports.Begin(t.Context(), m, Cause{}))
		if err := db.Imports.Begin(t.Context(), m, Cause{}); !errors.Is(err, ErrExists) {
			t.Errorf("second import at the same time: got %v, want ErrExists", err)
		}
		open, err := db.Imports.Open(t.Context(), 5)
		do(t, err)
		if len(open) != 1 || open[0].URL != m.URL || open[0].Depth != 2 || open[0].Started.IsZero() {
			t.Fatalf("open imports: %+v", open)
		}
		m, err = db.Imports.Take(t.Context(), id)
		do(t, err)
		m.State, m.Phase, m.Done, m.Total, m.Bytes, m.Attempts = "running", "receiving", 1, 2, 3, 1
		do(t, db.Imports.Save(t.Context(), m))
		m.State, m.Finished, m.Refs = "succeeded", time.Now(), []byte("refs")
		results, err := db.Imports.Finish(t.Context(),
			Imported{Import: m, DefaultBranch: "trunk", Shallow: oid(3) + "\n", Push: Push{
				RepoID: id, Updates: []RefUpdate{{"refs/heads/trunk", zeros, oid(1)}}, Pack: begin(t, db),
				Events: func(done []RefUpdate) []Event {
					return []Event{{Type: "imported", Namespace: "ns", Repo: "r", Body: []byte("{}")}}
				},
			}})
		do(t, err)
		if len(results) != 1 || results[0] != nil {
			t.Errorf("results %v", results)
		}
		got, repo := importOf(t, db, id)
		if got.State != "succeeded" || string(got.Refs) != "refs" || got.Bytes != 3 || got.Finished.IsZero() {
			t.Errorf("finished import: %+v", got)
		}
		if repo.Status != Ready || repo.DefaultBranch != "trunk" || repo.Shallow != oid(3)+"\n" || !repo.LastPush.IsZero() {
			t.Errorf("imported repository: %+v", repo)
		}
		if refs := refsOf(t, db, id); refs != "refs/heads/trunk=2" {
			t.Errorf("refs %s", refs)
		}
		usage, err := db.Usage.List(t.Context(), "ns", id, "2000-01-01", "9999-01-01")
		do(t, err)
		if len(usage) != 1 || usage[0].Operation != "import" {
			t.Errorf("usage %+v, want one import", usage)
		}
		fork := NewID()
		do(t,
			db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: fork, Namespace: "ns", Name: "fork"}, Parent: id, All: true}))
		if r, err := db.Repos.ByID(t.Context(), fork); err != nil || r.Shallow != repo.Shallow {
			t.Errorf("fork has the shallow commits %q (%v)", r.Shallow, err)
		}
		m.URL = ""
		do(t, db.Imports.Begin(t.Context(), Import{RepoID: id, URL: "https://example.com/other", State: "queued"}, Cause{}))
		if got, _ := importOf(t, db, id); got.URL != "https://example.com/other" || string(got.Refs) != "refs" ||
			!got.Finished.IsZero() || got.Bytes != 0 {
			t.Errorf("import that is repeated: %+v", got)
		}
		do(t, db.Repos.Delete(t.Context(), id, nil, Cause{}))
		if err := db.Imports.Save(t.Context(), m); !errors.Is(err, ErrNotFound) {
			t.Errorf("progress for a deleted repository: got %v, want ErrNotFound", err)
		}
	})
}

func TestAnImportThatNeverBeganFails(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		old, young, running := NewID(), NewID(), NewID()
		hour := time.Now().Add(-time.Hour)
		for id, created := range map[string]time.Time{old: hour, running: hour, young: {}} {
			do(t,
				db.Repos.Create(t.Context(),
					Creation{Repo: Repo{ID: id, Namespace: "ns", Name: id, Status: Importing, Created: created,
						Source: "https://e/r"}}))
		}
		do(t, db.Imports.Begin(t.Context(), Import{RepoID: running, State: "queued"}, Cause{}))
		for range 2 {
			do(t, db.Imports.Abandoned(t.Context(), time.Now().Add(-time.Minute), "failed", "node died"))
		}
		if m, r := importOf(t, db, old); r.Status != Ready || m.State != "failed" || m.Error != "node died" ||
			m.URL != "https://e/r" {
			t.Errorf("abandoned import: %+v of %+v", m, r)
		}
		if m, r := importOf(t, db, running); r.Status != Importing || m.State != "queued" {
			t.Errorf("running import: %+v of %+v", m, r)
		}
		if _, err := db.Imports.Get(t.Context(), young); !errors.Is(err, ErrNotFound) {
			t.Errorf("import of a new repository: %v", err)
		}
		m, err := db.Imports.Take(t.Context(), running)
		do(t, err)
		m.State, m.Error, m.Finished = "failed", "gone", time.Now()
		do(t, db.Imports.Fail(t.Context(), m))
		if _, r := importOf(t, db, running); r.Status != Ready {
			t.Errorf("repository after a failed import: %+v", r)
		}
	})
}

// TestOnlyTheLastAttemptChangesAnImport lets an attempt continue after another one has begun, as on a node that was
// disconnected. The first attempt must not change the import.
func TestOnlyTheLastAttemptChangesAnImport(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx, id := t.Context(), NewID()
		do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: id, Namespace: "ns", Name: "r", Status: Importing}}))
		do(t, db.Imports.Begin(ctx, Import{RepoID: id, State: "queued"}, Cause{}))
		late, err := db.Imports.Take(ctx, id)
		do(t, err)
		refused := func(when string) {
			t.Helper()
			before, repo := importOf(t, db, id)
			m := late
			m.State, m.Phase, m.Refs = "running", "late", []byte("late")
			saved := db.Imports.Save(ctx, m)
			m.State, m.Finished = "failed", time.Now()
			failed := db.Imports.Fail(ctx, m)
			_, finished := db.Imports.Finish(ctx, Imported{Import: m, Shallow: oid(5) + "\n", Push: Push{
				RepoID: id, Version: repo.Version, Updates: []RefUpdate{{"refs/heads/late", zeros, oid(5)}}}})
			for what, err := range map[string]error{"save": saved, "fail": failed, "finish": finished} {
				if !errors.Is(err, ErrNotFound) {
					t.Errorf("%s of the late attempt %s: got %v, want ErrNotFound", what, when, err)
				}
			}
			if after, r := importOf(t, db, id); !reflect.DeepEqual(after, before) || r != repo {
				t.Errorf("the late attempt has changed the import %s:\n%+v of %+v, want\n%+v of %+v", when, after, r, before, repo)
			}
		}
		second, err := db.Imports.Take(ctx, id)
		do(t, err)
		refused("while another runs")
		second.State, second.Finished, second.Refs = "succeeded", time.Now(), []byte("second")
		_, err = db.Imports.Finish(ctx, Imported{Import: second, Shallow: oid(7) + "\n", Push: Push{RepoID: id}})
		do(t, err)
		refused("after another has finished")
		late = second
		refused("after its own end")
		if _, err := db.Imports.Take(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("attempt of a finished import: got %v, want ErrNotFound", err)
		}
		do(t, db.Imports.Begin(ctx, Import{RepoID: id, State: "queued"}, Cause{}))
		refused("before the first attempt of the next import")
	})
}
