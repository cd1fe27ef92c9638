package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// roundTries is the maximum number of pushes in a round. Each repeats the comparison with newer refs.
	roundTries = 10
	// movedTries is the number of failed pushes of a locked or moving ref before the ref waits for another round.
	movedTries = 2
	// refusedWait is the delay before a refused update is sent again. It doubles with each refusal.
	refusedWait = 10 * time.Second
	// refusedMost is the maximum of that delay.
	refusedMost = 10 * time.Minute
	// namesMost is the maximum number of user refs that are requested by name; above it, prefixes are requested.
	namesMost = 500
)

// round compares the Repo with the session remote and pushes until they agree. It returns the commits of the mounted
// remote that the session remote lacks and that have to be pushed first, and whether notes were left for another round
// because other sessions won every race. verify makes it contact the session remote even if no ref is pending, and sends
// refused updates again. It holds Queue.remoteToken.
func (q *Queue) round(ctx context.Context, verify bool) (need []object.ID, busy bool, err error) {
	select {
	case q.remoteToken <- struct{}{}:
		defer func() { <-q.remoteToken }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	defer func() {
		// A cancelled round says nothing about the session remote.
		if ctx.Err() == nil {
			q.fail(err)
		}
		q.tell()
	}()
	if verify {
		clear(q.refused)
	}
	t := &pushAttempt{q: q, verify: verify, failed: map[string]int{}}
	defer q.decline()
	for range roundTries {
		again, err := t.try(ctx)
		if err == nil && again {
			continue
		}
		if err == nil && t.later != nil {
			err = t.later
		}
		return t.need, t.busy, err
	}
	if t.later != nil {
		return nil, false, t.later
	}
	return nil, false, fmt.Errorf("refs kept changing on the session remote: gave up after %d pushes", roundTries)
}

// errNoMeta is returned if the Repo has lost the session's metadata ref, which the session remote has: the Repo is
// damaged.
var errNoMeta = errors.New("session's refs are missing on this host")

// pushAttempt is the state of one round.
type pushAttempt struct {
	q      *Queue
	verify bool
	// need are the commits of the mounted remote that the session remote lacks.
	need []object.ID
	// apart is set after an atomic push was refused: the updates are sent independently of each other.
	apart bool
	// missing is the number of pushes that failed because the session remote lacked objects.
	missing int
	// fill makes the push contain objects of the mounted remote as well, if pushed objects refer to them.
	fill bool
	// failed is the number of refusals, by ref, for reasons that may pass.
	failed map[string]int
	// later is the error of the refs that were left for another round.
	later error
	// busy is set if notes were left for another round.
	busy bool
}

// try makes at most one push, and reports whether there is more to push.
func (t *pushAttempt) try(ctx context.Context) (again bool, err error) {
	q := t.q
	q.mu.Lock()
	ledger := q.ledger.clone()
	q.mu.Unlock()
	local, err := q.local(ledger)
	// A power failure may leave refs without a value: repair them from the ledger before comparing, so that they do not
	// count as removed.
	if errors.Is(err, session.ErrBroken) {
		if _, err = q.o.Repo.MendRefs(ctx, ledger.known(q.layout(ledger))); err == nil {
			local, err = q.local(ledger)
		}
	}
	if err != nil {
		return false, err
	}
	if !t.verify && !q.outrun && ledger.pending(local, q.layout(ledger)) == 0 {
		return false, nil
	}
	// A session's metadata ref is never removed on purpose. If it is missing here, the Repo is damaged, so the other
	// missing refs are no removals either.
	if meta := session.MetaRef(q.o.Session); local[meta].IsZero() && !ledger.refs[meta].acked.IsZero() {
		return false, fmt.Errorf("compare with session remote: %w", errNoMeta)
	}
	push, err := q.openPush(ctx, q.names(local, ledger))
	if err != nil {
		return false, err
	}
	defer push.Close()
	// git cannot push between repositories of different object formats.
	if push.Format != q.o.Repo.Format() {
		return false, fmt.Errorf("%w: session remote uses object format %v, the session uses %v", transport.ErrNoPush, push.Format,
			q.o.Repo.Format())
	}
	if err := q.choose(ctx, push, ledger); err != nil {
		return false, err
	}
	theirs := map[string]object.ID{}
	for _, ref := range push.Refs {
		theirs[ref.Name] = ref.ID
	}
	if ledger.plain == plainUnknown {
		decided, err := q.decide(ctx, push, theirs, ledger)
		if err != nil || !decided {
			return err == nil, err
		}
		// decide may have changed the layout, and with it the names.
		if local, err = q.local(ledger); err != nil {
			return false, err
		}
	}
	plan := q.compare(local, theirs, ledger)
	q.follow(ctx, plan, local)
	updates := slices.DeleteFunc(plan.updates, func(u update) bool { return t.left(u) })
	if len(updates) == 0 {
		t.busy = false
		again, err := t.notes(ctx, push, plan.notes, ledger, local)
		q.keep(ledger, local)
		t.verify = t.verify || again
		return again, err
	}
	load, updates, err := t.load(ctx, push, updates, ledger, theirs)
	if err != nil {
		return false, err
	}
	if len(updates) == 0 {
		q.keep(ledger, local)
		return false, nil
	}
	again, err = t.send(ctx, push, updates, ledger, load, local)
	return again || err == nil && q.outrun, err // notes are pushed last
}

// left reports whether update u has to wait: it was refused too often, or its refusal is too recent.
func (t *pushAttempt) left(u update) bool {
	if t.failed[u.Name] > movedTries {
		return true
	}
	r, ok := t.q.refused[u.Name]
	return ok && r.id == u.New && time.Now().Before(r.until)
}

// load computes the objects that have to be sent with updates. If the session remote lacks base commits, it sets t.need
// and drops the updates that depend on them.
func (t *pushAttempt) load(ctx context.Context, push *thin.Push, updates []update, l *ledger,
	theirs map[string]object.ID) (*pushSet, []update, error) {
	q := t.q
	if q.sent == nil {
		var have []object.ID
		for _, r := range l.refs {
			if !r.acked.IsZero() && q.o.Repo.Owned(r.acked) {
				have = append(have, r.acked)
			}
		}
		had, err := hadOf(ctx, q.o.Repo, have)
		if err != nil {
			return nil, nil, err
		}
		q.sent = had
	}
	h, err := newPushSet(ctx, q.o.Repo, tipsOf(updates), q.sent)
	if err != nil {
		return nil, nil, err
	}
	if push.Thin() {
		return h, updates, nil
	}
	lacks, err := q.lacks(ctx, h.baseCommits, l, theirs, t.missing >= 2)
	if err == nil && len(lacks) > 0 && q.o.Base == ModeShared {
		err = errNoBase
	}
	if err != nil {
		return nil, nil, err
	}
	t.need = lacks
	if len(lacks) == 0 && t.fill {
		err = h.fill(ctx, slices.Collect(maps.Keys(l.baseCommits)), q.o.Store)
	}
	if len(lacks) == 0 {
		return h, updates, err
	}
	updates = slices.DeleteFunc(updates, func(u update) bool { return !u.New.IsZero() && !isFirst(u.from, q.o.Session) })
	h, err = newPushSet(ctx, q.o.Repo, tipsOf(updates), q.sent)
	return h, updates, err
}

// tipsOf returns the new values of updates, without removals.
func tipsOf(updates []update) []object.ID {
	var tips []object.ID
	for _, u := range updates {
		if !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	return tips
}

// send pushes updates. It writes the new values to the ledger before the push, so that after a crash the next queue
// recognizes them on the session remote as this session's own.
func (t *pushAttempt) send(ctx context.Context, push *thin.Push, updates []update, l *ledger, load *pushSet,
	local map[string]object.ID) (again bool, err error) {
	q := t.q
	req := transport.PushRequest{Atomic: push.Atomic && len(updates) > 1 && !t.apart}
	before := make([]acquaint, len(updates))
	for i, u := range updates {
		req.Updates = append(req.Updates, u.RefUpdate)
		before[i] = l.refs[u.Name]
		l.refs[u.Name] = before[i].sends(u.Old, u.New)
	}
	var contained thin.Load
	if push.Thin() {
		if contained, err = q.contained(ctx, push, updates, load); err != nil {
			return false, err
		}
	} else if len(load.objects) > 0 {
		req.Pack = packer(q.o.Repo, load.objects)
	}
	q.keep(l, local)
	start := time.Now()
	results, err := q.sendPush(ctx, push, req, contained)
	if err != nil {
		return false, err
	}
	q.log.Debug("pushed", zap.String("session", q.o.Session), zap.Int("refs", len(updates)), zap.Int("objects", len(load.objects)),
		zap.Duration("took", time.Since(start)))
	var refused, lacking *transport.Rejected
	var failure error
	for i, u := range updates {
		var r *transport.Rejected
		if !errors.As(results[i], &r) {
			l.learn(u.Name, u.New)
			delete(q.refused, u.Name)
			continue
		}
		// The ref had changed since the ledger was written, so pushes recorded for the old value cannot be applied any
		// more.
		if before[i].acked != u.Old {
			before[i] = acquaint{acked: u.Old}
		}
		l.set(u.Name, before[i])
		refused = r
		if r.Kind == transport.RejectMissing {
			lacking = r
		} else if err := t.rejected(u, r, l); err != nil {
			failure = err
		}
	}
	if refused == nil {
		for _, id := range load.objects {
			q.sent[id] = true
		}
	} else { // it is not known which objects belonged to accepted updates
		q.sent, t.apart = nil, true
	}
	if lacking != nil && failure == nil {
		failure = t.lacking(lacking)
	}
	q.keep(l, local)
	if failure != nil {
		return false, failure
	}
	return refused != nil || l.pending(local, q.layout(l)) > 0, nil
}

// rejected handles the refusal of u. An error ends the round.
func (t *pushAttempt) rejected(u update, r *transport.Rejected, l *ledger) error {
	q := t.q
	switch r.Kind {
	// The server cannot store the pack: every other ref would fail in the same way.
	case transport.RejectUnpack, transport.RejectShallow:
		return r
	// Refused only because of another update of the same push: send it again without that one.
	case transport.RejectAtomic:
		return nil
	case transport.RejectFastForward:
		if !u.New.IsZero() && strings.HasPrefix(u.Name, "refs/heads/") && !q.noRewrite {
			// The next comparison pushes the rewritten branch to its diverged name.
			q.noRewrite = true
			return nil
		}
	case transport.RejectDeletion:
		// The ref that stays there does no harm. It is not this session's any more.
		delete(l.refs, u.Name)
		q.mu.Lock()
		q.notice("the session remote still has " + u.Name + ", which was removed in this session")
		q.mu.Unlock()
		return nil
	case transport.RejectMoved: // the ref changed or is locked, perhaps by an earlier push of this session
		if t.failed[u.Name]++; t.failed[u.Name] <= movedTries {
			return nil
		}
		// A ref that cannot be created may be blocked by another ref (feature, feature/x): request those names in the
		// next comparison.
		if _, users := q.layout(l).Here(u.Name); users && u.Old.IsZero() && !q.blocked[u.Name] {
			q.blocked[u.Name], t.failed[u.Name] = true, movedTries
			return nil
		}
		t.later = r
		return nil
	case transport.RejectOther:
		// The reason is unknown: try once more before recording a refusal.
		if t.failed[u.Name]++; t.failed[u.Name] == 1 {
			return nil
		}
	case transport.RejectHook, transport.RejectMissing:
	}
	q.refuse(u.Name, u.New, r)
	return nil
}

// refuse records that the session remote refused id for ref; the update is not sent again before the delay is over.
func (q *Queue) refuse(ref string, id object.ID, r *transport.Rejected) {
	before := q.refused[ref]
	count := 1
	if before.id == id {
		count = before.count + 1
	}
	q.refused[ref] = refusal{id: id, count: count, text: r.Text, until: time.Now().Add(min(refusedWait<<min(count-1, 10), refusedMost))}
}

// lacking handles a session remote that lost objects, or never had them. It widens the push step by step: first it
// assumes that the session remote has only what its refs reach, then that it lacks the base commits, and last it sends
// every object of the mounted remote that the pushed objects name. After that it returns r.
func (t *pushAttempt) lacking(r *transport.Rejected) error {
	t.missing++
	switch {
	case t.missing == 1: // send has reset q.sent
	case t.missing == 2: // load checks the base commits again
	case t.missing == 3 && t.q.o.Store != nil:
		t.fill = true
	default:
		return r
	}
	return nil
}

// keep makes l the queue's ledger and writes it to its file. A write error, as on a full disk, is only logged: what the
// file lacks is learned again from the session remote.
func (q *Queue) keep(l *ledger, local map[string]object.ID) {
	if l.pending(local, q.layout(l)) == 0 {
		l.synced = time.Now()
	}
	q.mu.Lock()
	l.traffic = q.traffic()
	q.ledger = l.clone()
	q.mu.Unlock()
	if err := l.write(q.o.Repo); err != nil {
		q.log.Warn("record pushed refs", zap.String("session", q.o.Session), zap.Error(err))
	}
}

// decline updates the list of refused refs that Status reports.
func (q *Queue) decline() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.declined = nil
	layout := q.layout(q.ledger)
	isUsers := func(name string) bool {
		_, is := layout.Here(name)
		return is
	}
	names := slices.SortedFunc(maps.Keys(q.refused), func(a, b string) int {
		if isUsers(a) != isUsers(b) { // the user's own refs are listed first
			return strings.Compare(b, a)
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		q.declined = append(q.declined, refusedRef{name, q.refused[name].text})
	}
}

// names returns the names and prefixes of the refs to request from the session remote; nil: all refs.
func (q *Queue) names(local map[string]object.ID, l *ledger) []string {
	name, layout := q.o.Session, q.layout(l)
	// The decision about the plain names needs all refs of the session remote.
	if l.plain == plainUnknown && !q.ofPeople() {
		return nil
	}
	names := []string{
		session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.KeptPrefix(name),
		session.TranscriptRef(name), session.FactsRef(name), session.CarriedPrefix(name), session.DivergedPrefix, basePrefix(name),
	}
	users := map[string]bool{}
	for ref := range local {
		_, users[ref] = layout.Here(ref)
	}
	for ref := range l.refs {
		_, users[ref] = layout.Here(ref)
	}
	maps.DeleteFunc(users, func(_ string, is bool) bool { return !is })
	for ref := range q.blocked {
		names = append(names, above(ref)...)
	}
	// Many names make a long request: ask for whole prefixes instead.
	if len(users) > namesMost {
		return append(names, layout.Prefixes()...)
	}
	return slices.AppendSeq(names, maps.Keys(users))
}

// basePrefix returns the prefix of the refs that keep the pushed base commits of session name on the session remote.
func basePrefix(name string) string { return session.Prefix + "ground/" + name + "/" }
