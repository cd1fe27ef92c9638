package writeback

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

const (
	// roundTries is the maximum number of attempts in a round. Before each of them the refs are read and compared
	// again.
	roundTries = 10
	// maxSettle is the maximum time for which the first push waits for QueueOptions.Settled.
	maxSettle = 100 * time.Millisecond
)

// run makes rounds until ctx ends: one at the start, and one after each change of the Repo, each call of Wake, and each
// delay after a failure or refusal.
func (q *Queue) run(ctx context.Context) {
	failures := 0
	for {
		asked, waiting := q.calls.open()
		need, busy, err := q.round(ctx, waiting)
		if ctx.Err() != nil {
			return
		}
		if q.moved.notify(q.o.Taken) { // Taken has made changes, which are pushed before Sync returns
			continue
		}
		if failures++; err == nil {
			failures = 0
		}
		var wait time.Duration
		if err == nil && len(need) > 0 {
			// The session remote lacks base commits. After they are pushed, the next round sends the refs that depend on
			// them.
			if wait, err = q.seeder.push(ctx, need, slices.Collect(maps.Keys(q.record.now().baseCommits)), waiting); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return
			}
		}
		// Other sessions have updated the notes refs before each push of this round. Try again soon, after a random delay, so
		// that the sessions do not push at the same time again.
		if busy = busy && err == nil; busy {
			wait = notesRest/2 + rand.N(notesRest)
		}
		// Sync does not wait for notes that were pushed under a diverged name: such notes are not pending.
		if !busy || q.Status().Pending == 0 {
			q.calls.answer(q.answeredCalls(asked), err, wait > baseDelay)
			q.report.wakeWaiters()
		}
		if !q.waitForRound(ctx, failures, wait) {
			return
		}
	}
}

// round compares the refs of the Repo with those of the session remote, and pushes until both are equal. need contains
// the commits of the mounted remote that the session remote lacks and that have to be pushed first. busy states that
// notes are left to another round, because other sessions changed the notes ref before each push. If verify is set,
// round contacts the session remote even if no ref is pending, and repeats refused updates. round holds
// Queue.remoteToken while it runs.
func (q *Queue) round(ctx context.Context, verify bool) (need []object.ID, busy bool, err error) {
	release, err := q.take(ctx)
	if err != nil {
		return nil, false, err
	}
	defer release()
	defer func() {
		// The error of a cancelled round is not a failure of the session remote.
		if ctx.Err() == nil {
			q.report.fail(err)
		}
		q.report.wakeWaiters()
	}()
	p := q.pipeline
	if verify {
		p.refusals.retryAll()
	}
	r := &round{p: p, verify: verify, failed: map[string]int{}}
	defer func() { q.report.decline(p.refusals.list(q.record.now().layout())) }()
	for range roundTries {
		again, err := r.attempt(ctx)
		if err == nil && again {
			continue
		}
		if err == nil && r.later != nil {
			err = r.later
		}
		return r.need, r.busy, err
	}
	if r.later != nil {
		return nil, false, r.later
	}
	return nil, false, fmt.Errorf("push refs: refs on the remote change all the time, gave up after %d pushes", roundTries)
}

// round is the state of one round of a Queue.
type round struct {
	p      *pipeline
	verify bool // contact the session remote even if no ref is pending
	// need contains the commits of the mounted remote that the session remote lacks.
	need []object.ID
	// apart states that an atomic push was refused. The next pushes are not atomic, so that the session remote can
	// accept some of the updates.
	apart bool
	// missing is the number of pushes that were refused because the session remote lacks objects; see selector.load.
	missing int
	// failed is the number of refusals of each ref after which the same update was, or may be, repeated in this round.
	failed map[string]int
	// later is the last error of a ref that was left to another round; nil if there is no such ref.
	later error
	// busy states that notes were left to another round.
	busy bool
}

// pipeline contains the stages of a push, in the order in which an attempt uses them. Each stage is a type that stores
// what it needs in later rounds. The holder of Queue.remoteToken may use the pipeline.
type pipeline struct {
	repo    *session.Repo
	conn    *connection               // connection to the session remote, with counters
	record  *record                   // the ledger
	report  *report                   // results of the rounds, for Status
	settled func(ctx context.Context) // QueueOptions.Settled
	log     *zap.Logger

	mode     modeChoice  // decides how the session remote gets the base commits
	claim    claimer     // decides which names of branches and tags the session uses there
	tracker  tracker     // updates refs/remotes/ in the mount after pushes
	taken    *movedRefs  // refs that another machine has changed
	selector selector    // selects the objects of a push
	packer   packer      // packs the selected objects
	refusals refusals    // updates that the session remote has refused, and when they are repeated
	notes    notesPusher // merges and pushes notes
	erasures erasures    // repeats the erasures of other hosts, before the refs are compared

	// whole states that the last push of the last round has pushed all refs that differed, and that no notes had to be
	// merged.
	whole bool
}

// attempt compares the refs of the Repo with those of the session remote once, and makes at most one push. again states
// that another attempt is needed. The caller holds Queue.remoteToken.
func (r *round) attempt(ctx context.Context) (again bool, err error) {
	p := r.p
	p.whole = false
	ledger := p.record.now().clone()

	// Collect the refs of the Repo. Without a difference from the ledger, nothing is sent.
	local, err := collect(ctx, ledger, p.repo)
	if err != nil {
		return false, err
	}
	pending := ledger.pending(local)
	p.report.await(pending > 0, ledger.synced)
	if !r.verify && !p.notes.contended && pending == 0 {
		return false, nil
	}
	// The metadata is never removed on purpose. Without it, the Repo is damaged, and its missing refs must stay on the
	// session remote.
	if meta := session.MetaRef(ledger.meta.Session); local[meta].IsZero() && !ledger.refs[meta].acked.IsZero() {
		return false, fmt.Errorf("compare with session remote: %w", errNoMeta)
	}

	// Open a push: request the refs of the session remote, and decide once how this session uses it.
	push, err := p.conn.open(ctx, requested(ledger, local, p.refusals.blocked, p.conn.isOrigin(ledger.meta.Remote)))
	if err != nil {
		return false, err
	}
	defer push.Close()
	// git cannot push between repositories of different object formats.
	if push.Format != p.repo.Format() {
		return false, fmt.Errorf("%w: session remote uses object format %v, the session uses %v",
			transport.ErrNoPush, push.Format,
			p.repo.Format())
	}
	if err := p.mode.choose(ctx, push, ledger); err != nil {
		return false, err
	}
	theirs := map[string]object.ID{}
	for _, ref := range push.Refs {
		theirs[ref.Name] = ref.ID
	}
	if err := deleted(ledger, theirs); err != nil {
		return false, err
	}
	if ledger.plain == plainUnknown {
		decided, err := p.claim.decide(ctx, push, theirs, ledger)
		if err != nil || !decided {
			return err == nil, err
		}
		p.settle(ctx)
		// decide may have changed the layout, and so the names of the refs on the session remote.
		if local, err = localRefs(ledger, p.repo); err != nil {
			return false, err
		}
	}
	// the user may have pushed some of these refs, or an earlier process that died before it recorded its push
	for ref, id := range local {
		if theirs[ref] == id {
			p.tracker.follow(ctx, ref, id, id, ledger)
		}
	}

	// What another host has erased must not be pushed again, also not to a diverged name.
	local, held, err := r.eraseFirst(ctx, ledger, local, theirs)
	if err != nil {
		return false, err
	}
	p.packer.held = held

	// Compare both sides.
	plan := &comparison{
		repo: p.repo, layout: ledger.layout(), ledger: ledger, local: local, theirs: theirs, contended: p.notes.contended,
		noRewrite: p.refusals.noRewrite, noAnnotations: p.refusals.noAnnotations,
	}
	plan.run()
	if plan.lost {
		p.selector.forget()
	}
	p.report.compared(plan)
	p.taken.follow(ctx, p.conn, plan.moved, local)
	// An update waits for another round if it was refused too often in this round, or if the delay since its last
	// refusal is not over.
	updates := slices.DeleteFunc(plan.updates, func(u update) bool {
		return r.failed[u.Name] > movedTries || p.refusals.delayed(u.Name, u.New) ||
			held && u.from == session.TranscriptRef(ledger.meta.Session)
	})

	// Notes are pushed after all other refs.
	if len(updates) == 0 {
		again, r.busy, err = p.notes.push(ctx, push, plan.notes, ledger, local)
		p.record.keep(ledger, local)
		r.verify = r.verify || again
		return again, err
	}

	// Select the objects, and leave out the updates that need base commits which the session remote lacks.
	load, updates, need, err := p.selector.load(ctx, push, updates, ledger, theirs, r.missing)
	if err != nil {
		return false, err
	}
	r.need = need
	if len(updates) == 0 {
		p.record.keep(ledger, local)
		return false, nil
	}
	again, err = r.send(ctx, push, updates, ledger, load, local)
	p.whole = err == nil && !again && len(plan.notes) == 0
	return again || err == nil && p.notes.contended, err // another attempt pushes the notes refs, after all other refs
}

// send packs the selected objects and pushes the updates. Before the push it writes the new object ids to the file with
// the ledger, so that after a crash the next queue recognizes them on the session remote as pushed by this session.
// again states that there is more to push.
func (r *round) send(ctx context.Context, push *thin.Push, updates []update, l *ledger, load *objects.Selection,
	local map[string]object.ID) (again bool, err error) {
	p := r.p
	req := transport.PushRequest{Atomic: push.Atomic && len(updates) > 1 && !r.apart}
	before := make([]remoteRef, len(updates))
	for i, u := range updates {
		req.Updates = append(req.Updates, u.RefUpdate)
		before[i] = l.refs[u.Name]
		l.refs[u.Name] = before[i].withPush(u.Old, u.New)
	}
	var contained thin.Load
	if req.Pack, contained, err = p.packer.pack(ctx, push, updates, load, p.selector.sent); err != nil {
		return false, err
	}
	p.record.keep(l, local)
	start := time.Now()
	results, err := p.conn.send(ctx, push, req, contained)
	if err != nil {
		return false, err
	}
	p.log.Debug("pushed", zap.String("session", p.repo.Session()), zap.Int("refs", len(updates)),
		zap.Int("objects", len(load.IDs)), zap.Duration("took", time.Since(start)))
	refused, failure := r.answers(ctx, updates, results, before, l)
	if refused { // the session remote may have stored some of the objects
		p.selector.forget()
		r.apart = true
	} else {
		p.selector.pushed(load.IDs)
	}
	p.record.keep(l, local)
	if failure != nil {
		return false, failure
	}
	return refused || l.pending(local) > 0, nil
}

// settle waits for QueueOptions.Settled, at most maxSettle.
func (p *pipeline) settle(ctx context.Context) {
	if p.settled == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	p.settled(ctx)
}

// newPipeline returns the pipeline of the queue. The other parts of the queue must exist.
func (q *Queue) newPipeline() *pipeline {
	o := q.o
	p := &pipeline{
		repo: o.Repo, conn: &q.conn, record: &q.record, report: &q.report, settled: o.Settled, log: o.Log,
		mode:     modeChoice{base: o.Base, baseURL: o.BaseURL, remote: o.Remote},
		claim:    claimer{repo: o.Repo, conn: &q.conn},
		tracker:  tracker{conn: &q.conn, moved: o.Tracked, log: o.Log},
		selector: selector{repo: o.Repo, store: o.Store, base: o.Base, seeder: &q.seeder},
		packer:   packer{repo: o.Repo, store: o.Store, baseURL: o.BaseURL, record: &q.record, log: o.Log},
		taken:    &q.moved,
		refusals: refusals{refs: map[string]refusal{}, blocked: map[string]bool{}},
	}
	p.notes = notesPusher{
		repo: o.Repo, conn: &q.conn, selector: &p.selector, packer: &p.packer, refusals: &p.refusals, merged: o.Notes,
		log: o.Log,
	}
	p.erasures = erasures{repo: o.Repo, conn: &q.conn, log: o.Log}
	return p
}
