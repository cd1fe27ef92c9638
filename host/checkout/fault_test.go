package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// failures makes the operations of a checkout fail whose numbers are in the range from first to last.
type failures struct {
	mu             sync.Mutex
	n, first, last int
	paused         bool
	what           string // description of the first operation that has failed
}

func (f *failures) fail(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == 0 || f.paused {
		return nil
	}
	if f.n++; f.n < f.first || f.n > f.last {
		return nil
	}
	if f.what == "" {
		f.what = what
	}
	return fmt.Errorf("%s: %w", what, syscall.ENOSPC)
}

// end makes all later operations succeed, and returns the first operation that has failed.
func (f *failures) end() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = 0
	return f.what
}

// on returns a Checkout whose operations can fail.
func (f *failures) on(c *Checkout) *Checkout {
	lock, trees := c.Lock, c.Trees
	c.Tree, c.Refs, c.Git = failTree{c.Tree, f}, failRefs{c.Refs, f}, failGit{c.Git, f}
	c.Trees = func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
		if err := f.fail("read tree"); err != nil {
			return nil, err
		}
		return trees(ctx, id)
	}
	c.Lock = func(ctx context.Context) (Index, error) {
		if err := f.fail("lock index"); err != nil {
			return nil, err
		}
		l, err := lock(ctx)
		return failIndex{l, f}, err
	}
	return c
}

type failTree struct {
	Tree
	f *failures
}

func (t failTree) Find(ctx context.Context, path string) (worktree.Found, error) {
	if err := t.f.fail("find " + path); err != nil {
		return worktree.Found{}, err
	}
	return t.Tree.Find(ctx, path)
}

type failRefs struct {
	Refs
	f *failures
}

func (r failRefs) Move(ctx context.Context, from gitdir.Head, to gitdir.Destination) error {
	if err := r.f.fail("move HEAD"); err != nil {
		return err
	}
	return r.Refs.Move(ctx, from, to)
}

func (r failRefs) Forward(ctx context.Context, branch string, from, to object.ID, reason string) error {
	if err := r.f.fail("move branch"); err != nil {
		return err
	}
	return r.Refs.Forward(ctx, branch, from, to, reason)
}

type failGit struct {
	Git
	f *failures
}

func (g failGit) Modified(ctx context.Context, paths []string) ([]string, error) {
	return g.run("git diff", func() ([]string, error) { return g.Git.Modified(ctx, paths) })
}

func (g failGit) Ignored(ctx context.Context, paths []string) ([]string, error) {
	return g.run("git check-ignore", func() ([]string, error) { return g.Git.Ignored(ctx, paths) })
}

// run carries out one operation that can fail. Reads of the working tree that the test itself makes for the operation
// do not fail.
func (g failGit) run(what string, do func() ([]string, error)) ([]string, error) {
	if err := g.f.fail(what); err != nil {
		return nil, err
	}
	g.f.pause(true)
	defer g.f.pause(false)
	return do()
}

func (f *failures) pause(paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = paused
}

type failDiffer struct {
	Differ
	f *failures
}

func (d failDiffer) Differences(ctx context.Context, from, to object.ID) ([]Difference, error) {
	if err := d.f.fail("compare trees"); err != nil {
		return nil, err
	}
	return d.Differ.Differences(ctx, from, to)
}

type failIndex struct {
	Index
	f *failures
}

func (l failIndex) Replace(x *index.Index, written time.Time) error {
	if err := l.f.fail("replace index"); err != nil {
		return err
	}
	return l.Index.Replace(x, written)
}

func (l failIndex) Restore() error {
	if err := l.f.fail("restore index"); err != nil {
		return err
	}
	return l.Index.Restore()
}

// state returns, as text, everything that a move may change: files with their inode numbers and times, the bytes of the
// index, HEAD, and branches.
func (w *world) state() string {
	w.Helper()
	var b strings.Builder
	b.WriteString(w.withDirs().String())
	var lines []string
	var list func(dir worktree.Node, prefix string)
	list = func(dir worktree.Node, prefix string) {
		names := map[string]worktree.Node{}
		w.must(w.tree.ReadDir(w.Context(), dir, 0, func(e worktree.Entry) bool {
			names[strings.Clone(e.Name)] = e.Node
			return true
		}))
		for name, n := range names {
			a, err := w.tree.Attr(w.Context(), n)
			w.must(err)
			lines = append(lines, fmt.Sprintf("\n%s%s: %+v", prefix, name, a))
			if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				list(n, prefix+name+"/")
			}
		}
	}
	list(worktree.Root, "")
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	text, err := os.ReadFile(filepath.Join(w.dir, "top", ".git", "index"))
	w.must(err)
	fmt.Fprintf(&b, "\nindex %q\n%s\n%s", text, w.at(), must(w, filepath.Join(w.dir, "top"), "git", "for-each-ref"))
	return b.String()
}

// TestSwitchFailsAtEveryOperation checks, for every n, that a switch whose n-th operation fails changes nothing, not
// even inode numbers and times of files. If all later operations fail too, so that the switch cannot be undone, a later
// repetition completes it.
func TestSwitchFailsAtEveryOperation(t *testing.T) {
	t.Parallel()
	for _, last := range []int{0, 1 << 30} {
		for _, want := range []SwitchIntent{{Ref: "tree1", Create: "new"}, {Ref: "tree0", Forward: "tree1"}} {
			t.Run(fmt.Sprintf("%+v,%d", want, last), func(t *testing.T) {
				t.Parallel()
				a := files{".gitignore": {Data: "x\n"}, "a/same": {Data: "1\n"}, "a/changed": {Data: "1\n"},
					"b/deep/one": {Data: "1\n"},
					"file":       {Data: "1\n"}, "link": {Mode: object.ModeSymlink, Data: "a"}, "script": {Data: "1\n"}}
				b := files{".gitignore": {Data: "x\n"}, "a/same": {Data: "1\n"}, "a/changed": {Data: "2\n"}, "b": {Data: "2\n"},
					"file/below": {Data: "2\n"}, "link": {Data: "2\n"}, "script": {Mode: object.ModeExec, Data: "1\n"},
					"c/x": {Data: "2\n"}} // the working tree has an ignored file at c/x
				repo := newRepo(t, a, b)
				if want.Forward != "" {
					want.Forward = strings.TrimSpace(must(t, repo.dir, "git", "rev-parse", want.Forward))
				}
				unfinished := 0
				for n := 1; ; n++ {
					f := &failures{}
					w := repo.worldOn(t,
						disktest.Faulty(disk.OS, func(op disktest.Op) error { return f.fail(op.Name + " " + filepath.Base(op.Path)) }))
					w.put("c/x", worktreetest.File{Data: "ignored\n"})
					w.export()
					w.shown()
					before := w.state()
					f.n, f.first, f.last = 0, n, max(n, last)
					j := OpenJournal(w.home())
					err := w.toIntent(f.on(w.checkout(j)), want, nil)
					what := f.end()
					left := j.Unfinished()
					var partial UnfinishedError
					switch {
					case err == nil:
						if got := w.shown(); got.String() != b.String() {
							t.Errorf("failure %d (%s): working tree after the switch%s\nwant%s", n, what, got, b)
						}
					case errors.As(err, &partial):
						unfinished++
						if len(left) != 1 {
							t.Fatalf("failure %d (%s): got %d unfinished intents, want 1: %v", n, what, len(left), err)
						}
						err := w.toIntent(w.checkout(j), want, left[0])
						if rest, ok := want.Retry(err); ok {
							err = w.toIntent(w.checkout(j), rest, left[0])
						}
						if got := w.shown(); err != nil || got.String() != b.String() {
							t.Errorf("failure %d (%s): working tree after the repetition%s\nwant%s\n%v", n, what, got, b, err)
						}
					default:
						if after := w.state(); after != before {
							t.Errorf("failure %d (%s): %v\nafter the failed switch:%s\nwant:%s", n, what, err, after, before)
						}
					}
					if list := j.Pending(); len(list) > 0 {
						t.Errorf("failure %d (%s): %d intents are left, want none", n, what, len(list))
					}
					if t.Failed() {
						return
					}
					if what == "" {
						if err != nil {
							t.Errorf("switch without a failure: %v", err)
						}
						t.Logf("%d operations, %d unfinished", n-1, unfinished)
						return
					}
				}
			})
		}
	}
}

// TestRepetitionFailsAtEveryOperation checks, for every n, that the intent of a killed switch stays if the n-th
// operation of its repetition fails, and that a later repetition completes the switch.
func TestRepetitionFailsAtEveryOperation(t *testing.T) {
	t.Parallel()
	a := files{"a": {Data: "1\n"}, "b": {Data: "1\n"}, "c": {Data: "1\n"}}
	b := files{"a": {Data: "2\n"}, "b": {Data: "2\n"}, "c": {Data: "2\n"}}
	k := &kills{w: newRepo(t, a, b).world(t)}
	k.w.must(k.w.toIntent(k.on(k.w.checkout(OpenJournal(k.w.home()))), SwitchIntent{Ref: "tree1"}, nil))
	half := k.left[slices.Index(k.at, "graft of 1 paths")]
	half.must(half.git.BreakLocks(t.Context()))
	for n := 1; ; n++ {
		w, f := half.clone(), &failures{first: n, last: n}
		j := OpenJournal(w.home())
		p := j.Pending()[0]
		err := w.toIntent(f.on(w.checkout(j)), *p.Switch, p)
		what := f.end()
		if got, want := len(OpenJournal(w.home()).Pending()) > 0, err != nil; got != want {
			t.Errorf("failure %d (%s): intent stays: %t, want %t: %v", n, what, got, want, err)
		}
		if err != nil {
			err = w.toIntent(w.checkout(j), *p.Switch, p)
		}
		if got := w.shown(); err != nil || got.String() != b.String() || len(j.Pending()) > 0 {
			t.Errorf("failure %d (%s): working tree after the repetition%s\nwant%s\n%v", n, what, got, b, err)
		}
		if what == "" || t.Failed() {
			return
		}
	}
}
