package writeback

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// movedRefs holds the refs that only this session writes but that another machine has moved on the session remote, such as the
// session's metadata after that machine took the session over. Rounds fill it; the Queue's goroutine passes each new value to
// QueueOptions.Taken once. mu is a leaf lock: no other lock is taken while mu is held.
type movedRefs struct {
	log *zap.Logger

	mu sync.Mutex // protects the fields below
	// refs holds the moved refs, each with its value on the session remote at the last comparison.
	refs map[string]object.ID
	// reported holds the values that were added to news. It ensures that each value is passed to QueueOptions.Taken once.
	reported map[string]object.ID
	// news holds the moved refs for which QueueOptions.Taken has not been called yet.
	news []Taken
}

// set replaces the moved refs by the result of a comparison. It returns those refs whose values were not reported yet.
func (m *movedRefs) set(refs map[string]object.ID) (fresh map[string]object.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refs = refs
	fresh = maps.Clone(refs)
	maps.DeleteFunc(fresh, func(ref string, theirs object.ID) bool { return m.reported[ref] == theirs })
	return fresh
}

// follow fetches the values in the map moved, to which other machines have set refs that only this session writes, and reports
// each new value to QueueOptions.Taken. The map local holds the refs of the Repo.
func (m *movedRefs) follow(ctx context.Context, conn *connection, moved, local map[string]object.ID) {
	for ref, theirs := range m.set(moved) {
		// Taken reads the commit, so the commit has to be in the Repo.
		if err := conn.fetch(ctx, theirs, local[ref]); err != nil {
			m.log.Warn("fetch refs that other mounts changed", zap.String("ref", ref), zap.Error(err))
			continue
		}
		m.mu.Lock()
		if m.reported == nil {
			m.reported = map[string]object.ID{}
		}
		m.reported[ref] = theirs
		m.news = append(m.news, Taken{Ref: ref, Theirs: theirs})
		m.mu.Unlock()
	}
}

// notify calls QueueOptions.Taken, the parameter taken, for each ref that another machine has moved since the last
// call. It reports whether there was such a ref.
func (m *movedRefs) notify(taken func(Taken)) bool {
	m.mu.Lock()
	news := m.news
	m.news = nil
	m.mu.Unlock()
	for _, n := range news {
		if taken != nil {
			taken(n)
		}
	}
	return len(news) > 0
}

// value returns the value of ref on the session remote, and reports whether another machine has moved the ref.
func (m *movedRefs) value(ref string) (theirs object.ID, moved bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	theirs, moved = m.refs[ref]
	return theirs, moved
}

// names returns the sorted names of the moved refs.
func (m *movedRefs) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.refs))
}
