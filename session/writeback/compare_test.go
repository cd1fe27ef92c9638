package writeback

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// A branch that others write, too, stays removed on the session remote, until the session moves it. A branch of the
// session alone, and one that a session remote has lost with everything else, is pushed again.
func TestBranchThatAUserHasRemoved(t *testing.T) {
	const branch = "refs/heads/fix"
	one, two := object.MustID(strings.Repeat("1", 40)), object.MustID(strings.Repeat("2", 40))
	for _, c := range []struct {
		what, branches string
		mine           object.ID
		lost, pushed   bool
	}{
		{"a branch of all", session.BranchesAsIs, one, false, false},
		{"a branch of all that has moved", session.BranchesAsIs, two, false, true},
		{"a branch that was lost", session.BranchesAsIs, one, true, true},
		{"a branch of the session", "{session}/{branch}", one, false, true},
	} {
		layout := session.Layout{Session: sessionName, Branches: c.branches}
		ref := layout.There(branch)
		plan := comparison{layout: layout, ledger: &ledger{refs: map[string]remoteRef{ref: {acked: one}}},
			local: map[string]object.ID{ref: c.mine}, theirs: map[string]object.ID{session.MetaRef(sessionName): two}}
		if c.lost {
			plan.theirs = nil
		}
		plan.run()
		pushed := slices.ContainsFunc(plan.updates, func(u update) bool { return u.Name == ref && u.New == c.mine })
		if pushed != c.pushed || len(plan.notices) != 1 {
			t.Errorf("%s: pushed %v, notices %q, want pushed %v and one notice", c.what, pushed, plan.notices, c.pushed)
		}
	}
}
