package promisor

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/object"
)

// questionTime is the maximum time for which a git command waits for predicted objects before it starts. Downloads have their own time
// limits, which are shorter if no bytes arrive.
const questionTime = 15 * time.Minute

// Provider fetches objects into packs that git reads. *fetch.Store and *fetch.Local are Providers.
type Provider interface {
	Format() object.Format
	// Objects returns the object directories that are alternates of the git directory.
	Objects() []string
	// Refresh makes packs visible that other processes, such as git, have added.
	Refresh() error
	// Missing returns the elements of ids that are not in any pack that git uses.
	Missing(ids []object.ID) []object.ID
	// Provide fetches objects and returns after all objects in wanted are in packs that git uses. It also tries to fetch the
	// blobs in along; if some of these cannot be fetched, Provide does not return an error.
	Provide(ctx context.Context, wanted, along []object.ID) error
}

// Server fetches the objects that git commands open in one git directory, together with those that they will open next.
type Server struct {
	provider Provider
	log      *zap.Logger
	oracle   *oracle

	mu    sync.Mutex
	turns map[string]chan struct{} // processes for which Opened runs, by Command.Process; each channel has room for one token
}

// New returns the Server of the git directory gitDir.
func New(gitDir string, p Provider, log *zap.Logger) (*Server, error) {
	o, err := newOracle(gitDir, p, log)
	if err != nil {
		return nil, err
	}
	return &Server{provider: p, log: log, oracle: o, turns: map[string]chan struct{}{}}, nil
}

// Close closes the objects of the git directory. No other method may run or be called afterwards.
func (s *Server) Close() error { return s.oracle.close() }

// Opened is called when the thread tid opens the object id, which is not in a pack that git knows. It fetches the object and those that
// the process will probably open next as one pack and returns true: git finds the object when it lists the packs again. If no other
// object is predicted, Opened fetches nothing and returns false.
func (s *Server) Opened(ctx context.Context, tid uint32, id object.ID) (packed bool, err error) {
	if len(s.provider.Missing([]object.ID{id})) == 0 {
		return true, nil
	}
	pid := int(tid)
	if status, err := proc.Of(pid).Status(); err == nil && status.PID != 0 {
		pid = status.PID
	}
	h := ancestors(pid)
	if len(h.Commands) == 0 {
		return false, nil
	}
	// The threads of a process open objects at the same time, and one prediction contains the objects of all.
	end, err := s.turn(ctx, h.Commands[0].Process)
	if err != nil {
		return false, err
	}
	defer end()
	if len(s.provider.Missing([]object.ID{id})) == 0 {
		return true, nil
	}
	start := time.Now()
	along := s.oracle.predict(ctx, h, id)
	predicted := time.Since(start)
	if len(along) > 0 {
		// An object in both arguments is a blob, so Provide does not look for its history.
		err = s.provider.Provide(ctx, []object.ID{id}, append(along, id))
	}
	s.log.Debug("answered request of git", zap.Any("commands", h.Commands), zap.Stringer("wanted", id), zap.Int("along", len(along)),
		zap.Duration("predicted", predicted), zap.Duration("took", time.Since(start)), zap.Error(err))
	return len(along) > 0 && err == nil, err
}

// turn waits until no other goroutine holds the turn of a process. The caller must call the returned function.
func (s *Server) turn(ctx context.Context, process string) (end func(), err error) {
	s.mu.Lock()
	c := s.turns[process]
	if c == nil {
		c = make(chan struct{}, 1)
		s.turns[process] = c
	}
	s.mu.Unlock()
	select {
	case c <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return func() {
		<-c
		s.mu.Lock()
		defer s.mu.Unlock()
		// A goroutine that waits for this channel continues, and a later one makes a new channel: both are correct alone.
		if len(c) == 0 && s.turns[process] == c {
			delete(s.turns, process)
		}
	}, nil
}
