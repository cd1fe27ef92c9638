package events

import (
	"bytes"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestLargeEventsAreSentInSmallPages checks that the events that a Stream stores, and those that a client that is
// behind gets at once, are limited by their bytes and not by their number.
func TestLargeEventsAreSentInSmallPages(t *testing.T) {
	m := newMemory()
	s := newStream(m, zap.NewNop(), quick)
	defer s.Close()
	if !s.enter("") {
		t.Fatal("no room for a client")
	}
	defer s.endClient("")
	await.Until(t, "the stream follows the store", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.awake })
	const events, size = 500, 100 << 10
	body := bytes.Repeat([]byte("x"), size)
	m.mu.Lock()
	for i := range events {
		m.events = append(m.events, records.Event{Seq: int64(i + 1), Type: pushedType, Namespace: "n", Repo: "r", Body: body})
	}
	m.mu.Unlock()
	await.Until(t, "all events were read", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.last == events })
	s.mu.Lock()
	from, sum := s.from, 0
	for _, e := range s.recent {
		sum += len(e.Body)
	}
	if sum != s.bytes || sum > maxBytes || sum < maxBytes-size {
		t.Errorf("kept events: got %d bytes, %d are counted, want at most %d", sum, s.bytes, maxBytes)
	}
	s.mu.Unlock()
	for after := from; after < events; {
		page, next, _, err := s.next(t.Context(), Filter{}, after)
		if err != nil || len(page) == 0 || len(page)*size > pageBytes+size || page[0].Seq != after+1 ||
			next != page[len(page)-1].Seq {
			t.Fatalf("page after %d: got %d events up to %d, %v", after, len(page), next, err)
		}
		after = next
	}
}

func TestNamespaceCannotTakeAllStreams(t *testing.T) {
	l := quick
	l.clients, l.each = 8, 2
	s := newStream(newMemory(), zap.NewNop(), l)
	defer s.Close()
	for i, want := range []bool{true, true, false} {
		if got := s.enter("a"); got != want {
			t.Errorf("client %d of a namespace: got %t, want %t", i+1, got, want)
		}
	}
	if !s.enter("b") || !s.enter("") {
		t.Error("no room for clients of others")
	}
	s.endClient("a")
	if !s.enter("a") {
		t.Error("no room after a client has left")
	}
}
