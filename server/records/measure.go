package records

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

// calls measures the calls of the database.
type calls struct {
	reads, writes metrics.Histogram
	// numbers of calls that failed because the database did not answer, or because it was full
	away, full atomic.Int64
}

// measure counts a call that began at the time begin and has just ended with the error err.
func (c *calls) measure(h *metrics.Histogram, begin time.Time, err *error) {
	h.Observe(time.Since(begin))
	switch {
	case errors.Is(*err, ErrUnavailable):
		c.away.Add(1)
	case errors.Is(*err, ErrFull):
		c.full.Add(1)
	}
}

// Metrics writes the metrics of the database.
func (db *DB) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_database_duration_seconds", metrics.Histograms, "Duration of calls of the database.")
	w.Histogram(&db.calls.reads, metrics.Label{Name: "kind", Value: "read"})
	w.Histogram(&db.calls.writes, metrics.Label{Name: "kind", Value: "write"})
	w.Family("artifactfs_server_database_failures_total", metrics.Counter,
		"Calls that failed because the database was away or full.")
	w.Sample(float64(db.calls.away.Load()), metrics.Label{Name: "cause", Value: "away"})
	w.Sample(float64(db.calls.full.Load()), metrics.Label{Name: "cause", Value: "full"})
}
