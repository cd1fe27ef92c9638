package records

import (
	"testing"
)

func TestSizeOfANamespace(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		add := func(id string) {
			push(t, db, Push{RepoID: id, TokenID: "tok" + id, Pack: begin(t, db),
				Updates: []RefUpdate{{"refs/heads/" + NewID(), zeros, oid(1)}}})
		}
		fork := func(parent, namespace string) {
			id := NewID()
			do(t,
				db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: id, Namespace: namespace, Name: id},
					Parent: parent, All: true}))
		}
		a, b := create(t, db, "a"), create(t, db, "b")
		add(a)
		fork(a, "ns")
		fork(a, "ns") // the pack of the fork is counted once
		fork(a, "NS")
		add(b)
		add(b)
		check := func(namespace string, own, shared int64) {
			t.Helper()
			if o, s, err := db.Namespaces.Size(t.Context(), namespace); o != own || s != shared || err != nil {
				t.Errorf("size of %s: got %d own and %d shared bytes, %v, want %d and %d", namespace, o, s, err, own, shared)
			}
		}
		check("Ns", 300, 0)
		check("none", 0, 0)
		fork(b, "other")
		check("ns", 100, 200)
		check("other", 0, 200)
		do(t, db.Repos.Delete(t.Context(), b, nil, Cause{}))
		check("ns", 100, 0)
		check("other", 200, 0)
	})
}
