package access

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

const (
	one = "1111111111111111111111111111111111111111"
	two = "2222222222222222222222222222222222222222"
)

var none = strings.Repeat("0", 40)

func TestAllow(t *testing.T) {
	rule := func(glob string, deny ...records.Denial) records.RefRule {
		return records.RefRule{Glob: glob, Deny: deny}
	}
	create, remove, move := [2]string{none, one}, [2]string{one, none}, [2]string{one, two}
	for _, c := range []struct {
		name   string
		rules  []records.RefRule
		ref    string
		change [2]string
		forced bool
		want   bool
	}{
		{"no rules", nil, "refs/heads/main", move, true, true},
		{"no match", []records.RefRule{rule("refs/heads/x")}, "refs/heads/main", create, false, false},
		{"match", []records.RefRule{rule("refs/heads/*")}, "refs/heads/main", move, true, true},
		{"no-push", []records.RefRule{rule("refs/heads/main", records.NoPush), rule("**")}, "refs/heads/main", create,
			false, false},
		{"no-push last", []records.RefRule{rule("**"), rule("refs/heads/main", records.NoPush)}, "refs/heads/main", create,
			false, false},
		{"no-push of another", []records.RefRule{rule("refs/heads/main", records.NoPush), rule("**")}, "refs/heads/x",
			remove, false, true},
		{"forward", []records.RefRule{rule("**", records.NoForcePush)}, "refs/heads/x", move, false, true},
		{"forced", []records.RefRule{rule("**", records.NoForcePush)}, "refs/heads/x", move, true, false},
		{"removal may be forced", []records.RefRule{rule("**", records.NoForcePush)}, "refs/heads/x", remove, true, true},
		{"creation may be forced", []records.RefRule{rule("**", records.AppendOnly)}, "refs/heads/x", create, true, true},
		{"append-only, forced", []records.RefRule{rule("**", records.AppendOnly)}, "refs/heads/x", move, true, false},
		{"append-only, removal", []records.RefRule{rule("**", records.AppendOnly)}, "refs/heads/x", remove, false, false},
		{"no-delete, removal", []records.RefRule{rule("**", records.NoDelete)}, "refs/heads/x", remove, false, false},
		{"no-delete, forced", []records.RefRule{rule("**", records.NoDelete)}, "refs/heads/x", move, true, true},
	} {
		err := Allow(records.Token{Rules: c.rules}, records.RefUpdate{Name: c.ref, Old: c.change[0], New: c.change[1]}, State{
			Forced: func() (bool, error) { return c.forced, nil },
		})
		var refused Refused
		if got := err == nil; got != c.want || err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want allowed %t", c.name, err, c.want)
		}
	}
	broken := errors.New("broken")
	err := Allow(records.Token{Rules: []records.RefRule{rule("**", records.NoForcePush)}},
		records.RefUpdate{Name: "refs/heads/x", Old: one, New: two},
		State{Forced: func() (bool, error) { return false, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("failed check: got %v, want %v", err, broken)
	}
}

func TestSessionRules(t *testing.T) {
	rules, err := SessionRules("s")
	if err != nil || CheckRules(rules) != nil {
		t.Fatal(err, CheckRules(rules))
	}
	owner := func(name string) string {
		blob, err := session.OwnerBlob(object.SHA1, name)
		if err != nil {
			t.Fatal(err)
		}
		return blob.ID.String()
	}
	mine, theirs := records.Ref{Name: session.OwnerRef, ID: owner("s")},
		records.Ref{Name: session.OwnerRef, ID: owner("t")}
	main, meta := records.Ref{Name: "refs/heads/main", ID: one}, records.Ref{Name: "refs/afs/meta/s", ID: one}
	for _, c := range []struct {
		there     []records.Ref
		name, new string
		want      bool
	}{
		{nil, "refs/afs/meta/s", one, true},
		{nil, "refs/afs/j/s/main/1", one, true},
		{nil, "refs/afs/trash/s/123/heads/x", one, true},
		{nil, "refs/afs/thin/s", one, true},
		{nil, "refs/afs/tags/s/v1", one, true},
		{nil, "refs/heads/afs/s/main", one, true},
		{nil, "refs/afs/cache/entries/ab/abcd", one, true},
		{nil, "refs/afs/cache/entries/ab/abcd", none, true},
		{nil, "refs/afs/cache/entries/ab", one, false},
		{nil, "refs/afs/cache/entries/ab/abcd/x", one, false},
		{nil, "refs/afs/cache/entries", one, false},
		{nil, "refs/afs/locks", one, true},
		{nil, "refs/afs/locks", none, false},
		{nil, "refs/afs/locks/x", one, false},
		{nil, "refs/afs/cache/other/ab/abcd", one, false},
		{nil, "refs/notes/commits", one, true},
		{nil, "refs/notes/commits", none, false},
		{nil, "refs/afs/meta/t", one, false},
		{nil, "refs/afs/j/t/s", one, false},
		{nil, "refs/heads/afs/t/main", one, false},
		{nil, "refs/heads/main", one, false},
		{nil, "refs/x/s", one, false},
		{nil, session.OwnerRef, owner("s"), true},
		{nil, session.OwnerRef, owner("t"), false},
		{[]records.Ref{meta}, session.OwnerRef, owner("s"), true},
		{[]records.Ref{main}, session.OwnerRef, owner("s"), false},
		{[]records.Ref{{Name: "refs/tags/v1", ID: one}}, session.OwnerRef, owner("s"), false},
		{[]records.Ref{{Name: "refs/afs/meta/t", ID: one}, {Name: "refs/heads/afs/t/main", ID: one}}, session.OwnerRef,
			owner("s"), true},
		{[]records.Ref{theirs}, session.OwnerRef, owner("s"), false},
		{[]records.Ref{theirs}, "refs/heads/main", one, false},
		{[]records.Ref{mine, main}, "refs/heads/main", one, true},
		{[]records.Ref{mine, main}, "refs/heads/main", none, true},
		{[]records.Ref{mine}, "refs/tags/v1", one, true},
		{[]records.Ref{mine}, "refs/heads/afs/t/main", one, false},
		{[]records.Ref{mine}, session.OwnerRef, none, true},
	} {
		old, there := none, map[string]string{}
		for _, r := range c.there {
			if there[r.Name] = r.ID; r.Name == c.name {
				old = r.ID
			}
		}
		if c.new == none && old == none {
			old = one
		}
		err := Allow(records.Token{Rules: rules, Session: "s"}, records.RefUpdate{Name: c.name, Old: old, New: c.new}, State{
			Forced: func() (bool, error) { return true, nil },
			Owner:  func() (Owner, error) { return OwnerIn(there), nil },
			Format: "sha1",
		})
		if got := err == nil; got != c.want {
			t.Errorf("session s, refs %v, %s to %.7s: got %v, want allowed %t", c.there, c.name, c.new, err, c.want)
		}
	}
	for _, claim := range []string{owner("s"), owner("t")} {
		err := Allow(records.Token{Rules: rules, Session: "s"},
			records.RefUpdate{Name: "refs/heads/main", Old: none, New: one}, State{
				Owner: func() (Owner, error) { return Owner{}, nil }, Format: "sha1",
				Together: []records.RefUpdate{{Name: session.OwnerRef, Old: none, New: claim}},
			})
		if (err == nil) != (claim == owner("s")) {
			t.Errorf("branch together with the claim %.7s: %v", claim, err)
		}
	}
	for _, name := range []string{"a/**", "entries"} {
		if _, err := SessionRules(name); err == nil {
			t.Errorf("rules for a session with the name %s", name)
		}
	}
}

// TestOwnerOf checks that the database finds the same owner of the plain names as a search in the list of all refs.
func TestOwnerOf(t *testing.T) {
	db, err := records.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i, names := range [][]string{
		{}, {session.OwnerRef}, {session.OwnerRef, "refs/heads/main"}, {"refs/heads/main"}, {"refs/heads/afs"},
		{"refs/heads/afs/s/main"},
		{"refs/heads/afs0"}, {"refs/heads/afs/s/main", "refs/heads/afsx"}, {"refs/heads/afs/s/main", "refs/heads/\xff"},
		{"refs/tags/v1"},
		{"refs/notes/x", "refs/afs/owner2"}, {"refs/heads0/x", "refs/head/x", "refs/tags0/x"},
	} {
		id, refs := fmt.Sprint("r", i), map[string]string{}
		repo := records.Repo{ID: id, Namespace: "n", Name: id}
		if err := db.Repos.Create(t.Context(), records.Creation{Repo: repo}); err != nil {
			t.Fatal(err)
		}
		var updates []records.RefUpdate
		for _, name := range names {
			refs[name] = one
			updates = append(updates, records.RefUpdate{Name: name, Old: none, New: one})
		}
		if _, err := db.Repos.Push(t.Context(), records.Push{RepoID: id, Updates: updates}); err != nil {
			t.Fatal(err)
		}
		got, err := OwnerOf(t.Context(), db.Repos, id)
		if want := OwnerIn(refs); err != nil || got != want {
			t.Errorf("owner with the refs %q: got %+v, %v, want %+v", names, got, err, want)
		}
	}
}

func TestCheckRules(t *testing.T) {
	for _, r := range []records.RefRule{
		{Glob: ""}, {Glob: "["}, {Glob: "a**"}, {Glob: "refs/**/x"}, {Glob: strings.Repeat("a", 2000)},
		{Glob: "**", Deny: []records.Denial{"no-such"}},
	} {
		if CheckRules([]records.RefRule{r}) == nil {
			t.Errorf("rule %.40v is valid", r)
		}
	}
	if err := CheckRules([]records.RefRule{{Glob: "**", Deny: denials}, {Glob: "refs/heads/*"}}); err != nil {
		t.Error(err)
	}
}
