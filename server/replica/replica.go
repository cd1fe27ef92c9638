// Package replica maintains git directories from which stock git serves repositories. Their refs come from the records,
// and their packs from the object store. A replica is a copy on this host, which is created when it is needed, updated
// before each request, and removed when it was not used for a long time.
//
// The directory of a Set contains:
//
//	lock          locked while a process uses the directory
//	config        settings of git for all replicas
//	shared        small files that are the same in many replicas, which have hard links to them
//	repos/ID      replicas; Open removes those of an earlier process, because creating one takes about a millisecond
//	packs/XX/ID.* packs from a shared object store, to which replicas have hard links; those of an earlier process are used again
//	scratch       packs that are being created
//	trash         directories that are being removed
//
// A replica is updated in this order: new packs, then HEAD and packed-refs, each by a rename, then the removal of packs
// that are no longer listed. So a running git process finds the old refs or the new ones, and all objects of both. A
// pack that is no longer listed remains as long as the replica is used by a caller that acquired it before.
//
// Locks: entry.turn is held while a replica is changed, even while the goroutine waits for disk and network. A
// goroutine that holds Set.mu or cache.mu acquires no other lock.
package replica

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// Options configures a Set.
type Options struct {
	Dir     string // directory of the replicas; no other process may use it
	Records *records.DB
	Objects objects.Store
	// maximum total size, in bytes, of the packs that were copied from a shared store; 0: half of the free space at
	// Open
	MaxBytes int64
	MaxRepos int    // maximum number of replicas; 0: defaultRepos
	Hooks    string // directory with git's hooks for all replicas; "" for none
	// maximum number of bytes that each git process can allocate without a place (package places); 0: no limit
	Memory int64
}

// defaultRepos is the number of replicas that are kept if Options has no other number.
const defaultRepos = 1000

// Set contains the replicas of this process.
type Set struct {
	dir     string
	db      *records.DB
	store   objects.Store
	cache   *cache // packs of a shared store; nil if the store is not shared
	git     gitcmd.Confined
	most    int
	unlock  func()
	removal sync.WaitGroup // removals of directories in trash
	uses    uses

	mu      sync.Mutex
	entries map[string]*entry // replicas by the ID of the repository
	used    list.List         // elements are *entry; the most recently used one is the first
	closed  bool
}

// Open locks the directory and returns a Set without replicas. It fails if another process uses the directory.
func Open(o Options) (_ *Set, err error) {
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("open replicas: %w", err)
	}
	unlock, err := disk.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("open replicas: %w", err)
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	s := &Set{dir: dir, db: o.Records, store: o.Objects, most: o.MaxRepos, unlock: unlock, entries: map[string]*entry{}}
	if s.most <= 0 {
		s.most = defaultRepos
	}
	// The files in shared are not synced, so they can be empty after a power cut.
	for _, old := range []string{"repos", "scratch", "shared"} {
		if err := s.discard(filepath.Join(dir, old)); err != nil {
			return nil, fmt.Errorf("open replicas: remove old replicas: %w", err)
		}
	}
	s.git.Memory = o.Memory
	if s.git.Env, err = configure(dir, o.Hooks); err != nil {
		return nil, fmt.Errorf("open replicas: %w", err)
	}
	if o.Objects.Shared() {
		most := o.MaxBytes
		if most <= 0 {
			if most, err = disk.Free(dir); err != nil {
				return nil, fmt.Errorf("open replicas: %w", err)
			}
			most /= 2
		}
		if s.cache, err = openCache(filepath.Join(dir, "packs"), o.Objects, most); err != nil {
			return nil, fmt.Errorf("open replicas: %w", err)
		}
	} else if err := s.discard(filepath.Join(dir, "packs")); err != nil {
		return nil, fmt.Errorf("open replicas: remove packs of a previous process: %w", err)
	}
	trash, _ := os.ReadDir(filepath.Join(dir, "trash"))
	for _, e := range trash {
		s.sweep(filepath.Join(dir, "trash", e.Name()))
	}
	return s, nil
}

// Close waits for the removal of directories, and unlocks the directory. No replica may be used any more.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.removal.Wait()
	s.unlock()
	return nil
}

// errClosed is the error of Acquire after Close.
var errClosed = errors.New("replicas are closed")

// Acquire returns the replica of a repository, with all refs and packs that the repository had when Acquire was called,
// or with newer ones. The replica is not removed before Release is called.
func (s *Set) Acquire(ctx context.Context, repoID string) (*Replica, error) {
	repo, err := s.db.Repos.ByID(ctx, repoID)
	if err != nil {
		return nil, fmt.Errorf("acquire replica: %w", err)
	}
	return s.AcquireRepo(ctx, repo)
}

// AcquireRepo is like Acquire for a caller that has just read the row of the repository. It does not read the database
// if the replica has the generation of this row.
func (s *Set) AcquireRepo(ctx context.Context, repo records.Repo) (*Replica, error) {
	e, err := s.enter(repo.ID)
	if err != nil {
		return nil, fmt.Errorf("acquire replica: %w", err)
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		s.endUse(e)
		return nil, fmt.Errorf("acquire replica: %w", ctx.Err())
	}
	err = s.follow(ctx, e, repo)
	r := &Replica{Dir: e.dir, Repo: e.repo, set: s, entry: e}
	if err == nil {
		r.epoch = s.hold(e)
	} else if !e.made {
		_ = s.drop(e) // an error is ignored, because the next attempt accepts files that are left
	}
	<-e.turn
	if err != nil {
		s.endUse(e)
		return nil, fmt.Errorf("acquire replica of %s/%s: %w", repo.Namespace, repo.Name, err)
	}
	s.evict()
	return r, nil
}

// follow updates a replica to the state in a row of its repository that the caller has just read. The caller holds the
// turn.
func (s *Set) follow(ctx context.Context, e *entry, repo records.Repo) (err error) {
	if e.made && e.repo.Generation > repo.Generation {
		// The replica is newer than the row, or the database has lost its latest changes.
		if repo, err = s.db.Repos.ByID(ctx, repo.ID); err != nil {
			return err
		}
	}
	switch {
	case !e.made:
		s.uses.made.Add(1)
	case e.repo.Version != repo.Version:
		s.uses.updated.Add(1)
	default:
		s.uses.current.Add(1)
		e.repo = repo // copy fields whose changes do not increment the generation
		return nil
	}
	return s.update(ctx, e)
}

// Replica is a git directory in use.
type Replica struct {
	Dir  string
	Repo records.Repo // repository at the last update of the replica

	set   *Set
	entry *entry
	epoch int64
	once  sync.Once
}

// Foreign returns a Replica for a git directory that no Set manages. Its Release does nothing.
func Foreign(dir string, r records.Repo) *Replica { return &Replica{Dir: dir, Repo: r} }

// Release ends the use of the replica. Further calls do nothing.
func (r *Replica) Release() {
	if r.set == nil {
		return
	}
	r.once.Do(func() {
		r.set.release(r.entry, r.epoch)
		r.set.evict()
	})
}

// Git returns the limits for git commands in replicas. The environment of such a command contains only PATH and a few
// other variables of this process, because all others may contain secrets.
func (s *Set) Git() gitcmd.Confined {
	return gitcmd.Confined{Env: slices.Clone(s.git.Env), Memory: s.git.Memory}
}

// snapshotTries is the maximum number of attempts to read a snapshot while pushes change the repository.
const snapshotTries = 20

// Snapshot returns the current state of a repository, and a replica that has all objects of that state until it is
// released.
func (s *Set) Snapshot(ctx context.Context, repoID string) (*Replica, records.Snapshot, error) {
	for range snapshotTries {
		on, err := s.Acquire(ctx, repoID)
		if err != nil {
			return nil, records.Snapshot{}, err
		}
		snap, err := s.db.Repos.Snapshot(ctx, repoID)
		if err == nil && snap.Repo.Version == on.Repo.Version {
			return on, snap, nil
		}
		on.Release()
		if err != nil {
			return nil, records.Snapshot{}, err
		}
	}
	return nil, records.Snapshot{}, records.ErrChanged
}
