package daemon

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/mount"
)

// endedMounts holds mounts that ended while no process could answer the unmount request, for example during a takeover. The
// caller sends its request again, and the daemon answers the repeated request from endedMounts. The methods are safe for
// concurrent use.
type endedMounts struct {
	mu     sync.Mutex
	mounts map[string]*mount.Mount // by directory; guarded by mu
}

// endedMountTime is how long endedMounts holds a mount.
const endedMountTime = time.Minute

// add holds m for endedMountTime.
func (d *endedMounts) add(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts == nil {
		d.mounts = map[string]*mount.Mount{}
	}
	d.mounts[m.Dir] = m
	time.AfterFunc(endedMountTime, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.mounts[m.Dir] == m {
			delete(d.mounts, m.Dir)
		}
	})
}

// remove removes and returns the mount at the directory dir. It returns false if endedMounts does not hold such a mount.
func (d *endedMounts) remove(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}
