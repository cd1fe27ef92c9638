package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// A search program that lists the root causes one request for all contents, and work that can wait is delayed until
// shortly after that.
func TestListingOfASearchFetchesEverything(t *testing.T) {
	files := map[string]gittest.File{}
	for n := range 400 {
		files[fmt.Sprintf("dir%d/file%d", n%7, n)] = gittest.File{Data: fmt.Appendf(nil, "contents %d\n", n)}
	}
	server, s, snap := serveFiles(t, files)
	v := s.View(snap, convert.Settings{}, nil)
	defer v.Close()
	server.Log().Reset()

	if target, ok := v.Searches(caller(t, "cat"), ""); target || ok {
		t.Error("a program that does not search is taken for a search program")
	}
	rg := caller(t, "rg", "-uu", "--glob", "!.git", "foo")
	if target, ok := v.Searches(rg, "dir1"); target || !ok {
		t.Error("a directory below the one that is searched is taken for it")
	}
	if s.fetcher.pipe.Crawled() || len(server.Log().Fetches()) > 0 {
		t.Error("contents were requested without a search")
	}
	if target, ok := v.Searches(rg, ""); !target || !ok {
		t.Error("the search was not recognised")
	}
	counts := func() Counts { return v.CountsSince(t.Context(), time.Now()) }
	await.Until(t, "everything has been fetched", func() bool { return counts().Fetched == len(files) })
	if n := len(server.Log().Fetches()); n != 1 {
		t.Errorf("%d requests for contents, want 1", n)
	}

	// A second search finds everything here, and does not delay other work.
	second := s.View(snap, convert.Settings{}, nil)
	defer second.Close()
	second.Searches(rg, "")
	await.Until(t, "the second search has compared the tree", func() bool { return !second.Crawled() })
	if n := len(server.Log().Fetches()); n != 1 {
		t.Errorf("%d requests for contents after a second search, want 1", n)
	}

	// A prefetch that waits for a search ends with the mount.
	ended := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	second.crawling.Store(true)
	go func() { ended <- second.awaitCrawl(ctx) }()
	cancel()
	if err := await.Receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a prefetch that was cancelled: %v", err)
	}
	second.crawling.Store(false)

	// The program reads what was fetched, so a wait does not end yet, except when its caller is in a hurry.
	closed, changed := make(chan struct{}), make(chan struct{}, 1)
	close(closed)
	changed <- struct{}{}
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		s.AwaitCrawl(ctx, time.Hour, nil, nil)
		ended <- ctx.Err()
	}()
	if s.AwaitCrawl(t.Context(), time.Hour, closed, nil) || !s.AwaitCrawl(t.Context(), time.Hour, nil, changed) ||
		s.AwaitCrawl(t.Context(), time.Millisecond, nil, nil) {
		t.Error("wrong result of AwaitCrawl")
	}
	select {
	case <-ended:
		t.Error("the wait ended at once")
	default:
	}
	cancel()
	if err := await.Receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Error("the wait ended before it was cancelled")
	}
}

// TestMain waits for the end of standard input in a process that the function caller has started.
func TestMain(m *testing.M) {
	if os.Getenv(waits) != "" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

const waits = "AFS_TEST_WAITS"

// caller returns the context of a request of a process with these arguments.
func caller(t *testing.T, name string, args ...string) context.Context {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, args...)
	c.Env = append(os.Environ(), waits+"=1")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	await.Until(t, "the program has started", func() bool {
		got, err := proc.Of(c.Process.Pid).Args()
		return err == nil && strings.Contains(strings.Join(got, " "), name)
	})
	return context.WithValue(t.Context(), proc.CallerKey{}, c.Process.Pid)
}

// serveFiles returns a server of a repository with one commit of these files, a new store of the repository, and the
// commit.
func serveFiles(t *testing.T, files map[string]gittest.File) (*gittest.Server, *Store, *Snapshot) {
	t.Helper()
	root := t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Commit("main", files, "All"); err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	s := openStore(t, t.TempDir(), server.URL("r.git"))
	snap, err := s.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, s, snap
}
