package checkout_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitdir"
	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
)

// disturb changes random paths of a working tree and of its model, and stages some of them. The name "x" is ignored.
func (w *world) disturb(r *rand.Rand, model files) (staged []string) {
	w.Helper()
	for range r.IntN(4) {
		at := randomPath(r)
		switch r.IntN(4) {
		case 0:
			if _, ok := model[at]; ok && w.remove(at) {
				delete(model, at)
			}
		default:
			f := randomFile(r)
			w.put(at, f)
			model.put(at, f)
		}
		if r.IntN(4) == 0 {
			staged = append(staged, at)
		}
	}
	return staged
}

// toTree switches to a branch, or repeats an interrupted switch.
func (w *world) toTree(c *Checkout, branch string, pending *Pending) error {
	w.Helper()
	if pending != nil {
		return w.toIntent(c, *pending.Switch, pending)
	}
	return w.toIntent(c, SwitchIntent{Ref: branch}, nil)
}

func (w *world) toIntent(c *Checkout, want SwitchIntent, pending *Pending) error {
	w.Helper()
	from, err := w.git.Head(w.Context())
	if err != nil {
		return err
	}
	to := gitdir.Destination{Name: want.Ref}
	if want.Forward != "" {
		to.Head, err = w.git.Commit(w.Context(), want.Forward)
		to.Branch = want.Ref
	} else {
		to, err = w.git.Resolve(w.Context(), gitdir.Wish{Name: want.Ref, Create: want.Create, Detach: want.Detach})
	}
	if err != nil {
		return err
	}
	_, err = c.Switch(w.Context(), from, to, want, pending)
	return err
}

// TestSwitchDoesWhatGitDoes compares switches between random trees, with random changes of the user, with git switch in
// a plain directory: the same switches must be refused, and files, index and HEAD must be the same afterwards.
func TestSwitchDoesWhatGitDoes(t *testing.T) {
	t.Parallel()
	all, refused := rounds(25), uint64(0)
	for seed := range all {
		r := rand.New(rand.NewPCG(seed, 1))
		a := randomFiles(r)
		b := near(r, a)
		repo := newRepo(t, a, b)
		w := repo.world(t)
		model := maps.Clone(a)
		staged := w.disturb(r, model)
		if got := w.shown(); got.String() != model.String() {
			t.Fatalf("seed %d: working tree before the switch:%s\nwant:%s", seed, got, model)
		}
		w.export()
		for _, p := range staged { // ignored and removed paths cannot be staged
			if a.below(p)+b.below(p)+a.above(p)+b.above(p) != "" {
				continue // git refuses some of these switches although it would not have to change the file
			}
			run(t, filepath.Join(w.dir, "top"), nil, "git", "add", "-A", "--", p)
		}
		other := filepath.Join(t.TempDir(), "git")
		must(t, w.dir, "cp", "-a", filepath.Join(w.dir, "top"), other)
		before := w.entries()
		out, gitErr := run(t, other, nil, "git", "switch", "-q", "tree1")
		err := w.toTree(w.checkout(OpenJournal(w.home())), "tree1", nil)

		context := fmt.Sprintf("seed %d: from%s\nto%s\nworking tree%s\nstaged %v", seed, a, b, model, staged)
		if (err == nil) != (gitErr == nil) {
			t.Fatalf("%s\nswitch: %v; git switch: %v\n%s", context, err, gitErr, out)
		}
		var in fault.RefusalError
		if err != nil {
			refused++
			if !errors.As(err, &in) || len(in.Paths) == 0 {
				t.Errorf("%s\nrefused with %v, want a fault.RefusalError with paths", context, err)
			}
			if w.entries() != before || w.shown().String() != model.String() {
				t.Errorf("%s\na refused switch changed something", context)
			}
		}
		if got, want := w.shown(), plain(t, other); got.String() != want.String() {
			t.Errorf("%s\nworking tree after the switch%s\nwant%s", context, got, want)
		}
		if got, want := w.entries(), must(t, other, "git", "ls-files", "--stage"); got != want {
			t.Errorf("%s\nindex:\n%s\nwant:\n%s", context, got, want)
		}
		if list := OpenJournal(w.home()).Pending(); len(list) > 0 {
			t.Errorf("%s\nintents afterwards: got %d, want none", context, len(list))
		}
		if t.Failed() {
			return
		}
	}
	if refused == 0 || refused == all {
		t.Errorf("of %d switches %d were refused: the test covers too little", all, refused)
	}
	t.Logf("%d of %d were refused", refused, all)
}

// TestPlanOfACleanTreeIsItsDifference checks that a plan contains each path once, contains no paths that are equal in
// both trees, and removes only paths that are in the way.
func TestPlanOfACleanTreeIsItsDifference(t *testing.T) {
	t.Parallel()
	for seed := range rounds(10) {
		r := rand.New(rand.NewPCG(seed, 2))
		a := randomFiles(r)
		b := near(r, a)
		repo := newRepo(t, a, b)
		w := repo.world(t)
		list, err := Differences(t.Context(), w.src.Tree, repo.trees[0], repo.trees[1])
		w.must(err)
		lock, err := w.git.LockIndex(t.Context())
		w.must(err)
		x, err := lock.Read()
		w.must(err)
		w.must(lock.Release())
		p, err := PlanSwitch(t.Context(), w.tree, exported{w.git, w}, nothing{}, x, list, false)
		w.must(err)
		var got, want []string
		for _, g := range p.Grafts {
			got = append(got, g.Path)
		}
		for at := range maps.Keys(a) {
			if a[at] != b[at] {
				want = append(want, at)
			}
		}
		for at := range maps.Keys(b) {
			if _, ok := a[at]; !ok {
				want = append(want, at)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("seed %d: planned %v, want %v", seed, got, want)
		}
	}
}
