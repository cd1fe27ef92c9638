package fuse

import (
	"testing"
	"time"
)

// A sample stands for all requests, at any rate, and its size is limited.
func TestSampler(t *testing.T) {
	for _, rate := range []int{10, 900, 5_000, 100_000} { // in a second
		var s sampler
		at := time.Unix(1, 0)
		step := time.Second / time.Duration(rate)
		chosen, stands := 0, int64(0)
		for i := range 5 * rate {
			w := s.weight(at)
			at = at.Add(step)
			if i >= rate && w > 0 { // after the first second
				chosen, stands = chosen+1, stands+w
			}
		}
		if want := int64(4 * rate); stands < want*9/10 || stands > want*11/10 {
			t.Errorf("%d requests/s: the sample stands for %d requests, want about %d", rate, stands, want)
		}
		if chosen > 4*2200 || rate < 1000 && chosen != 4*rate {
			t.Errorf("%d requests/s: got %d samples in 4 s", rate, chosen)
		}
	}
}
