package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/ui"
)

// heldRepos calls a function before it returns the refs of a repository.
type heldRepos struct {
	ui.Repos
	before atomic.Pointer[func(id string)]
}

func (r *heldRepos) Refs(ctx context.Context, id string) ([]records.Ref, error) {
	if before := r.before.Load(); before != nil {
		(*before)(id)
	}
	return r.Repos.Refs(ctx, id)
}

// TestRefsNeedPlaces checks that no page reads the refs of a repository, of which there can be many, before it has a
// place among those of its token.
func TestRefsNeedPlaces(t *testing.T) {
	repos := &heldRepos{}
	w := newWorld(t, func(o *ui.Options) { repos.Repos, o.Repos = o.Repos, repos })
	m := smallSession(t)
	app := w.repo(t, "team", "app", m.done())
	other := w.repo(t, "other", "free", m.dir)
	_, token := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(time.Hour)})
	share := places.PartsOfReads(16)[places.OfToken]
	reading, release := make(chan struct{}, share), make(chan struct{})
	var begun atomic.Int64
	var released atomic.Bool
	hold := func(id string) {
		switch {
		case id != app.ID:
		case begun.Add(1) <= int64(share):
			reading <- struct{}{}
			<-release
		case !released.Load():
			t.Error("a page reads refs without a place")
		}
	}
	repos.before.Store(&hold)
	ended := make(chan string, 100) // paths of pages that have failed, with their statuses
	get := func(path string) {
		failed := ""
		if got := w.request(t, token, http.MethodGet, path, ""); got.status != http.StatusOK {
			failed = fmt.Sprint(path, ": ", got.status)
		}
		ended <- failed
	}
	for range share {
		go get("/ui/team/app")
		await.Receive(t, reading)
	}
	paths := []string{"", "/s/fix", "/s/fix/merge", "/s/fix/state?to=closed", "/diff?a=main&b=fix@" + m.ids[1], "/tree/main",
		"/diff/file?path=main.go&a=" + m.base + "&b=" + m.base}
	for _, path := range paths {
		go get("/ui/team/app" + path)
	}
	w.get(t, w.reader(t, other), "/ui/other/free", http.StatusOK)
	released.Store(true)
	close(release)
	for range share + len(paths) {
		if failed := await.Receive(t, ended); failed != "" {
			t.Errorf("page after others: got %s", failed)
		}
	}
}
