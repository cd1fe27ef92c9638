package session_test

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// TestWithdraw checks that Withdraw gives a lane back to the writer that held it before the claim, and records this in
// the history of the session.
func TestWithdraw(t *testing.T) {
	r := begun(t)
	ctx, first, second := t.Context(), here(t, t.TempDir()), here(t, t.TempDir())
	if _, err := claim(r, first, nil); err != nil {
		t.Fatal(err)
	}
	held, _ := r.Ref(session.MetaRef("s"))
	if _, err := session.Release(ctx, r, "s", "main", first, "unmounted", "joe"); err != nil {
		t.Fatal(err)
	}
	left, _ := r.Ref(session.MetaRef("s"))
	for _, before := range []object.ID{left, held} { // in the version held, the writer has died without a release
		was, err := session.MetaAt(r, r.Format(), before)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := claim(r, second, nil); err != nil || c.Lane.Segment != 2 {
			t.Fatalf("claim by the second writer: got %+v, %v, want segment 2", c, err)
		}
		m, err := session.Withdraw(ctx, r, "s", "main", second, before, "not mounted", "joe")
		if err != nil {
			t.Fatal(err)
		}
		l := m.Lanes[0]
		if len(m.Lanes) != 1 || l.Writer != first || l.Segment != 1 || l.Left == nil || !l.Since.Equal(was.Lanes[0].Since) ||
			m.State != session.Paused {
			t.Errorf("metadata after Withdraw: got lanes %+v and state %s, want the lane of the first writer and state paused",
				m.Lanes, m.State)
		}
		if last := m.Transitions[len(m.Transitions)-1]; last.State != session.Paused || last.Reason != "not mounted" {
			t.Errorf("last transition: got %+v, want paused, not mounted", last)
		}
	}
	// Withdraw does not change a lane that another writer holds.
	if _, err := claim(r, first, nil); err != nil {
		t.Fatal(err)
	}
	if m, err := session.Withdraw(ctx, r, "s", "main", second, held, "", ""); err != nil || m.Lanes[0].Left != nil ||
		m.State != session.Active {
		t.Errorf("withdraw from a lane that another machine holds: got %+v, %v, want no change", m, err)
	}
}
