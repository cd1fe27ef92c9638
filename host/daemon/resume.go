package daemon

import (
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// suspectDeaths is the number of processes that have died while they took over a mount, from which the mount is taken
// over after all others, so that the others are served even if this process dies too.
const suspectDeaths = 2

// takeOverAll adds the mounts of the predecessor, whose descriptors are given, to the table of mounts, and takes them
// over in the background. It closes d.host.Served after it has tried to take over all mounts except those whose
// takeover has killed at least suspect processes; these follow one after the other.
func (d *Daemon) takeOverAll(descriptors []keeper.Descriptor) {
	if d.host.Keeper == nil {
		return
	}
	var mounts, later []*mount.Mount
	for _, in := range takeover.Inherit(descriptors) {
		m, err := mount.Inherit(d.host, in)
		// A mount whose state cannot be read cannot be taken over.
		if err != nil {
			d.host.Log.Warn("take over mount", zap.String("key", in.Key), zap.Error(err))
			continue
		}
		d.mu.Lock()
		added := d.add(m)
		d.mu.Unlock()
		// If the saved state is damaged, two mounts may have the same directory. Only the first one is served.
		if !added {
			d.host.Log.Warn("two inherited mounts have the same directory", zap.String("dir", m.Dir))
			m.DropTakeover()
			continue
		}
		mounts = append(mounts, m)
	}
	// The supervisor returns the descriptors in no particular order. Therefore the mounts of submodules are linked to
	// their parents after all mounts are known.
	for _, m := range mounts {
		if m.JoinParent(d.mountAt); m.Deaths() >= suspectDeaths {
			later = append(later, m)
		}
	}
	// The mounts with the fewest deaths are tried first, because their takeovers are the most likely to succeed.
	slices.SortStableFunc(later, func(a, b *mount.Mount) int { return a.Deaths() - b.Deaths() })
	// The function succeed takes over m, and records the result for Resumed and for repeated unmount requests.
	succeed := func(m *mount.Mount) {
		// A mount that has ended leaves the registry before Succeed returns. A request that is repeated then must find it,
		// too.
		d.endedMounts.add(m)
		ended, err := m.Succeed()
		if !ended {
			d.endedMounts.drop(m)
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
		// Each of these takeovers may kill the process, so they begin only after all other mounts are served.
		for _, m := range later {
			succeed(m)
		}
	})
}

// mountAt returns the mount whose directory is dir. Unlike find, it does not return a mount that contains dir. The
// caller must not hold d.mu.
func (d *Daemon) mountAt(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	return m, ok
}

// Resumed waits until each mount of the predecessor is served again or was abandoned, or until ctx ends. It returns an
// error if only another version of the program may be able to serve one of the mounts; that mount stays attached, and
// its programs wait.
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
