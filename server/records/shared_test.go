package records

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// follower keeps a copy of the refs of a repository, with their version.
type follower struct {
	version Version
	refs    map[string]string
}

// follow updates the copy of the refs. It returns the number of changes that it has read, or 0 if it has read all refs.
func (f *follower) follow(t *testing.T, db *DB, id string) int {
	t.Helper()
	s, err := db.Repos.SnapshotSince(t.Context(), id, f.version)
	do(t, err)
	if f.version = s.Repo.Version; s.Changed == nil {
		clear(f.refs)
	}
	for _, r := range append(s.Refs, s.Changed...) {
		if f.refs[r.Name] = r.ID; r.ID == "" {
			delete(f.refs, r.Name)
		}
	}
	return len(s.Changed)
}

// TestForksOfManyRefs makes random changes of refs of repositories that are forked in the meantime, and compares the
// refs of each repository with a map.
func TestForksOfManyRefs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		random := rand.New(rand.NewPCG(1, 2))
		models := map[string]map[string]string{}
		followers, learned := map[string]*follower{}, 0 // learned is the number of changes that the followers have read
		var ids []string
		model := map[string]string{}
		for _, r := range manyRefs(3 * maxOwn) {
			model[r.Name] = r.ID
		}
		ids = append(ids, create(t, db, "first", manyRefs(3*maxOwn)...))
		models[ids[0]] = model
		fork := func(parent string) {
			id := NewID()
			do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: id, Namespace: "ns", Name: id}, Parent: parent, All: true}))
			ids, models[id] = append(ids, id), maps.Clone(models[parent])
		}
		check := func() {
			t.Helper()
			total := 0
			for id, want := range models {
				var text []string
				for _, name := range slices.Sorted(maps.Keys(want)) {
					text = append(text, name+"="+strings.TrimLeft(want[name], "0"))
				}
				total += len(want)
				if n, err := db.Repos.CountRefs(ctx, id); err != nil || n != int64(len(want)) {
					t.Fatalf("number of refs of %s: got %d, %v, want %d", id, n, err, len(want))
				}
				if got := refsOf(t, db, id); got != strings.Join(text, " ") {
					t.Fatalf("refs of %s: got %d bytes, want %d", id, len(got), len(strings.Join(text, " ")))
				}
				if followers[id] == nil {
					followers[id] = &follower{refs: map[string]string{}}
				}
				learned += followers[id].follow(t, db, id)
				if !maps.Equal(followers[id].refs, want) {
					t.Fatalf("refs of %s by changes: got %d, want %d", id, len(followers[id].refs), len(want))
				}
			}
			if a, err := db.Namespaces.Amounts(ctx, "NS"); err != nil || a.Refs != int64(total) ||
				a.Repos != int64(len(models)) {
				t.Fatalf("amounts of the namespace: got %+v, %v, want %d repositories and %d refs", a, err, len(models), total)
			}
		}
		for round := range 12 {
			fork(ids[random.IntN(len(ids))])
			for _, size := range []int{1, few, few + 1, 2 * maxOwn / (round%3 + 1)} {
				id := ids[random.IntN(len(ids))]
				model := models[id]
				var updates []RefUpdate
				names := map[string]bool{}
				for range size {
					// Most names exist, some were removed before, and some are new.
					name := fmt.Sprintf("refs/heads/feature/number-%06d", random.IntN(4*maxOwn))
					u := RefUpdate{name, zeros, oid(random.IntN(1000))}
					if old, ok := model[name]; ok {
						u.Old = old
						if random.IntN(3) == 0 {
							u.New = zeros
						}
					}
					if !names[name] {
						names[name] = true
						updates = append(updates, u)
					}
				}
				for i, result := range push(t, db, Push{RepoID: id, Updates: updates}) {
					if result != "" {
						t.Fatalf("update %+v: %s", updates[i], result)
					}
					if model[updates[i].Name] = updates[i].New; updates[i].New == zeros {
						delete(model, updates[i].Name)
					}
				}
			}
			check()
		}
		if learned == 0 {
			t.Error("all refs were read for each change")
		}
		if n := rows(t, db, "shared_refs"); n < 2 {
			t.Errorf("shared sets: got %d, want several", n)
		}
		do(t, db.Events.Drop(ctx, time.Now()))
		check()
		for i, id := range ids {
			do(t, db.Repos.Delete(ctx, id, nil, Cause{}))
			delete(models, id)
			if i%4 == 0 {
				do(t, db.Events.Drop(ctx, time.Now()))
				check()
			}
		}
		do(t, db.Events.Drop(ctx, time.Now()))
		if refs, sets, changed := rows(t, db, "refs"), rows(t, db, "shared_refs"),
			rows(t, db, "changed_refs"); refs+sets+changed != 0 {
			t.Errorf("after all repositories were deleted: %d refs, %d shared sets and %d changes", refs, sets, changed)
		}
	})
}

// TestConflictsWithSharedRefs checks that a push to a fork is refused if it creates a ref whose name is a directory of
// a ref that the fork shares with its parent, or the reverse.
func TestConflictsWithSharedRefs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		parent := create(t, db, "parent", append(manyRefs(maxOwn+1), Ref{"refs/heads/a/b", oid(1)},
			Ref{"refs/heads/a/c", oid(1)}, Ref{"refs/heads/d", oid(1)})...)
		fork := NewID()
		do(t,
			db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: fork, Namespace: "ns", Name: "fork"},
				Parent: parent, All: true}))
		if n := rows(t, db, "shared_refs"); n != 1 {
			t.Fatalf("shared sets: got %d, want 1", n)
		}
		for _, step := range []struct {
			update RefUpdate
			want   string
		}{
			{RefUpdate{"refs/heads/a", zeros, oid(2)}, "'refs/heads/a/b' exists; cannot create 'refs/heads/a'"},
			{RefUpdate{"refs/heads/d/e", zeros, oid(2)}, "'refs/heads/d' exists; cannot create 'refs/heads/d/e'"},
			{RefUpdate{"refs/heads/d", zeros, oid(2)}, "reference already exists"},
			{RefUpdate{"refs/heads/d", oid(3), oid(2)}, "stale ref"},
			{RefUpdate{"refs/heads/d", oid(1), zeros}, ""},
			{RefUpdate{"refs/heads/d", oid(1), oid(2)}, "stale ref"},
			{RefUpdate{"refs/heads/d/e", zeros, oid(2)}, ""},
			{RefUpdate{"refs/heads/a/b", oid(1), zeros}, ""},
			{RefUpdate{"refs/heads/a", zeros, oid(2)}, "'refs/heads/a/c' exists; cannot create 'refs/heads/a'"},
			{RefUpdate{"refs/heads/a/c", oid(1), zeros}, ""},
			{RefUpdate{"refs/heads/a", zeros, oid(2)}, ""},
			{RefUpdate{"refs/heads/a", oid(2), zeros}, ""},
			{RefUpdate{"refs/heads/a/c", zeros, oid(4)}, ""},
		} {
			if got := push(t, db, Push{RepoID: fork, Updates: []RefUpdate{step.update}}); got[0] != step.want {
				t.Errorf("update %+v: got %q, want %q", step.update, got[0], step.want)
			}
		}
		if got := refsOf(t, db, fork); !strings.HasPrefix(got, "refs/heads/a/c=5 refs/heads/d/e=3 refs/heads/feature/") {
			t.Errorf("refs of the fork: got %.100s", got)
		}
		if got := refsOf(t, db, parent); !strings.HasPrefix(got,
			"refs/heads/a/b=2 refs/heads/a/c=2 refs/heads/d=2 refs/heads/feature/") {
			t.Errorf("refs of the parent: got %.100s", got)
		}
	})
}
