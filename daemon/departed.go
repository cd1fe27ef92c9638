package daemon

import (
	"sync"
	"time"
)

// departed has the mounts that ended while no process could answer the unmount request: its caller asks again.
type departed struct {
	mu     sync.Mutex
	mounts map[string]*mount // by directory
}

// departedTime is how long a mount stays in departed.
const departedTime = time.Minute

func (d *departed) add(m *mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts == nil {
		d.mounts = map[string]*mount{}
	}
	d.mounts[m.dir] = m
	time.AfterFunc(departedTime, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.mounts[m.dir] == m {
			delete(d.mounts, m.dir)
		}
	})
}

func (d *departed) remove(dir string) (*mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}
