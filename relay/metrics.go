package relay

import (
	"io"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

// kind classifies requests by the objects that they request.
type kind uint8

const (
	others  kind = iota // requests for histories, negotiations, and requests in older versions of the protocol
	refs                // requests for capabilities and refs
	snaps               // requests for a commit with its parents, without blobs
	commits             // requests for a commit with its contents
	parts               // requests for trees and blobs
	sizes
	kinds // number of kinds
)

// String returns the name of the kind in metrics and logs.
func (k kind) String() string {
	return [...]string{"other", "refs", "snap", "commit", "parts", "sizes"}[k]
}

// outcome is the way in which a request was answered.
type outcome uint8

const (
	hit      outcome = iota // answered from stored files or from a flight
	passedOn                // passed to the git server, whose answer was passed to the client
	refused                 // passed to the git server, which has refused the request
	failed
	outcomes // number of outcomes
)

// String returns the name of the outcome in metrics and logs.
func (o outcome) String() string { return [...]string{"served", "passed", "refused", "failed"}[o] }

// counts counts events since the start of the relay.
type counts struct {
	requests       [kinds][outcomes]atomic.Int64
	sent           atomic.Int64 // bytes of answers that come from stored files and flights
	passedBytes    atomic.Int64 // bytes of answers that were passed from git servers
	upstream       atomic.Int64 // requests that were sent to git servers
	upstreamBytes  atomic.Int64 // bytes of the answers of git servers
	flights        atomic.Int64
	joined         atomic.Int64 // number of times that a request has joined a flight that another request had started
	flightFailures atomic.Int64
	groups         atomic.Int64 // requests to git servers for blobs of groups
	groupHits      atomic.Int64 // number of times that a stored group was used
	borrowed       atomic.Int64 // blobs of new groups that were copied from stored groups
	// answers for which blobs had to be requested separately, because a flight of a group had failed
	fallThroughs atomic.Int64
}

// countingWriter adds the number of bytes that are written to a counter.
type countingWriter struct {
	io.Writer
	n *atomic.Int64
}

// Write implements io.Writer.
func (c countingWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// writeMetrics writes all metrics in the text format of Prometheus.
func (r *Relay) writeMetrics(w io.Writer) error {
	m := metrics.NewWriter(w)
	m.Family("artifactfs_relay_requests_total", metrics.Counter,
		"Requests of clients, by what they ask for and how they ended.")
	for k := range kinds {
		for o := range outcomes {
			m.Sample(float64(r.counts.requests[k][o].Load()), metrics.Label{Name: "kind", Value: k.String()},
				metrics.Label{Name: "outcome", Value: o.String()})
		}
	}
	s := &r.shelf.Stats
	files, bytes := r.shelf.Usage()
	available := 0.0
	if r.shelf.Available() {
		available = 1
	}
	for _, f := range []struct {
		name, help string
		kind       metrics.Kind
		value      float64
	}{
		{"sent_bytes_total", "Bytes of answers from stored files and flights.", metrics.Counter,
			float64(r.counts.sent.Load())},
		{"passed_bytes_total", "Bytes of answers of git servers that were passed.", metrics.Counter,
			float64(r.counts.passedBytes.Load())},
		{"upstream_requests_total", "Requests to git servers.", metrics.Counter, float64(r.counts.upstream.Load())},
		{"upstream_bytes_total", "Bytes of the answers of git servers.", metrics.Counter,
			float64(r.counts.upstreamBytes.Load())},
		{"proofs_total", "Requests to git servers that show whether a client may read a commit.", metrics.Counter,
			float64(r.grants.Made())},
		{"flights_total", "Snaps and groups that were fetched.", metrics.Counter, float64(r.counts.flights.Load())},
		{"flight_joins_total", "Uses of a flight that another request has started.", metrics.Counter,
			float64(r.counts.joined.Load())},
		{"flight_failures_total", "Flights that failed.", metrics.Counter, float64(r.counts.flightFailures.Load())},
		{"group_hits_total", "Uses of stored groups.", metrics.Counter, float64(r.counts.groupHits.Load())},
		{"groups_requested_total", "Requests to git servers for blobs of groups.", metrics.Counter,
			float64(r.counts.groups.Load())},
		{"borrowed_blobs_total", "Blobs of new groups that were copied from stored groups.", metrics.Counter,
			float64(r.counts.borrowed.Load())},
		{"fall_throughs_total", "Answers that a request to the git server has completed after a group failed.",
			metrics.Counter,
			float64(r.counts.fallThroughs.Load())},
		{"cache_files", "Files on the local disk.", metrics.Gauge, float64(files)},
		{"cache_bytes", "Bytes of the files on the local disk.", metrics.Gauge, float64(bytes)},
		{"cache_evictions_total", "Files that were removed from the local disk because of --cache-size.", metrics.Counter,
			float64(s.Evicted.Load())},
		{"damaged_files_total", "Files whose contents were not those that were stored.", metrics.Counter,
			float64(s.Damaged.Load())},
		{"objects_available", "1 while the object store is used, 0 without one and after a failure.",
			metrics.Gauge, available},
		{"objects_loaded_total", "Files that were read from the object store.", metrics.Counter, float64(s.Loaded.Load())},
		{"objects_loaded_bytes_total", "Bytes of these files.", metrics.Counter, float64(s.LoadedBytes.Load())},
		{"objects_missing_total", "Files that the object store did not have.", metrics.Counter, float64(s.Missing.Load())},
		{"objects_ranges_total", "Reads of parts of files in the object store.", metrics.Counter, float64(s.Ranges.Load())},
		{"objects_stored_total", "Files that were written to the object store.", metrics.Counter, float64(s.Stored.Load())},
		{"objects_stored_bytes_total", "Bytes of these files.", metrics.Counter, float64(s.StoredBytes.Load())},
		{"objects_failures_total", "Operations of the object store that failed or took too long.", metrics.Counter,
			float64(s.StoreFailures.Load())},
	} {
		m.Family("artifactfs_relay_"+f.name, f.kind, f.help)
		m.Sample(f.value)
	}
	return m.Flush()
}
