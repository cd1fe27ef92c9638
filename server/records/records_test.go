package records

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// eachDatabase runs a test with an empty database of each kind.
func eachDatabase(t *testing.T, test func(t *testing.T, db *DB)) {
	t.Run("sqlite", func(t *testing.T) { test(t, open(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"))) })
	t.Run("postgres", func(t *testing.T) { test(t, open(t, newPostgres(t))) })
}

func open(t testing.TB, url string) *DB {
	t.Helper()
	db, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
	})
	return db
}

const zeros = "0000000000000000000000000000000000000000"

// oid returns a different object id for each number n.
func oid(n int) string { return fmt.Sprintf("%040x", n+1) }

// do ends the test if err is not nil.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create creates a repository with refs and a token, and returns its id.
func create(t testing.TB, db *DB, name string, refs ...Ref) string {
	t.Helper()
	id := NewID()
	do(t, db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: id, Namespace: "ns", Name: name}, Refs: refs, Token: &Token{
		ID: "tok" + id, Hash: []byte("hash" + id), Role: RepoToken, Scope: WriteScope, Namespace: "ns", RepoID: id,
		Expires: time.Now().Add(time.Hour),
	}}))
	return id
}

// begin records a new pack.
func begin(t testing.TB, db *DB) *Pack {
	t.Helper()
	p := &Pack{ID: NewID(), Hash: oid(1), Extensions: []string{".pack", ".idx"}, Bytes: 100, Objects: 3}
	do(t, db.Packs.Begin(t.Context(), *p))
	return p
}

// push makes a push, and returns the results of its updates as texts; "" means success.
func push(t testing.TB, db *DB, p Push) []string {
	t.Helper()
	results, err := db.Repos.Push(t.Context(), p)
	do(t, err)
	texts := make([]string, len(results))
	for i, err := range results {
		if err != nil {
			texts[i] = err.Error()
		}
	}
	return texts
}

// refsOf returns the refs of a repository as text.
func refsOf(t testing.TB, db *DB, id string) string {
	t.Helper()
	refs, err := db.Repos.Refs(t.Context(), id)
	do(t, err)
	var all []string
	for _, r := range refs {
		all = append(all, r.Name+"="+strings.TrimLeft(r.ID, "0"))
	}
	return strings.Join(all, " ")
}

func TestPushUpdatesRefs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		many := []RefUpdate{}
		for i := range few {
			many = append(many, RefUpdate{fmt.Sprintf("refs/many/%02d", i), zeros, zeros})
		}
		for _, c := range []struct {
			name    string
			refs    []Ref
			updates []RefUpdate
			atomic  bool
			want    []string
			after   string
		}{
			{name: "create", updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}, want: []string{""}, after: "refs/heads/a=2"},
			{name: "create existing", refs: []Ref{{"refs/heads/a", oid(0)}},
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}},
				want:    []string{"reference already exists"}, after: "refs/heads/a=1"},
			{name: "move", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", oid(0), oid(1)}},
				want: []string{""}, after: "refs/heads/a=2"},
			{name: "create again", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", zeros, oid(0)}},
				want: []string{""}, after: "refs/heads/a=1"},
			{name: "move again", refs: []Ref{{"refs/heads/a", oid(1)}}, updates: []RefUpdate{{"refs/heads/a", oid(0), oid(1)}},
				want: []string{""}, after: "refs/heads/a=2"},
			{name: "move stale", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", oid(5), oid(1)}},
				want: []string{"stale ref"}, after: "refs/heads/a=1"},
			{name: "move missing", updates: []RefUpdate{{"refs/heads/a", oid(5), oid(1)}}, want: []string{"stale ref"}},
			{name: "remove", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", oid(0), zeros}},
				want: []string{""}},
			{name: "remove stale", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", oid(1), zeros}},
				want: []string{"stale ref"}, after: "refs/heads/a=1"},
			{name: "remove missing", updates: []RefUpdate{{"refs/heads/a", zeros, zeros}}, want: []string{""}},
			{name: "no change", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a", oid(0), oid(0)}},
				want: []string{""}, after: "refs/heads/a=1"},
			{name: "invalid id", updates: []RefUpdate{{"refs/heads/a", zeros, "HEAD"}}, want: []string{"invalid object id"}},
			{name: "twice", updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}, {"refs/heads/a", zeros, oid(2)}},
				want: []string{"", "multiple updates for the same ref are not allowed"}, after: "refs/heads/a=2"},
			{name: "below a ref", refs: []Ref{{"refs/heads/a", oid(0)}}, updates: []RefUpdate{{"refs/heads/a/b", zeros, oid(1)}},
				want: []string{"'refs/heads/a' exists; cannot create 'refs/heads/a/b'"}, after: "refs/heads/a=1"},
			{name: "above a ref", refs: []Ref{{"refs/heads/a-", oid(4)}, {"refs/heads/a/b/c", oid(0)},
				{"refs/heads/a0", oid(5)}},
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}},
				want:    []string{"'refs/heads/a/b/c' exists; cannot create 'refs/heads/a'"},
				after:   "refs/heads/a-=5 refs/heads/a/b/c=1 refs/heads/a0=6"},
			{name: "neighbours of a directory", refs: []Ref{{"refs/heads/a-", oid(4)}, {"refs/heads/a0", oid(5)}},
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}, want: []string{""},
				after: "refs/heads/a=2 refs/heads/a-=5 refs/heads/a0=6"},
			{name: "directory and file at once",
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}, {"refs/heads/a/b", zeros, oid(1)}},
				want:    []string{"", "cannot process 'refs/heads/a' and 'refs/heads/a/b' at the same time"},
				after:   "refs/heads/a=2"},
			{name: "file becomes directory", refs: []Ref{{"refs/heads/a", oid(0)}},
				updates: []RefUpdate{{"refs/heads/a/b", zeros, oid(1)}, {"refs/heads/a", oid(0), zeros}}, want: []string{"", ""},
				after: "refs/heads/a/b=2"},
			{name: "directory becomes file", refs: []Ref{{"refs/heads/a/b", oid(0)}, {"refs/heads/a/c", oid(0)}},
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}, {"refs/heads/a/b", oid(0), zeros},
					{"refs/heads/a/c", oid(0), zeros}},
				want: []string{"", "", ""}, after: "refs/heads/a=2"},
			{name: "directory keeps a ref", refs: []Ref{{"refs/heads/a/b", oid(0)}, {"refs/heads/a/c", oid(0)}},
				updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}, {"refs/heads/a/b", oid(0), zeros}},
				want:    []string{"'refs/heads/a/c' exists; cannot create 'refs/heads/a'", ""}, after: "refs/heads/a/c=1"},
			{name: "some fail", refs: []Ref{{"refs/heads/a", oid(0)}},
				updates: []RefUpdate{{"refs/heads/a", oid(3), oid(1)}, {"refs/heads/b", zeros, oid(1)}},
				want:    []string{"stale ref", ""}, after: "refs/heads/a=1 refs/heads/b=2"},
			{name: "atomic fails", refs: []Ref{{"refs/heads/a", oid(0)}}, atomic: true,
				updates: []RefUpdate{{"refs/heads/a", oid(3), oid(1)}, {"refs/heads/b", zeros, oid(1)}},
				want:    []string{"stale ref", "atomic push failure"}, after: "refs/heads/a=1"},
			{name: "bytes that are no text", updates: []RefUpdate{{"refs/heads/\xff", zeros, oid(1)}}, want: []string{""},
				after: "refs/heads/\xff=2"},
		} {
			for _, more := range [][]RefUpdate{nil, many} { // for many updates, all refs are read
				t.Run(fmt.Sprintf("%s of %d", c.name, len(c.updates)+len(more)), func(t *testing.T) {
					id := create(t, db, NewID(), c.refs...)
					before, err := db.Repos.Snapshot(t.Context(), id)
					do(t, err)
					pack := begin(t, db)
					got := push(t, db, Push{RepoID: id, TokenID: "tok" + id, Updates: append(c.updates, more...),
						Atomic: c.atomic, Pack: pack})
					if g, w := fmt.Sprint(got[:len(c.want)]), fmt.Sprint(c.want); g != w {
						t.Errorf("results: got %s, want %s", g, w)
					}
					if got := refsOf(t, db, id); got != c.after {
						t.Errorf("refs: got %q, want %q", got, c.after)
					}
					after, err := db.Repos.Snapshot(t.Context(), id)
					do(t, err)
					changed := fmt.Sprint(before.Refs) != fmt.Sprint(after.Refs)
					if grown := after.Repo.Generation - before.Repo.Generation; grown != 0 != changed {
						t.Errorf("generation grew by %d when refs changed: %v", grown, changed)
					}
					if changed == after.Repo.LastPush.IsZero() {
						t.Errorf("last push is %v when refs changed: %v", after.Repo.LastPush, changed)
					}
				})
			}
		}
	})
}

func TestPushIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := context.Background()
		update := []RefUpdate{{"refs/heads/a", zeros, oid(1)}}
		refused := func(what string, p Push, want error) {
			t.Helper()
			p.Updates = update
			if _, err := db.Repos.Push(ctx, p); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", what, err, want)
			}
		}
		id := create(t, db, "a")
		refused("other collections", Push{RepoID: id, Version: Version{Collections: 1}}, ErrCollected)
		refused("unknown token", Push{RepoID: id, TokenID: "none"}, ErrRevoked)
		refused("unrecorded pack", Push{RepoID: id, Pack: &Pack{ID: NewID()}}, ErrUnavailable)
		do(t,
			db.Tokens.Create(ctx, Token{ID: "expired", Hash: []byte("e"), RepoID: id, Expires: time.Now().Add(-time.Second)},
				nil, Cause{}))
		refused("expired token", Push{RepoID: id, TokenID: "expired"}, ErrRevoked)
		do(t, db.Tokens.Revoke(ctx, "tok"+id, nil, Cause{}))
		refused("revoked token", Push{RepoID: id, TokenID: "tok" + id}, ErrRevoked)
		do(t, db.Repos.Delete(ctx, id, nil, Cause{}))
		refused("deleted repository", Push{RepoID: id}, ErrNotFound)
		refused("unknown repository", Push{RepoID: "none"}, ErrNotFound)
	})
}

// TestPushWithAssumedRefs checks that a push changes nothing if refs on which it depends have changed since it was
// checked.
func TestPushWithAssumedRefs(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		id := create(t, db, "r", Ref{"refs/heads/main", oid(1)}, Ref{"refs/x/policy", oid(2)})
		for _, n := range []int{1, few + 1} { // for many updates, all refs are read
			for _, c := range []struct {
				assumed []Ref
				want    error
			}{
				{[]Ref{{"refs/x/policy", oid(2)}, {"refs/x/none", ""}}, nil},
				{[]Ref{{"refs/x/policy", ""}}, ErrChanged},
				{[]Ref{{"refs/x/policy", oid(3)}}, ErrChanged},
				{[]Ref{{"refs/x/policy", oid(2)}, {"refs/x/none", oid(2)}}, ErrChanged},
			} {
				before, err := db.Repos.Refs(ctx, id)
				do(t, err)
				repo, err := db.Repos.ByID(ctx, id)
				do(t, err)
				p := Push{RepoID: id, Version: repo.Version, Assumed: c.assumed}
				for i := range n {
					p.Updates = append(p.Updates, RefUpdate{fmt.Sprintf("refs/heads/b%d-%d", n, i), zeros, oid(1)})
				}
				if _, err := db.Repos.Push(ctx, p); !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("push of %d refs that assumes %v: got %v, want %v", n, c.assumed, err, c.want)
				}
				after, err := db.Repos.Refs(ctx, id)
				do(t, err)
				if changed := len(after) != len(before); changed != (c.want == nil) {
					t.Errorf("push of %d refs that assumes %v: there were %d refs before and %d after", n, c.assumed,
						len(before), len(after))
				}
				for i := range p.Updates {
					p.Updates[i].Old, p.Updates[i].New = p.Updates[i].New, zeros
				}
				if c.want == nil {
					repo, err = db.Repos.ByID(ctx, id)
					do(t, err)
					_, err = db.Repos.Push(ctx, Push{RepoID: id, Version: repo.Version, Updates: p.Updates})
					do(t, err)
				}
			}
		}
	})
}
