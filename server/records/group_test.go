package records

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// grouped runs transactions as one group, by starting them while another transaction runs. It returns their errors, or
// the values with which they panicked.
func grouped(t *testing.T, db *DB, ctx func(i int) context.Context, members ...func(t *tx) error) []error {
	t.Helper()
	running, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := db.write(context.Background(), "block", func(*tx) error { close(running); <-end; return nil }); err != nil {
			t.Error(err)
		}
	})
	await.Receive(t, running)
	errs := make([]error, len(members))
	for i, m := range members {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					errs[i] = fmt.Errorf("panic: %v", r)
				}
			}()
			errs[i] = db.write(ctx(i), "test", m)
		})
		// The members queue one after the other, so that their order is known.
		await.Until(t, "the transaction queues", func() bool {
			db.group.mu.Lock()
			defer db.group.mu.Unlock()
			return len(db.group.queue) == i+2
		})
	}
	close(end)
	wg.Wait()
	return errs
}

// setting returns a transaction that stores a setting and then returns err.
func setting(key string, err error) func(t *tx) error {
	return func(t *tx) error {
		if _, err := t.exec(context.Background(), "INSERT INTO settings (key, value) VALUES ($1, $1)", key); err != nil {
			return err
		}
		return err
	}
}

func TestMembersOfAGroupAreIndependent(t *testing.T) {
	db := open(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	errs := grouped(t, db, func(i int) context.Context {
		if i == 3 {
			return cancelled
		}
		return t.Context()
	}, setting("first", nil), setting("failed", ErrExists), setting("second", nil), setting("cancelled", nil),
		func(tx *tx) error { panic("test") }, setting("first", nil), setting("third", nil))
	for i, want := range []string{"", "test: already exists", "", "test: context canceled", "panic: test",
		"test: constraint failed: UNIQUE constraint failed: settings.key (1555)", ""} {
		got := ""
		if errs[i] != nil {
			got = errs[i].Error()
		}
		if got != want {
			t.Errorf("transaction %d: got %q, want %q", i, got, want)
		}
	}
	for _, key := range []string{"first", "second", "third"} {
		if _, err := db.Settings.Get(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	if n := rows(t, db, "settings"); n != 3 {
		t.Errorf("settings: got %d, want 3", n)
	}
}

// TestFullDiskFailsAGroup fills the disk in the middle of a group. Transactions that returned no error must be stored,
// and no others.
func TestFullDiskFailsAGroup(t *testing.T) {
	db := open(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"))
	_, err := db.writer.ExecContext(t.Context(), "PRAGMA max_page_count = 80")
	do(t, err)
	large := func(key string) func(t *tx) error {
		return func(t *tx) error {
			_, err := t.exec(context.Background(), "INSERT INTO settings (key, value) VALUES ($1, $2)", key,
				fmt.Sprintf("%0100000d", 1))
			return err
		}
	}
	errs := grouped(t, db, func(int) context.Context { return t.Context() },
		setting("0", nil), large("1"), large("2"), large("3"), large("4"), setting("5", nil))
	if !errors.Is(errs[4], ErrFull) {
		t.Errorf("the fourth large setting: got %v, want ErrFull", errs[4])
	}
	for i, err := range errs {
		_, missing := db.Settings.Get(t.Context(), fmt.Sprint(i))
		if (err == nil) != (missing == nil) {
			t.Errorf("transaction %d returned %v, but its setting: %v", i, err, missing)
		}
	}
	integrity(t, db)
}

// TestCancelledWrites cancels contexts of writes at any moment. The other writes must succeed.
func TestCancelledWrites(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		id := create(t, db, "r")
		for i, err := range parallel(200, func(i int) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%2 == 0 {
				go cancel()
			}
			_, err := db.Repos.Push(ctx,
				Push{RepoID: id, Updates: []RefUpdate{{fmt.Sprintf("refs/heads/%d", i), zeros, oid(i)}}})
			return err
		}) {
			if i%2 != 0 || !errors.Is(err, context.Canceled) {
				do(t, err)
			}
		}
		refs, err := db.Repos.Refs(t.Context(), id)
		do(t, err)
		if repo, err := db.Repos.ByID(t.Context(), id); err != nil || len(refs) < 100 ||
			repo.Generation != int64(len(refs)+1) {
			t.Errorf("%d refs at generation %d, %v", len(refs), repo.Generation, err)
		}
	})
}
