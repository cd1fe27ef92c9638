package fetch

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// names returns the names of refs, sorted.
func names(refs []packedrefs.Ref) (list []string) {
	for _, r := range refs {
		list = append(list, r.Name)
	}
	slices.Sort(list)
	return list
}

// The refs of a Listing are those whose objects are on this host, and the history is fetched from the same list.
func TestListing(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: object.SHA1})
	if err != nil {
		t.Fatal(err)
	}
	commits, err := repo.History(9)
	if err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	tag := func(name string, at object.ID) {
		t.Helper()
		if _, err := repo.AnnotatedTag(name, at, "text"); err != nil {
			t.Fatal(err)
		}
	}
	requests := func(command gittest.Command) (n int) {
		for _, r := range server.Log().Requests() {
			if r.Command == command {
				n++
			}
		}
		return n
	}
	tag("new", commits[8])
	tag("old", commits[1])
	s := openStore(t, dir, server.URL("r.git"))
	listed := s.List()
	snap, err := s.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	here := func(l *Listing, fetches int, want ...string) {
		t.Helper()
		refs, head, err := l.Here(t.Context(), snap.Commit)
		if got := names(refs); err != nil || head != "refs/heads/main" || !slices.Equal(got, want) {
			t.Errorf("refs before the history: got %q, HEAD %q, %v, want %q", got, head, err, want)
		}
		if got := names(s.Refs()); !slices.Equal(got, want) {
			t.Errorf("refs of the store: got %q, want %q", got, want)
		}
		if n := requests(gittest.Fetch); n != fetches {
			t.Errorf("fetches: got %d, want %d\n%s", n, fetches, server.Log())
		}
	}
	here(listed, 1, "refs/heads/main", "refs/tags/new")
	tag("later", commits[8]) // its commit is here already, so the tag is requested
	listed = s.List()
	here(listed, 2, "refs/heads/main", "refs/tags/later", "refs/tags/new")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, server.URL("r.git"))
	if got := names(s.Refs()); len(got) != 3 {
		t.Errorf("refs of the store that was opened again: got %q", got)
	}
	if _, err := s.Acquire(t.Context(), snap.Commit.String()); err != nil {
		t.Fatal(err)
	}
	listed = s.List()
	here(listed, 2, "refs/heads/main", "refs/tags/later", "refs/tags/new")
	all := []string{"refs/heads/main", "refs/tags/later", "refs/tags/new", "refs/tags/old"}
	for _, asks := range []int{0, 1} { // the list is older than the refs of the store after the first fetch
		before := requests(gittest.LsRefs)
		if err := s.Deepen(t.Context(), listed, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		if got := names(s.Refs()); !slices.Equal(got, all) || requests(gittest.LsRefs) != before+asks {
			t.Errorf("history: refs %q, want %q; got %d requests for refs, want %d", got, all,
				requests(gittest.LsRefs)-before, asks)
		}
	}
	here(listed, 3, all...)
}
