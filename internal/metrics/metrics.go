// Package metrics counts and measures events on hot paths, and writes the results in the text
// format of Prometheus (version 0.0.4, prometheus.io/docs/instrumenting/exposition_formats).
//
// A family has a name, a help text, a kind and samples, which differ in their labels. A Histogram counts durations; it
// uses no lock and may be used from any goroutine. A Cost records which data one request had to fetch or compute.
package metrics

import (
	"context"
	"math/bits"
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of a histogram's buckets. The last bucket has no bound. The bounds range from the
// duration of an answer from memory to the duration of a slow answer from the network.
var bounds = [...]time.Duration{
	20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second,
}

// firstBound maps the bit length of a duration in nanoseconds to the first bucket that can contain the duration.
var firstBound = func() (first [65]uint8) {
	for n := range first {
		least := int64(0)
		if n > 0 {
			least = 1 << min(n-1, 62)
		}
		for int(first[n]) < len(bounds) && int64(bounds[first[n]]) < least {
			first[n]++
		}
	}
	return first
}()

// Histogram counts durations in buckets. The zero value is ready to use.
type Histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Int64 // sum of all durations in nanoseconds
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	i := int(firstBound[bits.Len64(uint64(d))])
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// Add adds the counts of another histogram.
func (h *Histogram) Add(other *Histogram) {
	for i := range h.buckets {
		h.buckets[i].Add(other.buckets[i].Load())
	}
	h.sum.Add(other.sum.Load())
}

// Source is a bit set of the kinds of data that a request had to fetch or compute.
type Source uint32

const (
	Fetched   Source = 1 << iota // contents were fetched from the remote
	Listed                       // directory listings were fetched from the remote
	Sized                        // sizes were fetched from the remote
	Converted                    // contents were converted by a filter
)

// Cost records which data one request had to fetch or compute. The zero value is ready to use. The methods may be
// called from any goroutine.
type Cost struct {
	source       atomic.Uint32
	blobs, bytes atomic.Int64
}

// Add adds a source, the number of blobs that were requested together, and the number of bytes that were received for
// the request itself.
func (c *Cost) Add(s Source, blobs, bytes int64) {
	c.source.Or(uint32(s))
	c.blobs.Add(blobs)
	c.bytes.Add(bytes)
}

// Total returns the sums of all calls of Add. source is 0 if the request had to fetch or compute nothing.
func (c *Cost) Total() (source Source, blobs, bytes int64) {
	return Source(c.source.Load()), c.blobs.Load(), c.bytes.Load()
}

// CostKey is the key under which a context contains its *Cost.
type CostKey struct{}

// Charge calls Add for the Cost that ctx contains under CostKey. It does nothing if ctx contains no Cost.
func Charge(ctx context.Context, s Source, blobs, bytes int64) {
	if c, ok := ctx.Value(CostKey{}).(*Cost); ok {
		c.Add(s, blobs, bytes)
	}
}
