package fuse

import (
	"sync/atomic"
	"time"
)

const (
	sampleWindow = 250 * time.Millisecond // time after which the rate of samples is adapted
	sampleCount  = 250                    // samples in a window
)

// sampler chooses one of so many requests, such that about sampleCount are chosen in each window. An event costs a few microseconds, which
// would add a fifth to the time that the daemon needs for a request that it answers from memory.
type sampler struct {
	seen  atomic.Int64 // requests in this window
	began atomic.Int64 // beginning of the window, in nanoseconds of Unix time
	every atomic.Int64 // one of so many requests is chosen; 0 before the first window has ended: all are
}

// weight returns the number of requests for which a request stands, and 0 if it is not chosen.
func (s *sampler) weight(now time.Time) int64 {
	n, began, at := s.seen.Add(1), s.began.Load(), now.UnixNano()
	if length := at - began; length >= int64(sampleWindow) && s.began.CompareAndSwap(began, at) {
		s.seen.Store(0)
		s.every.Store(int64(float64(n) * float64(sampleWindow) / float64(length) / sampleCount))
	}
	every := max(1, s.every.Load())
	if n%every != 0 {
		return 0
	}
	return every
}
