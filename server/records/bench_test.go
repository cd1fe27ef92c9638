package records

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchRepos is the number of repositories in the database of the benchmarks.
const benchRepos = 10000

// fill creates n repositories as the REST API does, each with a pack and one pushed branch, and returns their ids.
func fill(t testing.TB, db *DB, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id := realistic(t, db, fmt.Sprintf("agent-%05d-session", i), Creation{})
		pack := begin(t, db)
		push(t, db, benchPush(id, pack, []RefUpdate{{"refs/heads/main", zeros, oid(1)}}))
		ids = append(ids, id)
	}
	return ids
}

// realistic creates a repository with a token, an event and an audit entry, and returns its id.
func realistic(t testing.TB, db *DB, name string, c Creation) string {
	t.Helper()
	id := NewID()
	c.Repo.ID, c.Repo.Namespace, c.Repo.Name = id, "default", name
	c.Token = &Token{ID: "tok" + id, Hash: []byte("hash" + id), Role: RepoToken, Scope: WriteScope,
		Namespace: "default", RepoID: id,
		Expires: time.Now().Add(24 * time.Hour)}
	c.Events = []Event{{Type: "cf.artifacts.repo.created", Namespace: "default", Repo: name,
		Body: json.RawMessage(fmt.Sprintf(
			`{"type":"cf.artifacts.repo.created","source":{"type":"artifacts","namespace":"default","repoName":%q},"payload":{"repoId":%q,
		"defaultBranch":"main","description":"","readOnly":false,"createdAt":"2026-10-08T00:00:00Z","updatedAt":"2026-10-08T00:00:00Z"},
		"metadata":{"accountId":"0123456789abcdef0123456789abcdef","eventSchemaVersion":1,"eventTimestamp":"2026-10-08T00:00:00Z"}}`, name, id))}}
	c.Cause = Cause{TokenID: NewID(), Actor: "benchmark", Remote: "127.0.0.1", Method: "POST",
		Target: "/namespaces/default/repos"}
	do(t, db.Repos.Create(t.Context(), c))
	return id
}

func benchPush(id string, pack *Pack, updates []RefUpdate) Push {
	return Push{RepoID: id, TokenID: "tok" + id, Pack: pack, Updates: updates,
		Cause: Cause{TokenID: "tok" + id, Actor: "benchmark", Remote: "127.0.0.1", Method: "receive-pack",
			Target: "/git/default/a.git"},
		Events: func(done []RefUpdate) []Event {
			return []Event{{Type: "cf.artifacts.repo.pushed", Namespace: "default", Repo: "a",
				Body: json.RawMessage(make([]byte, 600))}}
		}}
}

// manyRefs returns n branches.
func manyRefs(n int) (refs []Ref) {
	for i := range n {
		refs = append(refs, Ref{fmt.Sprintf("refs/heads/feature/number-%06d", i), oid(i)})
	}
	return refs
}

// BenchmarkRecords measures the methods that requests need, with 10,000 repositories. The environment variable
// RECORDS_DURABLE makes PostgreSQL sync its log, as SQLite always does here.
func BenchmarkRecords(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		db := open(b, "sqlite:"+filepath.Join(b.TempDir(), "records.db"))
		for _, mode := range []string{"off", "full"} {
			_, err := db.writer.ExecContext(b.Context(), "PRAGMA synchronous = "+mode)
			do(b, err)
			if mode == "off" {
				fill(b, db, benchRepos)
			}
		}
		benchmark(b, db)
	})
	b.Run("postgres", func(b *testing.B) {
		url := newPostgres(b)
		fill(b, open(b, url+"&synchronous_commit=off"), benchRepos)
		db := open(b, url)
		_, err := db.writer.ExecContext(b.Context(), "ANALYZE")
		do(b, err)
		benchmark(b, db)
	})
}

func benchmark(b *testing.B, db *DB) {
	ctx := b.Context()
	measure := func(name string, f func(i int)) {
		n := 0 // counts over all calls of the function, because names must not repeat
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f(n)
				n++
			}
		})
	}
	repo, err := db.Repos.Get(ctx, "default", "agent-05000-session")
	do(b, err)
	measure("ByHash", func(int) {
		_, err := db.Tokens.ByHash(ctx, []byte("hash"+repo.ID))
		do(b, err)
	})
	measure("Get", func(int) {
		_, err := db.Repos.Get(ctx, "default", "agent-05000-session")
		do(b, err)
	})
	small := realistic(b, db, "small", Creation{Refs: manyRefs(10)})
	large := realistic(b, db, "large", Creation{Refs: manyRefs(1000)})
	huge := realistic(b, db, "huge", Creation{Refs: manyRefs(5000)})
	measure("Snapshot10", func(int) { _, err := db.Repos.Snapshot(ctx, small); do(b, err) })
	measure("Snapshot1000", func(int) { _, err := db.Repos.Snapshot(ctx, large); do(b, err) })
	measure("List50",
		func(int) { _, _, _, err := db.Repos.List(ctx, RepoQuery{Namespace: "default", Limit: 50}); do(b, err) })
	measure("ListByPush", func(int) {
		_, _, _, err := db.Repos.List(ctx, RepoQuery{Namespace: "default", Sort: "last_push_at", Limit: 50})
		do(b, err)
	})
	measure("Unused", func(int) { _, err := db.Packs.Unused(ctx, time.Now(), 100); do(b, err) })
	measure("Crowded", func(int) { _, err := db.Repos.Crowded(ctx, 8, 100); do(b, err) })
	measure("Create", func(i int) { realistic(b, db, fmt.Sprintf("created-%d", i), Creation{}) })
	measure("Fork10", func(i int) { realistic(b, db, fmt.Sprintf("fork10-%d", i), Creation{Parent: small, All: true}) })
	measure("Fork1000",
		func(i int) { realistic(b, db, fmt.Sprintf("fork1000-%d", i), Creation{Parent: large, All: true}) })
	measure("Fork5000", func(i int) { realistic(b, db, fmt.Sprintf("fork5000-%d", i), Creation{Parent: huge, All: true}) })
	measure("BeginAndPush", func(i int) {
		push(b, db, benchPush(repo.ID, begin(b, db), []RefUpdate{{fmt.Sprintf("refs/heads/b%d", i), zeros, oid(i)}}))
	})
	// 100 clients push to 100 repositories at once.
	var ids []string
	for i := range 100 {
		ids = append(ids, realistic(b, db, fmt.Sprintf("crowd-%d", i), Creation{}))
	}
	var n atomic.Int64
	measure("Push100", func(int) {
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() {
				push(b, db, benchPush(id, nil, []RefUpdate{{fmt.Sprintf("refs/heads/b%d", n.Add(1)), zeros, oid(1)}}))
			})
		}
		wg.Wait()
	})
}
