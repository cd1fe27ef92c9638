package daemon

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount"
)

// endedMounts is a set of mounts that ended while no process could answer the unmount request, for example during a
// takeover. When the client repeats its request, the daemon answers from this set. The methods may be called from any
// goroutine.
type endedMounts struct {
	mu     sync.Mutex
	mounts map[string]*mount.Mount // ended mounts, by directory; protected by mu
}

// endedMountTime is the time after which a mount is removed from endedMounts.
const endedMountTime = time.Minute

// add adds the ended mount m, and schedules its removal after endedMountTime.
func (d *endedMounts) add(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts == nil {
		d.mounts = map[string]*mount.Mount{}
	}
	d.mounts[m.Dir] = m
	time.AfterFunc(endedMountTime, func() { d.drop(m) })
}

// drop removes the ended mount m, if it is in the set.
func (d *endedMounts) drop(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts[m.Dir] == m {
		delete(d.mounts, m.Dir)
	}
}

// remove removes and returns the ended mount of the directory dir, or returns false if there is none.
func (d *endedMounts) remove(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}
