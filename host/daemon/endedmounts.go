package daemon

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount"
)

// endedMounts contains mounts that ended while no process could answer the unmount request, for example during a takeover. When
// the client repeats its request, the daemon takes the answer from endedMounts. The methods may be called from any goroutine.
type endedMounts struct {
	mu     sync.Mutex
	mounts map[string]*mount.Mount // ended mounts, by directory; protected by mu
}

// endedMountTime is how long an ended mount is kept in endedMounts.
const endedMountTime = time.Minute

// add adds m, and removes it again after endedMountTime.
func (d *endedMounts) add(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts == nil {
		d.mounts = map[string]*mount.Mount{}
	}
	d.mounts[m.Dir] = m
	time.AfterFunc(endedMountTime, func() { d.drop(m) })
}

// drop removes m if it was added.
func (d *endedMounts) drop(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts[m.Dir] == m {
		delete(d.mounts, m.Dir)
	}
}

// remove removes and returns the ended mount of the directory dir. It returns false if there is none.
func (d *endedMounts) remove(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}
