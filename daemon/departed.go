package daemon

import (
	"sync"
	"time"
)

// departed remembers mounts that ended while nobody could answer who asked for it: he asks again.
type departed struct {
	mu     sync.Mutex
	mounts map[string]*mount // by directory
}

// departedTime is how long he may take.
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

func (d *departed) take(dir string) (*mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}
