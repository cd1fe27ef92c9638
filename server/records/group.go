package records

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// maxGroup is the maximum number of transactions that are committed together.
const maxGroup = 64

// group commits transactions of SQLite together. SQLite runs one transaction at a time and syncs the disk for each.
// Transactions that arrive during the sync wait in a queue. The first of them then runs all of them in one transaction,
// each within a savepoint, with one sync. A transaction starts at once if no other one is running. PostgreSQL groups
// commits itself.
type group struct {
	db *DB

	mu    sync.Mutex
	queue []*member // waiting members; the first of them runs them all
}

// member is one transaction of a group.
type member struct {
	ended   func() error // returns nil, or the cause if the context of the caller has ended
	run     func(t *tx) error
	wake    chan struct{} // receives a value when the member has ended, or when it must lead the next group
	done    bool
	added   bool
	err     error
	trouble any // value of a panic in the function of the member
}

// write runs f in a transaction. If ctx ends before f was called, f is not called. Once f was called, the end of ctx
// does not interrupt it, because SQLite would also roll back the other members. added is true if the transaction has
// added events.
func (g *group) write(ctx context.Context, f func(t *tx) error) (added bool, err error) {
	m := &member{ended: func() error { return context.Cause(ctx) }, run: f, wake: make(chan struct{}, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, m)
	leads := len(g.queue) == 1
	g.mu.Unlock()
	if !leads {
		<-m.wake
	}
	if !m.done {
		g.lead(context.WithoutCancel(ctx))
	}
	if m.trouble != nil {
		panic(m.trouble)
	}
	return m.added, m.err
}

// lead runs the members in the queue. Then it wakes the first of the members that have arrived since, which calls lead
// in turn. The caller of lead is the first member.
func (g *group) lead(ctx context.Context) {
	g.mu.Lock()
	members := g.queue[:min(len(g.queue), maxGroup):min(len(g.queue), maxGroup)]
	g.mu.Unlock()
	if err := g.run(ctx, members); err != nil {
		for _, m := range members {
			if m.err == nil {
				m.err = err
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range members {
		m.done = true
		if i > 0 {
			m.wake <- struct{}{}
		}
	}
	g.queue = g.queue[len(members):]
	if len(g.queue) > 0 {
		g.queue[0].wake <- struct{}{}
	}
}

// run runs members in one transaction. Its error becomes the result of each member that has not failed itself.
func (g *group) run(ctx context.Context, members []*member) error {
	s, err := g.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Rollback()
	for _, m := range members {
		if m.err = m.ended(); m.err != nil {
			continue
		}
		if len(members) == 1 {
			g.runOne(s, m)
			if m.err != nil {
				return nil
			}
			break
		}
		if _, err := s.ExecContext(ctx, "SAVEPOINT member"); err != nil {
			return err
		}
		if g.runOne(s, m); m.err != nil {
			// After some errors, such as those of a full disk, SQLite has rolled back the whole transaction. The savepoint does
			// not exist then.
			if _, err := s.ExecContext(ctx, "ROLLBACK TO member"); err != nil {
				return m.err
			}
		}
		if _, err := s.ExecContext(ctx, "RELEASE member"); err != nil {
			return err
		}
	}
	return s.Commit()
}

// runOne runs a member and sets its result.
func (g *group) runOne(s *sql.Tx, m *member) {
	defer func() {
		// The function of the member may run in the goroutine of another caller, so a panic is passed to the goroutine
		// of the member.
		if m.trouble = recover(); m.trouble != nil {
			m.err = errors.New("transaction panicked")
		}
	}()
	t := &tx{querier: s, dialect: g.db.dialect, now: g.db.now(), whole: true}
	m.err = m.run(t)
	m.added = t.added
}
