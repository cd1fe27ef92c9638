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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

const (
	// roundTries is the maximum number of pushes in a round. Before each push the refs are read and compared again.
	roundTries = 10
	// movedTries is the number of times that a round sends an update again after the session remote has refused it because the
	// ref is locked or has just changed. If the update is refused each time, it is left for a later round.
	movedTries = 2
	// refusedWait is the delay before a refused update is sent again. The delay doubles with each refusal.
	refusedWait = 10 * time.Second
	// refusedMost is the maximum delay before a refused update is sent again.
	refusedMost = 10 * time.Minute
	// namesMost is the maximum number of user refs that are requested by name. If there are more, prefixes are requested.
	namesMost = 500
)

// round compares the refs of the Repo with those of the session remote and pushes until the refs agree. The result need holds the
// commits of the mounted remote that the session remote lacks and that have to be pushed first. The result busy reports that
// notes were left for another round, because another session moved the notes ref before each push. If verify is set, round
// contacts the session remote even if no ref is pending, and sends refused updates again. round takes Queue.remoteToken.
func (q *Queue) round(ctx context.Context, verify bool) (need []object.ID, busy bool, err error) {
	select {
	case q.remoteToken <- struct{}{}:
		defer func() { <-q.remoteToken }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	defer func() {
		// The error of a cancelled round is not a failure of the session remote.
		if ctx.Err() == nil {
			q.report.fail(err)
		}
		q.report.wakeWaiters()
	}()
	if verify {
		q.refusals.retryAll()
	}
	t := &pushAttempt{q: q, verify: verify, failed: map[string]int{}}
	defer func() { q.report.decline(q.refusals.list(q.record.now().layout())) }()
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

// errNoMeta is returned if the Repo lacks the session's metadata ref although the session remote has that ref, which
// means that the Repo is damaged.
var errNoMeta = errors.New("session's refs are missing on this host")

// pushAttempt is the state of one round.
type pushAttempt struct {
	q      *Queue // queue that makes the round
	verify bool   // contact the session remote even if no ref is pending
	// need holds the commits of the mounted remote that the session remote lacks.
	need []object.ID
	// apart is set after an atomic push was refused. The updates are then sent in a push that is not atomic, so that the session remote
	// can accept some of them.
	apart bool
	// missing is the number of pushes that failed because the session remote lacked objects.
	missing int
	// fill is set if the push has to contain those objects of the mounted remote that pushed objects refer to.
	fill bool
	// failed counts, for each ref, the refusals after which the same update may be accepted in this round.
	failed map[string]int
	// later is the last error of a ref that was left for another round; nil if no ref was left.
	later error
	// busy is set if notes were left for another round.
	busy bool
}

// try reads and compares the refs, and makes at most one push of the refs that differ. The result again reports whether another push
// is needed. The caller holds Queue.remoteToken.
func (t *pushAttempt) try(ctx context.Context) (again bool, err error) {
	q := t.q
	q.whole = false
	ledger := q.record.now().clone()
	local, err := q.local(ledger)
	// A power failure may leave files of refs without a value. Repair these refs from the ledger before the comparison, because
	// the comparison would treat these refs as removed.
	if errors.Is(err, session.ErrBroken) {
		if _, err = q.o.Repo.MendRefs(ctx, ledger.known); err == nil {
			local, err = q.local(ledger)
		}
	}
	if err != nil {
		return false, err
	}
	pending := ledger.pending(local)
	q.report.await(pending > 0, ledger.synced)
	if !t.verify && !q.outrun && pending == 0 {
		return false, nil
	}
	// A session's metadata ref is never removed on purpose. If the Repo lacks it, the Repo is damaged, so other missing refs
	// must not be removed from the session remote.
	if meta := session.MetaRef(q.o.Session); local[meta].IsZero() && !ledger.refs[meta].acked.IsZero() {
		return false, fmt.Errorf("compare with session remote: %w", errNoMeta)
	}
	push, err := q.conn.open(ctx, q.names(local, ledger))
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
	if err := q.deleted(theirs, ledger); err != nil {
		return false, err
	}
	if ledger.plain == plainUnknown {
		decided, err := q.decide(ctx, push, theirs, ledger)
		if err != nil || !decided {
			return err == nil, err
		}
		q.settle(ctx)
		// decide may have changed the layout, and so the names of the refs on the session remote.
		if local, err = q.local(ledger); err != nil {
			return false, err
		}
	}
	for ref, id := range local { // of these, the user has pushed some, or an earlier process that has ended before its report
		if theirs[ref] == id {
			q.tracked(ctx, ref, id, id, ledger)
		}
	}
	plan := q.compare(local, theirs, ledger)
	q.follow(ctx, plan.moved, local)
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
	q.whole = err == nil && !again && len(plan.notes) == 0
	return again || err == nil && q.outrun, err // another call pushes the notes refs, after all other refs
}

// settle waits for refs that are being made, for a short time.
func (q *Queue) settle(ctx context.Context) {
	if q.o.Settled == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleMost)
	defer cancel()
	q.o.Settled(ctx)
}

// left reports whether the update u has to wait for another round, because it was refused too often in this round, or because the
// delay since its last refusal is not over.
func (t *pushAttempt) left(u update) bool {
	if t.failed[u.Name] > movedTries {
		return true
	}
	return t.q.refusals.delayed(u.Name, u.New)
}

// load returns the objects that have to be sent with updates, and the updates that can be sent. If the session remote
// lacks base commits, load sets t.need to these commits and leaves out the updates that depend on them. The map theirs holds the
// refs of the session remote.
func (t *pushAttempt) load(ctx context.Context, push *thin.Push, updates []update, l *ledger,
	theirs map[string]object.ID) (*objects.Selection, []update, error) {
	q := t.q
	if q.sent == nil {
		var have []object.ID
		for _, r := range l.refs {
			if !r.acked.IsZero() && q.o.Repo.Owned(r.acked) {
				have = append(have, r.acked)
			}
		}
		had, err := objects.Reached(ctx, q.o.Repo, have)
		if err != nil {
			return nil, nil, err
		}
		q.sent = had
	}
	h, err := objects.Select(ctx, q.o.Repo, tipsOf(updates), q.sent)
	if err != nil {
		return nil, nil, err
	}
	if push.Thin() {
		return h, updates, nil
	}
	lacks, err := q.seeder.lacks(ctx, h.BaseCommits, l, theirs, t.missing >= 2)
	if err == nil && len(lacks) > 0 && q.o.Base == ModeShared {
		err = errNoBase
	}
	if err != nil {
		return nil, nil, err
	}
	t.need = lacks
	if len(lacks) == 0 && t.fill {
		err = h.Fill(ctx, slices.Collect(maps.Keys(l.baseCommits)), q.o.Store)
	}
	if len(lacks) == 0 {
		return h, updates, err
	}
	updates = slices.DeleteFunc(updates, func(u update) bool { return !u.New.IsZero() && !isFirst(u.from, q.o.Session) })
	h, err = objects.Select(ctx, q.o.Repo, tipsOf(updates), q.sent)
	return h, updates, err
}

// tipsOf returns the new values of all updates that do not remove a ref.
func tipsOf(updates []update) []object.ID {
	var tips []object.ID
	for _, u := range updates {
		if !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	return tips
}

// send pushes updates with the objects in the set load. It writes the new values to the ledger before the push, so that after a
// crash the next queue recognizes these values on the session remote as pushed by this session. The result again reports
// whether there is more to push.
func (t *pushAttempt) send(ctx context.Context, push *thin.Push, updates []update, l *ledger, load *objects.Selection,
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
	} else if len(load.IDs) > 0 {
		req.Pack = packs.Of(q.o.Repo, load.IDs)
	}
	q.keep(l, local)
	start := time.Now()
	results, err := q.conn.send(ctx, push, req, contained)
	if err != nil {
		return false, err
	}
	q.log.Debug("pushed", zap.String("session", q.o.Session), zap.Int("refs", len(updates)), zap.Int("objects", len(load.IDs)),
		zap.Duration("took", time.Since(start)))
	var refused, lacking *transport.Rejected
	var failure error
	for i, u := range updates {
		var r *transport.Rejected
		if !errors.As(results[i], &r) {
			l.learn(u.Name, u.New)
			q.refusals.forget(u.Name)
			q.tracked(ctx, u.Name, u.Old, u.New, l)
			continue
		}
		// The ref has another value than the ledger recorded. The server can no longer apply earlier pushes without an answer,
		// because these pushes require the recorded value.
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
		for _, id := range load.IDs {
			q.sent[id] = true
		}
	} else { // the session remote may have stored some of the objects, so compute q.sent again
		q.sent, t.apart = nil, true
	}
	if lacking != nil && failure == nil {
		failure = t.lacking(lacking)
	}
	q.keep(l, local)
	if failure != nil {
		return false, failure
	}
	return refused != nil || l.pending(local) > 0, nil
}

// rejected handles the refusal r of the update u: it records the refusal, or prepares another push. If it returns an error, the
// round has to end.
func (t *pushAttempt) rejected(u update, r *transport.Rejected, l *ledger) error {
	q := t.q
	switch r.Kind {
	// The server cannot store the pack. A push of the other refs would fail for the same reason, so the round ends.
	case transport.RejectUnpack, transport.RejectShallow:
		return r
	// The update was refused only because the push is atomic and another update was refused. Make the next push without
	// atomicity.
	case transport.RejectAtomic:
		return nil
	case transport.RejectFastForward:
		if !u.New.IsZero() && strings.HasPrefix(u.Name, "refs/heads/") && !q.refusals.noRewrite {
			// The next comparison pushes the rewritten branch to its diverged name.
			q.refusals.noRewrite = true
			return nil
		}
	case transport.RejectDeletion:
		// The session remote keeps the ref, which does no harm. From now on, the ref does not belong to this session.
		delete(l.refs, u.Name)
		q.report.notice("the session remote still has " + u.Name + ", which was removed in this session")
		return nil
	case transport.RejectMoved: // the ref changed or is locked, perhaps by an earlier push of this session
		if t.failed[u.Name]++; t.failed[u.Name] <= movedTries {
			return nil
		}
		// Another ref may prevent the creation of the ref, as feature does for feature/x. Request the names of such refs before
		// the next comparison.
		if _, users := l.layout().Here(u.Name); users && u.Old.IsZero() && !q.refusals.blocked[u.Name] {
			q.refusals.blocked[u.Name], t.failed[u.Name] = true, movedTries
			return nil
		}
		t.later = r
		return nil
	case transport.RejectOther:
		// The reason is unknown, so send the update once more before the refusal is recorded.
		if t.failed[u.Name]++; t.failed[u.Name] == 1 {
			return nil
		}
	case transport.RejectHook, transport.RejectMissing:
	}
	if u.Name == session.AnnotationsRef(q.o.Session) && r.Kind != transport.RejectMissing {
		q.refusals.noAnnotations = true
		q.report.notice("the session remote does not accept the annotations that were made before it was the session remote: " + r.Text)
		return nil
	}
	q.refusals.add(u.Name, u.New, r)
	return nil
}

// lacking prepares the next push after the session remote has refused an update because it lacks objects. With each call in a
// round, the next push contains more: after the first call, all objects that the refs of the session remote do not reach; after
// the second, also the base commits; after the third, every object of the mounted remote that a pushed object refers to. If none
// of these pushes succeeds, the next call returns r, and the round has to end.
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

// keep makes l the queue's ledger and writes it to the ledger's file. The map local holds the refs of the Repo; if all of these
// refs are pushed, keep also records the time.
func (q *Queue) keep(l *ledger, local map[string]object.ID) {
	if l.pending(local) == 0 {
		l.synced = time.Now()
		q.report.await(false, l.synced)
	}
	q.record.keep(l)
}

// compare compares the refs of the Repo with those of the session remote, and reports the result to Status. The maps local and
// theirs hold the refs of the Repo and of the session remote, by their names on the session remote.
func (q *Queue) compare(local, theirs map[string]object.ID, l *ledger) *comparison {
	c := &comparison{
		repo: q.o.Repo, layout: l.layout(), ledger: l, local: local, theirs: theirs,
		noRewrite: q.refusals.noRewrite, outrun: q.outrun, noAnnotations: q.refusals.noAnnotations,
	}
	c.run()
	if c.lost {
		q.sent = nil
	}
	q.report.compared(c)
	return c
}

// follow fetches the values in the map moved, to which other machines have set refs that only this session writes, and reports
// each new value to QueueOptions.Taken. The map local holds the refs of the Repo.
func (q *Queue) follow(ctx context.Context, moved, local map[string]object.ID) {
	for ref, theirs := range q.moved.set(moved) {
		// Taken reads the commit, so the commit has to be in the Repo.
		if err := q.conn.fetch(ctx, theirs, local[ref]); err != nil {
			q.log.Warn("fetch refs that other mounts changed", zap.String("ref", ref), zap.Error(err))
			continue
		}
		q.moved.report(ref, theirs)
	}
}

// recordBase adds base commits to the ledger after the session remote has confirmed them. The caller must not hold remoteToken.
func (q *Queue) recordBase(ctx context.Context, ids []object.ID) error {
	select { // the push of base commits was made without remoteToken, so that other goroutines could use the session remote
	case q.remoteToken <- struct{}{}:
		defer func() { <-q.remoteToken }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l := q.record.now().clone()
	local, err := q.local(l)
	if err != nil {
		return err
	}
	for _, id := range ids {
		l.baseCommits[id] = true
	}
	q.keep(l, local)
	return nil
}

// names returns the names and prefixes of the refs to request from the session remote; nil stands for all refs. The map local
// holds the refs of the Repo.
func (q *Queue) names(local map[string]object.ID, l *ledger) []string {
	name, layout := q.o.Session, l.layout()
	// To decide whether the session may use branch and tag names without a prefix (session.OwnerRef), the queue has to know all
	// refs of the session remote.
	if l.plain == plainUnknown && !q.conn.isOrigin(l.meta.Remote) {
		return nil
	}
	names := []string{
		session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.KeptPrefix(name),
		session.TranscriptRef(name), session.FactsRef(name), session.AnnotationsRef(name), session.CarriedPrefix(name),
		session.DivergedPrefix, basePrefix(name), thin.TrashPrefix + name + "/",
	}
	users := map[string]bool{}
	for ref := range local {
		_, users[ref] = layout.Here(ref)
	}
	for ref := range l.refs {
		_, users[ref] = layout.Here(ref)
	}
	maps.DeleteFunc(users, func(_ string, is bool) bool { return !is })
	for ref := range q.refusals.blocked {
		names = append(names, above(ref)...)
	}
	// A request with many names would be too long, so request all refs below certain prefixes instead.
	if len(users) > namesMost {
		return append(names, layout.Prefixes()...)
	}
	return slices.AppendSeq(names, maps.Keys(users))
}

// basePrefix returns the prefix of the refs that keep the pushed base commits of session name on the session remote.
func basePrefix(name string) string { return session.Prefix + "ground/" + name + "/" }
