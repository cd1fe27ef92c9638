package writeback

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// record holds the ledger of a queue, in memory and in its file. A round works on a copy of the ledger; the method keep
// replaces the ledger by the copy. No other lock is acquired while mu is held.
type record struct {
	conn   *connection // supplies the counts of transferred bytes
	report *report     // is informed whether refs are pending
	log    *zap.Logger

	mu sync.Mutex // protects ledger
	// ledger is the current ledger. The pointer is replaced; the ledger is never changed in place.
	ledger *ledger
}

// now returns the present ledger, which must not be changed.
func (r *record) now() *ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger
}

// keep replaces the ledger by a copy of l, and writes it to its file. local contains the refs of the Repo; if all of
// them are pushed, keep also records the time. An error of writing, for example because the disk is full, is only
// logged, because the object ids can be read from the session remote again. The caller holds Queue.remoteToken.
func (r *record) keep(l *ledger, local map[string]object.ID) {
	if l.pending(local) == 0 {
		l.synced = time.Now()
		r.report.await(false, l.synced)
	}
	l.traffic = r.conn.traffic()
	r.store(l.clone(), "record pushed refs")
}

// keepTraffic adds the traffic since the last push to the ledger and writes it. The caller holds Queue.remoteToken.
func (r *record) keepTraffic() {
	l := r.now().clone()
	before := l.traffic
	// A queue that has not exchanged data with the session remote does not rewrite the file.
	if l.traffic = r.conn.traffic(); l.traffic != before {
		r.store(l, "record traffic")
	}
}

// store replaces the ledger by l, which must not be changed afterwards, and writes it to its file. text is the message
// that is logged if this fails.
func (r *record) store(l *ledger, text string) {
	r.mu.Lock()
	r.ledger = l
	r.mu.Unlock()
	if err := l.write(r.conn.repo); err != nil {
		r.log.Warn(text, zap.String("session", r.conn.repo.Session()), zap.Error(err))
	}
}
