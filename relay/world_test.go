package relay

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/relay/wire"
)

// world is a repository, a git server for it, and a relay.
type world struct {
	t      *testing.T
	repo   *gittest.Repo
	commit object.ID
	server *gittest.Server
	relay  *Relay
	stop   func()
	o      Options
	first  time.Duration // duration of the first clone that cloned has made
}

const repoName = "app.git"

// newWorld serves a repository of 600 files. config is git's
// configuration of the server; without it, the server allows everything.
func newWorld(t *testing.T, o Options, config ...string) *world {
	t.Helper()
	root := t.TempDir()
	repo, err := gittest.New(filepath.Join(root, repoName), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, repo: repo, o: o, stop: func() {}}
	if w.commit, err = repo.Sized(20, 30); err != nil {
		t.Fatal(err)
	}
	if len(config) == 0 {
		config = []string{"uploadpack.allowFilter=true", "uploadpack.allowAnySHA1InWant=true",
			"transfer.advertiseObjectInfo=true"}
	}
	if w.server, err = gittest.Serve(gittest.ServerOptions{Root: root, Config: config}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.server.Close() })
	if w.o.Data == "" {
		w.o.Data = t.TempDir()
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts a relay with the options of the world.
func (w *world) start() {
	w.t.Helper()
	o := w.o
	o.Listen, o.Allow = "127.0.0.1:0", []string{"*"}
	if o.CacheSize == 0 {
		o.CacheSize = DefaultCacheSize
	}
	if o.Log = zap.NewNop(); os.Getenv("RELAY_LOG") != "" {
		o.Log = zaptest.NewLogger(w.t)
	}
	r, err := Open(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx) }()
	w.relay = r
	w.stop = func() {
		w.stop = func() {}
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("relay: %v", err)
		}
		if err := r.Close(); err != nil {
			w.t.Errorf("close relay: %v", err)
		}
	}
}

// restart starts another relay, with the same data directory.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// url returns the URL of the repository through the relay.
func (w *world) url() string {
	return w.relay.URL + "/" + strings.Replace(w.server.URL(repoName), "://", "/", 1)
}

// clone clones with stock git into a new directory.
func (w *world) clone(args ...string) (dir string, err error) {
	dir = filepath.Join(w.t.TempDir(), "clone")
	_, err = gittest.Git(w.t.Context(), "", append(append([]string{"clone", "--quiet"}, args...), w.url(), dir)...)
	return dir, err
}

// lazy makes a partial clone of the newest two commits, as a mount does, and checks its files out, which fetches blobs
// by their ids.
func (w *world) lazy(args ...string) (dir string, err error) {
	if dir, err = w.clone(append([]string{"--depth=2", "--filter=blob:none", "--no-checkout"}, args...)...); err == nil {
		_, err = gittest.Git(w.t.Context(), dir, append(args, "checkout", "--quiet", "HEAD")...)
	}
	return dir, err
}

// compare compares the files in a clone with a commit of the repository.
func (w *world) compare(dir string, commit object.ID) {
	w.t.Helper()
	if got := gittest.Must(w.t, dir, "status", "--porcelain"); got != "" {
		w.t.Errorf("files in the clone: got %s, want no change", got)
	}
	if got := gittest.Must(w.t, dir, "rev-parse", "HEAD"); got != commit.String() {
		w.t.Errorf("HEAD of the clone: got %s, want %s", got, commit)
	}
	gittest.Must(w.t, dir, "-c", "fsck.zeroPaddedFilemode=ignore", "fsck", "--strict", "--no-dangling")
}

// sentOnce reports blobs that the git server has sent more than once, and returns the number of fetches for packs of
// more than one commit.
func (w *world) sentOnce() (fetches int) {
	w.t.Helper()
	sent, _ := w.server.Log().Blobs()
	again := 0
	for _, n := range sent {
		if n > 1 {
			again++
		}
	}
	if again > 0 {
		w.t.Errorf("%d of %d blobs were sent more than once:\n%s", again, len(sent), w.server.Log())
	}
	for _, r := range w.server.Log().Fetches() {
		if r.Filter != "tree:0" {
			fetches++
		}
	}
	return fetches
}

// basic returns the configuration with which git sends a password.
func basic(password string) string {
	req := http.Request{Header: http.Header{}}
	req.SetBasicAuth("user", password)
	return "http.extraHeader=" + fmt.Sprintf("Authorization: %s", req.Header.Get("Authorization"))
}

// fetchOf returns a request for the newest commit: "snap" as at a mount, "commit" with its contents, "blob" for one of
// its blobs.
func fetchOf(what string, w *world) string {
	switch what {
	case "snap":
		return string(wire.Fetch(object.SHA1, []object.ID{w.commit}, snapDepth, snapFilter))
	case "commit":
		return string(wire.Fetch(object.SHA1, []object.ID{w.commit}, 1, ""))
	}
	id := object.MustID(gittest.Must(w.t, w.repo.Path, "rev-parse", w.commit.String()+":d0001/f0001.txt"))
	return string(wire.Fetch(object.SHA1, []object.ID{id}, 0, ""))
}
