// Package daemon keeps the registry of the mounts of a process, starts, stops and takes over all mounts, and answers the requests
// of clients.
//
// One process holds any number of mounts. Mounts of one remote share a store. All stores share the cache of contents on disk
// and the memory budget.
//
// The mounts themselves are in package mount. Lock order: Daemon.mu, then the lock of a mount. Neither is held across waits for the
// network, the disk or the kernel.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/mount"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/mount/turns"
	"github.com/artifactfs/artifactfs/mount/watch"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/statedir"
)

// DefaultCacheSize is the default size of the cache on disk: bytes of contents of all mounts together.
const DefaultCacheSize = 20 << 30

// Limits that no option changes.
const (
	memoryBudget = 24 << 20 // bytes of parsed trees and small contents in memory
)

// Config is the configuration of a daemon.
type Config struct {
	State string      // state directory: stores/, mounts/, blobs/ (see DESIGN)
	Log   *zap.Logger // log of the whole daemon; must be set

	Keeper      takeover.Keeper     // holds descriptors for a successor; nil: the mounts end with this process
	Descriptors []keeper.Descriptor // descriptors that the predecessor left with the keeper
	Reason      string              // why the predecessor ended; "": there was no predecessor
	Takeovers   int                 // number of predecessors since the first mount
}

// take removes the descriptor with that name from c.Descriptors and returns its file. It returns nil if there is no such
// descriptor.
func (c *Config) take(name string) *os.File {
	at := slices.IndexFunc(c.Descriptors, func(k keeper.Descriptor) bool { return k.Name == name })
	if at < 0 {
		return nil
	}
	f := c.Descriptors[at].File
	c.Descriptors = slices.Delete(slices.Clone(c.Descriptors), at, at+1)
	return f
}

// Daemon holds the mounts of one process and everything that they share. It implements control.Handler. Its methods are safe for
// concurrent use.
type Daemon struct {
	host        *mount.Host // what all mounts share
	endedMounts endedMounts // mounts that ended lately, for repeated unmount requests

	ctx      context.Context    // context of the background work of the daemon itself; ends with Close
	end      context.CancelFunc // cancels ctx
	behind   sync.WaitGroup     // background work of the daemon itself
	resuming sync.WaitGroup     // work that takes over the mounts of the predecessor

	memory *cache.Memory // cache of trees and small contents in memory, of all stores
	blobs  *cache.Blobs  // cache of contents on disk, of all stores

	*catalog.Catalog       // answers requests on sessions, mounted or not
	taken            int   // number of predecessors whose mounts were taken over; see Config.Takeovers
	memoryLimit      int64 // soft memory limit of the Go runtime without any mount, in bytes

	// The fields below are guarded by mu.
	mu     sync.Mutex
	closed bool                    // Close was called; no mount may be added
	unfit  error                   // why this version cannot serve a mount that exists; nil: it can serve all
	mounts map[string]*mount.Mount // all mounts, by directory
	idle   chan struct{}           // closed while mounts is empty; replaced by the next mount
}

var _ control.Handler = (*Daemon)(nil)

// New opens the state directory and creates it if it is missing. If c.Descriptors has descriptors of a predecessor, New starts
// to take over the predecessor's mounts in the background; Resumed waits for that. Otherwise New removes temporary files of
// killed processes from the state directory. The caller calls Close.
func New(c Config) (*Daemon, error) {
	for _, dir := range []string{c.State, filepath.Join(c.State, "stores"), filepath.Join(c.State, "mounts")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open state directory: %w", err)
		}
	}
	memory, err := cache.NewMemory(memoryBudget)
	if err != nil {
		return nil, fmt.Errorf("make memory cache: %w", err)
	}
	blobs, err := cache.OpenBlobs(filepath.Join(c.State, "blobs"), DefaultCacheSize)
	if err != nil {
		memory.Close()
		return nil, fmt.Errorf("open cache: %w", err)
	}
	idle := make(chan struct{})
	close(idle)
	d := &Daemon{memory: memory, blobs: blobs, mounts: map[string]*mount.Mount{}, idle: idle, taken: c.Takeovers}
	h := &mount.Host{
		State: c.State, Log: c.Log, Sampled: fuse.Sampled(c.Log), Homes: statedir.Homes{State: c.State, Log: c.Log},
		Failures: statedir.Failures{State: c.State, Log: c.Log}, Remotes: remotes.New(c.State, c.Log, memory, blobs),
		Keeper: c.Keeper, Watch: watch.New(c.Keeper, c.take(watch.Kept)), Turns: turns.New(),
		Handler: d, Registry: d, Served: make(chan struct{}),
	}
	h.Catalog = &catalog.Catalog{State: c.State, Log: c.Log, Homes: h.Homes, Remotes: h.Remotes, Mounts: d, Writer: h.Writer}
	d.host, d.Catalog = h, h.Catalog
	d.memoryLimit = debug.SetMemoryLimit(-1) // a negative argument returns the limit without changing it
	d.ctx, d.end = context.WithCancel(context.Background())
	if len(c.Descriptors) > 0 {
		d.host.Log.Info("took over the mounts", zap.String("reason", c.Reason), zap.Int("takeovers", c.Takeovers),
			zap.Int("kept", len(c.Descriptors)))
		d.takeOverAll(c.Descriptors)
		d.behind.Go(func() { // only after the takeover: file system calls block until their mount is served again
			d.resuming.Wait()
			if err := d.host.Homes.RemoveLeftovers(); err != nil {
				d.host.Log.Warn("look for what killed processes left", zap.Error(err))
			}
		})
		return d, nil
	}
	if err := d.host.Homes.RemoveLeftovers(); err != nil {
		return nil, errors.Join(fmt.Errorf("open state directory: %w", err), d.Close(context.Background()))
	}
	d.behind.Go(func() { d.Catalog.Expire(d.ctx, time.Now()) })
	return d, nil
}

// Close unmounts all mounts, waits for all background work and releases the caches. A busy mount is detached, because no process
// will serve it after Close.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	var mounts []*mount.Mount
	for _, m := range d.mounts {
		mounts = append(mounts, m)
	}
	d.mu.Unlock()
	d.end()
	errs := make([]error, len(mounts), len(mounts)+2)
	errs = append(errs, d.Resumed(ctx))
	var all sync.WaitGroup
	for i, m := range mounts {
		if m.Parent == nil { // the mount of a submodule ends with the mount that contains it
			all.Go(func() { errs[i] = m.Stop(ctx, true) })
		}
	}
	all.Wait()
	d.behind.Wait()
	d.host.Watch.Close()
	errs = append(errs, d.blobs.Close())
	d.memory.Close()
	return errors.Join(errs...)
}

// Shutdown unmounts all mounts, one after the other. Unlike Close, it does not detach busy mounts: it returns the error of the
// first mount that cannot be unmounted, and does not unmount the rest. Mounts that it has already unmounted stay unmounted.
func (d *Daemon) Shutdown(ctx context.Context) error {
	if err := d.Resumed(ctx); err != nil {
		return fault.Explain("shut down", "daemon", err)
	}
	for _, m := range d.list() {
		if err := m.Stop(ctx, false); err != nil {
			return fault.Explain("unmount", m.Dir, err)
		}
		d.Unregister(m)
	}
	return nil
}

// Ending reports whether the daemon is shutting down.
func (d *Daemon) Ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Idle returns a channel that is closed while the daemon has no mount. A mount that is being prepared counts as a mount. When a
// mount is added after that, Idle returns a new channel.
func (d *Daemon) Idle() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.idle
}

// add adds m to d.mounts and sets its login. It returns false if another mount has the same directory. The caller holds d.mu.
func (d *Daemon) add(m *mount.Mount) bool {
	if _, taken := d.mounts[m.Dir]; taken {
		return false
	}
	if len(d.mounts) == 0 {
		d.idle = make(chan struct{})
	}
	m.HoldLogin()
	d.mounts[m.Dir] = m
	d.limitMemory()
	return true
}

// mountMemory is the memory in bytes that an idle mount takes. Most of it is buffers that are rarely used.
const mountMemory = 1 << 20

// limitMemory adapts the memory limit of the Go runtime to the number of mounts, if a limit is set. If the limit were below the
// size of the live heap, the garbage collector would run continuously. The caller holds d.mu.
func (d *Daemon) limitMemory() {
	if d.memoryLimit < math.MaxInt64/2 { // the runtime reports math.MaxInt64 if no limit is set
		debug.SetMemoryLimit(d.memoryLimit + int64(len(d.mounts))*mountMemory)
	}
}

// Remove removes m from d.mounts. If m was the last mount, it closes the channel that Idle returns. The caller must not hold
// d.mu.
func (d *Daemon) Remove(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounts, m.Dir)
	d.host.Remotes.Drop(m)
	d.limitMemory()
	if len(d.mounts) == 0 {
		close(d.idle)
	}
}

// list returns all mounts, sorted by directory.
func (d *Daemon) list() []*mount.Mount {
	d.mu.Lock()
	defer d.mu.Unlock()
	var mounts []*mount.Mount
	for _, m := range d.mounts {
		mounts = append(mounts, m)
	}
	sort.Slice(mounts, func(i, j int) bool { return mounts[i].Dir < mounts[j].Dir })
	return mounts
}

// find returns the mount that contains dir: the mount at dir itself, or at its nearest ancestor that is the root of a mount. dir
// is an absolute path. It returns false if dir is not in a mount.
func (d *Daemon) find(dir string) (*mount.Mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		if m, ok := d.mounts[p]; ok {
			return m, true
		}
		if p == "/" {
			return nil, false
		}
	}
}
