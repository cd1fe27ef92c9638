// Package collector sets how often Go's garbage collector runs. A daemon is mostly idle, and a host may run many
// daemons, so its heap should be small. But while a mount is started or a whole tree arrives, a small heap would be
// collected so often that it takes a tenth of the processor time.
package collector

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// busyPercent is the growth of the heap between collections, in percent, while there is much work. The memory limit
	// of the Go runtime still applies.
	busyPercent = 400
	// linger is the time between the end of the work and the return to the lower growth. In this time, the process that
	// waited for the work still reads its results.
	linger = 2 * time.Second
)

var (
	mu   sync.Mutex
	idle = 100 // growth of the heap between collections, in percent, while there is little work; protected by mu
	busy int   // number of calls of Relax that are still in effect; protected by mu
)

// SetIdle sets the growth of the heap between collections, in percent, while there is little work (debug.SetGCPercent).
func SetIdle(percent int) {
	mu.Lock()
	defer mu.Unlock()
	if idle = percent; busy == 0 {
		debug.SetGCPercent(idle)
	}
}

// Relax increases the growth of the heap between collections, until the time linger has passed after a call of done.
func Relax() (done func()) {
	mu.Lock()
	defer mu.Unlock()
	if busy++; busy == 1 {
		debug.SetGCPercent(busyPercent)
	}
	return sync.OnceFunc(func() { time.AfterFunc(linger, endRelax) })
}

// endRelax ends the effect of one call of Relax.
func endRelax() {
	mu.Lock()
	defer mu.Unlock()
	if busy--; busy == 0 {
		debug.SetGCPercent(idle)
	}
}
