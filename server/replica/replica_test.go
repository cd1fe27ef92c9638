package replica_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// onBothStores runs a test with two object stores: a directory and an S3 server.
func onBothStores(t *testing.T, test func(t *testing.T, location string)) {
	t.Run("directory", func(t *testing.T) { test(t, "") })
	t.Run("S3", func(t *testing.T) { test(t, s3test.Start(t).URL("x")) })
}

func acquire(t testing.TB, b *replicatest.Bed, id string) *replica.Replica {
	t.Helper()
	r, err := b.Set.Acquire(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// packs returns the names of the packs in a replica.
func packs(t testing.TB, r *replica.Replica) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.idx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

func TestReplicaFollowsItsRepository(t *testing.T) {
	onBothStores(t, func(t *testing.T, location string) {
		for _, format := range []object.Format{object.SHA1, object.SHA256} {
			t.Run(format.String(), func(t *testing.T) {
				b := replicatest.New(t, t.TempDir(), location, replica.Options{})
				src := b.Create(t, "repo", format)
				empty := acquire(t, b, src.ID)
				if out, err := gittest.Git(t.Context(), empty.Dir, "symbolic-ref", "HEAD"); err != nil || out != "refs/heads/main" {
					t.Errorf("HEAD of an empty repository: %q, %v", out, err)
				}
				empty.Release()
				for i := range 4 {
					src.Write(t, []string{"main", "other"}[i%2], fmt.Sprint("file", i), strings.Repeat("text", i))
					if err := src.Compare(t.Context(), src.ID); err != nil {
						t.Error(err)
					}
				}
				if err := b.DB.Repos.SetDefaultBranch(t.Context(), src.ID, "other"); err != nil {
					t.Fatal(err)
				}
				r := acquire(t, b, src.ID)
				defer r.Release()
				if out, err := gittest.Git(t.Context(), r.Dir, "symbolic-ref", "HEAD"); err != nil || out != "refs/heads/other" {
					t.Errorf("HEAD after a change of the default branch: %q, %v", out, err)
				}
			})
		}
	})
}

// TestWarmReplicaReadsNothing checks that a replica that is up to date is returned without a request to the object
// store, and with at most one read of the database.
func TestWarmReplicaReadsNothing(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	src := b.Create(t, "repo", object.SHA1)
	src.Write(t, "main", "file", "text")
	r := acquire(t, b, src.ID)
	repo := r.Repo
	r.Release()
	if err := errors.Join(b.DB.Close(), os.RemoveAll(filepath.Join(b.Dir, "objects"))); err != nil {
		t.Fatal(err)
	}
	repo.Description = "new"
	r, err := b.Set.AcquireRepo(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if r.Repo.Description != "new" {
		t.Error("the replica has an old row of the repository")
	}
	if _, err := gittest.Git(t.Context(), r.Dir, "show", "main:file"); err != nil {
		t.Error(err)
	}
}

// TestOldPacksStayWhileTheyAreUsed checks that packs that are not listed any more are kept while a git process may need
// them.
func TestOldPacksStayWhileTheyAreUsed(t *testing.T) {
	onBothStores(t, func(t *testing.T, location string) {
		b := replicatest.New(t, t.TempDir(), location, replica.Options{})
		src := b.Create(t, "repo", object.SHA1)
		var old []string
		for i := range 3 {
			src.Write(t, "main", "file", fmt.Sprint(i))
		}
		first, second := acquire(t, b, src.ID), acquire(t, b, src.ID)
		before := packs(t, first)
		snap, err := b.DB.Repos.Snapshot(t.Context(), src.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range snap.Packs {
			old = append(old, p.ID)
		}
		gittest.Must(t, src.Path, "repack", "-adq")
		files, err := filepath.Glob(filepath.Join(src.Path, "objects/pack/*.pack"))
		if err != nil || len(files) != 1 {
			t.Fatalf("packs after a repack: %q, %v", files, err)
		}
		hash := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), "pack-"), ".pack")
		joined, err := b.Set.Store(t.Context(), filepath.Dir(files[0]), hash)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.DB.Packs.Replace(t.Context(), src.ID, old, []records.Pack{joined}); err != nil {
			t.Fatal(err)
		}
		third := acquire(t, b, src.ID)
		if got := packs(t, third); len(got) != len(before)+1 {
			t.Errorf("packs while the old ones are used: %q", got)
		}
		first.Release()
		first.Release()
		if got := packs(t, third); len(got) != len(before)+1 {
			t.Errorf("packs while one user of the old ones is left: %q", got)
		}
		second.Release()
		if got := packs(t, third); len(got) != 1 || !strings.Contains(got[0], hash) {
			t.Errorf("packs after the last use of the old ones: %q", got)
		}
		third.Release()
		if err := src.Compare(t.Context(), src.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestPackIsListedAgain checks that a pack that is kept for an earlier request, and is then listed again, remains in
// the replica and gets the files that were added to it.
func TestPackIsListedAgain(t *testing.T) {
	onBothStores(t, func(t *testing.T, location string) {
		b := replicatest.New(t, t.TempDir(), location, replica.Options{})
		src := b.Create(t, "repo", object.SHA1)
		src.Write(t, "main", "file", "text")
		list := func(old records.Pack) records.Pack {
			t.Helper()
			p, err := b.Set.Store(t.Context(), filepath.Join(src.Path, "objects/pack"), old.Hash)
			if err == nil {
				err = b.DB.Packs.Replace(t.Context(), src.ID, []string{old.ID}, []records.Pack{p})
			}
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		snap, err := b.DB.Repos.Snapshot(t.Context(), src.ID)
		if err != nil {
			t.Fatal(err)
		}
		first := snap.Packs[0]
		before := acquire(t, b, src.ID)
		if err := b.DB.Packs.Replace(t.Context(), src.ID, []string{first.ID}, nil); err != nil {
			t.Fatal(err)
		}
		during := acquire(t, b, src.ID) // the pack is kept for the request before
		pack := filepath.Join(src.Path, "objects/pack/pack-"+first.Hash)
		gittest.Must(t, src.Path, "index-pack", "--rev-index", pack+".pack")
		again, err := b.Set.Store(t.Context(), filepath.Dir(pack), first.Hash)
		if err == nil {
			err = b.DB.Packs.Replace(t.Context(), src.ID, nil, []records.Pack{again})
		}
		if err != nil {
			t.Fatal(err)
		}
		after := acquire(t, b, src.ID)
		before.Release()
		during.Release()
		for _, x := range []string{".pack", ".idx", ".rev"} {
			if _, err := os.Stat(filepath.Join(after.Dir, "objects/pack/pack-"+first.Hash+x)); err != nil {
				t.Errorf("file of the pack that is listed again: %v", err)
			}
		}
		after.Release()
		list(again)
		if err := src.Compare(t.Context(), src.ID); err != nil {
			t.Error(err)
		}
	})
}

func TestLeastRecentlyUsedReplicasAreRemoved(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{MaxRepos: 3})
	var all []*replicatest.Repo
	for i := range 6 {
		src := b.Create(t, fmt.Sprint("repo", i), object.SHA1)
		src.Write(t, "main", "file", fmt.Sprint(i))
		all = append(all, src)
	}
	held := acquire(t, b, all[0].ID)
	defer held.Release()
	for range 2 {
		for _, src := range all {
			acquire(t, b, src.ID).Release()
		}
	}
	kept, err := filepath.Glob(filepath.Join(b.Dir, "replicas/repos/*"))
	if err != nil || len(kept) != 3 || !slices.Contains(kept, held.Dir) {
		t.Errorf("replicas that are kept: %q (%v), want 3 with %s", kept, err, held.Dir)
	}
	for _, src := range all {
		if err := src.Compare(t.Context(), src.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestCopiesOfPacksAreShared checks that forks share one copy of each pack, and that replicas are removed when the
// copies need too much space.
func TestCopiesOfPacksAreShared(t *testing.T) {
	server := s3test.Start(t)
	front := s3test.NewFront(t, server)
	writer := replicatest.New(t, t.TempDir(), front.StoreURL("x"), replica.Options{})
	src := writer.Create(t, "repo", object.SHA1)
	noise := make([]byte, 100<<10)
	rand.Read(noise)
	src.Write(t, "main", "file", string(noise))
	pushed := front.Take()
	ids := []string{src.ID}
	for i := range 3 {
		id, err := src.Fork(t.Context(), fmt.Sprint("fork", i))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if n := front.Take(); len(n.Requests) != 0 {
		t.Errorf("requests of forks: %v", n.Requests)
	}
	// reader is another node of the same server, which shares the database.
	reader, err := replica.Open(replica.Options{Dir: t.TempDir(), Records: writer.DB, Objects: writer.Objects,
		MaxBytes: 250 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	node := &replicatest.Bed{Dir: writer.Dir, DB: writer.DB, Objects: writer.Objects, Set: reader}
	clone := *src
	clone.Bed = node
	for _, id := range ids {
		if err := clone.Compare(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	cold := front.Take()
	if cold.Requests["GET"] != 2 || len(cold.Requests) != 1 {
		t.Errorf("requests of the first fetch of a repository and 3 forks: %v, want 2 GET", cold.Requests)
	}
	t.Logf("S3: push of %d bytes: %v, %d bytes sent; first fetch: %v, %d bytes received", len(noise),
		pushed.Requests, pushed.Sent,
		cold.Requests, cold.Received)
	for i := range 5 {
		rand.Read(noise)
		other := node.Create(t, fmt.Sprint("other", i), object.SHA1)
		other.Write(t, "main", "file", string(noise))
		if err := other.Compare(t.Context(), other.ID); err != nil {
			t.Error(err)
		}
	}
	front.Take()
	if err := clone.Compare(t.Context(), ids[1]); err != nil {
		t.Errorf("after the removal of copies: %v", err)
	}
	if n := front.Take(); n.Requests["GET"] != 2 {
		t.Errorf("requests for a pack that was removed: %v", n.Requests)
	}
}

func TestDamagedDownloadsAreNotUsed(t *testing.T) {
	server := s3test.Start(t)
	front := s3test.NewFront(t, server)
	b := replicatest.New(t, t.TempDir(), front.StoreURL("x"), replica.Options{})
	src := b.Create(t, "repo", object.SHA1)
	src.Write(t, "main", "file", "text")
	files, err := filepath.Glob(filepath.Join(server.Dir, s3test.Bucket, "x/packs/*/*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("stored files: %q, %v", files, err)
	}
	for _, f := range files {
		good, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if err := os.WriteFile(f, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Set.Acquire(t.Context(), src.ID); !errors.Is(err, replica.ErrDamaged) {
			t.Errorf("acquire with a damaged %s: got %v", filepath.Ext(f), err)
		}
		if err := os.WriteFile(f, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := src.Compare(t.Context(), src.ID); err != nil {
		t.Error(err)
	}
}

func TestStoreIsAway(t *testing.T) {
	server := s3test.Start(t)
	front := s3test.NewFront(t, server)
	b := replicatest.New(t, t.TempDir(), front.StoreURL("x"), replica.Options{})
	src, other := b.Create(t, "repo", object.SHA1), b.Create(t, "other", object.SHA1)
	src.Write(t, "main", "file", "text")
	other.Write(t, "main", "file", "text")
	acquire(t, b, src.ID).Release()
	front.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if _, err := b.Set.Acquire(t.Context(), other.ID); !errors.Is(err, objects.ErrUnavailable) {
		t.Errorf("acquire a cold replica without the object store: got %v", err)
	}
	if err := src.Compare(t.Context(), src.ID); err != nil {
		t.Errorf("warm replica without the object store: %v", err)
	}
	front.Fault(nil)
	if err := other.Compare(t.Context(), other.ID); err != nil {
		t.Error(err)
	}
}

func TestOneProcessUsesADirectory(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	_, err := replica.Open(replica.Options{Dir: filepath.Join(b.Dir, "replicas"), Records: b.DB, Objects: b.Objects})
	if !errors.Is(err, disk.ErrLocked) {
		t.Errorf("second Open: got %v, want ErrLocked", err)
	}
}

func TestDeletedRepositoriesArePruned(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	kept, deleted := b.Create(t, "kept", object.SHA1), b.Create(t, "deleted", object.SHA1)
	for _, r := range []*replicatest.Repo{kept, deleted} {
		r.Write(t, "main", "file", r.ID)
		acquire(t, b, r.ID).Release()
	}
	r := acquire(t, b, kept.ID)
	left := filepath.Join(r.Dir, "objects/incoming-x")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	refused := filepath.Join(r.Dir, "objects/pack/pack-"+strings.Repeat("a", 40)+".pack")
	if err := os.WriteFile(refused, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.DB.Repos.Delete(t.Context(), deleted.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	prune := func() {
		t.Helper()
		if err := b.Set.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	prune()
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the quarantine of a push in a replica that is used: %v", err)
	}
	r.Release()
	prune()
	for _, path := range []string{left, refused} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s remains", path)
		}
	}
	found, err := filepath.Glob(filepath.Join(b.Dir, "replicas/repos/*"))
	if err != nil || !slices.Equal(found, []string{r.Dir}) {
		t.Errorf("replicas: %q, %v", found, err)
	}
	if _, err := b.Set.Acquire(t.Context(), deleted.ID); !errors.Is(err, records.ErrNotFound) {
		t.Errorf("acquire a deleted repository: got %v", err)
	}
}

// TestEnvironment checks that git processes get the settings of the Set and none of the user, and no environment
// variables that may be secret.
func TestEnvironment(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hidden")
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "gc.auto")
	t.Setenv("GIT_CONFIG_VALUE_0", "7")
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	src := b.Create(t, "repo", object.SHA256)
	r := acquire(t, b, src.ID)
	defer r.Release()
	cmd := gitcmd.New(t.Context(), "--git-dir="+r.Dir, "config", "--list")
	cmd.Env = b.Set.Git().Env
	out, err := gitcmd.Output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"gc.auto=0", "receive.procreceiverefs=refs", "extensions.objectformat=sha256",
		"uploadpack.allowfilter=true"} {
		if !slices.Contains(strings.Split(string(out), "\n"), line) {
			t.Errorf("setting %s is missing in %s", line, out)
		}
	}
	if strings.Contains(strings.Join(cmd.Env, "\n"), "hidden") {
		t.Errorf("environment has a secret: %q", cmd.Env)
	}
}

// TestManyAtOnce runs readers and pushes at the same time, with so small a limit that replicas are created and removed
// all the time.
func TestManyAtOnce(t *testing.T) {
	onBothStores(t, func(t *testing.T, location string) {
		b := replicatest.New(t, t.TempDir(), location, replica.Options{MaxRepos: 2, MaxBytes: 10 << 10})
		var repos []*replicatest.Repo
		for i := range 4 {
			src := b.Create(t, fmt.Sprint("repo", i), object.SHA1)
			src.Write(t, "main", "file", "text")
			repos = append(repos, src)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for i := range 4 {
			readers.Go(func() {
				for n := i; ctx.Err() == nil; n++ {
					on, err := b.Set.Acquire(t.Context(), repos[n%4].ID)
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := gittest.Git(t.Context(), on.Dir, "rev-list", "--objects", "--all"); err != nil {
						t.Error(err)
					}
					on.Release()
				}
			})
		}
		for i := range 5 {
			for _, src := range repos {
				src.Write(t, "main", "file", fmt.Sprint(i))
			}
		}
		cancel()
		readers.Wait()
		for _, src := range repos {
			if err := src.Compare(t.Context(), src.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestTags checks that git returns the targets of tags, even if there are so many tags that the replica stores the
// targets.
func TestTags(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	src := b.Create(t, "repo", object.SHA1)
	commit := src.Write(t, "main", "file", "text").String()
	var input strings.Builder
	for i := range 500 {
		fmt.Fprintf(&input, "tag v%03d\nfrom %s\ntagger a <a@b> 1600000000 +0000\ndata 2\nt\n\n", i, commit)
	}
	cmd := gitcmd.New(t.Context(), "--git-dir="+src.Path, "-c", "fastimport.unpackLimit=1", "fast-import", "--quiet")
	cmd.Env, cmd.Stdin = gittest.Env(), strings.NewReader(input.String())
	if err := gitcmd.Run(cmd); err != nil {
		t.Fatal(err)
	}
	show := func(dir string) string {
		t.Helper()
		out, err := gittest.Git(t.Context(), "", "ls-remote", dir)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	tag := func(name string) string {
		t.Helper()
		out, err := gittest.Git(t.Context(), src.Path, "rev-parse", name)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	push := func(first, last int) {
		t.Helper()
		for i := first; i < last; i++ {
			name := fmt.Sprintf("refs/tags/v%03d", i)
			if err := src.Update(t.Context(), name, "", tag(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A lightweight tag points to a commit, so it has no other target.
	gittest.Must(t, src.Path, "update-ref", "refs/tags/light", commit)
	if err := src.Update(t.Context(), "refs/tags/light", "", commit); err != nil {
		t.Fatal(err)
	}
	push(0, 1)
	refs := []records.RefUpdate{}
	for i := 1; i < 499; i++ {
		name := fmt.Sprintf("refs/tags/v%03d", i)
		refs = append(refs, records.RefUpdate{Name: name, Old: strings.Repeat("0", 40), New: tag(name)})
	}
	if _, err := b.DB.Repos.Push(t.Context(), records.Push{RepoID: src.ID, Updates: refs}); err != nil {
		t.Fatal(err)
	}
	acquire(t, b, src.ID).Release()
	push(499, 500) // the replica stores the targets of the other tags, and reads only the changes
	for _, name := range []string{"refs/tags/v100", "refs/tags/light"} {
		u := records.RefUpdate{Name: name, Old: tag(name), New: strings.Repeat("0", 40)}
		if _, err := b.DB.Repos.Push(t.Context(), records.Push{RepoID: src.ID, Updates: []records.RefUpdate{u}}); err != nil {
			t.Fatal(err)
		}
		gittest.Must(t, src.Path, "update-ref", "-d", name)
	}
	src.Write(t, "other", "file", "more")
	r := acquire(t, b, src.ID)
	defer r.Release()
	if got, want := show(r.Dir), show(src.Path); got != want {
		t.Errorf("git ls-remote: got %s, want %s", got, want)
	}
	text, err := os.ReadFile(filepath.Join(r.Dir, "packed-refs"))
	if n := strings.Count(string(text), "\n^"); err != nil || n != 499 {
		t.Errorf("packed-refs has %d peeled tags (%v), want 499", n, err)
	}
}

// victimDir is the environment variable that makes a process the one that TestKilled kills. Its value is the directory
// of the node.
const victimDir = "REPLICA_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		runUntilKilled(dir, os.Getenv("REPLICA_TEST_OBJECTS"))
		return
	}
	os.Exit(m.Run())
}

// runUntilKilled creates and removes replicas until the process is killed.
func runUntilKilled(dir, location string) {
	ctx := context.Background()
	b, err := replicatest.Open(ctx, dir, location, replica.Options{MaxRepos: 1, MaxBytes: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	page, _, _, err := b.DB.Repos.List(ctx, records.RepoQuery{Namespace: "ns", Limit: 10})
	for i := 0; err == nil; i++ {
		var r *replica.Replica
		if r, err = b.Set.AcquireRepo(ctx, page[i%len(page)]); err == nil {
			r.Release()
		}
		if i == 0 {
			fmt.Println("ready")
		}
	}
	fmt.Println(err)
}

// TestKilled checks that a killed process leaves no file that prevents the work of the next process.
func TestKilled(t *testing.T) {
	onBothStores(t, func(t *testing.T, location string) {
		dir := t.TempDir()
		b, err := replicatest.Open(t.Context(), dir, location, replica.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var repos []*replicatest.Repo
		for i := range 3 {
			src := b.Create(t, fmt.Sprint("repo", i), object.SHA1)
			for n := range 3 {
				src.Write(t, "main", "file", fmt.Sprint(i, n))
			}
			repos = append(repos, src)
		}
		for i := range 8 {
			if err := errors.Join(b.Set.Close(), b.DB.Close()); err != nil {
				t.Fatal(err)
			}
			kill(t, dir, location, time.Duration(i)*1000*time.Microsecond)
			if b, err = replicatest.Open(t.Context(), dir, location, replica.Options{}); err != nil {
				t.Fatal(err)
			}
			for _, src := range repos {
				src.Bed = b
				if err := src.Compare(t.Context(), src.ID); err != nil {
					t.Error(err)
				}
			}
		}
		if err := errors.Join(b.Set.Close(), b.DB.Close()); err != nil {
			t.Error(err)
		}
	})
}

// kill runs a victim in another process, and kills it some time after it has begun.
func kill(t *testing.T, dir, location string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimDir+"="+dir, "REPLICA_TEST_OBJECTS="+location)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, _ := out.Read(line)
	<-time.After(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if string(line[:n]) != "ready\n" {
		t.Fatalf("victim: %s", line[:n])
	}
}

func BenchmarkAcquire(b *testing.B) {
	bed := replicatest.New(b, b.TempDir(), "", replica.Options{MaxRepos: 1 << 20})
	src := small(b, bed, "one")
	one := src.ID
	b.Run("cold", func(b *testing.B) {
		var ids []string
		for range b.N {
			id, err := src.Fork(b.Context(), "fork-"+rand.Text())
			if err != nil {
				b.Fatal(err)
			}
			ids = append(ids, id)
		}
		b.ResetTimer()
		for _, id := range ids {
			acquire(b, bed, id).Release()
		}
	})
	b.Run("evict", func(b *testing.B) {
		bed := replicatest.New(b, b.TempDir(), "", replica.Options{MaxRepos: 1})
		one, two := small(b, bed, "one").ID, small(b, bed, "two").ID
		for i := range b.N {
			acquire(b, bed, []string{one, two}[i%2]).Release()
		}
	})
	b.Run("warm", func(b *testing.B) {
		for b.Loop() {
			acquire(b, bed, one).Release()
		}
	})
	b.Run("known row", func(b *testing.B) {
		repo, err := bed.DB.Repos.ByID(b.Context(), one)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			r, err := bed.Set.AcquireRepo(b.Context(), repo)
			if err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
	})
	b.Run("size", func(b *testing.B) {
		r := acquire(b, bed, one)
		defer r.Release()
		files, blocks := 0, int64(0)
		err := filepath.WalkDir(r.Dir, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			files++
			var n int64
			n, err = blocksOf(path)
			blocks += n
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(files), "entries")
		b.ReportMetric(float64(blocks)/1024, "KiB")
	})
}

// small creates a repository with three pushes.
func small(b *testing.B, bed *replicatest.Bed, name string) *replicatest.Repo {
	src := bed.Create(b, name, object.SHA1)
	for i := range 3 {
		src.Write(b, "main", "file", fmt.Sprint(name, i))
	}
	return src
}

func BenchmarkStore(b *testing.B) {
	bed := replicatest.New(b, b.TempDir(), "", replica.Options{})
	src := bed.Create(b, "repo", object.SHA1)
	if _, err := src.Commit("main", map[string]gittest.File{"file": {Data: []byte("text")}}, "commit"); err != nil {
		b.Fatal(err)
	}
	dir := filepath.Join(src.Path, "objects/pack")
	files, err := filepath.Glob(filepath.Join(dir, "*.pack"))
	if err != nil || len(files) != 1 {
		b.Fatal(files, err)
	}
	hash := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), "pack-"), ".pack")
	for b.Loop() {
		// Remove the files of the pack, as if it was not on disk yet.
		for _, x := range []string{".pack", ".idx"} {
			path := filepath.Join(dir, "pack-"+hash+x)
			data, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			if err := disk.WriteFileUnsynced(path, data, 0o444); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := bed.Set.Store(b.Context(), dir, hash); err != nil {
			b.Fatal(err)
		}
	}
}

// TestOpenAfterAPowerCut checks that empty files are not used. The small files that replicas share are not synced, so a
// power failure can leave empty ones.
func TestOpenAfterAPowerCut(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	src := b.Create(t, "repo", object.SHA256)
	src.Write(t, "main", "file", "text")
	acquire(t, b, src.ID).Release()
	if err := b.Set.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(b.Dir, "replicas")
	shared, err := filepath.Glob(filepath.Join(dir, "shared", "*"))
	if err != nil || len(shared) == 0 {
		t.Fatalf("shared files: got %v, %v", shared, err)
	}
	for _, path := range shared {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	set, err := replica.Open(replica.Options{Dir: dir, Records: b.DB, Objects: b.Objects})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	r, err := set.Acquire(t.Context(), src.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if out, err := gittest.Git(t.Context(), r.Dir, "fsck", "--strict"); err != nil {
		t.Errorf("fsck after a power cut: %v\n%s", err, out)
	}
	if out, err := gittest.Git(t.Context(), r.Dir, "rev-parse", "HEAD"); err != nil || len(out) != 64 {
		t.Errorf("HEAD after a power cut: got %q, %v", out, err)
	}
}
