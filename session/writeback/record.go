package writeback

import (
	"sync"

	"go.uber.org/zap"
)

// record holds the queue's ledger in memory and in its file. A round works on a copy; the method keep makes that copy the current
// ledger. mu is a leaf lock: no other lock is taken while mu is held.
type record struct {
	conn *connection // supplies the counts of transferred bytes
	log  *zap.Logger

	mu sync.Mutex // protects ledger
	// ledger is the current ledger. The pointer is replaced; the ledger is never changed in place.
	ledger *ledger
}

// now returns the current ledger, which must not be changed.
func (r *record) now() *ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger
}

// keep makes l the current ledger and writes l to the ledger's file. A write error, for example of a full disk, is logged and not
// returned, because the values can be read from the session remote again. The caller holds Queue.remoteToken.
func (r *record) keep(l *ledger) {
	l.traffic = r.conn.traffic()
	r.mu.Lock()
	r.ledger = l.clone()
	r.mu.Unlock()
	if err := l.write(r.conn.repo); err != nil {
		r.log.Warn("record pushed refs", zap.String("session", r.conn.repo.Session()), zap.Error(err))
	}
}

// keepTraffic writes the traffic since the last push to the ledger. The caller holds Queue.remoteToken.
func (r *record) keepTraffic() {
	l := r.now().clone()
	before := l.traffic
	l.traffic = r.conn.traffic()
	// A queue that has not exchanged data with the session remote does not rewrite the file.
	if l.traffic == before {
		return
	}
	r.mu.Lock()
	r.ledger = l
	r.mu.Unlock()
	if err := l.write(r.conn.repo); err != nil {
		r.log.Warn("record traffic", zap.String("session", r.conn.repo.Session()), zap.Error(err))
	}
}
