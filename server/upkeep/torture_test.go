package upkeep

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// restless contains intervals so short that all work is always due. A pack must not be removed before the push that has
// stored it ends.
var restless = Times{Crowd: 3, Unused: 3 * time.Second, History: time.Hour}

// actor makes random changes of one repository. Its clone has the state that the server has acknowledged.
type actor struct {
	*replicatest.Repo
	rnd     *rand.Rand
	commits []string // commits that were on a branch at some time
	forks   map[string]string
	made    int
	refused int
}

// refs returns the refs of a directory.
func refs(ctx context.Context, dir string) (string, error) {
	return gittest.Git(ctx, dir, "for-each-ref", "--format=%(objectname) %(refname)")
}

// act makes one random change.
func (a *actor) act(ctx context.Context) error {
	branch := "refs/heads/" + []string{"main", "one", "two"}[a.rnd.IntN(3)]
	old, err := gittest.Git(ctx, a.Path, "for-each-ref", "--format=%(objectname)", branch)
	if err != nil {
		return err
	}
	a.made++
	switch dice := a.rnd.IntN(10); {
	case dice < 5 || len(a.commits) == 0: // push a commit
		_, err := a.Commit(strings.TrimPrefix(branch, "refs/heads/"), map[string]gittest.File{
			fmt.Sprint("file", a.rnd.IntN(5)): {Data: fmt.Append(nil, a.ID, a.made)},
		}, "commit")
		if err != nil {
			return err
		}
		id, err := gittest.Git(ctx, a.Path, "rev-parse", branch)
		if err != nil {
			return err
		}
		a.commits = append(a.commits, id)
		// Repeat a failed push, as a user does.
		for attempt := 0; ; attempt++ {
			if err = a.Update(ctx, branch, old, id); err == nil || attempt == 5 {
				return err
			}
		}
	case dice < 6 && old != "": // remove a branch
		if err := a.Update(ctx, branch, old, ""); err != nil {
			return err
		}
		_, err := gittest.Git(ctx, a.Path, "update-ref", "-d", branch)
		return err
	case dice < 8: // push a commit that the server may have removed as garbage, so that it refuses the push
		id := a.commits[a.rnd.IntN(len(a.commits))]
		if id == old {
			return nil
		}
		if err := a.Update(ctx, branch, old, id); err != nil {
			a.refused++
			return nil
		}
		_, err := gittest.Git(ctx, a.Path, "update-ref", branch, id)
		return err
	case dice < 9: // create a fork
		id, err := a.Fork(ctx, fmt.Sprint("fork-", a.ID, "-", a.made))
		if err != nil {
			return err
		}
		a.forks[id], err = refs(ctx, a.Path)
		return err
	default: // delete a fork
		for id := range a.forks {
			delete(a.forks, id)
			return a.Bed.DB.Repos.Delete(ctx, id, nil, records.Cause{})
		}
		return nil
	}
}

// verify returns an error unless the server has the state that it has acknowledged.
func (a *actor) verify(ctx context.Context) error {
	if err := a.Compare(ctx, a.ID); err != nil {
		return err
	}
	for id, want := range a.forks {
		on, err := a.Bed.Set.Acquire(ctx, id)
		if err != nil {
			return err
		}
		_, err = gittest.Git(ctx, on.Dir, "fsck", "--strict", "--no-dangling")
		got, refsErr := refs(ctx, on.Dir)
		on.Release()
		if err := errors.Join(err, refsErr); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("refs of fork %s: got %s, want %s", id, got, want)
		}
	}
	return nil
}

// TestUpkeepBesidePushes makes pushes, forks, removals and fetches while two nodes collect garbage without a grace
// period.
func TestUpkeepBesidePushes(t *testing.T) {
	seconds, err := time.ParseDuration(os.Getenv("UPKEEP_TORTURE")) // duration of the test, such as 5m
	if err != nil {
		seconds = 4 * time.Second
	}
	server := s3test.Start(t)
	first := replicatest.New(t, t.TempDir(), server.URL("x"), replica.Options{MaxRepos: 4})
	set, err := replica.Open(replica.Options{Dir: t.TempDir(), Records: first.DB, Objects: first.Objects, MaxRepos: 4,
		MaxBytes: 50 << 10})
	do(t, err)
	defer set.Close()
	second := &replicatest.Bed{Dir: first.Dir, DB: first.DB, Objects: first.Objects, Set: set}

	var actors []*actor
	for i := range 4 {
		r := first.Create(t, fmt.Sprint("repo", i), object.SHA1)
		r.Bed = []*replicatest.Bed{first, second}[i%2]
		actors = append(actors, &actor{Repo: r, rnd: rand.New(rand.NewPCG(uint64(i), 1)), forks: map[string]string{}})
	}
	// No push may take longer than packs that are not listed are kept. The first one shows how busy the machine is.
	begin, times := time.Now(), restless
	do(t, actors[0].act(t.Context()))
	times.Unused = min(max(times.Unused, 20*time.Since(begin)), 30*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), seconds)
	defer cancel()
	var running sync.WaitGroup
	var rounds, clones atomic.Int64
	for _, b := range []*replicatest.Bed{first, second} {
		w := worker(b, times)
		running.Go(func() {
			for ctx.Err() == nil {
				if err := w.Round(t.Context()); err != nil {
					t.Errorf("upkeep: %v", err)
				}
				rounds.Add(1)
			}
		})
	}
	for _, a := range actors {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := a.act(t.Context()); err != nil {
					t.Errorf("change %d of %s: %v", a.made, a.ID, err)
					return
				}
			}
		})
		running.Go(func() {
			other := first
			if a.Bed == first {
				other = second
			}
			for ctx.Err() == nil {
				if err := clone(t.Context(), other, a.ID, t.TempDir()); err != nil {
					t.Errorf("clone of %s: %v", a.ID, err)
				}
				clones.Add(1)
			}
		})
	}
	running.Wait()
	made, refused := 0, 0
	for _, a := range actors {
		if err := a.verify(t.Context()); err != nil {
			t.Error(err)
		}
		made, refused = made+a.made, refused+a.refused
	}
	t.Logf("%d changes (%d of them refused, because garbage was needed), %d clones, %d rounds of upkeep", made, refused,
		clones.Load(), rounds.Load())
	all := allListed(t, first)
	w := worker(first, restless)
	w.now = func() time.Time { return time.Now().Add(time.Minute) }
	do(t, w.sweep(t.Context()))
	if got := stored(t, filepath.Join(server.Dir, s3test.Bucket)); !slices.Equal(got, all) {
		t.Errorf("the object store has %d files, and %d are listed", len(got), len(all))
	}
}

// clone clones the repository by git upload-pack, as a client does.
func clone(ctx context.Context, b *replicatest.Bed, id, dir string) error {
	on, err := b.Set.Acquire(ctx, id)
	if err != nil {
		return err
	}
	defer on.Release()
	to := filepath.Join(dir, "clone.git")
	if _, err := gittest.Git(ctx, "", "clone", "-q", "--bare", "--no-local", on.Dir, to); err != nil {
		return err
	}
	_, err = gittest.Git(ctx, to, "fsck", "--strict", "--no-dangling")
	return errors.Join(err, os.RemoveAll(to))
}

// allListed returns the files of all packs that repositories list.
func allListed(t testing.TB, b *replicatest.Bed) []string {
	t.Helper()
	var ids []string
	for after := ""; ; {
		page, _, next, err := b.DB.Repos.List(t.Context(), records.RepoQuery{Namespace: "ns", Limit: 100, After: after})
		do(t, err)
		for _, r := range page {
			ids = append(ids, r.ID)
		}
		if next == "" {
			return listed(t, b, ids...)
		}
		after = next
	}
}

// victimDir is the environment variable that makes a process the one that TestKilledUpkeep kills. Its value is the
// directory of the node.
const victimDir = "UPKEEP_TEST_VICTIM"

func TestMain(m *testing.M) {
	dir := os.Getenv(victimDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	b, err := replicatest.Open(ctx, dir, "", replica.Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// No pack must be kept, because no push runs.
	w := worker(b, Times{Crowd: 3, Unused: time.Nanosecond, History: time.Hour})
	for fmt.Println("ready"); err == nil; err = w.Round(ctx) {
	}
	fmt.Println(err)
}

// TestKilledUpkeep checks that a node that is killed during the upkeep leaves only packs that no repository lists, and
// that the next node removes them.
func TestKilledUpkeep(t *testing.T) {
	dir := t.TempDir()
	var actors []*actor
	for i := range 2 {
		actors = append(actors, &actor{rnd: rand.New(rand.NewPCG(uint64(i), 2)), forks: map[string]string{}})
	}
	for round := range 5 {
		var b *replicatest.Bed
		// A process that the victim was starting may hold the lock for a short time.
		await.Until(t, "the replicas are free", func() (open bool) {
			var err error
			b, err = replicatest.Open(t.Context(), dir, "", replica.Options{})
			return err == nil
		})
		for i, a := range actors {
			if round == 0 {
				a.Repo = b.Create(t, fmt.Sprint("repo", i), object.SHA1)
			}
			a.Bed = b
			do(t, a.verify(t.Context()))
			for range 8 {
				do(t, a.act(t.Context()))
			}
		}
		do(t, errors.Join(b.Set.Close(), b.DB.Close()))

		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimDir+"="+dir)
		out, err := cmd.StdoutPipe()
		do(t, err)
		do(t, cmd.Start())
		line := make([]byte, 200)
		n, _ := out.Read(line)
		<-time.After(time.Duration(round) * 25 * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if string(line[:n]) != "ready\n" {
			t.Fatalf("victim: %s", line[:n])
		}
	}
	b := replicatest.New(t, dir, "", replica.Options{})
	for _, a := range actors {
		a.Bed = b
		do(t, a.verify(t.Context()))
	}
	w := worker(b, restless)
	w.now = func() time.Time { return time.Now().Add(time.Minute) }
	do(t, w.sweep(t.Context()))
	if got, want := stored(t, filepath.Join(dir, "objects")), allListed(t, b); !slices.Equal(got, want) {
		t.Errorf("the object store has %d files, and %d are listed", len(got), len(want))
	}
	await.Until(t, "old replicas are removed", func() bool {
		left, _ := os.ReadDir(filepath.Join(dir, "replicas/trash"))
		return len(left) == 0
	})
}
