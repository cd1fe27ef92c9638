package githttp

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// failingStore is an object store whose operations return an error that the test has set.
type failingStore struct {
	objects.Store
	err atomic.Pointer[error]
}

func (s *failingStore) Put(ctx context.Context, key, path string) error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return s.Store.Put(ctx, key, path)
}

func TestFailuresOfTheStore(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	_, token := w.token(records.Token{RepoID: repo.ID})
	contents := tree(id("blob", "x"), "file")
	c := commit(id("tree", contents))
	body := pushBody(newPack().object(blobEntry, "x").object(treeEntry, contents).object(commitEntry, c).bytes(),
		strings.Repeat("0", 40)+" "+id("commit", c)+" refs/heads/main")
	for _, test := range []struct {
		err  error
		want string
	}{
		{objects.ErrFull, "507 The server has no space left"}, {objects.ErrUnavailable, "503 Service Unavailable"},
	} {
		w.store.err.Store(&test.err)
		if got := w.send("r", token, body); !strings.HasPrefix(got, test.want) {
			t.Errorf("push while the store fails with %q: got %q, want %q", test.err, got, test.want)
		}
		w.refused("requested URL returned error: "+test.want[:3], w.work("sha1"), "push", url, "main")
		if refs := w.refs(repo); len(refs) != 0 {
			t.Errorf("refs after a failed push: %v", refs)
		}
	}
	w.store.err.Store(nil)
	if got := w.send("r", token, body); !strings.Contains(got, "ok refs/heads/main") {
		t.Errorf("push when the store works again: got %q", got)
	}
	w.quiet()
}
