package webhooks

import (
	"net/http"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestSlowReceiversHaveAShare checks that slow receivers that never fail get only a part of the attempts, so that other
// receivers of their namespace, and of other namespaces, get their events.
func TestSlowReceiversHaveAShare(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	p := quick
	p.timeout, p.hold, p.workers = 10*time.Minute, time.Hour, 16
	wait := func(int, http.ResponseWriter, *http.Request) { <-hang }
	slow, slower := newInbox(t, wait), newInbox(t, wait)
	same, other := newInbox(t, nil), newInbox(t, nil)
	defer close(hang)
	w.hook("slow", slow.URL)
	w.send(w.db, p, true)
	w.happen(200)
	await.Until(t, "the slow receiver has its share", func() bool { _, n := slow.all(); return n == eachShare })
	w.hook("same", same.URL)
	w.happen(20)
	same.wait(20)
	w.hook("slower", slower.URL)
	w.hook("slowest", slower.URL)
	w.happen(20)
	await.Until(t, "attempts for other slow receivers", func() bool { _, n := slower.all(); return n > 0 })
	h := records.Webhook{ID: "other", Namespace: "other", URL: other.URL, Secret: secret}
	if err := w.db.Webhooks.Create(t.Context(), h, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	e := events.Cloned(events.Stamp{Account: "acc", Time: time.Now()}, records.Repo{Namespace: "other", Name: "r"})
	if err := w.db.Events.Add(t.Context(), []records.Event{e}); err != nil {
		t.Fatal(err)
	}
	other.wait(1)
	_, n := slow.all()
	_, m := slower.all()
	if n != eachShare || n+m > 2*eachShare {
		t.Errorf("attempts for slow receivers: got %d and %d, want %d, and %d in all", n, m, eachShare, 2*eachShare)
	}
}
