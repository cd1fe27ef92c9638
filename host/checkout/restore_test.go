package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// checkpoints is a session whose data is in memory. Its checkpoints contain empty directories and all files except
// those with the name "x".
type checkpoints struct {
	w           *world
	checkpoints map[session.CheckpointID]session.Checkpoint
	trees       map[object.ID]files
}

func newCheckpoints(w *world) *checkpoints {
	return &checkpoints{w, map[session.CheckpointID]session.Checkpoint{}, map[object.ID]files{}}
}

// on returns the same session for another world.
func (c *checkpoints) on(w *world) *checkpoints { return &checkpoints{w, c.checkpoints, c.trees} }

func (c *checkpoints) add(f files) session.Checkpoint {
	p := session.Checkpoint{ID: session.NewCheckpointID(time.Unix(1700000000+int64(len(c.checkpoints)), 0)),
		Tree: c.w.src.Add(f)}
	c.checkpoints[p.ID], c.trees[p.Tree] = p, f
	return p
}

func (c *checkpoints) Capture(context.Context) (session.Checkpoint, error) {
	stored, _ := split(c.w.withDirs())
	return c.add(stored), nil
}

func (c *checkpoints) Hold(context.Context, session.Checkpoint) error { return nil }

func (c *checkpoints) Dirs(context.Context, session.Checkpoint) (map[string]uint32, error) {
	return nil, nil
}

// Differences compares two checkpoints as the daemon does: empty directories are listed as paths.
func (c *checkpoints) Differences(_ context.Context, from, to object.ID) (list []Difference, err error) {
	a, b := c.trees[from], c.trees[to]
	for _, at := range slices.Sorted(maps.Keys(union(a, b))) {
		old, was := a[at]
		now, is := b[at]
		switch {
		case was && is && old == now, was && !is && old.Mode == object.ModeDir && b.below(at) != "":
			continue
		case is && now.Mode == object.ModeDir:
			list = append(list, Difference{Path: at, NewMode: object.ModeDir, New: object.EmptyTree(object.SHA1)})
			is = false
		}
		d := Difference{Path: at}
		if was && (old.Mode != object.ModeDir || !is && b[at].Mode == 0) {
			d.OldMode, d.Old = modeOf(old), idOf(old)
		}
		if is {
			d.NewMode, d.New = modeOf(now), idOf(now)
		}
		if d.OldMode != 0 || d.NewMode != 0 {
			list = append(list, d)
		}
	}
	return list, nil
}

func idOf(f worktreetest.File) object.ID {
	if f.Mode == object.ModeDir {
		return object.EmptyTree(object.SHA1)
	}
	id, err := object.Hash(object.SHA1, object.Blob, []byte(f.Data))
	if err != nil {
		panic(err)
	}
	return id
}

func union(a, b files) files {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// split returns the files that checkpoints store and the ignored files. A directory that contains only ignored files is
// not stored.
func split(f files) (stored, ignored files) {
	stored, ignored = files{}, files{}
	for at, file := range f {
		if slices.Contains(strings.Split(at, "/"), "x") {
			ignored[at] = file
		} else {
			stored[at] = file
		}
	}
	return stored, ignored
}

// withoutIgnored renames the ignored files, and sometimes adds an empty directory.
func withoutIgnored(r *rand.Rand, f files) files {
	stored, _ := split(f)
	if at := "d/" + randomPath(r); r.IntN(3) == 0 && !strings.Contains(at, "x") {
		stored.put(at, worktreetest.File{Mode: object.ModeDir})
	}
	return stored
}

// restored returns the expected working tree after paths were restored from a checkpoint. It also returns the paths
// that cannot be restored, because other files are in their places.
func restored(now, target files, wants func(string) bool) (after files, kept []string) {
	stored, ignored := split(now)
	after = maps.Clone(ignored)
	for at, f := range stored {
		if !wants(at) {
			after[at] = f
		}
	}
	stays := maps.Clone(after)
	maps.DeleteFunc(stays, func(_ string, f worktreetest.File) bool { return f.Mode == object.ModeDir })
	for at, f := range target {
		if !wants(at) {
			continue
		}
		if stays.above(at) != "" || f.Mode != object.ModeDir && stays.below(at) != "" {
			if now[at] != f {
				kept = append(kept, at)
			}
			continue
		}
		after[at] = f
	}
	maps.DeleteFunc(after,
		func(at string, f worktreetest.File) bool { return f.Mode == object.ModeDir && after.below(at) != "" })
	slices.Sort(kept)
	return after, kept
}

// restore restores paths, or repeats an interrupted restore.
func (w *world) restore(c *Checkout, s *checkpoints, target session.Checkpoint, paths []string,
	pending *Pending) (*Restore, error) {
	w.Helper()
	r := &Restore{Checkout: c, Checkpoints: s, Differ: s, Paths: paths, Target: target}
	if pending != nil {
		r.Paths, r.Target, r.Before = pending.Restore.Paths, s.checkpoints[pending.Restore.Checkpoint],
			s.checkpoints[pending.Restore.Before]
	}
	lock, err := c.Lock(w.Context())
	w.must(err)
	defer lock.Release()
	if err := r.Compare(w.Context()); err != nil {
		return r, err
	}
	return r, r.Apply(w.Context(), lock, nil, "nonce", pending)
}

// start returns a random working tree with ignored files, and a checkpoint to restore.
func start(t *testing.T, r *rand.Rand) (w *world, s *checkpoints, now files, target session.Checkpoint) {
	t.Helper()
	a := withoutIgnored(r, randomFiles(r))
	// git has no empty directories
	maps.DeleteFunc(a, func(_ string, f worktreetest.File) bool { return f.Mode == object.ModeDir })
	w = newRepo(t, a).world(t)
	s = newCheckpoints(w)
	b := withoutIgnored(r, near(r, a))
	now = maps.Clone(a)
	w.disturb(r, now)
	w.disturb(r, now)
	if r.IntN(3) == 0 {
		_, err := w.tree.Mkdir(t.Context(), worktree.Root, "e", 0o755, worktree.Cred{})
		w.must(err)
	}
	return w, s, w.withDirs(), s.add(b)
}

// TestRestoreDoesWhatAModelSays compares restores of random paths with a simple model: a restore changes the given
// paths, and keeps ignored files and files that are in the way. The checkpoint of the previous state must contain all
// files that the restore changed.
func TestRestoreDoesWhatAModelSays(t *testing.T) {
	t.Parallel()
	blocked := 0
	for seed := range rounds(30) {
		r := rand.New(rand.NewPCG(seed, 4))
		w, s, now, target := start(t, r)
		var paths []string
		if r.IntN(2) == 0 {
			paths = []string{randomPath(r), "b"}
		}
		wants := (&Restore{Paths: paths}).Wants
		entries := w.entries()
		done, err := w.restore(w.checkout(OpenJournal(w.home())), s, target, paths, nil)
		context := fmt.Sprintf("seed %d: working tree%s\ncheckpoint%s\npaths %q", seed, now, s.trees[target.Tree], paths)
		if none := (fault.NoPathError{}); errors.As(err, &none) {
			stored, _ := split(now)
			has := union(stored, s.trees[target.Tree])
			if _, ok := has[none.Path]; ok || has.below(none.Path) != "" {
				t.Errorf("%s\nrestore failed: %v", context, err)
			}
			continue
		}
		w.must(err)
		want, kept := restored(now, s.trees[target.Tree], wants)
		blocked += len(kept)
		if got := w.withDirs(); got.String() != want.String() {
			t.Fatalf("%s\nworking tree after the restore%s\nwant%s", context, got, want)
		}
		slices.Sort(done.Kept)
		if !slices.Equal(slices.Compact(done.Kept), kept) {
			t.Errorf("%s\nkept paths: got %q, want %q", context, done.Kept, kept)
		}
		if got := w.entries(); got != entries {
			t.Errorf("%s\na restore of files changed the index to\n%s", context, got)
		}
		stored, _ := split(now)
		if got := s.trees[done.Before.Tree]; got.String() != stored.String() {
			t.Errorf("%s\nthe checkpoint of before has%s\nwant%s", context, got, stored)
		}
		if list := OpenJournal(w.home()).Pending(); len(list) > 0 {
			t.Errorf("%s\nintents afterwards: got %d, want none", context, len(list))
		}
	}
	if blocked == 0 {
		t.Error("no restore had a path in its way: the test covers too little")
	}
}

// TestRestoreKeepsWhatNoCheckpointHas checks that a restore does not overwrite a file whose contents the checkpoint of
// the state before lacks.
func TestRestoreKeepsWhatNoCheckpointHas(t *testing.T) {
	t.Parallel()
	w := newRepo(t, files{"a": {Data: "1\n"}, "locked": {Data: "1\n"}}).world(t)
	s := newCheckpoints(w)
	target := s.add(files{"a": {Data: "2\n"}, "locked": {Data: "2\n"}})
	w.put("locked", worktreetest.File{Data: "edited\n"})
	r := &Restore{Checkout: w.checkout(OpenJournal(w.home())), Checkpoints: s, Differ: s, Target: target,
		Lacking: func() []string { return []string{"locked"} }}
	lock, err := r.Checkout.Lock(t.Context())
	w.must(err)
	defer lock.Release()
	w.must(r.Compare(t.Context()))
	w.must(r.Apply(t.Context(), lock, nil, "nonce", nil))
	want := files{"a": {Data: "2\n"}, "locked": {Data: "edited\n"}}
	if got := w.withDirs(); got.String() != want.String() || !slices.Equal(r.Kept, []string{"locked"}) {
		t.Errorf("working tree after the restore%s\nwithout %q, want%s", got, r.Kept, want)
	}
}

// TestRestoreKilledAtEveryStep kills a restore after each of its steps, and then its successor after each of its steps.
// The last process must complete the restore, unless the restore had not begun.
func TestRestoreKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 5))
			w, s, now, target := start(t, r)
			k := &kills{w: w}
			_, err := w.restore(k.on(w.checkout(OpenJournal(w.home()))), s, target, nil, nil)
			w.must(err)
			goal := w.withDirs()
			successor := func(k *kills) (pending int) {
				t.Helper()
				k.w.must(k.w.git.BreakLocks(t.Context()))
				j := OpenJournal(k.w.home())
				for _, p := range j.Pending() {
					pending++
					k.w.must(p.Err)
					done, err := k.w.restore(k.on(k.w.checkout(j)), s.on(k.w), session.Checkpoint{}, nil, p)
					k.w.must(err)
					stored, _ := split(now)
					if before := s.trees[done.Before.Tree]; before.String() != stored.String() {
						t.Errorf("the checkpoint of before has%s\nwant%s", before, stored)
					}
				}
				return pending
			}
			check := func(w *world, when string, pending int) {
				t.Helper()
				want := goal
				if pending == 0 && w.withDirs().String() != goal.String() {
					want = now
				}
				if got := w.withDirs(); got.String() != want.String() {
					t.Errorf("%s the working tree is%s\nwant%s", when, got, want)
				}
				if list := OpenJournal(w.home()).Pending(); len(list) > 0 {
					t.Errorf("%s %d intents are left, want none", when, len(list))
				}
			}
			for n, left := range k.left {
				when := fmt.Sprintf("after a kill at step %q", k.at[n])
				again := &kills{w: left}
				pending := successor(again)
				if begun := k.at[n] != "locked"; begun != (pending == 1) {
					t.Errorf("%s there are %d intents", when, pending)
				}
				check(left, when, pending)
				if len(again.left) == 0 {
					continue
				}
				at := r.IntN(len(again.left))
				twice := again.left[at]
				check(twice, fmt.Sprintf("%s and another at step %q of the successor", when, again.at[at]),
					successor(&kills{w: twice, silent: true}))
			}
			t.Logf("killed at %q", k.at)
		})
	}
}

// TestRestoreSince checks that a restore whose target was computed from a checkpoint overwrites no later change, and
// that a later change of another path is in the checkpoint Before.
func TestRestoreSince(t *testing.T) {
	t.Parallel()
	w := newRepo(t, files{"a": {Data: "1\n"}, "b": {Data: "1\n"}, "d/c": {Data: "1\n"}}).world(t)
	s := newCheckpoints(w)
	since, err := s.Capture(t.Context())
	w.must(err)
	target := s.add(files{"a": {Data: "merged\n"}, "b": {Data: "1\n"}, "d/c": {Data: "merged\n"}})
	restore := func() (*Restore, error) {
		c := w.checkout(OpenJournal(w.home()))
		r := &Restore{Checkout: c, Checkpoints: s, Differ: s, Paths: []string{"a", "d/c"}, Target: target, Since: since}
		lock, err := c.Lock(t.Context())
		w.must(err)
		defer lock.Release()
		if err := r.Compare(t.Context()); err != nil {
			return r, err
		}
		return r, r.Apply(t.Context(), lock, nil, "nonce", nil)
	}
	for _, edit := range []string{"a", "d"} {
		w.put(edit, worktreetest.File{Data: "edited\n"})
		before := w.state()
		var refusal fault.RefusalError
		if _, err := restore(); !errors.As(err, &refusal) || !slices.Contains([]string{"a", "d/c"}, refusal.Paths[0]) {
			t.Errorf("restore after a change of %s: got %v, want a refusal that names the path", edit, err)
		}
		if after := w.state(); after != before {
			t.Errorf("refused restore:%s\nwant:%s", after, before)
		}
		w.remove(edit)
		w.put(map[string]string{"a": "a", "d": "d/c"}[edit], worktreetest.File{Data: "1\n"})
	}
	w.put("b", worktreetest.File{Data: "edited\n"})
	done, err := restore()
	want := files{"a": {Data: "merged\n"}, "b": {Data: "edited\n"}, "d/c": {Data: "merged\n"}}
	if got := w.shown(); err != nil || got.String() != want.String() {
		t.Errorf("restore after a change of another path: got %v%s\nwant%s", err, got, want)
	}
	if got := s.trees[done.Before.Tree]["b"].Data; got != "edited\n" {
		t.Errorf("checkpoint of before has %q in the changed file, want the change", got)
	}
}

// failCheckpoints is a session whose operations can fail.
type failCheckpoints struct {
	*checkpoints
	f *failures
}

func (c failCheckpoints) Capture(ctx context.Context) (p session.Checkpoint, err error) {
	if err := c.f.fail("capture"); err != nil {
		return p, err
	}
	c.f.pause(true) // reads of the test itself do not fail
	defer c.f.pause(false)
	return c.checkpoints.Capture(ctx)
}

func (c failCheckpoints) Hold(context.Context, session.Checkpoint) error {
	return c.f.fail("hold checkpoint")
}

func (c failCheckpoints) Dirs(context.Context, session.Checkpoint) (map[string]uint32, error) {
	return nil, c.f.fail("read directories")
}

// TestRestoreFailsAtEveryOperation checks, for every n, that a restore whose n-th operation fails changes nothing. If
// all later operations fail too, so that the restore cannot be undone, a later repetition completes it.
func TestRestoreFailsAtEveryOperation(t *testing.T) {
	t.Parallel()
	for _, last := range []int{0, 1 << 30} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			t.Parallel()
			a := files{"a/same": {Data: "1\n"}, "a/changed": {Data: "1\n"}, "b/deep/one": {Data: "1\n"}, "file": {Data: "1\n"},
				"link": {Mode: object.ModeSymlink, Data: "a"}, "script": {Data: "1\n"}}
			b := files{"a/same": {Data: "1\n"}, "a/changed": {Data: "2\n"}, "b": {Data: "2\n"}, "file/below": {Data: "2\n"},
				"link": {Data: "2\n"}, "script": {Mode: object.ModeExec, Data: "1\n"}, "empty": {Mode: object.ModeDir}}
			repo := newRepo(t, a)
			unfinished := 0
			for n := 1; ; n++ {
				f := &failures{}
				w := repo.worldOn(t,
					disktest.Faulty(disk.OS, func(op disktest.Op) error { return f.fail(op.Name + " " + filepath.Base(op.Path)) }))
				s := newCheckpoints(w)
				target := s.add(b)
				w.put("mine", worktreetest.File{Data: "mine\n"})
				w.put("file", worktreetest.File{Data: "edited\n"})
				w.shown()
				before := w.state()
				f.n, f.first, f.last = 0, n, max(n, last)
				j := OpenJournal(w.home())
				err := failingRestore(f, s, f.on(w.checkout(j)), target)
				what := f.end()
				left := j.Unfinished()
				var partial UnfinishedError
				switch {
				case errors.As(err, &partial):
					unfinished++
					if len(left) != 1 {
						t.Fatalf("failure %d (%s): got %d unfinished intents, want 1: %v", n, what, len(left), err)
					}
					if _, err := w.restore(w.checkout(j), s, target, nil, left[0]); err != nil {
						t.Errorf("failure %d (%s): repetition: %v", n, what, err)
					}
					fallthrough
				case err == nil:
					if got := w.withDirs(); got.String() != b.String() {
						t.Errorf("failure %d (%s): working tree after the restore%s\nwant%s", n, what, got, b)
					}
				default:
					if after := w.state(); after != before {
						t.Errorf("failure %d (%s): %v\nafter the failed restore:%s\nwant:%s", n, what, err, after, before)
					}
				}
				if list := j.Pending(); len(list) > 0 {
					t.Errorf("failure %d (%s): %d intents are left, want none", n, what, len(list))
				}
				if t.Failed() || what == "" {
					if err != nil {
						t.Errorf("restore without a failure: %v", err)
					}
					t.Logf("%d operations, %d unfinished", n-1, unfinished)
					return
				}
			}
		})
	}
}

// failingRestore restores a checkpoint with operations that can fail.
func failingRestore(f *failures, s *checkpoints, c *Checkout, target session.Checkpoint) error {
	r := &Restore{Checkout: c, Checkpoints: failCheckpoints{s, f}, Differ: failDiffer{s, f}, Target: target}
	lock, err := c.Lock(s.w.Context())
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := r.Compare(s.w.Context()); err != nil {
		return err
	}
	return r.Apply(s.w.Context(), lock, nil, "nonce", nil)
}
