package daemon

import (
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/mount"
	"github.com/artifactfs/artifactfs/mount/takeover"
)

// A mount during whose takeover at least suspect processes died is taken over after all other mounts, so that the others are
// served before this process may die too.
const suspect = 2

// takeOverAll registers the mounts of the predecessor and takes them over in the background. It takes over the mounts during
// whose takeover processes died last, one at a time. It closes d.host.Served when it has tried all others.
func (d *Daemon) takeOverAll(descriptors []keeper.Descriptor) {
	if d.host.Keeper == nil {
		return
	}
	var mounts, later []*mount.Mount
	for _, in := range takeover.Inherit(descriptors) {
		m, err := mount.Inherit(d.host, in)
		// Without a readable state the mount cannot be taken over.
		if err != nil {
			d.host.Log.Warn("take over mount", zap.String("key", in.Key), zap.Error(err))
			continue
		}
		d.mu.Lock()
		added := d.add(m)
		d.mu.Unlock()
		// If the state is damaged, two mounts may have the same directory. The first one is served.
		if !added {
			d.host.Log.Warn("two mounts were kept of one directory", zap.String("dir", m.Dir))
			m.LeaveTakeover()
			continue
		}
		mounts = append(mounts, m)
	}
	// The keeper returns the mounts in no particular order. Therefore submodules are linked to their parents after all mounts
	// are known.
	for _, m := range mounts {
		if m.JoinParent(d.mountAt); m.Deaths() >= suspect {
			later = append(later, m)
		}
	}
	// The mounts with the fewest deaths are tried first, because they are the most likely to succeed.
	slices.SortStableFunc(later, func(a, b *mount.Mount) int { return a.Deaths() - b.Deaths() })
	// succeed keeps the result of a takeover for Resumed and for a repeated unmount request.
	succeed := func(m *mount.Mount) {
		ended, err := m.Succeed()
		if ended {
			d.endedMounts.add(m)
		}
		if err != nil {
			d.mu.Lock()
			d.unfit = err
			d.mu.Unlock()
		}
	}
	d.resuming.Go(func() {
		var all sync.WaitGroup
		for _, m := range mounts {
			if !slices.Contains(later, m) {
				all.Go(func() { succeed(m) })
			}
		}
		all.Wait()
		close(d.host.Served)
		// These takeovers may kill the process, so all other mounts are served before.
		for _, m := range later {
			succeed(m)
		}
	})
}

// mountAt returns the mount whose directory is dir. Unlike find, it does not look at parent directories. The caller must not
// hold d.mu.
func (d *Daemon) mountAt(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	return m, ok
}

// Resumed waits until each mount of the predecessor is served again or was abandoned, or until ctx ends. It returns an error if
// this version of the program cannot serve one of the mounts and another version may be able to; such a mount stays attached.
func (d *Daemon) Resumed(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		d.resuming.Wait()
		close(done)
	}()
	select {
	case <-done:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.unfit
	case <-ctx.Done():
		return ctx.Err()
	}
}
