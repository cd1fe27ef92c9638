package writeback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// seeding counts the bytes of a push of base commits: first those fetched from the mounted remote, then those sent to
// the session remote. size is 0 while it is not known.
type seeding struct{ done, size atomic.Int64 }

// Delays between attempts to push base commits. Each attempt costs the mounted remote a pack of all of its history, so
// the delay doubles. It is short after a remote was unreachable, because nothing was requested then.
const (
	baseFirst    = 30 * time.Second // delay after the first failure
	baseMost     = time.Hour        // maximum delay
	baseAgain    = 15 * time.Second // time after a failure during which Sync returns that failure and does not try again
	unreachFirst = time.Second      // delay after the first failure to reach a remote
	unreachMost  = time.Minute      // maximum delay while a remote is unreachable
)

// baseAttempt is the result of the last attempt to push base commits.
type baseAttempt struct {
	failure error // nil: it succeeded
	// since is the time of the first failure in a row, at that of the last one.
	since    time.Time
	at       time.Time
	failures int
}

// fetchBase pushes the base commits need, or returns the time until the next attempt and the last failure. If a caller
// waits in Sync (asked), it does not wait for that time.
func (q *Queue) fetchBase(ctx context.Context, need []object.ID, asked bool) (time.Duration, error) {
	q.mu.Lock()
	last := q.baseAttempt
	q.mu.Unlock()
	if wait := time.Until(last.next()); last.failure != nil && wait > 0 && (!asked || time.Since(last.at) < baseAgain) {
		return wait, last.failure
	}
	err := q.seed(ctx, need)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	now := baseAttempt{failure: err, at: time.Now(), since: last.since, failures: last.failures + 1}
	if last.failure == nil {
		now.since = now.at
	}
	if err == nil {
		now = baseAttempt{}
	}
	q.mu.Lock()
	q.baseAttempt = now
	q.mu.Unlock()
	if err == nil {
		return 0, nil
	}
	q.log.Warn("push the base commits of the session", zap.String("session", q.o.Session), zap.Error(err))
	return time.Until(now.next()), err
}

// next returns the time of the next attempt.
func (g baseAttempt) next() time.Time {
	first, most := baseFirst, baseMost
	if errors.Is(g.failure, transport.ErrUnreachable) || errors.Is(g.failure, transport.ErrStalled) {
		first, most = unreachFirst, unreachMost
	}
	return g.at.Add(first + min(first<<min(max(g.failures-1, 0), 20), most))
}

// errNoBase is returned if no remote can supply the base commits to the session remote.
var errNoBase = errors.New("history of the session's base commit is missing on the session remote")

// lacks returns the commits of baseCommits that the session remote does not have. It queries the session remote for those
// that are not known yet; if that is impossible, it assumes that the session remote has them. complained is set after
// the session remote reported missing objects: then nothing is assumed, and earlier answers are dropped. It updates
// l.baseCommits and l.mode.
func (q *Queue) lacks(
	ctx context.Context, baseCommits idSet, l *ledger, theirs map[string]object.ID, complained bool,
) ([]object.ID, error) {
	there := idSet{}
	for _, id := range theirs {
		there[id] = true
	}
	var open []object.ID
	for id := range baseCommits {
		if !l.baseCommits[id] && !there[id] {
			open = append(open, id)
		}
	}
	if complained {
		for id := range l.baseCommits {
			if !there[id] {
				open = append(open, id)
				delete(l.baseCommits, id)
			}
		}
	}
	slices.SortFunc(open, object.ID.Compare)
	var lacks []object.ID
	// A session remote that is the mounted remote has its own history.
	if len(open) > 0 && (q.o.Origin == nil || q.o.Origin.URL() != q.o.Remote.URL()) {
		has, not, known, err := q.probe(ctx, open)
		switch {
		case err != nil:
			return nil, err
		case known:
			open, lacks = has, not
		case complained:
			open, lacks = nil, open
		}
	}
	for _, id := range open {
		l.baseCommits[id] = true
	}
	if l.mode == ModeUnknown && len(baseCommits) > 0 {
		l.mode = ModeShared
	}
	if len(lacks) > 0 {
		l.mode = ModeSeed
	} else if len(baseCommits) > 0 { // an unanswered push succeeded, or another session pushed them
		q.mu.Lock()
		q.baseAttempt = baseAttempt{}
		q.mu.Unlock()
	}
	return lacks, nil
}

// probe asks the session remote for ids by a fetch with depth 1, which it aborts; a commit that is refused is missing
// there. known is false if the server cannot be asked that way, or its error is not git's "not our ref".
func (q *Queue) probe(ctx context.Context, ids []object.ID) (has, lacks []object.ID, known bool, err error) {
	// The probe needs protocol v2 and shallow fetches.
	caps, err := q.o.Remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) || err == nil && !caps.Shallow {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	// The server names one missing commit per request: ask again without it until the rest is found.
	has = slices.Clone(ids)
	for len(has) > 0 {
		req := transport.FetchRequest{Wants: has, Depth: 1}
		if caps.Filter {
			req.Filter = "tree:0"
		}
		res, err := q.o.Remote.Fetch(ctx, req)
		var refused transport.NotOurRef
		switch {
		case err == nil:
			res.Pack.Close()
			return has, lacks, true, nil
		case errors.As(err, &refused) && slices.Contains(has, refused.ID):
			lacks = append(lacks, refused.ID)
			has = slices.DeleteFunc(has, func(id object.ID) bool { return id == refused.ID })
		// These errors say nothing about the commits.
		case ctx.Err() != nil || errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled) || final(err):
			return nil, nil, false, err
		default:
			return nil, nil, false, nil
		}
	}
	return nil, lacks, true, nil
}

// seed pushes commits of the mounted remote with all of their history. The history is fetched once, as one pack, and
// kept in a file until the session remote has it.
func (q *Queue) seed(ctx context.Context, need []object.ID) error {
	if q.o.Origin == nil {
		return errNoBase
	}
	s := new(seeding)
	q.mu.Lock()
	q.seeding = s
	ledger := q.ledger.clone()
	q.mu.Unlock()
	q.tell()
	defer func() {
		q.mu.Lock()
		q.seeding = nil
		q.mu.Unlock()
	}()
	slices.SortFunc(need, object.ID.Compare)
	var have []object.ID
	for id := range ledger.baseCommits {
		have = append(have, id)
	}
	path, err := q.spool(ctx, need, have, s)
	if err != nil {
		return fmt.Errorf("fetch history for the session remote: %w", err)
	}
	if err := q.sendBase(ctx, need, path, s); err != nil {
		return fmt.Errorf("send history to the session remote: %w", err)
	}
	if err := os.Remove(path); err != nil {
		q.log.Warn("remove temporary pack of history", zap.Error(err))
	}
	return nil
}

// spool returns the file that holds the pack of need, less what have reaches. It fetches the pack unless an earlier
// attempt did.
func (q *Queue) spool(ctx context.Context, need, have []object.ID, s *seeding) (string, error) {
	name := need[0].String()
	path := filepath.Join(q.o.Dir, "ground-"+name+fmt.Sprintf("-%d", len(need))+".pack")
	// The file is renamed to its final name only when it is complete, so it can be used as it is.
	if st, err := os.Stat(path); err == nil {
		s.done.Store(st.Size())
		return path, nil
	}
	res, err := q.o.Origin.Fetch(ctx, transport.FetchRequest{Wants: need, Haves: have})
	if err != nil {
		return "", err
	}
	defer res.Pack.Close()
	// A pack of a shallow clone lacks the history that the session remote needs.
	if len(res.Shallow) > 0 {
		return "", errors.New("mounted remote is a shallow clone without the complete history")
	}
	f, err := os.Create(path + ".part")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, &counted{res.Pack, &s.done})
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return path, nil
}

// counted is a reader that adds the number of bytes read to n.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// sendBase pushes the pack to refs below basePrefix, which keep the commits on the session remote, and records them in
// the ledger.
func (q *Queue) sendBase(ctx context.Context, need []object.ID, path string, s *seeding) error {
	prefix := basePrefix(q.o.Session)
	push, err := q.openPush(ctx, []string{prefix})
	if err != nil {
		return err
	}
	defer push.Close()
	there := map[string]object.ID{}
	for _, ref := range push.Refs {
		there[ref.Name] = ref.ID
	}
	var req transport.PushRequest
	for _, id := range need {
		// An earlier attempt may have pushed some of the commits.
		if name := prefix + id.String(); there[name] != id {
			req.Updates = append(req.Updates, transport.RefUpdate{Name: name, Old: there[name], New: id})
		}
	}
	if len(req.Updates) > 0 {
		req.Pack = func(_ context.Context, w io.Writer) error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			if st, err := f.Stat(); err == nil {
				s.size.Store(st.Size())
			}
			s.done.Store(0)
			_, err = io.Copy(w, &counted{f, &s.done})
			return err
		}
		results, err := q.sendPush(ctx, push, req, thin.Load{})
		if err != nil {
			return err
		}
		if err := errors.Join(results...); err != nil {
			return err
		}
	}
	select { // other goroutines held remoteToken during the push
	case q.remoteToken <- struct{}{}:
		defer func() { <-q.remoteToken }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	q.mu.Lock()
	l := q.ledger.clone()
	q.mu.Unlock()
	local, err := q.local(l)
	if err != nil {
		return err
	}
	for _, id := range need {
		l.baseCommits[id] = true
	}
	q.keep(l, local)
	return nil
}
