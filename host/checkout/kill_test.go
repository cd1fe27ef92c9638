package checkout_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/worktree"
)

// kills collects the states that a kill would leave at every step of a checkout: at each step it copies the files of
// the world.
type kills struct {
	w      *world
	left   []*world
	at     []string
	silent bool // true while steps are not collected
}

func (k *kills) step(name string) {
	if !k.silent {
		k.w.Helper()
		k.left, k.at = append(k.left, k.w.clone()), append(k.at, name)
	}
}

// clone returns a copy of the world with the files that are on disk now, as the next process would find them after a
// kill at this moment. It begins again if background work has removed a file between the file's listing and its copy.
func (w *world) clone() *world {
	w.Helper()
	c := *w
	for {
		c.dir = filepath.Join(w.TempDir(), "world")
		out, err := run(w, filepath.Dir(c.dir), nil, "cp", "-a", w.dir, c.dir)
		if err == nil {
			break
		}
		if !strings.Contains(out, "No such file or directory") {
			w.Fatalf("copy %s: %v\n%s", w.dir, err, out)
		}
	}
	c.open()
	return &c
}

// on returns a copy of c whose steps are collected.
func (k *kills) on(c *Checkout) *Checkout {
	lock := c.Lock
	c.Tree, c.Refs = stepTree{c.Tree, k}, stepRefs{c.Refs, k}
	c.Lock = func(ctx context.Context) (Index, error) {
		l, err := lock(ctx)
		k.step("locked")
		return stepIndex{l, k}, err
	}
	return c
}

// stepTree carries out a graft in several parts, in the order of a real graft: first all removals, then the additions.
type stepTree struct {
	Tree
	*kills
}

func (t stepTree) Graft(ctx context.Context, tree object.ID, list []worktree.Graft,
	token string) (worktree.GraftResult, error) {
	t.step("intent")
	order := slices.Clone(list)
	slices.SortStableFunc(order, func(a, b worktree.Graft) int { return turn(a) - turn(b) })
	for n := 1; n < len(order); n++ {
		r, err := t.Tree.Graft(ctx, tree, order[:n], token)
		if err != nil {
			return r, err
		}
		r.Keep()
		t.step(fmt.Sprintf("graft of %d paths", n))
	}
	r, err := t.Tree.Graft(ctx, tree, list, token)
	t.step("graft")
	return r, err
}

// turn returns a number by which grafts are sorted into the order in which they are carried out: removals, files, empty
// directories.
func turn(g worktree.Graft) int {
	switch g.Mode {
	case 0:
		return 0
	case object.ModeDir:
		return 2
	}
	return 1
}

type stepRefs struct {
	Refs
	*kills
}

func (r stepRefs) Move(ctx context.Context, from gitdir.Head, to gitdir.Destination) error {
	if to.New {
		must(r.w, filepath.Join(r.w.dir, "top"), "git", "branch", to.Branch, to.Commit.String())
		r.step("branch")
		to.New = false
	}
	err := r.Refs.Move(ctx, from, to)
	r.step("HEAD")
	return err
}

func (r stepRefs) Forward(ctx context.Context, branch string, from, to object.ID, reason string) error {
	err := r.Refs.Forward(ctx, branch, from, to, reason)
	r.step("branch moved")
	return err
}

type stepIndex struct {
	Index
	*kills
}

func (l stepIndex) Replace(x *index.Index, written time.Time) error {
	err := l.Index.Replace(x, written)
	l.step("index")
	return err
}

// successor does what a process does after a kill: it removes lock files and carries out every intent again.
func (w *world) successor(k *kills) (pending int) {
	w.Helper()
	w.must(w.git.BreakLocks(w.Context()))
	j := OpenJournal(w.home())
	for _, p := range j.Pending() {
		pending++
		w.must(p.Err)
		err := w.toTree(k.on(w.checkout(j)), "", p)
		if rest, ok := p.Switch.Retry(err); ok {
			p.Switch = &rest
			err = w.toTree(k.on(w.checkout(j)), "", p)
		}
		w.must(err)
	}
	return pending
}

// TestSwitchKilledAtEveryStep kills a switch after each of its steps, and then its successor after each of its steps.
// The last process must complete the switch, unless the switch had not begun.
func TestSwitchKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for i, want := range []SwitchIntent{{Ref: "tree1"}, {Ref: "tree1", Create: "new"}, {Ref: "tree1", Detach: true},
		{Ref: "tree0", Forward: "tree1"}} {
		t.Run(fmt.Sprintf("%+v", want), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(i), 3))
			a := randomFiles(r)
			b := near(r, a)
			w := newRepo(t, a, b).world(t)
			before := w.entries()
			if want.Forward != "" {
				want.Forward = strings.TrimSpace(must(t, filepath.Join(w.dir, "top"), "git", "rev-parse", want.Forward))
			}
			k := &kills{w: w}
			w.must(w.toIntent(k.on(w.checkout(OpenJournal(w.home()))), want, nil))
			goal, head, entries := w.shown(), w.at(), w.entries()
			if goal.String() != b.String() {
				t.Fatalf("working tree after the switch%s\nwant%s", goal, b)
			}
			check := func(w *world, when string, pending int) {
				t.Helper()
				wantFiles, wantEntries, wantHead := goal, entries, head
				if pending == 0 && w.at() != head { // the switch had not begun before the kill
					wantFiles, wantEntries, wantHead = a, before, w.at()
				}
				if got := w.shown(); got.String() != wantFiles.String() {
					t.Errorf("%s the working tree is%s\nwant%s", when, got, wantFiles)
				}
				if got := w.entries(); got != wantEntries {
					t.Errorf("%s the index is\n%swant\n%s", when, got, wantEntries)
				}
				if got := w.at(); got != wantHead {
					t.Errorf("%s HEAD is %s, want %s", when, got, wantHead)
				}
				if list := OpenJournal(w.home()).Pending(); len(list) > 0 {
					t.Errorf("%s %d intents are left, want none", when, len(list))
				}
				if _, err := os.Lstat(filepath.Join(w.dir, "top", ".git", "index.lock")); err == nil {
					t.Errorf("%s the index is locked", when)
				}
			}
			for n, left := range k.left {
				when := fmt.Sprintf("after a kill at step %q", k.at[n])
				again := &kills{w: left}
				pending := left.successor(again)
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
					twice.successor(&kills{w: twice, silent: true}))
			}
			t.Logf("killed at %q", k.at)
		})
	}
}

// at returns the target of HEAD, its commit, and the number of times that HEAD was moved.
func (w *world) at() string {
	w.Helper()
	head, err := w.git.Head(w.Context())
	w.must(err)
	log := must(w, filepath.Join(w.dir, "top"), "git", "reflog", "--format=%gs")
	return fmt.Sprintf("%s %s, moved %d times", head.Branch, head.Commit, strings.Count(log, "\n"))
}
