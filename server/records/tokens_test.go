package records

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTokenKeepsItsFields(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		at := time.Date(2026, 10, 8, 1, 2, 3, 4000, time.UTC)
		id := create(t, db, "r")
		want := Token{
			ID: "id", Hash: []byte{0, 255, 1}, Role: RepoToken, Scope: WriteScope, Namespace: "ns", RepoID: id, Label: "läbel",
			Actor:   "agent",
			Session: "s-1", Rules: []RefRule{{"refs/heads/*", []Denial{NoForcePush}}, {"refs/afs/**", nil}}, Created: at,
			Expires: at.Add(time.Hour),
		}
		do(t, db.Tokens.Create(ctx, want, []Event{{Type: "token.created", Body: []byte("{}")}}, Cause{Actor: "admin"}))
		for what, find := range map[string]func() (Token, error){
			"by hash": func() (Token, error) { return db.Tokens.ByHash(ctx, want.Hash) },
			"by id":   func() (Token, error) { return db.Tokens.Get(ctx, "id") },
		} {
			if got, err := find(); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("token %s:\n got %+v, %v\nwant %+v", what, got, err, want)
			}
		}
		for _, other := range []Token{{ID: "id", Hash: []byte("other")}, {ID: "other", Hash: want.Hash}} {
			if err := db.Tokens.Create(ctx, other, nil, Cause{}); !errors.Is(err, ErrExists) {
				t.Errorf("token with the same id or hash: got %v, want ErrExists", err)
			}
		}
		_, byHash := db.Tokens.ByHash(ctx, []byte("none"))
		_, byID := db.Tokens.Get(ctx, "none")
		for _, err := range []error{byHash, byID, db.Tokens.Revoke(ctx, "none", nil, Cause{})} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("unknown token: got %v, want ErrNotFound", err)
			}
		}
	})
}

// TestRotateToken checks that a rotation replaces a token that is valid, or changes nothing.
func TestRotateToken(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		now := time.Now()
		db.clock = func() time.Time { return now }
		id := NewID()
		do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: id, Namespace: "ns", Name: "r"}}))
		active := func() (ids string) {
			page, _, err := db.Tokens.List(ctx, id, "active", 0, 99)
			do(t, err)
			for _, token := range page {
				ids += token.ID
			}
			return ids
		}
		token := func(name string) Token {
			return Token{ID: name, Hash: []byte(name), Role: RepoToken, RepoID: id, Expires: now.Add(time.Hour)}
		}
		rotate := func(old, next string) error {
			return db.Tokens.Rotate(ctx, old, token(next),
				[]Event{{Type: "made", Body: []byte("{}")}, {Type: "gone", Body: []byte("{}")}},
				Cause{Actor: "admin"})
		}
		refused := func(old, next string, want error) {
			t.Helper()
			before := active()
			if err := rotate(old, next); !errors.Is(err, want) || active() != before {
				t.Errorf("rotation of %s: got %v, want %v; valid are %s, before %s", old, err, want, active(), before)
			}
		}
		do(t, db.Tokens.Create(ctx, token("a"), nil, Cause{}))
		do(t, db.Tokens.Create(ctx, token("x"), nil, Cause{}))
		refused("a", "x", ErrExists)
		refused("none", "b", ErrNotFound)
		do(t, rotate("a", "b"))
		if got := active(); got != "xb" && got != "bx" {
			t.Errorf("valid after the rotation: %s, want b and x", got)
		}
		refused("a", "c", ErrRevoked)
		do(t, db.Tokens.Revoke(ctx, "x", nil, Cause{}))
		refused("x", "c", ErrRevoked)
		events, err := db.Events.After(ctx, 0, "", "", 9)
		do(t, err)
		entries, err := db.Audit.After(ctx, 0, 9)
		do(t, err)
		if len(events) != 2 || len(entries) != 1 {
			t.Errorf("one rotation has added %d events and %d entries, want 2 and 1", len(events), len(entries))
		}
		now = now.Add(time.Hour)
		refused("b", "c", ErrRevoked)

		do(t, db.Tokens.Create(ctx, token("d"), nil, Cause{}))
		var all sync.WaitGroup
		var done atomic.Int64
		for i := range 20 {
			all.Go(func() {
				if rotate("d", fmt.Sprint("d", i)) == nil {
					done.Add(1)
				}
			})
		}
		all.Wait()
		if got := active(); done.Load() != 1 || len(got) > 3 {
			t.Errorf("%d of 20 rotations at once have succeeded and left the tokens %s, want one", done.Load(), got)
		}
		last := active()
		do(t, db.Repos.Delete(ctx, id, nil, Cause{}))
		refused(last, "e", ErrNotFound)
	})
}

func TestListTokens(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		now := time.Now()
		db.clock = func() time.Time { return now }
		id := NewID()
		do(t, db.Repos.Create(ctx, Creation{Repo: Repo{ID: id, Namespace: "ns", Name: "r"}}))
		for i, state := range []string{"active", "expired", "revoked", "active", "active"} {
			token := Token{ID: fmt.Sprint(i), Hash: []byte{byte(i)}, RepoID: id,
				Created: now.Add(time.Duration(i) * time.Second), Expires: now.Add(time.Hour)}
			if state == "expired" {
				token.Expires = now
			}
			do(t, db.Tokens.Create(ctx, token, nil, Cause{}))
			if state == "revoked" {
				do(t, db.Tokens.Revoke(ctx, token.ID, []Event{{Type: "token.revoked", Body: []byte("{}")}}, Cause{}))
				do(t, db.Tokens.Revoke(ctx, token.ID, []Event{{Type: "token.revoked", Body: []byte("{}")}}, Cause{}))
			}
		}
		do(t, db.Tokens.Create(ctx, Token{ID: "admin", Hash: []byte("admin"), Role: AdminToken}, nil, Cause{}))
		for _, c := range []struct {
			repo, state   string
			offset, limit int
			want          string
			total         int
		}{
			{id, "active", 0, 9, "430", 3}, {id, "expired", 0, 9, "1", 1}, {id, "revoked", 0, 9, "2", 1},
			{id, "all", 0, 9, "43210", 5},
			{id, "all", 1, 2, "32", 5}, {id, "active", 3, 2, "", 3}, {"", "active", 0, 9, "admin", 1},
		} {
			page, total, err := db.Tokens.List(ctx, c.repo, c.state, c.offset, c.limit)
			do(t, err)
			got := ""
			for _, token := range page {
				got += token.ID
			}
			if got != c.want || total != c.total {
				t.Errorf("list %+v: got %q of %d", c, got, total)
			}
		}
		if _, _, err := db.Tokens.List(ctx, id, "old", 0, 9); err == nil {
			t.Error("list of an unknown state succeeds")
		}
		if events, err := db.Events.After(ctx, 0, "", "", 9); err != nil || len(events) != 1 {
			t.Errorf("events after a token was revoked twice: got %v, %v, want one", events, err)
		}
	})
}

func TestWebhooks(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		add := func(events ...Event) {
			for i := range events {
				events[i].Body = []byte("{}")
			}
			do(t, db.Events.Add(ctx, events))
		}
		add(Event{Type: "before"})
		hooks := []Webhook{
			{ID: "all", URL: "https://a", Secret: "s", Created: time.Unix(1, 0).UTC()},
			{ID: "one", Namespace: "ns", Repo: "r", Types: []string{"x", "y"}, URL: "https://b", Created: time.Unix(2, 0).UTC()},
		}
		for _, h := range hooks {
			do(t, db.Webhooks.Create(ctx, h, Cause{}))
		}
		if got, err := db.Webhooks.List(ctx, "ns"); err != nil || len(got) != 1 || got[0].ID != "one" ||
			len(got[0].Types) != 2 {
			t.Errorf("webhooks of ns: got %+v, %v", got, err)
		}
		add(Event{Type: "x", Namespace: "ns", Repo: "r"}, Event{Type: "x", Namespace: "ns", Repo: "other"},
			Event{Type: "z", Namespace: "ns", Repo: "r"})
		for range 2 {
			do(t, db.Webhooks.Plan(ctx))
		}
		now := time.Now().Add(time.Second)
		due, err := db.Webhooks.Due(ctx, now, time.Minute, Shares{Limit: 10, Each: 10})
		do(t, err)
		counts := map[string]int{}
		for _, d := range due {
			counts[d.Webhook]++
		}
		if counts["one"] != 1 || counts["all"] != 3 {
			t.Errorf("due deliveries: got %v, want 3 for all and 1 for one", counts)
		}
		if again, err := db.Webhooks.Due(ctx, now, time.Minute, Shares{Limit: 10, Each: 10}); err != nil || len(again) != 0 {
			t.Errorf("deliveries that are held: got %v, %v", again, err)
		}
		for _, d := range due {
			if d.Webhook == "all" {
				do(t, db.Webhooks.Done(ctx, d.Webhook, d.Event.Seq))
				continue
			}
			d.Attempts, d.Dead, d.Error = 5, true, "status 500"
			do(t, db.Webhooks.Failed(ctx, d))
		}
		if due, err := db.Webhooks.Due(ctx, now.Add(time.Hour), time.Minute, Shares{Limit: 10, Each: 10}); err != nil ||
			len(due) != 0 {
			t.Errorf("deliveries after success and death: got %v, %v", due, err)
		}
		dead, err := db.Webhooks.Dead(ctx, "one", 10)
		do(t, err)
		if len(dead) != 1 || dead[0].Attempts != 5 || dead[0].Error != "status 500" || dead[0].Event.Type != "x" {
			t.Fatalf("dead deliveries: got %+v", dead)
		}
		do(t, db.Webhooks.Retry(ctx, "one", dead[0].Event.Seq, Cause{Method: "retry"}))
		if err := db.Webhooks.Retry(ctx, "one", dead[0].Event.Seq, Cause{Method: "retry"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("retry twice: got %v, want ErrNotFound", err)
		}
		if due, err := db.Webhooks.Due(ctx, now.Add(time.Hour), time.Minute, Shares{Limit: 10, Each: 10}); err != nil ||
			len(due) != 1 || due[0].Attempts != 0 {
			t.Errorf("delivery after retry: got %v, %v", due, err)
		}
		do(t, db.Webhooks.Delete(ctx, "one", Cause{Method: "delete"}))
		if err := db.Webhooks.Delete(ctx, "one", Cause{Method: "delete"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("delete twice: got %v, want ErrNotFound", err)
		}
		entries, err := db.Audit.After(ctx, 0, 9)
		do(t, err)
		if len(entries) != 2 || entries[0].Cause.Method != "retry" || entries[1].Cause.Method != "delete" {
			t.Errorf("entries: got %+v, want one of the retry and one of the removal", entries)
		}
		var many []Event
		for range planned + 5 {
			many = append(many, Event{Type: "x"})
		}
		add(many...)
		do(t, db.Webhooks.Plan(ctx))
		if n := rows(t, db, "deliveries"); n != planned+5 {
			t.Errorf("deliveries of many events: got %d, want %d", n, planned+5)
		}
	})
}
