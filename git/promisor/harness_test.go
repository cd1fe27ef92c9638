package promisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// askerArgument is the argument by which the test binary becomes the program that asks for the existence of blobs.
const askerArgument = "upload-pack-helper"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == askerArgument {
		if Ask(context.Background(), os.Args[2], os.Getenv("GIT_PROTOCOL"), os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "GIT_") {
			os.Unsetenv(name)
		}
	}
	for _, e := range gittest.Env() {
		name, value, _ := strings.Cut(e, "=")
		os.Setenv(name, value)
	}
	os.Exit(m.Run())
}

// clone is a git directory that lacks all blobs, with a working tree, and the store that is its alternate.
type clone struct {
	testing.TB
	dir     string // path of the working tree
	gitDir  string
	store   *fetch.Store
	server  *Server
	counted *counting
	remote  *gittest.Server
}

// counting counts the queries of git.
type counting struct {
	*fetch.Store
	questions int
	along     int
}

func (c *counting) Provide(ctx context.Context, wanted, along []object.ID) error {
	c.questions++
	c.along += len(along)
	return c.Store.Provide(ctx, wanted, along)
}

// newClone returns a clone of a repository that is served over HTTP. Its store waits up to a minute for the remote.
func newClone(t testing.TB, remote *gittest.Server, repo string) *clone {
	t.Helper()
	return newCloneWithin(t, remote, repo, time.Minute)
}

// newCloneWithin does the same as newClone, but the store waits for the remote only for the duration deadline.
func newCloneWithin(t testing.TB, remote *gittest.Server, repo string, deadline time.Duration) *clone {
	t.Helper()
	root := t.TempDir()
	log := zap.NewNop()
	if testing.Verbose() {
		log = zaptest.NewLogger(t)
	}
	ctx := context.Background()
	r, err := transport.Open(remote.URL(repo), transport.Options{Log: log, Retries: 1})
	blobs, err2 := cache.OpenBlobs(filepath.Join(root, "blobs"), 1<<30)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() })
	memory, err := cache.NewMemory(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store, err := fetch.Open(fetch.Config{Dir: filepath.Join(root, "store"), Remote: r, Blobs: blobs, Memory: memory,
		Deadline: deadline, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	snap, err := store.Acquire(ctx, "")
	if err == nil {
		err = snap.Wait(ctx)
	}
	if err == nil {
		err = store.Deepen(ctx, nil, func() bool { return true })
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &clone{TB: t, dir: filepath.Join(root, "work"), gitDir: filepath.Join(root, "work", ".git"), store: store,
		remote: remote, counted: &counting{Store: store}}
	c.run("", "init", "-q", "--initial-branch=main", "--object-format="+snap.Format.String(), c.dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range [][2]string{
		{"core.repositoryformatversion", "1"}, {"gc.auto", "0"}, {"maintenance.auto", "false"},
		{"remote.artifactfs.url", "file://" + c.gitDir}, {"remote.artifactfs.uploadpack", self + " " + askerArgument},
		{"remote.artifactfs.promisor", "true"},
		{"remote.origin.url", remote.URL(repo)}, {"remote.origin.promisor", "true"},
		{"remote.origin.partialclonefilter", "blob:none"},
	} {
		c.run(c.dir, "config", kv[0], kv[1])
	}
	alternates := filepath.Join(c.gitDir, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(filepath.Join(store.GitDir(), "objects")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, ref := range store.Refs() {
		c.run(c.dir, "update-ref", ref.Name, ref.ID.String())
	}
	c.run(c.dir, "symbolic-ref", "HEAD", snap.Ref)
	c.run(c.dir, "read-tree", "HEAD")
	if c.server, err = Serve(c.gitDir, c.counted, nil, gitsocket.Options{}, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.server.Close() })
	remote.Log().Reset()
	return c
}

// result is the result of a git command.
type result struct {
	out, errs string
	err       error
	took      time.Duration
	questions int
	requests  int
	blobs     int
}

func (r result) String() string {
	return fmt.Sprintf("%d questions, %d requests, %d blobs, %s, %v %s", r.questions, r.requests, r.blobs,
		r.took.Round(time.Millisecond), r.err, r.errs)
}

// try runs git, and counts its queries to the store and the requests to the remote.
func (c *clone) try(in string, args ...string) result {
	c.Helper()
	c.remote.Log().Reset()
	c.counted.questions = 0
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = c.dir, strings.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	err := cmd.Run()
	r := result{out: out.String(), errs: errs.String(), err: err, took: time.Since(start), questions: c.counted.questions}
	r.requests = len(c.remote.Log().Fetches())
	_, r.blobs = c.remote.Log().Blobs()
	return r
}

// run does the same as try, for a command that must succeed.
func (c *clone) run(dir string, args ...string) string {
	c.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// packs lists the packs of a git directory.
func packs(t testing.TB, gitDir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(gitDir, "objects", "pack", "*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}
