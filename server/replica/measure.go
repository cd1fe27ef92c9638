package replica

import (
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

// uses counts calls of Acquire: for current replicas, for replicas that had to be updated, and for replicas that had to
// be made.
type uses struct{ current, updated, made atomic.Int64 }

// Metrics writes the metrics of a Set.
func (s *Set) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_replica_uses_total", metrics.Counter,
		"Uses of replicas: those that were up to date, were brought up to date, or were made.")
	w.Sample(float64(s.uses.current.Load()), metrics.Label{Name: "replica", Value: "current"})
	w.Sample(float64(s.uses.updated.Load()), metrics.Label{Name: "replica", Value: "updated"})
	w.Sample(float64(s.uses.made.Load()), metrics.Label{Name: "replica", Value: "made"})
	s.mu.Lock()
	n := len(s.entries)
	s.mu.Unlock()
	w.Family("artifactfs_server_replicas", metrics.Gauge, "Replicas on this host.")
	w.Sample(float64(n))
	if s.cache == nil {
		return
	}
	s.cache.mu.Lock()
	bytes := s.cache.bytes
	s.cache.mu.Unlock()
	w.Family("artifactfs_server_replica_cache_bytes", metrics.Gauge,
		"Bytes of packs that were copied from the object store.")
	w.Sample(float64(bytes))
}
