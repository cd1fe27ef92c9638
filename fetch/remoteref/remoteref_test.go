package remoteref_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// newRepo returns an empty repository, and the remote that reads it.
func newRepo(t *testing.T) (*gittest.Repo, *transport.Remote) {
	t.Helper()
	t.Parallel()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := transport.Open(repo.Path, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remote.Close() })
	return repo, remote
}

func commit(t *testing.T, repo *gittest.Repo, branch, text string) object.ID {
	t.Helper()
	id, err := repo.Commit(branch, map[string]gittest.File{"f": {Data: []byte(text)}}, text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestResolve(t *testing.T) {
	repo, remote := newRepo(t)
	one, two := commit(t, repo, "main", "one"), commit(t, repo, "topic", "two")
	tag, err := repo.AnnotatedTag("v1", one, "first")
	if err == nil {
		err = errors.Join(repo.Tag("topic", one), repo.Tag("light", two))
	}
	if err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, repo.Path, "update-ref", "refs/pull/7/head", two.String())
	for ref, want := range map[string]remoteref.Target{
		"":                 {Name: "refs/heads/main", Want: one, Commit: one},
		"HEAD":             {Name: "refs/heads/main", Want: one, Commit: one},
		"main":             {Name: "refs/heads/main", Want: one, Commit: one},
		"topic":            {Name: "refs/heads/topic", Want: two, Commit: two}, // not the tag
		"refs/tags/topic":  {Name: "refs/tags/topic", Want: one, Commit: one},
		"v1":               {Name: "refs/tags/v1", Want: tag, Commit: one},
		"light":            {Name: "refs/tags/light", Want: two, Commit: two},
		"heads/topic":      {Name: "refs/heads/topic", Want: two, Commit: two},
		"pull/7/head":      {Name: "refs/pull/7/head", Want: two, Commit: two},
		"refs/pull/7/head": {Name: "refs/pull/7/head", Want: two, Commit: two},
		two.String():       {Want: two, Commit: two},
		tag.String():       {Want: tag, Commit: tag},
	} {
		got, err := remoteref.Resolve(t.Context(), remote, object.SHA1, ref)
		if err != nil || got != want || got.Unborn() {
			t.Errorf("resolve %q: got %+v, %v, want %+v", ref, got, err, want)
		}
	}
	gittest.Must(t, repo.Path, "update-ref", "--no-deref", "HEAD", two.String())
	if got, err := remoteref.Resolve(t.Context(), remote, object.SHA1, "HEAD"); err != nil || got.Commit != two ||
		got.Name != "" {
		t.Errorf("detached HEAD: got %+v, %v, want commit %s without a name", got, err, two)
	}
}

// A commit id needs no request, so it works while the remote is away.
func TestCommitIDNeedsNoRequest(t *testing.T) {
	t.Parallel()
	remote, err := transport.Open(filepath.Join(t.TempDir(), "none"), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	id := strings.Repeat("1", 40)
	if got, err := remoteref.Resolve(t.Context(), remote, object.SHA1, id); err != nil || got.Commit.String() != id {
		t.Errorf("resolve a commit id: got %+v, %v", got, err)
	}
	if _, err := remoteref.Resolve(t.Context(), remote, object.SHA256, id); err == nil ||
		!strings.Contains(err.Error(), "sha256") {
		t.Errorf("resolve an id of another format: got %v, want an error that names the format of the remote", err)
	}
	var unknown *remoteref.Error
	if _, err := remoteref.Resolve(t.Context(), remote, object.SHA1, "main"); err == nil || errors.As(err, &unknown) {
		t.Errorf("resolve a branch of a remote that is away: got %v, want an error of the transport", err)
	}
}

func TestUnknownRef(t *testing.T) {
	repo, remote := newRepo(t)
	one := commit(t, repo, "release-1", "one")
	for _, name := range []string{"release-2", "release-3", "release-4", "release-5", "release-6", "other"} {
		gittest.Must(t, repo.Path, "update-ref", "refs/heads/"+name, one.String())
	}
	_, err := remoteref.Resolve(t.Context(), remote, object.SHA1, "release")
	var unknown *remoteref.Error
	if !errors.As(err, &unknown) || unknown.Ref != "release" || !strings.Contains(err.Error(), `"release"`) {
		t.Fatalf("resolve an unknown ref: got %v, want an Error that names it", err)
	}
	want := []string{"refs/heads/release-1", "refs/heads/release-2", "refs/heads/release-3", "refs/heads/release-4",
		"refs/heads/release-5"}
	if !slices.Equal(unknown.Similar, want) {
		t.Errorf("similar refs: got %q, want %q", unknown.Similar, want)
	}
	if _, err := remoteref.Resolve(t.Context(), remote, object.SHA1, "refs/release-1"); !errors.As(err, &unknown) ||
		unknown.Similar != nil {
		t.Errorf("resolve an unknown full name: got %v with %q, want an Error", err, unknown.Similar)
	}
}

func TestBranchWithoutCommit(t *testing.T) {
	repo, remote := newRepo(t)
	gittest.Must(t, repo.Path, "symbolic-ref", "HEAD", "refs/heads/trunk")
	got, err := remoteref.Resolve(t.Context(), remote, object.SHA1, "")
	if err != nil || !got.Unborn() || got.Name != "refs/heads/trunk" || got.Others {
		t.Errorf("HEAD of an empty repository: got %+v, %v, want refs/heads/trunk without a commit", got, err)
	}
	commit(t, repo, "main", "one")
	got, err = remoteref.Resolve(t.Context(), remote, object.SHA1, "HEAD")
	if err != nil || !got.Unborn() || got.Name != "refs/heads/trunk" || !got.Others {
		t.Errorf("HEAD whose branch does not exist: got %+v, %v, want it to report that there are others", got, err)
	}
}
