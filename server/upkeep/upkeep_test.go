package upkeep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

func worker(b *replicatest.Bed, times Times) *Worker {
	return New(Options{Records: b.DB, Objects: b.Objects, Replicas: b.Set, Times: times})
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func snapshot(t testing.TB, b *replicatest.Bed, id string) records.Snapshot {
	t.Helper()
	s, err := b.DB.Repos.Snapshot(t.Context(), id)
	do(t, err)
	return s
}

// has reports whether a repository has an object.
func has(t testing.TB, b *replicatest.Bed, repoID, object string) bool {
	t.Helper()
	on, err := b.Set.Acquire(t.Context(), repoID)
	do(t, err)
	defer on.Release()
	_, err = gittest.Git(t.Context(), on.Dir, "cat-file", "-e", object)
	return err == nil
}

func TestPacksAreJoined(t *testing.T) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) {
			b := replicatest.New(t, t.TempDir(), "", replica.Options{})
			w := worker(b, Times{Crowd: 5, Check: time.Hour, Grace: time.Hour, Unused: time.Hour, History: time.Hour})
			r := b.Create(t, "repo", format)
			for i := range 3 {
				r.Write(t, "main", fmt.Sprint("file", i), "text")
			}
			shared := snapshot(t, b, r.ID).Packs
			fork, err := r.Fork(t.Context(), "fork")
			do(t, err)
			for i := range 9 {
				r.Write(t, "main", "file", fmt.Sprint(i))
				do(t, w.Round(t.Context()))
				do(t, r.Compare(t.Context(), r.ID))
			}
			packs := snapshot(t, b, r.ID).Packs
			if len(packs) > 3+4 || len(packs) <= 3 {
				t.Errorf("%d packs after 12 pushes, with 3 shared ones", len(packs))
			}
			for _, p := range shared {
				if !slices.ContainsFunc(packs, func(q records.Pack) bool { return q.ID == p.ID }) {
					t.Errorf("the shared pack %s was replaced", p.ID)
				}
			}
			if got := snapshot(t, b, fork).Packs; len(got) != 3 {
				t.Errorf("fork has %d packs, want 3", len(got))
			}
		})
	}
}

// TestSharedPacksAreJoinedIfThereAreMany checks that a repository that is forked after each push does not list more and
// more packs.
func TestSharedPacksAreJoinedIfThereAreMany(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 3, Check: time.Hour, Grace: time.Hour, Unused: time.Hour, History: time.Hour})
	r := b.Create(t, "repo", object.SHA1)
	most := 0
	for i := range 20 {
		r.Write(t, "main", fmt.Sprint("file", i), "text")
		_, err := r.Fork(t.Context(), fmt.Sprint("fork", i))
		do(t, err)
		do(t, w.repackAll(t.Context()))
		most = max(most, len(snapshot(t, b, r.ID).Packs))
	}
	if most != sharedFactor*3-1 {
		t.Errorf("the repository had up to %d packs, want %d", most, sharedFactor*3-1)
	}
	do(t, r.Compare(t.Context(), r.ID))
}

func TestLargePacksGetBitmaps(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 100, Large: 1000, Check: time.Hour, Grace: time.Hour, Unused: time.Hour,
		History: time.Hour})
	r := b.Create(t, "repo", object.SHA1)
	files := map[string]gittest.File{}
	for i := range 1200 {
		files[fmt.Sprint("file", i)] = gittest.File{Data: fmt.Append(nil, i)}
	}
	r.Push(t, "main", files)
	r.Write(t, "main", "file", "text")
	lost := r.Write(t, "side", "side", "side").String()
	do(t, r.Update(t.Context(), "refs/heads/side", lost, ""))
	_, err := gittest.Git(t.Context(), r.Path, "update-ref", "-d", "refs/heads/side")
	do(t, err)
	for range 2 {
		do(t, w.Round(t.Context()))
		packs := snapshot(t, b, r.ID).Packs
		if n := len(slices.DeleteFunc(slices.Clone(packs), func(p records.Pack) bool { return !hasBitmap(p) })); n != 1 ||
			len(packs) != 2 {
			t.Errorf("%d packs, %d with a bitmap, want 2 and 1: %v", len(packs), n, packs)
		}
	}
	if !has(t, b, r.ID, lost) {
		t.Error("an object was lost that no ref reaches")
	}
	do(t, r.Compare(t.Context(), r.ID))
	on, err := b.Set.Acquire(t.Context(), r.ID)
	do(t, err)
	defer on.Release()
	if out, err := gittest.Git(t.Context(), on.Dir, "rev-list", "--test-bitmap", "main"); err != nil {
		t.Errorf("git rev-list --test-bitmap: %s, %v", out, err)
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		objects []int64
		want    int
	}{
		{[]int64{3, 3, 3}, 3},
		{[]int64{1, 2, 4}, 2}, // the first two packs have 3 objects together, and 4 is less than twice as many
		{[]int64{1, 2, 6, 18}, 0},
		{[]int64{100, 1, 1, 1, 1}, 4},
		{[]int64{5}, 0},
		{nil, 0},
		{[]int64{10, 9, 1000, 1}, 3},
	} {
		var packs []records.Pack
		for _, n := range c.objects {
			packs = append(packs, records.Pack{Objects: n})
		}
		if got := choose(packs); c.objects != nil && c.objects[0] == 1 && c.want == 2 {
			if len(got) != 3 {
				t.Errorf("%v: %d packs are joined, want 3", c.objects, len(got))
			}
		} else if len(got) != c.want {
			t.Errorf("%v: %d packs are joined, want %d", c.objects, len(got), c.want)
		}
	}
}

func TestGarbageIsKeptForAGracePeriod(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 100, Grace: time.Hour, Unused: time.Hour, History: 1000 * time.Hour})
	start := time.Now()
	at := func(d time.Duration) { w.now = func() time.Time { return start.Add(d) } }
	r := b.Create(t, "repo", object.SHA1)
	r.Write(t, "main", "file", "text")
	var tips []string
	for _, branch := range []string{"lost", "saved", "late"} {
		tips = append(tips, r.Write(t, branch, branch, branch).String())
	}
	remove := func(i int, branch string) {
		t.Helper()
		do(t, r.Update(t.Context(), "refs/heads/"+branch, tips[i], ""))
		_, err := gittest.Git(t.Context(), r.Path, "update-ref", "-d", "refs/heads/"+branch)
		do(t, err)
	}
	check := func(when string, garbage int, want ...bool) {
		t.Helper()
		do(t, w.collect(t.Context(), r.ID))
		do(t, r.Compare(t.Context(), r.ID))
		n := 0
		for _, p := range snapshot(t, b, r.ID).Packs {
			if isGarbage(p) {
				n++
			}
		}
		if n != garbage {
			t.Errorf("%s: %d packs of garbage, want %d", when, n, garbage)
		}
		for i, id := range tips {
			if got := has(t, b, r.ID, id); got != want[i] {
				t.Errorf("%s: commit %d is there: %v, want %v", when, i, got, want[i])
			}
		}
	}
	check("no garbage", 0, true, true, true)
	remove(0, "lost")
	remove(1, "saved")
	check("new garbage", 1, true, true, true)
	at(40 * time.Minute)
	remove(2, "late")
	check("more garbage", 1, true, true, true)
	_, err := gittest.Git(t.Context(), r.Path, "update-ref", "refs/heads/back", tips[1])
	do(t, err)
	do(t, r.Update(t.Context(), "refs/heads/back", "", tips[1]))
	if n := snapshot(t, b, r.ID).Repo.Collections; n != 0 {
		t.Errorf("%d collections before the grace period has passed", n)
	}
	at(61 * time.Minute)
	check("after the grace period", 1, false, true, true)
	if n := snapshot(t, b, r.ID).Repo.Collections; n != 1 {
		t.Errorf("%d collections, want 1", n)
	}
	at(101 * time.Minute)
	check("after the grace period of the last", 0, false, true, false)
}

// TestCollectionLosesAgainstAPush checks that a push that becomes visible while garbage is collected keeps the objects
// that it needs.
func TestCollectionLosesAgainstAPush(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 100})
	r := b.Create(t, "repo", object.SHA1)
	r.Write(t, "main", "file", "text")
	tip := r.Write(t, "side", "side", "side").String()
	do(t, r.Update(t.Context(), "refs/heads/side", tip, ""))
	_, err := gittest.Git(t.Context(), r.Path, "update-ref", "-d", "refs/heads/side")
	do(t, err)
	v, err := w.view(t.Context(), r.ID)
	do(t, err)
	scratch, err := b.Set.Scratch()
	do(t, err)
	packs, err := w.contents(t.Context(), v, scratch)
	do(t, err)
	reached := filepath.Join(scratch, "reached")
	do(t, w.reach(t.Context(), v, packs, reached))
	p := w.plan(packs, time.Now())
	if len(p.dropped) != 3 || len(p.live) != 0 {
		t.Fatalf("plan: %d objects are dropped, %d are rewritten, want 3 and 0", len(p.dropped), len(p.live))
	}
	old := []string{p.rewritten[0].pack.ID}

	r.Write(t, "main", "file", "a push that needs no garbage")
	do(t, r.Update(t.Context(), "refs/heads/again", "", tip))
	if err := w.commit(t.Context(), v, p, old, nil); !errors.Is(err, records.ErrChanged) {
		t.Errorf("collection of objects that a new ref reaches: %v, want ErrChanged", err)
	}
	do(t, r.Update(t.Context(), "refs/heads/again", tip, ""))
	r.Write(t, "main", "file", "another push that needs no garbage")
	do(t, w.commit(t.Context(), v, p, old, nil))
	if !has(t, b, r.ID, tip) {
		t.Error("a replica that was in use lost objects")
	}
	v.release()
	if has(t, b, r.ID, tip) {
		t.Error("the garbage is there after the collection")
	}
	do(t, r.Compare(t.Context(), r.ID))
}

// TestPlanIgnoresKeptPacks checks that an object that two packs have is kept by each collection that rewrites one of
// them, because another collection can replace the other pack in the meantime.
func TestPlanIgnoresKeptPacks(t *testing.T) {
	w := worker(replicatest.New(t, t.TempDir(), "", replica.Options{}), Times{})
	both, err := object.ParseID(strings.Repeat("1", 40))
	do(t, err)
	garbage, err := object.ParseID(strings.Repeat("2", 40))
	do(t, err)
	p := w.plan([]*contents{
		{pack: records.Pack{ID: "rewritten"}, ids: []object.ID{both, garbage}, reached: []bool{true, false}},
		{pack: records.Pack{ID: "kept"}, ids: []object.ID{both}, reached: []bool{true}},
	}, time.Now())
	if len(p.rewritten) != 1 || p.rewritten[0].pack.ID != "rewritten" || !p.live[both] {
		t.Errorf("plan: rewrites %d packs and keeps %v, want one pack, and the object of both packs",
			len(p.rewritten), p.live)
	}
}

// stored returns the files in the object store.
func stored(t testing.TB, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, filepath.Base(path))
		}
		return err
	})
	do(t, err)
	slices.Sort(files)
	return files
}

// listed returns the files of the packs that repositories list.
func listed(t testing.TB, b *replicatest.Bed, ids ...string) (files []string) {
	t.Helper()
	for _, id := range ids {
		for _, p := range snapshot(t, b, id).Packs {
			for _, x := range p.Extensions {
				files = append(files, filepath.Base(p.Key(x)))
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// faulty is an object store whose Delete returns an error.
type faulty struct{ objects.Store }

func (faulty) Delete(context.Context, string) error { return objects.ErrUnavailable }

func TestUnusedPacksAreRemoved(t *testing.T) {
	server := s3test.Start(t)
	b := replicatest.New(t, t.TempDir(), server.URL("x"), replica.Options{})
	w := worker(b, Times{Crowd: 2, Check: time.Hour, Grace: time.Hour, Unused: time.Minute, History: time.Hour})
	kept, deleted := b.Create(t, "kept", object.SHA1), b.Create(t, "deleted", object.SHA1)
	for i := range 4 {
		kept.Write(t, "main", "file", fmt.Sprint(i))
		deleted.Write(t, "main", "file", fmt.Sprint(i))
	}
	fork, err := kept.Fork(t.Context(), "fork")
	do(t, err)
	do(t, b.DB.Repos.Delete(t.Context(), deleted.ID, nil, records.Cause{}))
	do(t, w.Round(t.Context()))
	bucket := filepath.Join(server.Dir, s3test.Bucket)
	if n := len(stored(t, bucket)); n != 16 {
		t.Errorf("%d files are stored before the packs are old enough, want 16", n)
	}
	start := time.Now()
	w.now = func() time.Time { return start.Add(2 * time.Minute) }
	broken := *w
	broken.o.Objects = faulty{b.Objects}
	if err := broken.Round(t.Context()); !errors.Is(err, objects.ErrUnavailable) {
		t.Errorf("Round while the object store is away: got %v", err)
	}
	do(t, w.Round(t.Context()))
	if got, want := stored(t, bucket), listed(t, b, kept.ID, fork); !slices.Equal(got, want) || len(want) != 8 {
		t.Errorf("files in the object store: got %q, want %q", got, want)
	}
	do(t, kept.Compare(t.Context(), fork))
}

// TestRepositoryWithoutRefs checks that all objects are garbage after the last ref was removed.
func TestRepositoryWithoutRefs(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 100})
	r := b.Create(t, "repo", object.SHA1)
	do(t, w.collect(t.Context(), r.ID))
	tip := r.Write(t, "main", "file", "text").String()
	do(t, r.Update(t.Context(), "refs/heads/main", tip, ""))
	do(t, w.collect(t.Context(), r.ID))
	if n := len(snapshot(t, b, r.ID).Packs); n != 0 {
		t.Errorf("%d packs remain", n)
	}
}

func TestOneNodeWorksOnARepository(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	one, two := worker(b, Default()), worker(b, Default())
	inside := 0
	do(t, one.once(t.Context(), "x", func(ctx context.Context) error {
		inside++
		return two.once(ctx, "x", func(context.Context) error {
			inside++
			return nil
		})
	}))
	do(t, two.once(t.Context(), "x", func(context.Context) error {
		inside += 10
		return nil
	}))
	if inside != 11 {
		t.Errorf("jobs that ran: %d", inside)
	}
}

func FuzzParseTimes(f *testing.F) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		data := append([]byte(timesMagic), 0, 0, 0, 1, 0, 0, 0, byte(hashNumber(format)), 1, 2, 3, 4)
		data = append(data, make([]byte, format.Size())...)
		f.Add(append(data, sum(format, data)...), 1, format == object.SHA256)
	}
	f.Add([]byte("MTME"), 0, false)
	f.Fuzz(func(t *testing.T, data []byte, n int, long bool) {
		format := object.SHA1
		if long {
			format = object.SHA256
		}
		if times, err := parseTimes(data, format, n); err == nil && len(times) != n {
			t.Errorf("%d times of %d objects", len(times), n)
		}
	})
}

// TestTimesAreThoseOfGit checks that git reads the times that encodeTimes writes.
func TestTimesAreThoseOfGit(t *testing.T) {
	b := replicatest.New(t, t.TempDir(), "", replica.Options{})
	w := worker(b, Times{Crowd: 100, Grace: time.Hour})
	r := b.Create(t, "repo", object.SHA1)
	r.Write(t, "main", "file", "text")
	tip := r.Write(t, "side", "side", "side").String()
	do(t, r.Update(t.Context(), "refs/heads/side", tip, ""))
	do(t, w.collect(t.Context(), r.ID))
	clone := filepath.Join(t.TempDir(), "clone.git")
	on, err := b.Set.Acquire(t.Context(), r.ID)
	do(t, err)
	defer on.Release()
	_, err = gittest.Git(t.Context(), "", "clone", "-q", "--mirror", on.Dir, clone)
	do(t, err)
	for _, p := range snapshot(t, b, r.ID).Packs {
		if !isGarbage(p) {
			continue
		}
		for _, x := range p.Extensions {
			do(t, b.Objects.Get(t.Context(), p.Key(x), filepath.Join(clone, "objects/pack/pack-"+p.Hash+x)))
		}
	}
	// Git keeps young objects of a cruft pack and removes old ones, by the times in the file.
	for _, c := range []struct {
		expire string
		want   bool
	}{{"1.hour.ago", true}, {"now", false}} {
		_, err := gittest.Git(t.Context(), clone, "repack", "-qd", "--cruft", "--cruft-expiration="+c.expire)
		do(t, err)
		if _, err := gittest.Git(t.Context(), clone, "cat-file", "-e", tip); (err == nil) != c.want {
			t.Errorf("git repack --cruft-expiration=%s: the garbage is there: %v, want %v", c.expire, err == nil, c.want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(b.Dir, "replicas/scratch")); err != nil || len(left) != 0 {
		t.Errorf("scratch directories remain: %v, %v", left, err)
	}
	if strings.Contains(fmt.Sprint(b.Set.Git().Env), "AWS") {
		t.Error("git processes get credentials")
	}
}
