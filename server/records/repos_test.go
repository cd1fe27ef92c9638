package records

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCreateStoresEverything(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		at := time.Date(2026, 10, 8, 1, 2, 3, 4000, time.UTC)
		want := Repo{
			ID: NewID(), Namespace: "Team", Name: "Repo.1", Description: "tëxt", DefaultBranch: "trunk", ObjectFormat: "sha256",
			ReadOnly: true,
			Status:   Importing, Source: "git:https://example.org/a.git", BaseURL: "https://example.org/b.git",
			BaseCommit: oid(1),
			Created:    at, Updated: at.Add(time.Second), LastPush: at.Add(time.Minute), Version: Version{Generation: 1},
		}
		cause := Cause{TokenID: "admin", Actor: "ann", Remote: "10.0.0.1", Method: "POST", Target: "/repos"}
		do(t,
			db.Repos.Create(ctx, Creation{Repo: want, Refs: []Ref{{"refs/heads/trunk", strings.Repeat("a", 64)}}, Cause: cause,
				Token:  &Token{ID: "t", Hash: []byte("h"), Role: RepoToken, Scope: WriteScope, Namespace: "Team", RepoID: want.ID},
				Events: []Event{{Type: "created", Namespace: "Team", Repo: "Repo.1", Body: []byte(`{"a":1}`)}}}))
		for _, find := range []func() (Repo, error){
			func() (Repo, error) { return db.Repos.Get(ctx, "Team", "Repo.1") },
			func() (Repo, error) { return db.Repos.Get(ctx, "tEAM", "rEPO.1") },
			func() (Repo, error) { return db.Repos.ByID(ctx, want.ID) },
		} {
			got, err := find()
			do(t, err)
			if want.Stamp = got.Stamp; got != want || got.Stamp == "" {
				t.Errorf("repository:\n got %+v\nwant %+v", got, want)
			}
		}
		snapshot, err := db.Repos.Snapshot(ctx, want.ID)
		do(t, err)
		if snapshot.Repo != want || fmt.Sprint(snapshot.Refs) != "[{refs/heads/trunk "+strings.Repeat("a", 64)+"}]" {
			t.Errorf("snapshot: got %+v", snapshot)
		}
		token, err := db.Tokens.ByHash(ctx, []byte("h"))
		do(t, err)
		if token.ID != "t" || token.RepoID != want.ID {
			t.Errorf("token: got %+v", token)
		}
		ns, err := db.Namespaces.Get(ctx, "team")
		do(t, err)
		if ns.Name != "Team" || ns.Repos != 1 || ns.Jurisdiction != "unrestricted" || ns.Created.IsZero() {
			t.Errorf("namespace: got %+v", ns)
		}
		events, err := db.Events.After(ctx, 0, "", "", 10)
		do(t, err)
		if len(events) != 1 || events[0].Type != "created" || string(events[0].Body) != `{"a":1}` || events[0].Time.IsZero() {
			t.Errorf("events: got %+v", events)
		}
		audit, err := db.Audit.After(ctx, 0, 10)
		do(t, err)
		if len(audit) != 1 || audit[0].Cause != cause || audit[0].Result != 201 {
			t.Errorf("audit log: got %+v", audit)
		}
	})
}

func TestNamesAreUniqueWithoutRegardToCase(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		create(t, db, "Name")
		again := Creation{Repo: Repo{ID: NewID(), Namespace: "NS", Name: "nAME"}, Token: &Token{ID: "t", Hash: []byte("h")},
			Events: []Event{{Type: "created", Body: []byte("{}")}}}
		if err := db.Repos.Create(ctx, again); !errors.Is(err, ErrExists) {
			t.Errorf("create with the same name: got %v, want ErrExists", err)
		}
		if _, err := db.Tokens.Get(ctx, "t"); !errors.Is(err, ErrNotFound) {
			t.Errorf("token of a repository that was not created: got %v, want ErrNotFound", err)
		}
		if err := db.Namespaces.Create(ctx, Namespace{Name: "Ns"}, Cause{}); !errors.Is(err, ErrExists) {
			t.Errorf("create namespace: got %v, want ErrExists", err)
		}
	})
}

func TestForkIsIndependent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		parent := create(t, db, "parent", manyRefs(250)...)
		pack := begin(t, db)
		push(t, db, Push{RepoID: parent, Pack: pack, Updates: []RefUpdate{{"refs/heads/x", zeros, oid(1)}}})
		fork := func(name string, c Creation) string {
			c.Repo, c.Parent = Repo{ID: NewID(), Namespace: "forks", Name: name}, parent
			do(t, db.Repos.Create(ctx, c))
			return c.Repo.ID
		}
		all := fork("all", Creation{All: true})
		one := fork("one", Creation{Refs: []Ref{{"refs/heads/main", oid(7)}}})
		if got, want := refsOf(t, db, all), refsOf(t, db, parent); got != want {
			t.Errorf("refs of the fork: got %s, want %s", got, want)
		}
		if got := refsOf(t, db, one); got != "refs/heads/main=8" {
			t.Errorf("refs of the fork with one ref: got %s", got)
		}
		sharers, err := db.Packs.Sharers(ctx, one)
		do(t, err)
		if len(sharers) != 1 || sharers[pack.ID] != 3 {
			t.Errorf("sharers: got %v, want 3 of %s", sharers, pack.ID)
		}
		own, shared, err := db.Repos.Size(ctx, one)
		do(t, err)
		if own != 0 || shared != 100 {
			t.Errorf("size of the fork: got %d of its own and %d shared, want 0 and 100", own, shared)
		}
		do(t, db.Repos.Delete(ctx, parent, nil, Cause{}))
		do(t, db.Repos.Delete(ctx, all, nil, Cause{}))
		snapshot, err := db.Repos.Snapshot(ctx, one)
		do(t, err)
		if len(snapshot.Packs) != 1 || snapshot.Packs[0].ID != pack.ID ||
			!slices.Equal(snapshot.Packs[0].Extensions, pack.Extensions) {
			t.Errorf("packs of the fork after its parent was deleted: got %+v", snapshot.Packs)
		}
		if own, shared, err = db.Repos.Size(ctx, one); err != nil || own != 100 || shared != 0 {
			t.Errorf("size of the last fork: got %d of its own, %d shared, %v", own, shared, err)
		}
		err = db.Repos.Create(ctx, Creation{Repo: Repo{ID: NewID(), Namespace: "forks", Name: "late"},
			Parent: parent, All: true})
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("fork of a deleted repository: got %v, want ErrNotFound", err)
		}
	})
}

func TestDelete(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		now := time.Now()
		db.clock = func() time.Time { return now }
		id := create(t, db, "name", Ref{"refs/heads/main", oid(1)})
		do(t, db.Repos.Delete(ctx, id, []Event{{Type: "deleted", Body: []byte("{}")}}, Cause{Method: "DELETE"}))
		for what, err := range map[string]error{
			"delete again": db.Repos.Delete(ctx, id, nil, Cause{}),
			"set status":   db.Repos.SetStatus(ctx, id, Ready),
			"set branch":   db.Repos.SetDefaultBranch(ctx, id, "x"),
			"new token":    db.Tokens.Create(ctx, Token{ID: "new", Hash: []byte("new"), RepoID: id}, nil, Cause{}),
		} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: got %v, want ErrNotFound", what, err)
			}
		}
		_, err := db.Repos.Snapshot(ctx, id)
		if _, byID := db.Repos.ByID(ctx, id); !errors.Is(err, ErrNotFound) || !errors.Is(byID, ErrNotFound) {
			t.Errorf("deleted repository: got %v and %v, want ErrNotFound", err, byID)
		}
		if _, err := db.Repos.Refs(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("refs of the deleted repository: got %v, want ErrNotFound", err)
		}
		token, err := db.Tokens.Get(ctx, "tok"+id)
		do(t, err)
		if token.Revoked.IsZero() {
			t.Error("token of the deleted repository is not revoked")
		}
		revoked, err := db.Tokens.RevokedSince(ctx, token.Revoked)
		do(t, err)
		if !slices.Equal(revoked, []string{token.ID}) {
			t.Errorf("revoked tokens: got %v, want %s", revoked, token.ID)
		}
		now = now.Add(time.Hour)
		second := create(t, db, "NAME")
		do(t, db.Repos.Delete(ctx, second, nil, Cause{}))
		deleted, err := db.Repos.FindDeleted(ctx, "NS", "Name")
		do(t, err)
		if deleted.ID != second || deleted.Deleted.IsZero() {
			t.Errorf("deleted repository: got %+v, want %s", deleted, second)
		}
		now = now.Add(tombstone)
		if _, err := db.Repos.FindDeleted(ctx, "ns", "name"); !errors.Is(err, ErrNotFound) {
			t.Errorf("repository deleted 30 days ago: got %v, want ErrNotFound", err)
		}
		do(t, db.Events.Drop(ctx, now))
		for _, table := range []string{"repos", "tokens", "events", "audit", "refs", "links"} {
			if n := rows(t, db, table); n != 0 {
				t.Errorf("rows of %s after 30 days: got %d, want 0", table, n)
			}
		}
	})
}

// rows returns the number of rows of a table.
func rows(t testing.TB, db *DB, table string) (n int) {
	t.Helper()
	do(t, db.reader.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func TestNamespaces(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		for _, name := range []string{"b", "A", "c"} {
			do(t, db.Namespaces.Create(ctx, Namespace{Name: name, Jurisdiction: "eu"}, Cause{Method: "POST"}))
		}
		page, total, err := db.Namespaces.List(ctx, "a", 0, 1)
		do(t, err)
		if len(page) != 1 || page[0].Name != "b" || page[0].Jurisdiction != "eu" || total != 3 {
			t.Errorf("page after a: got %+v of %d", page, total)
		}
		id := NewID()
		do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: id, Namespace: "a", Name: "r"}}))
		if got, err := db.Repos.ByID(ctx, id); err != nil || got.Namespace != "A" {
			t.Errorf("repository in namespace A: got %+v, %v", got, err)
		}
		if err := db.Namespaces.Delete(ctx, "a", Cause{}); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("delete namespace with a repository: got %v, want ErrNotEmpty", err)
		}
		do(t, db.Repos.Delete(ctx, id, nil, Cause{}))
		for _, of := range []string{"a", "b"} {
			do(t,
				db.Tokens.Create(ctx, Token{ID: "owner-" + of, Hash: []byte(of), Role: OwnerToken, Scope: WriteScope,
					Namespace: of}, nil, Cause{}))
			do(t, db.Webhooks.Create(ctx, Webhook{ID: "hook-" + of, Namespace: of, URL: "http://127.0.0.1/"}, Cause{}))
		}
		do(t, db.Namespaces.Delete(ctx, "a", Cause{}))
		for of, gone := range map[string]bool{"a": true, "b": false} {
			owner, err := db.Tokens.Get(ctx, "owner-"+of)
			do(t, err)
			if owner.Revoked.IsZero() == gone {
				t.Errorf("token of the owner of %s: revoked %v, want %v", of, !owner.Revoked.IsZero(), gone)
			}
			hooks, err := db.Webhooks.List(ctx, of)
			do(t, err)
			if (len(hooks) == 0) != gone {
				t.Errorf("webhooks of %s: got %v, want none: %v", of, hooks, gone)
			}
		}
		if err := db.Namespaces.Delete(ctx, "a", Cause{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("delete namespace again: got %v, want ErrNotFound", err)
		}
		if _, err := db.Namespaces.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted namespace: got %v, want ErrNotFound", err)
		}
	})
}

func TestListPages(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for i := range 7 {
			// Pairs of repositories have the same times, so that some pages end between two repositories with equal times.
			do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: NewID(), Namespace: "ns", Name: fmt.Sprintf("Repo_%d", i),
				Created: at.Add(time.Duration(i/2) * time.Hour), Updated: at.Add(time.Duration(-i/2) * time.Hour),
				LastPush: at.Add(time.Duration(i%3) * time.Hour)}}))
		}
		create(t, db, "other")
		for _, sort := range []string{"", "created_at", "updated_at", "last_push_at", "name"} {
			for _, ascending := range []bool{false, true} {
				q := RepoQuery{Namespace: "ns", Search: "EPO_", Sort: sort, Ascending: ascending, Limit: 100}
				all, total, next, err := db.Repos.List(ctx, q)
				do(t, err)
				if len(all) != 7 || total != 7 || next != "" {
					t.Fatalf("list by %q: got %d of %d, next %q", sort, len(all), total, next)
				}
				if !slices.IsSortedFunc(all, func(a, b Repo) int {
					c := map[string]int{"": a.Created.Compare(b.Created), "created_at": a.Created.Compare(b.Created),
						"updated_at": a.Updated.Compare(b.Updated), "last_push_at": a.LastPush.Compare(b.LastPush),
						"name": strings.Compare(a.Name, b.Name)}[sort]
					if !ascending {
						c = -c
					}
					return c
				}) {
					t.Errorf("list by %q, ascending %v, is not sorted", sort, ascending)
				}
				var pages, offsets []Repo
				q.Limit = 2
				for {
					page, total, next, err := db.Repos.List(ctx, q)
					do(t, err)
					if total != 7 {
						t.Errorf("total of a page: got %d, want 7", total)
					}
					pages = append(pages, page...)
					if q.After = next; next == "" {
						break
					}
				}
				q.After = ""
				for q.Offset = 0; q.Offset < 7; q.Offset += 2 {
					page, _, _, err := db.Repos.List(ctx, q)
					do(t, err)
					offsets = append(offsets, page...)
				}
				if !slices.Equal(pages, all) || !slices.Equal(offsets, all) {
					t.Errorf("pages by %q, ascending %v: got %v and %v, want %v", sort, ascending, pages, offsets, all)
				}
			}
		}
		for search, want := range map[string]int{"%": 0, "repo": 7, "o_3": 1, "po.": 0, `\`: 0, "": 8} {
			_, total, _, err := db.Repos.List(ctx, RepoQuery{Namespace: "NS", Search: search, Limit: 1})
			do(t, err)
			if total != want {
				t.Errorf("search for %q: got %d, want %d", search, total, want)
			}
		}
		if page, total, next, err := db.Repos.List(ctx, RepoQuery{Namespace: "none", Limit: 5}); err != nil ||
			len(page)+total != 0 || next != "" {
			t.Errorf("list of a missing namespace: got %v, %d, %q, %v", page, total, next, err)
		}
		_, _, next, err := db.Repos.List(ctx, RepoQuery{Namespace: "ns", Limit: 1})
		do(t, err)
		for _, q := range []RepoQuery{{After: next, Sort: "name"}, {After: next, Ascending: true}, {After: "?"},
			{After: "e30x"}} {
			if _, _, _, err := db.Repos.List(ctx, q); !errors.Is(err, ErrCursor) {
				t.Errorf("cursor %q for %+v: got %v, want ErrCursor", q.After, q, err)
			}
		}
	})
}

// FuzzCursor passes texts of clients as cursors. Each must select a page, or be refused with ErrCursor.
func FuzzCursor(f *testing.F) {
	db := open(f, "sqlite:"+f.TempDir()+"/records.db")
	create(f, db, "a")
	create(f, db, "b")
	for _, sort := range []string{"created_at", "name"} {
		_, _, next, err := db.Repos.List(f.Context(), RepoQuery{Namespace: "ns", Sort: sort, Limit: 1})
		do(f, err)
		f.Add(next, sort)
	}
	f.Add("", "name")
	f.Add("e30", "created_at")
	f.Fuzz(func(t *testing.T, text, sort string) {
		if repoOrders[sort] == "" {
			return
		}
		page, total, _, err := db.Repos.List(t.Context(), RepoQuery{Namespace: "ns", Sort: sort, After: text, Limit: 5})
		if err != nil && !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %q: %v", text, err)
		}
		if err == nil && (total != 2 || len(page) > 2) {
			t.Errorf("cursor %q: %d repositories on the page, %d in total", text, len(page), total)
		}
	})
}
