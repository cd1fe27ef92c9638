package session

import (
	"maps"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestLayoutMapsNamesBothWays(t *testing.T) {
	for _, c := range []struct {
		layout     Layout
		ref, there string
		exclusive  bool
	}{
		{Layout{Session: "fix"}, "refs/heads/main", "refs/heads/afs/fix/main", true},
		{Layout{Session: "fix"}, "refs/heads/topic/deep", "refs/heads/afs/fix/topic/deep", true},
		{Layout{Session: "fix"}, "refs/tags/v1", "refs/afs/tags/fix/v1", true},
		{Layout{Session: "fix"}, "refs/notes/agent", "refs/notes/agent", false},
		{Layout{Session: "fix", Own: true}, "refs/heads/main", "refs/heads/main", true},
		{Layout{Session: "fix", Own: true}, "refs/tags/v1", "refs/tags/v1", true},
		{Layout{Session: "fix", Own: true}, "refs/notes/agent", "refs/notes/agent", false},
		{Layout{Session: "fix", Branches: BranchesAsIs}, "refs/heads/main", "refs/heads/main", false},
		{Layout{Session: "fix", Branches: BranchesAsIs}, "refs/tags/v1", "refs/afs/tags/fix/v1", true},
		{Layout{Session: "fix", Branches: "wip/{branch}"}, "refs/heads/main", "refs/heads/wip/main", false},
		{Layout{Session: "fix", Branches: "wip/{branch}", Own: true}, "refs/heads/main", "refs/heads/wip/main", true},
		{Layout{Session: "fix", Branches: "{branch}.{session}"}, "refs/heads/a/b", "refs/heads/a/b.fix", true},
	} {
		if got := c.layout.There(c.ref); got != c.there {
			t.Errorf("%+v: name of %s on the session remote: got %s, want %s", c.layout, c.ref, got, c.there)
		}
		if got, ok := c.layout.Here(c.there); !ok || got != c.ref {
			t.Errorf("%+v: name of %s in the mount: got %s, %t, want %s", c.layout, c.there, got, ok, c.ref)
		}
		if got := c.layout.Exclusive(c.there); got != c.exclusive {
			t.Errorf("%+v: only this session writes %s: got %t, want %t", c.layout, c.there, got, c.exclusive)
		}
		within := false
		for _, p := range c.layout.Prefixes() {
			within = within || strings.HasPrefix(c.there, p)
		}
		if !within {
			t.Errorf("%+v: no prefix in %q is a prefix of %s", c.layout, c.layout.Prefixes(), c.there)
		}
	}
	for _, other := range []string{"refs/heads/main", "refs/heads/afs/other/main", "refs/heads/afs/fix", "refs/tags/v1",
		"refs/afs/tags/other/v1", "refs/afs/meta/fix"} {
		if ref, ok := (Layout{Session: "fix"}).Here(other); ok {
			t.Errorf("%s of another session was mapped to %s of session fix", other, ref)
		}
	}
}

func TestValidBranches(t *testing.T) {
	for _, good := range []string{"", "as-is", DefaultBranches, "wip/{branch}", "{session}-{branch}", "{branch}"} {
		if err := ValidBranches(good); err != nil {
			t.Errorf("ValidBranches(%q): got %v, want nil", good, err)
		}
	}
	for _, bad := range []string{"afs", "afs/{session}", "{branch}/{branch}", "{session}/{session}/{branch}",
		"a..b/{branch}", "/{branch}", "a b/{branch}", "{branch}.lock", "{branch}/", "-{branch}", "refs/heads/{branch}",
		"{user}/{branch}"} {
		if ValidBranches(bad) == nil {
			t.Errorf("ValidBranches(%q): got nil, want an error", bad)
		}
	}
}

func TestOwnershipOfPlainNames(t *testing.T) {
	id := object.MustID(strings.Repeat("12", 20))
	refs := func(names ...string) map[string]object.ID {
		m := map[string]object.ID{}
		for _, n := range names {
			m[n] = id
		}
		return m
	}
	for _, c := range []struct {
		what  string
		there map[string]object.ID
		want  bool
	}{
		{"an empty repository", refs(), true},
		{"what the session sent before its branches",
			refs("refs/afs/meta/fix", "refs/afs/j/fix/main/000001", "refs/afs/ground/fix/1"), true},
		{"refs that need no session", refs("refs/afs/policy", "refs/afs/approvals/other", "refs/afs/cache/entries/12/1234",
			"refs/afs/locks"), true},
		{"one of these below refs/afs/locks", refs("refs/afs/locks/a"), true},
		{"names that resemble them", refs("refs/afs/policies"), false},
		{"a branch of somebody's", refs("refs/heads/main"), false},
		{"another session", refs("refs/afs/meta/other"), false},
		{"another session's claim", refs(OwnerRef), false},
		{"its own branches under the pattern", refs("refs/heads/afs/fix/main"), false},
		{"a remote that had the history before", refs("refs/heads/main", "refs/afs/carried/fix/heads/main"), false},
	} {
		if got := Claimable("fix", c.there); got != c.want {
			t.Errorf("%s: Claimable: got %t, want %t", c.what, got, c.want)
		}
	}
	owner, err := OwnerBlob(object.SHA1, "fix")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"fix": true, "other": false} {
		l, err := LayoutOf(Meta{Session: name, Format: "sha1"}, map[string]object.ID{OwnerRef: owner.ID})
		if err != nil || l.Own != want {
			t.Errorf("layout of session %s if fix is the owner: got own %t (error %v), want %t", name, l.Own, err, want)
		}
	}
}

func TestMapped(t *testing.T) {
	a, b := object.MustID(strings.Repeat("12", 20)), object.MustID(strings.Repeat("34", 20))
	there := map[string]object.ID{
		"refs/heads/main": a, "refs/afs/carried/fix/heads/main": a, "refs/heads/afs/fix/main": b, "refs/tags/v1": a,
		"refs/afs/tags/fix/v2": b,
	}
	want := map[string]object.ID{"refs/heads/main": b, "refs/tags/v2": b}
	if got := (Layout{Session: "fix"}).Mapped(there); !maps.Equal(got, want) {
		t.Errorf("branches and tags of the session: got %v, want %v", got, want)
	}
}
