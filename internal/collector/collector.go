// Package collector sets how often Go's garbage collector runs. A daemon is mostly idle, and a host may run many daemons, so its heap
// should be small. But while a mount is started or a whole tree arrives, a small heap would be collected so often that it takes a tenth
// of the processor time.
package collector

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// busyPercent is the growth of the heap between collections, in percent, while there is much to do. The memory limit of the Go
	// runtime still applies.
	busyPercent = 400
	// linger is the time after which the growth is reduced. The process that waited for the work still reads its results.
	linger = 2 * time.Second
)

var (
	mu   sync.Mutex
	idle = 100 // growth of the heap between collections, in percent, while there is little to do; protected by mu
	busy int   // number of calls of Relax whose effect lasts; protected by mu
)

// SetIdle sets by how many percent the heap grows between collections while there is little to do (debug.SetGCPercent).
func SetIdle(percent int) {
	mu.Lock()
	defer mu.Unlock()
	if idle = percent; busy == 0 {
		debug.SetGCPercent(idle)
	}
}

// Relax lets the heap grow more between collections, until some seconds after a call of done.
func Relax() (done func()) {
	mu.Lock()
	defer mu.Unlock()
	if busy++; busy == 1 {
		debug.SetGCPercent(busyPercent)
	}
	return sync.OnceFunc(func() { time.AfterFunc(linger, unrelax) })
}

// unrelax ends the effect of a call of Relax.
func unrelax() {
	mu.Lock()
	defer mu.Unlock()
	if busy--; busy == 0 {
		debug.SetGCPercent(idle)
	}
}
