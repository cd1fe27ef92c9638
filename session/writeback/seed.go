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

// seeding is the ground on its way: first from the mounted remote, then to the session remote.
type seeding struct{ done, size atomic.Int64 }

// Between tries to bring the ground, which cost the mounted remote a pack of all its history, the wait doubles. If only a
// remote could not be reached, nothing was asked of it.
const (
	baseFirst    = 30 * time.Second
	baseMost     = time.Hour
	baseAgain    = 15 * time.Second // so long after a failure it is what somebody who asks is told
	unreachFirst = time.Second
	unreachMost  = time.Minute
)

// baseTry is the last try.
type baseTry struct {
	failure  error // nil: it went well
	since    time.Time
	at       time.Time
	failures int
}

// fetchBase brings it, or gives how long it is to be left alone, and why. It is tried before its time for who asks.
func (q *Queue) fetchBase(ctx context.Context, need []object.ID, asked bool) (time.Duration, error) {
	q.mu.Lock()
	last := q.ground
	q.mu.Unlock()
	if wait := time.Until(last.next()); last.failure != nil && wait > 0 && (!asked || time.Since(last.at) < baseAgain) {
		return wait, last.failure
	}
	err := q.seed(ctx, need)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	now := baseTry{failure: err, at: time.Now(), since: last.since, failures: last.failures + 1}
	if last.failure == nil {
		now.since = now.at
	}
	if err == nil {
		now = baseTry{}
	}
	q.mu.Lock()
	q.ground = now
	q.mu.Unlock()
	if err == nil {
		return 0, nil
	}
	q.log.Warn("push the base commits of the session", zap.String("session", q.o.Session), zap.Error(err))
	return time.Until(now.next()), err
}

// next is when another try is due.
func (g baseTry) next() time.Time {
	first, most := baseFirst, baseMost
	if errors.Is(g.failure, transport.ErrUnreachable) || errors.Is(g.failure, transport.ErrStalled) {
		first, most = unreachFirst, unreachMost
	}
	return g.at.Add(first + min(first<<min(max(g.failures-1, 0), 20), most))
}

// errNoBase says that what the session stands on can be had from nobody.
var errNoBase = errors.New("the session remote lacks the history that the session stands on")

// lacks gives the ground that the session remote does not have. It is asked about what is not known yet; where it cannot
// be, it is believed to have it. When it has complained nothing is believed, nor known.
func (q *Queue) lacks(ctx context.Context, ground idSet, l *ledger, theirs map[string]object.ID, complained bool) ([]object.ID, error) {
	there := idSet{}
	for _, id := range theirs {
		there[id] = true
	}
	var open []object.ID
	for id := range ground {
		if !l.ground[id] && !there[id] {
			open = append(open, id)
		}
	}
	if complained {
		for id := range l.ground {
			if !there[id] {
				open = append(open, id)
				delete(l.ground, id)
			}
		}
	}
	slices.SortFunc(open, object.ID.Compare)
	var lacks []object.ID
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
		l.ground[id] = true
	}
	if l.mode == ModeUnknown && len(ground) > 0 {
		l.mode = ModeShared
	}
	if len(lacks) > 0 {
		l.mode = ModeSeed
	} else if len(ground) > 0 { // whoever brought it, a push without an answer or somebody else
		q.mu.Lock()
		q.ground = baseTry{}
		q.mu.Unlock()
	}
	return lacks, nil
}

// probe asks for commits, and for as little of them as can be; who is refused lacks them. Not all servers can be asked
// so, and only git's own words for no are known.
func (q *Queue) probe(ctx context.Context, ids []object.ID) (has, lacks []object.ID, known bool, err error) {
	caps, err := q.o.Remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) || err == nil && !caps.Shallow {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
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
		case ctx.Err() != nil || errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled) || final(err):
			return nil, nil, false, err
		default:
			return nil, nil, false, nil
		}
	}
	return nil, lacks, true, nil
}

// seed sends commits of the mounted remote with all their history. They are fetched once, in one piece, and wait in a
// file until they are there.
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
	for id := range ledger.ground {
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
		q.log.Warn("remove sent history", zap.Error(err))
	}
	return nil
}

// spool has the pack in a file, which may be there from before.
func (q *Queue) spool(ctx context.Context, need, have []object.ID, s *seeding) (string, error) {
	name := need[0].String()
	path := filepath.Join(q.o.Dir, "ground-"+name+fmt.Sprintf("-%d", len(need))+".pack")
	if st, err := os.Stat(path); err == nil {
		s.done.Store(st.Size())
		return path, nil
	}
	res, err := q.o.Origin.Fetch(ctx, transport.FetchRequest{Wants: need, Haves: have})
	if err != nil {
		return "", err
	}
	defer res.Pack.Close()
	if len(res.Shallow) > 0 {
		return "", errors.New("the mounted remote has no whole history itself")
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

// counted counts what is read.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// sendBase pushes it to refs that nobody looks at, so that the session remote keeps it.
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
	select { // others went on meanwhile
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
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
		l.ground[id] = true
	}
	q.keep(l, local)
	return nil
}
