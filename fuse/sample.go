package fuse

import (
	"sync/atomic"
	"time"
)

const (
	sampleWindow = 250 * time.Millisecond // time after which the rate of samples is adapted
	sampleCount  = 250                    // samples in a window
)

// sampler selects a sample of the requests: one of each N requests, where N is chosen so that about sampleCount are
// selected in each window. Creating an event costs a few microseconds, a fifth of the time that the daemon needs for a
// request that it answers from memory.
type sampler struct {
	seen  atomic.Int64 // requests in this window
	began atomic.Int64 // beginning of the window, in nanoseconds of Unix time
	every atomic.Int64 // N: one of each N requests is selected; 0 before the first window has ended: all are
}

// weight returns the number of requests that this request represents in the sample, or 0 if it is not selected.
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
