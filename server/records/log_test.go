package records

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func TestEventsSelected(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		changed := db.Events.Changed()
		do(t, db.Audit.Add(ctx, []AuditEntry{{Cause: Cause{Actor: "a\x00\xff"}, Result: 404, Detail: "x"}}))
		select {
		case <-changed:
			t.Error("an audit entry closes the channel of events")
		default:
		}
		do(t, db.Events.Add(ctx, []Event{
			{Type: "1", Namespace: "a", Repo: "x", Body: []byte("{}")},
			{Type: "2", Namespace: "a", Repo: "y", Body: []byte("{}")},
			{Type: "3", Namespace: "b", Repo: "x", Body: []byte("{}")},
			{Type: "4", Namespace: "a", Repo: "x", Body: []byte("{}")},
		}))
		await.Receive(t, changed)
		all, err := db.Events.After(ctx, 0, "", "", 10)
		do(t, err)
		for _, c := range []struct {
			namespace, repo string
			after           int64
			limit           int
			want            string
		}{{"", "", 0, 9, "1234"}, {"a", "", 0, 9, "124"}, {"a", "x", 0, 9, "14"}, {"a", "x", all[0].Seq, 9, "4"},
			{"", "", 0, 2, "12"}, {"c", "", 0, 9, ""}} {
			got, err := db.Events.After(ctx, c.after, c.namespace, c.repo, c.limit)
			do(t, err)
			types := ""
			for _, e := range got {
				types += e.Type
			}
			if types != c.want {
				t.Errorf("events %+v: got %q", c, types)
			}
		}
		if last, err := db.Events.Last(ctx); err != nil || last < all[3].Seq {
			t.Errorf("last event: got %d, %v, want at least %d", last, err, all[3].Seq)
		}
		audit, err := db.Audit.After(ctx, 0, 9)
		do(t, err)
		if len(audit) != 1 || audit[0].Cause.Actor != "a\ufffd" || audit[0].Result != 404 {
			t.Errorf("audit log: got %+v", audit)
		}
		if audit, err = db.Audit.After(ctx, audit[0].Seq, 9); err != nil || len(audit) != 0 {
			t.Errorf("audit log after its end: got %+v, %v", audit, err)
		}
	})
}

// TestEventsInOrderOfCommits reads events while many transactions add some, and checks that a reader that continues
// after the last number that it has seen gets every event once.
func TestEventsInOrderOfCommits(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		const writers, each = 8, 40
		ctx := t.Context()
		var ids []string
		for i := range writers {
			ids = append(ids, create(t, db, fmt.Sprint(i)))
		}
		var wg sync.WaitGroup
		for w, id := range ids {
			wg.Go(func() {
				for i := range each {
					_, err := db.Repos.Push(ctx,
						Push{RepoID: id, Updates: []RefUpdate{{fmt.Sprintf("refs/heads/%d", i), zeros, oid(i)}},
							Events: func([]RefUpdate) []Event { return []Event{{Type: fmt.Sprintf("%d.%d", w, i), Body: []byte("{}")}} },
							Cause:  Cause{Actor: "test"}})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		// Another process assigns numbers to events, too.
		wg.Go(func() {
			for range each {
				if _, err := db.Events.Last(ctx); err != nil {
					t.Error(err)
				}
			}
		})
		var got []string
		var seq int64
		await.Until(t, "all events are read", func() bool {
			events, err := db.Events.After(ctx, seq, "", "", 7)
			do(t, err)
			for _, e := range events {
				if e.Seq <= seq {
					t.Fatalf("event %d follows event %d", e.Seq, seq)
				}
				seq = e.Seq
				got = append(got, e.Type)
			}
			return len(got) == writers*each
		})
		wg.Wait()
		if sorted := slices.Compact(slices.Sorted(slices.Values(got))); len(sorted) != len(got) {
			t.Errorf("%d events are different, want %d", len(sorted), len(got))
		}
		for w := range writers {
			var own []string
			for _, e := range got {
				if strings.HasPrefix(e, fmt.Sprint(w)+".") {
					own = append(own, e)
				}
			}
			for i, e := range own {
				if want := fmt.Sprintf("%d.%d", w, i); e != want {
					t.Fatalf("event %d of writer %d: got %s, want %s", i, w, e, want)
				}
			}
		}
		if n := rows(t, db, "audit"); n != writers*each {
			t.Errorf("audit entries: got %d, want %d", n, writers*each)
		}
	})
}

func TestDropKeepsNewEntries(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		now := time.Now()
		var events []Event
		for range dropped + 10 {
			events = append(events, Event{Type: "old", Body: []byte("{}"), Time: now.Add(-time.Hour)})
		}
		do(t, db.Events.Add(ctx, append(events, Event{Type: "new", Body: []byte("{}"), Time: now})))
		do(t, db.Audit.Add(ctx, []AuditEntry{{Time: now.Add(-time.Hour)}, {Time: now}}))
		do(t, db.Tokens.Create(ctx, Token{ID: "old", Hash: []byte("1"), Expires: now.Add(-time.Hour)}, nil, Cause{}))
		do(t, db.Tokens.Create(ctx, Token{ID: "new", Hash: []byte("2"), Expires: now.Add(time.Hour)}, nil, Cause{}))
		do(t, db.Tokens.Create(ctx, Token{ID: "for ever", Hash: []byte("3")}, nil, Cause{}))
		do(t, db.Events.Drop(ctx, now.Add(-time.Minute)))
		got := fmt.Sprint(rows(t, db, "events"), rows(t, db, "audit"), rows(t, db, "tokens"))
		if got != "1 1 2" {
			t.Errorf("events, audit entries and tokens that are left: got %s, want 1 1 2", got)
		}
	})
}

func TestUsage(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		for range 2 {
			do(t, db.Usage.Add(ctx, []UsageRow{
				{Day: "2026-01-02", Namespace: "a", RepoID: "1", Operation: "fetch", Count: 2, Bytes: 10},
				{Day: "2026-01-02", Namespace: "a", RepoID: "2", Operation: "fetch", Count: 1, Bytes: 1},
				{Day: "2026-01-03", Namespace: "a", RepoID: "1", Operation: "push", Count: 1},
				{Day: "2026-01-02", Namespace: "b", RepoID: "3", Operation: "push", Count: 1},
			}))
		}
		for query, want := range map[[4]string]string{
			{"a", "", "2026-01-01",
				"2026-01-31"}: "[{2026-01-02 a 1 fetch 4 20} {2026-01-02 a 2 fetch 2 2} {2026-01-03 a 1 push 2 0}]",
			{"a", "1", "2026-01-03", "2026-01-03"}: "[{2026-01-03 a 1 push 2 0}]",
			{"c", "", "2026-01-01", "2026-01-31"}:  "[]",
		} {
			got, err := db.Usage.List(ctx, query[0], query[1], query[2], query[3])
			do(t, err)
			if fmt.Sprint(got) != want {
				t.Errorf("usage of %v: got %v, want %s", query, got, want)
			}
		}
		id := create(t, db, "r")
		push(t, db, Push{RepoID: id, TokenID: "tok" + id, Pack: begin(t, db),
			Updates: []RefUpdate{{"refs/heads/a", zeros, oid(1)}}})
		got, err := db.Usage.List(ctx, "ns", id, "2000-01-01", "9999-01-01")
		do(t, err)
		if len(got) != 1 || got[0].Operation != "push" || got[0].Count != 1 || got[0].Bytes != 100 {
			t.Errorf("usage of a push: got %+v", got)
		}
	})
}

func TestLeases(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		acquire := func(holder string, ttl time.Duration) bool {
			ok, err := db.Leases.Acquire(ctx, "work", holder, ttl)
			do(t, err)
			return ok
		}
		if !acquire("a", time.Hour) || acquire("b", time.Hour) || !acquire("a", time.Hour) {
			t.Error("the lease is not held by its first holder alone")
		}
		do(t, db.Leases.Release(ctx, "work", "b"))
		if acquire("b", time.Hour) {
			t.Error("another than the holder has released the lease")
		}
		do(t, db.Leases.Release(ctx, "work", "a"))
		if !acquire("b", time.Millisecond) {
			t.Error("a released lease cannot be acquired")
		}
		await.Until(t, "the lease expires", func() bool { return acquire("c", time.Hour) })
		// If many holders try at the same time, one of them succeeds.
		var wg sync.WaitGroup
		var mu sync.Mutex
		holders := 0
		for i := range 20 {
			wg.Go(func() {
				ok, err := db.Leases.Acquire(ctx, "other", fmt.Sprint(i), time.Hour)
				if err != nil {
					t.Error(err)
				}
				if ok {
					mu.Lock()
					holders++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if holders != 1 {
			t.Errorf("holders of one lease: got %d, want 1", holders)
		}
	})
}

func TestSettings(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		for _, value := range []string{"first", "second"} {
			if got, err := db.Settings.SetOnce(ctx, "account", value); err != nil || got != "first" {
				t.Errorf("set %s: got %q, %v, want first", value, got, err)
			}
		}
		if got, err := db.Settings.Get(ctx, "account"); err != nil || got != "first" {
			t.Errorf("setting: got %q, %v", got, err)
		}
	})
}

// TestPagesOfLargeEvents checks that a page has fewer events if their bodies are large, so that a reader needs little
// memory.
func TestPagesOfLargeEvents(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		body := []byte(`"` + strings.Repeat("x", 40<<10) + `"`)
		var all []Event
		for range 10 {
			all = append(all, Event{Type: "x", Namespace: "n", Repo: "r", Body: body})
		}
		if err := db.Events.Add(ctx, all); err != nil {
			t.Fatal(err)
		}
		var seq int64
		read := 0
		for {
			page, err := db.Events.After(ctx, seq, "n", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			if len(page) > 2 {
				t.Errorf("page after %d: got %d events of 40 KiB", seq, len(page))
			}
			seq, read = page[len(page)-1].Seq, read+len(page)
		}
		if read != len(all) {
			t.Errorf("read %d events, want %d", read, len(all))
		}
	})
}
