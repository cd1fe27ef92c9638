package writeback

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// record holds the queue's ledger in memory and in its file. A round works on a copy; the method keep makes that copy the current
// ledger. mu is a leaf lock: no other lock is taken while mu is held.
type record struct {
	conn   *connection // supplies the counts of transferred bytes
	report *report     // learns whether refs are pending
	log    *zap.Logger

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

// keep makes l the current ledger and writes l to the ledger's file. The map local holds the refs of the Repo; if all
// of these refs are pushed, keep also records the time. A write error, for example of a full disk, is logged and not
// returned, because the values can be read from the session remote again. The caller holds Queue.remoteToken.
func (r *record) keep(l *ledger, local map[string]object.ID) {
	if l.pending(local) == 0 {
		l.synced = time.Now()
		r.report.await(false, l.synced)
	}
	l.traffic = r.conn.traffic()
	r.store(l.clone(), "record pushed refs")
}

// keepTraffic writes the traffic since the last push to the ledger. The caller holds Queue.remoteToken.
func (r *record) keepTraffic() {
	l := r.now().clone()
	before := l.traffic
	// A queue that has not exchanged data with the session remote does not rewrite the file.
	if l.traffic = r.conn.traffic(); l.traffic != before {
		r.store(l, "record traffic")
	}
}

// store makes l, which is not changed any more, the current ledger and writes it to the file. The text is that of the
// log entry of a failure.
func (r *record) store(l *ledger, text string) {
	r.mu.Lock()
	r.ledger = l
	r.mu.Unlock()
	if err := l.write(r.conn.repo); err != nil {
		r.log.Warn(text, zap.String("session", r.conn.repo.Session()), zap.Error(err))
	}
}
