// Package await lets tests wait for the effects of other goroutines and processes without sleeping for a fixed time.
package await

import (
	"testing"
	"time"
)

// Patience is the maximum duration of a wait. It is long, because machines that run tests are busy. A wait in a passing
// test is much shorter.
const Patience = time.Minute

// poll is the interval at which a condition is checked.
const poll = time.Millisecond

// Until calls done repeatedly until it returns true. If that takes longer than Patience, Until ends the test with a
// failure that contains condition, a sentence such as "the pack is removed". It must be called from the test's own
// goroutine.
func Until(t testing.TB, condition string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !done(); time.Sleep(poll) {
		if time.Now().After(end) {
			t.Fatalf("condition does not hold after %v: %s", Patience, condition)
		}
	}
}

// Receive returns the next value of c, or the zero value if c is closed. If that takes longer than Patience, Receive
// ends the test with a failure. It must be called from the test's own goroutine.
func Receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
	}
	t.Fatalf("channel of %T has received no value after %v", *new(T), Patience)
	panic("unreachable")
}
