package writeback

import (
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestPendingSince checks the time since which refs are pending: it does not change in rounds that fail, is zero after
// a round that pushes everything, and begins at the time at which an earlier queue had pushed everything.
func TestPendingSince(t *testing.T) {
	synced := time.Now().Add(-time.Hour)
	since := func(r *report) time.Time {
		s := Status{Pending: 1}
		r.fill(&s)
		return s.PendingSince
	}
	r := report{log: zap.NewNop()}
	r.await(true, synced)
	if got := since(&r); !got.Equal(synced) {
		t.Errorf("first round with pending refs: pending since %v, want the last sync %v", got, synced)
	}
	r.await(false, time.Now())
	if got := since(&r); !got.IsZero() {
		t.Errorf("after a push: pending since %v, want no time", got)
	}
	r.await(true, synced)
	first := since(&r)
	if time.Since(first) > time.Minute {
		t.Errorf("later round: pending since %v, want now", first)
	}
	r.await(true, synced)
	if got := since(&r); !got.Equal(first) {
		t.Errorf("next round: pending since %v, want still %v", got, first)
	}
	s := Status{}
	if r.fill(&s); !s.PendingSince.IsZero() {
		t.Errorf("nothing is pending: pending since %v, want no time", s.PendingSince)
	}
}
