package writeback

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/session"
)

// refusedPauses are the delays before a refused update is sent again.
var refusedPauses = backoff.Backoff{First: 10 * time.Second, Longest: 10 * time.Minute}

// refusals records which updates the session remote has refused. A refused update is repeated after a delay, which
// doubles with each refusal of the same object id. The holder of Queue.remoteToken may use the fields.
type refusals struct {
	// refs contains the last refusal of each refused ref, by the name of the ref on the session remote.
	refs map[string]refusal
	// blocked is the set of the refs that could not be created. The next push also requests refs that may prevent their
	// creation, such as feature for feature/x.
	blocked map[string]bool
	// noRewrite states that the session remote accepts only fast-forward updates of branches.
	noRewrite bool
	// noAnnotations states that the session remote refuses the annotations of the Repo.
	noAnnotations bool
}

// refusal is a refused update of a ref.
type refusal struct {
	id    object.ID // new object id that was refused
	until time.Time // time before which the update is not repeated
	text  string    // reason that the session remote stated
	count int       // number of consecutive refusals of id
}

// add records that the session remote has refused to set ref to id, as r describes.
func (f *refusals) add(ref string, id object.ID, r *transport.Rejected) {
	before := f.refs[ref]
	count := 1
	if before.id == id {
		count = before.count + 1
	}
	f.refs[ref] = refusal{id: id, count: count, text: r.Text, until: time.Now().Add(refusedPauses.Limit(count))}
}

// forget removes the refusal of ref, after an update of ref was accepted.
func (f *refusals) forget(ref string) { delete(f.refs, ref) }

// retryAll makes all refused updates be repeated without a delay.
func (f *refusals) retryAll() { clear(f.refs) }

// delayed reports whether the session remote has refused to set ref to id, and the delay after the refusal has not
// passed yet.
func (f *refusals) delayed(ref string, id object.ID) bool {
	r, ok := f.refs[ref]
	return ok && r.id == id && time.Now().Before(r.until)
}

// next returns the time until the first refused update is repeated, or 0 if there is none.
func (f *refusals) next() time.Duration {
	var first time.Duration
	for _, r := range f.refs {
		if wait := max(time.Until(r.until), time.Millisecond); first == 0 || wait < first {
			first = wait
		}
	}
	return first
}

// list returns the refused refs with the reasons, first the branches, tags and notes of the user.
func (f *refusals) list(layout session.Layout) []refusedRef {
	rank := func(name string) int {
		if _, users := layout.Here(name); users {
			return 0
		}
		return 1
	}
	var all []refusedRef
	for _, name := range slices.SortedFunc(maps.Keys(f.refs), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	}) {
		all = append(all, refusedRef{name, f.refs[name].text})
	}
	return all
}
