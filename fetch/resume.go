package fetch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// Base is what remains of a snapshot when it has to be acquired again.
type Base struct {
	Ref    string // full name; "" for a commit given by id
	Commit object.ID
	Tree   object.ID // both zero for an unborn branch
	Time   time.Time
	Format object.Format
	// Shown is the tree that is mounted, if that is another than the commit's: one that a session made.
	Shown object.ID
}

// shows has a snapshot of the base's commit show what is mounted of it.
func (b Base) shows(s *Snapshot) *Snapshot {
	s.Ref = b.Ref
	if !b.Shown.IsZero() {
		s.Tree, s.Time = b.Shown, b.Time
	}
	return s
}

// Resume acquires the commit of an earlier snapshot again. If the store has it, the remote is not asked; an unborn
// branch is one, whatever the remote has there by now.
func (s *Store) Resume(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		// Its store may be gone. That there is a git directory matters only to what comes behind the mount.
		if err := s.prepare(ctx, b.Format, s.partial()); err != nil {
			return nil, err
		}
		snap := newSnapshot(target{name: b.Ref}, b.Format, time.Now())
		snap.Time, snap.Local = b.Time, true
		snap.finish(nil)
		return b.shows(snap), nil
	}
	snap, ok := s.here(b.Commit, time.Now())
	if !ok {
		var err error
		if snap, err = s.Acquire(ctx, b.Commit.String()); err != nil {
			return nil, err
		}
	}
	return b.shows(snap), nil
}

// Approach opens the way to the remote, for somebody who is about to ask it.
func (s *Store) Approach() {
	s.background(func(ctx context.Context) {
		if _, err := s.remote.Capabilities(ctx); err != nil {
			s.log.Debug("approach remote", zap.Error(err)) // who asks will hear of it
		}
	})
}

// ApproachCommit is Approach before a commit is acquired. An empty store sends the request for the commit at once.
func (s *Store) ApproachCommit(commit object.ID) {
	if _, ok := readFormat(s.GitDir()); ok || commit.IsZero() { // the commit may be here, or others that it stands on
		s.Approach()
		return
	}
	s.background(func(ctx context.Context) {
		s.remote.FetchAhead(ctx, transport.FetchRequest{Wants: []object.ID{commit}, Depth: acquireDepth, Filter: "blob:none"})
		if _, err := s.remote.Capabilities(ctx); err != nil {
			s.log.Debug("approach remote", zap.Error(err)) // who asks will hear of it
		}
	})
}

// errCutOff says that trees were still coming when a process ended.
var errCutOff = errors.New("not all trees have come")

// Again is the snapshot of a mount that goes on in this process. The remote is not asked: if trees are missing, Wait says
// so, and whoever acquires the commit anew brings them.
func (s *Store) Again(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		return s.Resume(ctx, b)
	}
	if err := s.prepare(ctx, b.Format, s.partial()); err != nil {
		return nil, err
	}
	snap, ok := s.here(b.Commit, time.Now())
	if !ok {
		snap = newSnapshot(target{want: b.Commit, commit: b.Commit}, b.Format, time.Now())
		snap.Tree, snap.Partial = b.Tree, s.partial()
		snap.finish(errCutOff)
	}
	snap.Time = b.Time
	return b.shows(snap), nil
}

// Completed tells the store what a process before this one has found out: that its history is complete.
func (s *Store) Completed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.history == "" {
		s.history = Complete
	}
}

// here gives the snapshot of a commit that the store has, or a git directory that is lent to it.
func (s *Store) here(commit object.ID, start time.Time) (*Snapshot, bool) {
	if f, ok := readFormat(s.GitDir()); !ok || f != commit.Format() || s.openObjects(f) != nil {
		return nil, false
	}
	snap := newSnapshot(target{want: commit, commit: commit}, commit.Format(), start)
	if !readSnapshot(snap, s.get) {
		return nil, false
	}
	snap.Local, snap.Partial = true, s.partial()
	snap.shallow = s.Boundary()
	snap.finish(nil)
	return snap, true
}

// partial says whether the remote gives out later what the store lacks now, as far as its last answer told.
func (s *Store) partial() bool {
	config, err := os.ReadFile(filepath.Join(s.GitDir(), "config"))
	return err == nil && strings.Contains(string(config), partialConfig)
}

// Resolve asks the remote for the commit that ref names ("" is its HEAD); the zero id is an unborn branch.
func (s *Store) Resolve(ctx context.Context, ref string) (object.ID, error) {
	caps, err := s.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		_, id, _, err := s.resolveWithGit(ctx, ref)
		return id, err
	}
	if err != nil {
		return object.ID{}, err
	}
	if err := s.prepare(ctx, caps.Format, true); err != nil {
		return object.ID{}, err
	}
	t, err := s.resolve(ctx, ref)
	return t.commit, err
}
