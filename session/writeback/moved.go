package writeback

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// movedRefs contains the refs that only this session writes, but that another machine has changed on the session
// remote, such as the metadata after that machine has taken the session over. Rounds add refs; the Queue's goroutine
// passes each new value to QueueOptions.Taken once. No other lock is acquired while mu is held.
type movedRefs struct {
	log *zap.Logger

	mu sync.Mutex // protects the fields below
	// refs contains the changed refs, with their object ids on the session remote at the last comparison.
	refs map[string]object.ID
	// reported contains the object ids that were added to news, so that each is passed to QueueOptions.Taken once.
	reported map[string]object.ID
	// news contains the changed refs for which QueueOptions.Taken was not called yet.
	news []Taken
}

// set replaces the changed refs by the result of a comparison. It returns the refs whose object ids were not reported
// yet.
func (m *movedRefs) set(refs map[string]object.ID) (fresh map[string]object.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refs = refs
	fresh = maps.Clone(refs)
	maps.DeleteFunc(fresh, func(ref string, theirs object.ID) bool { return m.reported[ref] == theirs })
	return fresh
}

// follow fetches the commits to which other machines have set refs that only this session writes, and adds each new one
// to the refs that notify reports. moved contains these refs, and local the refs of the Repo.
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

// notify calls the function taken (QueueOptions.Taken) for each ref that another machine has changed since the last
// call of notify, and reports whether there was such a ref.
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

// value returns the object id of ref on the session remote, and whether another machine has changed the ref.
func (m *movedRefs) value(ref string) (theirs object.ID, moved bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	theirs, moved = m.refs[ref]
	return theirs, moved
}

// names returns the names of the refs that another machine has changed, sorted.
func (m *movedRefs) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.refs))
}
