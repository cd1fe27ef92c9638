package replica

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/server/records"
)

// entry is the replica of one repository, which may not exist on disk yet.
type entry struct {
	id   string
	dir  string
	turn chan struct{} // semaphore of capacity 1: a goroutine that changes the replica puts an element into it

	// Only the goroutine that holds turn may use these fields. made is true if the replica is complete at repo.Version.
	made  bool // whether the replica is complete at repo.Version
	repo  records.Repo
	packs map[string]string // IDs of the packs that the repository lists, by hash
	stale map[string]stale  // packs in the directory that the repository does not list, by hash
	epoch int64             // number of the last update

	unpacked *unpacked // see Replica.Unpacked

	// Set.mu guards these fields.
	users   int           // number of users; an entry with users is not removed
	holders map[int64]int // number of users of the replica, by the epoch in which they acquired it
	element *list.Element // element of Set.used
}

// stale is a pack in the directory of a replica that the repository does not list. It may belong to a push in progress,
// or a git process that was started before may still need it.
type stale struct {
	epoch int64  // epoch of the update that found that the pack is not listed
	id    string // ID of the pack if it was listed before; "" otherwise
}

// enter returns the entry of a repository, and counts the caller as its user.
func (s *Set) enter(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	e := s.entries[id]
	if e == nil {
		dir := filepath.Join(s.dir, "repos", id)
		e = &entry{id: id, dir: dir, turn: make(chan struct{}, 1), holders: map[int64]int{}, unpacked: newUnpacked()}
		e.element = s.used.PushFront(e)
		s.entries[id] = e
	}
	e.users++
	s.used.MoveToFront(e.element)
	return e, nil
}

// endUse ends one use of an entry. It removes an entry without users and without a replica from the Set.
func (s *Set) endUse(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.users--
	if e.users == 0 && !e.made { // made can be read without the turn, because no other user holds it
		s.used.Remove(e.element)
		delete(s.entries, e.id)
	}
}

// hold counts one more user of the replica in its current epoch, and returns the epoch. The caller holds entry.turn.
func (s *Set) hold(e *entry) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.holders[e.epoch]++
	return e.epoch
}

// release undoes one call of hold, and removes packs that only this user needed.
func (s *Set) release(e *entry, epoch int64) {
	s.mu.Lock()
	e.holders[epoch]--
	last := e.holders[epoch] == 0
	if last {
		delete(e.holders, epoch)
	}
	s.mu.Unlock()
	if last {
		select {
		case e.turn <- struct{}{}:
			s.tidy(e)
			<-e.turn
		default: // another goroutine holds entry.turn, and its update calls tidy
		}
	}
	s.endUse(e)
}

// tidy removes packs that are not listed. It keeps those that were still listed when a current user acquired the
// replica. The caller holds entry.turn.
func (s *Set) tidy(e *entry) {
	oldest := int64(math.MaxInt64)
	s.mu.Lock()
	for epoch := range e.holders {
		oldest = min(oldest, epoch)
	}
	s.mu.Unlock()
	for hash, p := range e.stale {
		if p.epoch > oldest || removePack(packDir(e.dir), hash) != nil {
			continue
		}
		delete(e.stale, hash)
		if p.id != "" && s.cache != nil {
			s.cache.release(p.id)
		}
	}
}

// evict removes the least recently used replicas until the limits are met or all remaining replicas are in use.
func (s *Set) evict() {
	for {
		e := s.victim()
		if e == nil {
			return
		}
		dropped := s.dropIdle(e)
		s.endUse(e)
		if !dropped {
			return
		}
	}
}

// victim returns the entry whose replica should be removed next, and counts the caller as its user. It returns nil if
// there is none.
func (s *Set) victim() *entry {
	full := s.cache != nil && s.cache.overfull()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used.Len() <= s.most && !full {
		return nil
	}
	for at := s.used.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*entry); e.users == 0 {
			e.users++
			return e
		}
	}
	return nil
}

// dropIdle removes the replica of an entry, unless the entry has a user other than the caller. It reports whether it
// has removed the replica.
func (s *Set) dropIdle(e *entry) bool {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	default:
		return false
	}
	s.mu.Lock()
	idle := e.users == 1
	s.mu.Unlock()
	// A goroutine that enters after this check waits for the turn, and then creates the replica again.
	return idle && s.drop(e) == nil
}

// drop removes the directory of a replica. The caller holds entry.turn.
func (s *Set) drop(e *entry) error {
	if err := s.discard(e.dir); err != nil {
		return err
	}
	if s.cache != nil {
		for _, id := range e.packs {
			s.cache.release(id)
		}
		for _, p := range e.stale {
			if p.id != "" {
				s.cache.release(p.id)
			}
		}
	}
	e.made, e.packs, e.stale = false, nil, nil
	return nil
}

// discard moves a directory to the trash, which takes one system call, and removes it there in the background.
func (s *Set) discard(dir string) error {
	trash := filepath.Join(s.dir, "trash")
	to := filepath.Join(trash, rand.Text())
	err := os.Rename(dir, to)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(dir); errors.Is(statErr, fs.ErrNotExist) {
			return nil
		}
		if err := os.Mkdir(trash, 0o700); err != nil {
			return err
		}
		err = os.Rename(dir, to)
	}
	if err == nil {
		s.sweep(to)
	}
	return err
}

// sweep removes a directory in the background.
func (s *Set) sweep(dir string) {
	s.removal.Go(func() { _ = os.RemoveAll(dir) }) // an error is ignored, because the next Open removes the rest
}

// Prune removes replicas of deleted repositories. From unused replicas, it removes files of killed processes and of
// refused pushes. It is called at intervals, to free disk space.
func (s *Set) Prune(ctx context.Context) error {
	s.mu.Lock()
	var idle []*entry
	for at := s.used.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*entry); e.users == 0 {
			idle = append(idle, e)
		}
	}
	s.mu.Unlock()
	for _, e := range idle {
		_, err := s.db.Repos.ByID(ctx, e.id)
		deleted := errors.Is(err, records.ErrNotFound)
		if err != nil && !deleted {
			return fmt.Errorf("prune replicas: %w", err)
		}
		s.mu.Lock()
		if s.entries[e.id] != e || e.users > 0 {
			s.mu.Unlock()
			continue
		}
		e.users++
		s.mu.Unlock()
		if deleted {
			s.dropIdle(e)
		} else {
			s.clean(e)
		}
		s.endUse(e)
	}
	return nil
}
