package records

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// parallel runs f for 0 to n-1 at the same time, and returns the errors.
func parallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

func TestOneOfManyPushesWins(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		const clients, rounds = 16, 4
		id := create(t, db, "r")
		old := zeros
		for round := range rounds {
			var packs [clients]*Pack
			for i := range packs {
				packs[i] = begin(t, db)
			}
			var won [clients]bool
			for _, err := range parallel(clients, func(i int) error {
				results, err := db.Repos.Push(t.Context(), Push{RepoID: id, TokenID: "tok" + id, Pack: packs[i],
					Updates: []RefUpdate{{"refs/heads/main", old, oid(1000*round + i)}},
					Events:  func([]RefUpdate) []Event { return []Event{{Type: "pushed", Body: []byte("{}")}} }})
				won[i] = err == nil && results[0] == nil
				return err
			}) {
				do(t, err)
			}
			winners := 0
			for i, w := range won {
				if w {
					winners++
					old = oid(1000*round + i)
				}
			}
			if winners != 1 {
				t.Fatalf("round %d: %d pushes from the same state succeeded, want 1", round, winners)
			}
			s, err := db.Repos.Snapshot(t.Context(), id)
			do(t, err)
			if len(s.Refs) != 1 || s.Refs[0].ID != old || len(s.Packs) != round+1 || s.Repo.Generation != int64(round+2) {
				t.Errorf("round %d: got refs %v, %d packs and generation %d, want %s", round, s.Refs, len(s.Packs),
					s.Repo.Generation, old)
			}
		}
		if n := rows(t, db, "events"); n != rounds {
			t.Errorf("events: got %d, want %d", n, rounds)
		}
	})
}

func TestOneOfManyCreationsWins(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		created := 0
		for _, err := range parallel(32, func(i int) error {
			name := []string{"name", "NAME", "Name"}[i%3]
			return db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: NewID(), Namespace: "ns", Name: name}})
		}) {
			switch {
			case err == nil:
				created++
			case !errors.Is(err, ErrExists):
				t.Error(err)
			}
		}
		if created != 1 || rows(t, db, "namespaces") != 1 {
			t.Errorf("created %d repositories and %d namespaces, want 1", created, rows(t, db, "namespaces"))
		}
	})
}

// manyTags returns n tags.
func manyTags(n int) (refs []Ref) {
	for i := range n {
		refs = append(refs, Ref{fmt.Sprintf("refs/tags/%06d", i), oid(i)})
	}
	return refs
}

// TestPushesAndForksAreConsistent forks a repository while each push changes two refs and adds a pack, and while its
// packs are replaced. A fork must have the refs and packs of the same moment.
func TestPushesAndForksAreConsistent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		const pushes = 40
		// The parent has so many refs that its forks share them.
		parent := create(t, db, "parent", append(manyTags(maxOwn+1), Ref{"refs/heads/z", oid(0)})...)
		var packs [pushes]*Pack
		for i := range packs {
			packs[i] = begin(t, db)
		}
		forks := make([]string, pushes)
		for i := range forks {
			forks[i] = NewID()
		}
		var pushed sync.WaitGroup
		pushed.Go(func() {
			old := zeros
			for i := range pushes {
				id := oid(i)
				results, err := db.Repos.Push(ctx, Push{RepoID: parent, Pack: packs[i],
					Updates: []RefUpdate{{"refs/heads/a", old, id}, {"refs/heads/b", old, id}}})
				if err != nil || results[0] != nil || results[1] != nil {
					t.Errorf("push %d: %v, %v", i, results, err)
					return
				}
				old = id
			}
		})
		for _, err := range parallel(pushes, func(i int) error {
			return db.Repos.Create(ctx, Creation{Repo: Repo{ID: forks[i], Namespace: "ns", Name: fmt.Sprint(i)},
				Parent: parent, All: true})
		}) {
			do(t, err)
		}
		pushed.Wait()
		for _, id := range append(forks, parent) {
			s, err := db.Repos.Snapshot(ctx, id)
			do(t, err)
			if len(s.Packs) == 0 && len(s.Refs) == maxOwn+2 {
				continue // The fork was made before the first push.
			}
			if want := oid(len(s.Packs) - 1); len(s.Refs) != maxOwn+4 || s.Refs[0].ID != want || s.Refs[1].ID != want {
				t.Errorf("fork has %d packs and refs %v, want %s", len(s.Packs), s.Refs[:2], want)
			}
		}
	})
}

// TestUsedPacksAreNotForgotten marks packs for removal while they are pushed and forked, and while repositories are
// deleted. No pack that is in use may be removed.
func TestUsedPacksAreNotForgotten(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		later := time.Now().Add(time.Hour) // The grace period of every pack has passed.
		for _, err := range parallel(24, func(i int) error {
			a, b := NewID(), NewID()
			p := Pack{ID: NewID(), Hash: oid(i), Extensions: []string{".pack"}}
			if err := errors.Join(db.Packs.Begin(ctx, p),
				db.Repos.Create(ctx, Creation{Repo: Repo{ID: a, Namespace: "ns", Name: a}})); err != nil {
				return err
			}
			var condemned bool
			var pushErr, forkErr error
			errs := parallel(2, func(part int) (err error) {
				if part == 0 {
					condemned, err = db.Packs.Condemn(ctx, p.ID, later)
					return err
				}
				_, pushErr = db.Repos.Push(ctx, Push{RepoID: a, Pack: &p, Updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}})
				return nil
			})
			if condemned != errors.Is(pushErr, ErrUnavailable) || !condemned && pushErr != nil {
				return fmt.Errorf("pack is condemned: %v, but the push returns: %w", condemned, pushErr)
			}
			if pushErr != nil {
				return errors.Join(errs...)
			}
			// The parent lists the pack. A fork keeps the pack when the parent is deleted, unless the parent was deleted before
			// the fork.
			errs = append(errs, parallel(3, func(part int) (err error) {
				switch part {
				case 0:
					return db.Repos.Delete(ctx, a, nil, Cause{})
				case 1:
					forkErr = db.Repos.Create(ctx, Creation{Repo: Repo{ID: b, Namespace: "ns", Name: b}, Parent: a, All: true})
				default:
					condemned, err = db.Packs.Condemn(ctx, p.ID, later)
				}
				return err
			})...)
			if forkErr == nil {
				if condemned {
					errs = append(errs, errors.New("pack of a fork is condemned"))
				}
				s, err := db.Repos.Snapshot(ctx, b)
				if err != nil || len(s.Packs) != 1 || len(s.Refs) != 1 {
					errs = append(errs, fmt.Errorf("fork has %d packs and %d refs: %w", len(s.Packs), len(s.Refs), err))
				}
			} else if !errors.Is(forkErr, ErrNotFound) {
				errs = append(errs, forkErr)
			}
			return errors.Join(errs...)
		}) {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestNoPushAfterRevocation revokes a token while pushes run. No push that began after the revocation was acknowledged
// may succeed, and none may become visible later.
func TestNoPushAfterRevocation(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "r")
		var atRevocation string
		for _, err := range parallel(9, func(i int) error {
			if i == 0 {
				err := db.Tokens.Revoke(ctx, "tok"+id, nil, Cause{})
				atRevocation = refsOf(t, db, id)
				return err
			}
			for n := range 20 {
				_, err := db.Repos.Push(ctx, Push{RepoID: id, TokenID: "tok" + id,
					Updates: []RefUpdate{{fmt.Sprintf("refs/heads/%d-%d", i, n), zeros, oid(1)}}})
				if errors.Is(err, ErrRevoked) {
					return nil
				}
				if err != nil {
					return err
				}
			}
			return nil
		}) {
			do(t, err)
		}
		if got := refsOf(t, db, id); got != atRevocation {
			t.Errorf("refs changed after the revocation was acknowledged: from %s to %s", atRevocation, got)
		}
	})
}

// TestNamespaceIsNotDeletedUnderARepository deletes an empty namespace while a repository is created in it.
func TestNamespaceIsNotDeletedUnderARepository(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		for round := range 20 {
			name := fmt.Sprint("ns", round)
			do(t, db.Namespaces.Create(ctx, Namespace{Name: name}, Cause{}))
			errs := parallel(2, func(i int) error {
				if i == 0 {
					return db.Namespaces.Delete(ctx, name, Cause{})
				}
				return db.Repos.Create(ctx, Creation{Repo: Repo{ID: NewID(), Namespace: name, Name: "r"}})
			})
			do(t, errs[1])
			if errs[0] != nil && !errors.Is(errs[0], ErrNotEmpty) {
				t.Error(errs[0])
			}
			if ns, err := db.Namespaces.Get(ctx, name); err != nil || ns.Repos != 1 {
				t.Errorf("namespace with a repository: got %+v, %v", ns, err)
			}
		}
	})
}

// TestForksAreDeletedAtOnce concurrently deletes forks that have their packs in common.
func TestForksAreDeletedAtOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		parent := create(t, db, "parent")
		for i := range 20 {
			push(t, db, Push{RepoID: parent, Pack: begin(t, db),
				Updates: []RefUpdate{{fmt.Sprintf("refs/heads/%d", i), zeros, oid(1)}}})
		}
		ids := []string{parent}
		for i := range 30 {
			ids = append(ids, NewID())
			do(t,
				db.Repos.Create(ctx, Creation{Repo: Repo{ID: ids[i+1], Namespace: "ns", Name: fmt.Sprint(i)},
					Parent: parent, All: true}))
		}
		begun := time.Now()
		for _, err := range parallel(len(ids), func(i int) error { return db.Repos.Delete(ctx, ids[i], nil, Cause{}) }) {
			do(t, err)
		}
		unused, err := db.Packs.Unused(ctx, time.Now().Add(time.Hour), 100)
		do(t, err)
		if before, err := db.Packs.Unused(ctx, begun, 100); err != nil || len(unused) != 20 || len(before) != 0 {
			t.Errorf("unused packs: got %d, of which %d were unused before the deletion, %v; want 20 and 0", len(unused),
				len(before), err)
		}
	})
}
