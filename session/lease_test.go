package session_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// leased returns a function that sets the duration of the lease in a claim.
func leased(lease time.Duration) func(*session.ClaimRequest) {
	return func(q *session.ClaimRequest) { q.Lease = lease }
}

// TestLease checks who holds a lane that its writer has not released, at times before and after the end of the lease.
func TestLease(t *testing.T) {
	mine := here(t, t.TempDir())
	far, named := writerOnOtherHost(t), writerOnOtherHost(t)
	named.Identity = "box-1"
	again := mine
	again.Identity = "box-1"
	seen := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		lane   session.Lane
		by     session.Writer
		after  time.Duration // time since the last sign of life, by the clock of the host that checks the lease
		held   bool
		in     string // text that the error must contain
		active bool   // whether the session counts as in use for a host that does not write to it
	}{
		"living": {session.Lane{Writer: far, Lease: 900}, mine, 14 * time.Minute, true,
			"last sign of life was at 12:00:00, and its lease ends at 2026-11-28 12:15:00 UTC", true},
		"over": {session.Lane{Writer: far, Lease: 900}, mine, 15*time.Minute + 1, false, "", false},
		"clock of the writer fast": {session.Lane{Writer: far, Lease: 900}, mine, -time.Hour, true,
			"lease ends at 2026-11-28 12:15", true},
		"older version": {session.Lane{Writer: far}, mine, 1000 * time.Hour, true, "may still use it", true},
		"this host": {session.Lane{Writer: here(t, t.TempDir()), Lease: 900}, mine, time.Hour, true,
			"process", true},
		"same state directory": {session.Lane{Writer: mine, Lease: 900}, mine, 0, false, "", true},
		"same identity":        {session.Lane{Writer: named, Lease: 900}, again, 0, false, "", true},
		"other identity":       {session.Lane{Writer: named, Lease: 900}, mine, 0, true, "host far", true},
		"no identities":        {session.Lane{Writer: far, Lease: 900}, mine, 0, true, "host far", true},
	} {
		c.lane.Name, c.lane.Seen = "main", seen
		m := session.Meta{Session: "s", State: session.Active, Lanes: []session.Lane{c.lane}}
		now := seen.Add(c.after)
		held := m.Held("main", c.by, now)
		if (held != nil) != c.held || held != nil && !strings.Contains(held.Error(), c.in) {
			t.Errorf("%s: got %v, want an error: %v, with %q", name, held, c.held, c.in)
		}
		if m.InUse(now) != c.active || m.Interrupted(now) == c.active || (m.Now(now) == session.Active) != c.active {
			t.Errorf("%s: got in use %v, state %s, want in use %v", name, m.InUse(now), m.Now(now), c.active)
		}
	}
	// A process of this host that runs keeps its lane from a daemon with the same identity.
	mineToo := here(t, t.TempDir())
	mineToo.Identity = "box-1"
	m := session.Meta{State: session.Active,
		Lanes: []session.Lane{{Name: "main", Writer: mineToo, Seen: seen, Lease: 900}}}
	if m.Held("main", again, seen) == nil {
		t.Error("a running process of this host with the same identity does not hold its lane")
	}
}

// TestLeaseEnds checks that a lane whose lease has expired can be claimed, and that the previous writer then cannot
// renew its lease.
func TestLeaseEnds(t *testing.T) {
	r, far, mine := begun(t), writerOnOtherHost(t), here(t, t.TempDir())
	if _, err := claim(r, far, leased(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var held *session.HeldError
	if _, err := claim(r, mine, leased(time.Minute)); !errors.As(err, &held) {
		t.Fatalf("claim during the lease: got %v, want a HeldError", err)
	}
	// No sign of life is due before a third of the lease has passed.
	before, _ := r.Ref(session.MetaRef("s"))
	if _, err := session.Renew(t.Context(), r, "s", "main", far); err != nil {
		t.Fatal(err)
	}
	if now, _ := r.Ref(session.MetaRef("s")); now != before {
		t.Error("Renew wrote metadata although no sign was due")
	}
	age := func(r *session.Repo, by time.Duration) {
		t.Helper()
		if _, err := session.ChangeMeta(t.Context(), r, "s", func(m *session.Meta, now time.Time) error {
			m.Lanes[0].Seen = now.Add(-by)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	age(r, 20*time.Second)
	if l, err := session.Renew(t.Context(), r, "s", "main", far); err != nil || time.Since(l.Seen) > 10*time.Second {
		t.Errorf("renew when a sign is due: got %+v, %v", l, err)
	}
	age(r, 61*time.Second)
	c, err := claim(r, mine, leased(time.Hour))
	if err != nil || !c.Interrupted || c.TookOver || c.Lane.Segment != 2 || c.Lane.Lease != 3600 ||
		time.Since(c.Lane.Seen) > time.Minute {
		t.Fatalf("claim after the lease: got %+v, %v", c, err)
	}
	if got := historyText(t, r); !strings.HasSuffix(got, "paused:interrupted resumed:mounted = active") {
		t.Errorf("history: got %q", got)
	}
	age(r, 2*time.Hour)
	if l, err := session.Renew(t.Context(), r, "s", "main", far); err != nil || time.Since(l.Seen) < time.Hour {
		t.Errorf("renew by the writer that has lost the lane: got %+v, %v, want no change", l, err)
	}
	// A session whose lease has expired can be closed.
	r = begun(t)
	if _, err := claim(r, far, leased(time.Minute)); err != nil {
		t.Fatal(err)
	}
	age(r, time.Hour)
	if m, err := transit(t.Context(), r, "s", session.Transition{State: session.Closed}); err != nil ||
		m.State != session.Closed {
		t.Errorf("close after the lease: got %+v, %v", m, err)
	}
}

// TestLeaseOfOlderVersion checks that a lane can be claimed that a dead process of an older version has claimed without
// a lease, and that Abandon releases such a lane of another host after a week.
func TestLeaseOfOlderVersion(t *testing.T) {
	r, mine := begun(t), here(t, t.TempDir())
	if c, err := claim(r, mine, nil); err != nil || !c.Lane.Seen.IsZero() || c.Lane.Due(time.Now()) {
		t.Fatalf("claim without a lease: got %+v, %v", c, err)
	}
	if c, err := claim(r, mine, leased(time.Minute)); err != nil || c.Lane.Lease != 60 || c.Lane.Seen.IsZero() {
		t.Errorf("claim of the same writer with a lease: got %+v, %v", c, err)
	}
	now := time.Now()
	m := session.Meta{State: session.Active, Lanes: []session.Lane{{Name: "main", Writer: writerOnOtherHost(t)}}}
	if m.Abandon(now.Add(-6*24*time.Hour), now); !m.InUse(now) {
		t.Error("a session without a lease is not in use six days after its last change")
	}
	if m.Abandon(now.Add(-8*24*time.Hour), now); m.InUse(now) {
		t.Error("a session without a lease is in use eight days after its last change")
	}
}
