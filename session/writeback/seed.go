package writeback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// seeder pushes the base commits and their whole history to a session remote that lacks them (ModeSeed). Only the
// Queue's goroutine calls its methods, except for progress, which may be called from any goroutine. No other lock is
// acquired while mu is held.
type seeder struct {
	conn *connection // connection to the session remote and the mounted remote
	dir  string      // directory for packs of history: QueueOptions.Dir
	log  *zap.Logger
	// record adds base commits to the ledger after the session remote has confirmed them.
	record func(ctx context.Context, ids []object.ID) error
	// changed wakes the goroutines that wait for a change of the status.
	changed func()

	mu sync.Mutex // protects active and last
	// active is the push of base commits in progress; nil if there is none.
	active *seeding
	// last is the last attempt to push base commits.
	last baseAttempt
}

// seeding counts the bytes of a push of base commits: first those that are fetched from the mounted remote, then those
// that are sent to the session remote. size is 0 while the total size is not known.
type seeding struct{ done, size atomic.Int64 }

// Delays between attempts to push base commits. For each attempt, the mounted remote has to make a pack of its whole
// history, so the delay doubles with each failure. If a remote could not be reached, the delay is shorter, because no
// pack was made.
const (
	baseDelay           = 30 * time.Second // delay after the first failure
	maxBaseDelay        = time.Hour        // maximum delay
	baseFailureTime     = 15 * time.Second // time after a failure during which Sync returns it without an attempt
	unreachableDelay    = time.Second      // delay after the first failure to reach a remote
	maxUnreachableDelay = time.Minute      // maximum delay while a remote is unreachable
)

// baseAttempt is the result of the last attempt to push base commits.
type baseAttempt struct {
	failure  error     // error of the attempt; nil if the attempt succeeded
	since    time.Time // time of the first of the consecutive failures
	at       time.Time // time of the last failure
	failures int       // number of consecutive failures
}

// push pushes the base commits need. have are commits that the session remote is known to have; their history is not
// sent. If the delay after the last failure has not passed yet, push does nothing and returns the rest of the delay and
// the failure. asked states that a caller waits in Sync: push then makes an attempt in spite of the delay, unless the
// last failure is less than baseFailureTime ago. The caller must not hold Queue.remoteToken.
func (s *seeder) push(ctx context.Context, need, have []object.ID, asked bool) (time.Duration, error) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if wait := time.Until(last.next()); last.failure != nil && wait > 0 &&
		(!asked || time.Since(last.at) < baseFailureTime) {
		return wait, last.failure
	}
	err := s.seed(ctx, need, have)
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
	s.mu.Lock()
	s.last = now
	s.mu.Unlock()
	if err == nil {
		return 0, nil
	}
	s.log.Warn("push the base commits of the session", zap.String("session", s.conn.repo.Session()), zap.Error(err))
	return time.Until(now.next()), err
}

// succeeded records that the session remote has all base commits.
func (s *seeder) succeeded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = baseAttempt{}
}

// progress returns the last attempt to push base commits, and the push in progress, which is nil if there is none.
func (s *seeder) progress() (baseAttempt, *seeding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.active
}

// next returns the time of the next attempt to push base commits.
func (g baseAttempt) next() time.Time {
	first, most := baseDelay, maxBaseDelay
	if errors.Is(g.failure, transport.ErrUnreachable) || errors.Is(g.failure, transport.ErrStalled) {
		first, most = unreachableDelay, maxUnreachableDelay
	}
	return g.at.Add(first + min(first<<min(max(g.failures-1, 0), 20), most))
}

// errNoBase means that the session remote lacks base commits, and no remote is known from which they can be fetched.
var errNoBase = errors.New("history of the session's base commit is missing on the session remote")

// missingBases returns those of baseCommits that the session remote lacks. theirs contains the refs of the session
// remote. For commits that the ledger l does not list, missingBases asks the session remote (connection.probe), and
// assumes that it has them if the server does not support this. complained states that the session remote has reported
// missing objects: missingBases then also asks for the commits in l, and assumes that they are missing if the server
// does not support this. missingBases updates l.baseCommits and l.mode.
func (s *seeder) missingBases(
	ctx context.Context, baseCommits objects.Set, l *ledger, theirs map[string]object.ID, complained bool,
) ([]object.ID, error) {
	there := objects.Set{}
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
	// If the session remote is the mounted remote, it has all base commits, so no request is needed.
	if len(open) > 0 && (s.conn.origin == nil || s.conn.origin.URL() != s.conn.remote.URL()) {
		has, not, known, err := s.conn.probe(ctx, open)
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
	} else if len(baseCommits) > 0 {
		// the session remote has all base commits now, even if the last attempt seemed to fail
		s.succeeded()
	}
	return lacks, nil
}

// seed pushes the commits need and their history, without the history of the commits have. It fetches the history from
// the mounted remote once, as one pack, and stores the pack in a file until the session remote has it.
func (s *seeder) seed(ctx context.Context, need, have []object.ID) error {
	if s.conn.origin == nil {
		return errNoBase
	}
	active := new(seeding)
	s.mu.Lock()
	s.active = active
	s.mu.Unlock()
	s.changed()
	defer func() {
		s.mu.Lock()
		s.active = nil
		s.mu.Unlock()
	}()
	slices.SortFunc(need, object.ID.Compare)
	path, err := s.spool(ctx, need, have, active)
	if err != nil {
		return fmt.Errorf("fetch history for the session remote: %w", err)
	}
	if err := s.send(ctx, need, path, active); err != nil {
		return fmt.Errorf("send history to the session remote: %w", err)
	}
	if err := os.Remove(path); err != nil {
		s.log.Warn("remove temporary pack of history", zap.Error(err))
	}
	return nil
}

// spool returns the path of a file with a pack of all objects that are reachable from the commits need and not from the
// commits have. It fetches the pack from the mounted remote, unless an earlier attempt has stored it.
func (s *seeder) spool(ctx context.Context, need, have []object.ID, active *seeding) (string, error) {
	name := need[0].String()
	path := filepath.Join(s.dir, "ground-"+name+fmt.Sprintf("-%d", len(need))+".pack")
	// A file with this name is complete, because a pack is renamed to the name only after it was written as a whole.
	if st, err := os.Stat(path); err == nil {
		active.done.Store(st.Size())
		return path, nil
	}
	res, err := s.conn.origin.Fetch(ctx, transport.FetchRequest{Wants: need, Haves: have})
	if err != nil {
		return "", err
	}
	defer res.Pack.Close()
	// If the mounted remote is a shallow clone itself, the pack lacks a part of the history, and the session remote would
	// refuse it.
	if len(res.Shallow) > 0 {
		return "", errors.New("mounted remote is a shallow clone without the complete history")
	}
	f, err := os.Create(path + ".part")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(&counting{f, &active.done}, res.Pack)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return path, nil
}

// send pushes the pack in the file path, and creates a ref below basePrefix for each of the commits need, so that gc on
// the session remote keeps them. Then it records the commits in the ledger.
func (s *seeder) send(ctx context.Context, need []object.ID, path string, active *seeding) error {
	prefix := basePrefix(s.conn.repo.Session())
	push, err := s.conn.open(ctx, []string{prefix})
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
				active.size.Store(st.Size())
			}
			active.done.Store(0)
			_, err = io.Copy(&counting{w, &active.done}, f)
			return err
		}
		results, err := s.conn.send(ctx, push, req, thin.Load{})
		if err != nil {
			return err
		}
		if err := errors.Join(results...); err != nil {
			return err
		}
	}
	return s.record(ctx, need)
}

// basePrefix returns the prefix of the refs on the session remote that keep the pushed base commits of the session
// name.
func basePrefix(name string) string { return session.Prefix + "ground/" + name + "/" }
