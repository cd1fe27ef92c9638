// Package daemon has the state of a process that serves mounts: the table of all mounts and what they share. It starts,
// stops and takes over mounts, and answers the requests of clients.
//
// One process serves any number of mounts. Mounts of one remote share a store. All stores share the cache of contents
// on disk and the memory budget.
//
// The mounts themselves are implemented in package mount. Lock order: Daemon.mu, then the lock of a mount. No goroutine
// holds one of these locks while it waits for the network, the disk or the kernel.
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
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/mount/turns"
	"github.com/artifactfs/artifactfs/host/mount/watch"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/lockservice"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// DefaultCacheSize is the default size of the cache on disk, in bytes. The cache holds contents of all mounts together.
const DefaultCacheSize = 20 << 30

// memoryBudget is the size, in bytes, of the cache of parsed trees and small contents in memory.
const memoryBudget = 24 << 20

// Config is the configuration of a daemon.
type Config struct {
	State string      // path of the state directory; it contains stores/, mounts/ and blobs/ (see DESIGN)
	Log   *zap.Logger // log of the whole daemon; must be set
	// StoreFrom is the state directory of another daemon, from which mounts read objects that this daemon has fetched,
	// if their requests name no such directory; "" to use none.
	StoreFrom string

	// stores descriptors for a successor; nil if there is no supervisor, so that the mounts end with this process
	Keeper      takeover.Keeper
	Descriptors []keeper.Descriptor // descriptors of the mounts of the predecessor, in case of a takeover
	Reason      string              // why the predecessor ended; "" if there was no predecessor
	Takeovers   int                 // number of workers that have served the mounts before this one
}

// take removes the descriptor called name from c.Descriptors and returns it as a file, or nil if there is no such
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

// Daemon contains the mounts of one process and everything that they share. It implements control.Handler. Its methods
// may be called from any goroutine.
type Daemon struct {
	host        *mount.Host // state and services that all mounts share
	endedMounts endedMounts // mounts that ended recently, from which repeated unmount requests are answered

	ctx      context.Context    // context of the daemon's own background goroutines; Close cancels it
	end      context.CancelFunc // cancels ctx
	behind   sync.WaitGroup     // background goroutines of the daemon itself
	resuming sync.WaitGroup     // goroutines that take over the mounts of the predecessor

	memory *cache.Memory // cache of trees and small contents in memory, of all stores
	blobs  *cache.Blobs  // cache of contents on disk, of all stores

	*catalog.Catalog           // answers requests about sessions, whether or not they are mounted
	catalog.CacheEntries       // answers requests on cache entries
	catalog.Reviews            // answers requests about approvals, policies and annotations
	lockservice.Locks          // answers requests for locks
	memoryLimit          int64 // soft memory limit of the Go runtime, in bytes, before the first mount adds to it

	// The fields below are protected by mu.
	mu     sync.Mutex
	closed bool // whether Close was called; then no mount may be added
	// reason why this version of the program cannot serve one of the mounts of the predecessor; nil if it can serve all
	unfit  error
	mounts map[string]*mount.Mount // all mounts, by directory
	idle   chan struct{}           // closed while mounts is empty; replaced when the next mount is added
}

var _ control.Handler = (*Daemon)(nil)

// New returns a daemon that uses the state directory c.State, and creates the directory if it is missing. If
// c.Descriptors is not empty, New starts to take over the mounts of the predecessor in the background; Resumed waits
// for the end of this. Otherwise New removes temporary files that killed processes have left in the state directory.
// The caller must call Close.
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
	d := &Daemon{memory: memory, blobs: blobs, mounts: map[string]*mount.Mount{}, idle: idle}
	h := &mount.Host{
		State: c.State, Log: c.Log, Sampled: fuse.Sampled(c.Log),
		Homes:    statedir.Homes{State: c.State, Log: c.Log, Sweeper: statedir.NewSweeper(c.State, c.Log)},
		Failures: statedir.Failures{State: c.State, Log: c.Log},
		Remotes:  remotes.New(c.State, c.StoreFrom, c.Log, memory, blobs),
		Keeper:   c.Keeper, Watch: watch.New(c.Keeper, c.take(watch.Kept)), Turns: turns.New(),
		Handler: d, Registry: d, Served: make(chan struct{}),
	}
	h.Catalog = &catalog.Catalog{State: c.State, Log: c.Log, Homes: h.Homes, Remotes: h.Remotes, Mounts: d,
		Writer: h.Writer}
	d.host, d.Catalog, d.CacheEntries = h, h.Catalog, catalog.CacheEntries{Catalog: h.Catalog}
	d.Reviews = catalog.Reviews{Catalog: h.Catalog}
	d.Locks = lockservice.Locks{Catalog: h.Catalog}
	d.memoryLimit = debug.SetMemoryLimit(-1) // a negative argument only returns the current limit
	d.ctx, d.end = context.WithCancel(context.Background())
	d.behind.Go(func() {
		if err := disk.SweepTemp(c.State); err != nil {
			d.host.Log.Warn("remove temporary files of killed processes", zap.Error(err))
		}
	})
	d.behind.Go(func() { h.Homes.Sweeper.Run(d.ctx) })
	if len(c.Descriptors) > 0 {
		d.host.Log.Info("took over the mounts", zap.String("reason", c.Reason), zap.Int("takeovers", c.Takeovers),
			zap.Int("kept", len(c.Descriptors)))
		d.takeOverAll(c.Descriptors)
		// The files are removed after the takeover, because file-system calls in a mount block until the mount is served
		// again.
		d.behind.Go(func() {
			d.resuming.Wait()
			if err := d.host.Homes.RemoveLeftovers(); err != nil {
				d.host.Log.Warn("remove leftovers of killed processes", zap.Error(err))
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

// Close unmounts all mounts, waits for all background goroutines and closes the caches. It detaches a busy mount,
// because no process will serve that mount after Close.
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
		if m.Parent == nil { // the mount of a submodule is stopped by the mount that contains it
			all.Go(func() { errs[i] = m.Stop(ctx, true) })
		}
	}
	all.Wait()
	d.behind.Wait()
	d.host.Homes.Sweeper.Finish(ctx) // the mounts may have dropped shares when they ended
	d.host.Watch.Close()
	errs = append(errs, d.blobs.Close())
	d.memory.Close()
	return errors.Join(errs...)
}

// Shutdown unmounts all mounts, one after the other. At the first mount that cannot be unmounted, for example because
// it is busy, it stops and returns the error; mounts that were unmounted before stay unmounted.
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

// Ending reports whether Close was called.
func (d *Daemon) Ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Idle returns a channel that is closed when the daemon has no mounts. A mount that is being started counts as a mount.
// When the next mount is added, later calls return a new channel.
func (d *Daemon) Idle() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.idle
}

// add adds m to d.mounts and registers m as a user of its login. It returns false if another mount has the same
// directory. The caller holds d.mu.
func (d *Daemon) add(m *mount.Mount) bool {
	if _, taken := d.mounts[m.Dir]; taken {
		return false
	}
	if len(d.mounts) == 0 {
		d.idle = make(chan struct{})
	}
	m.Request.HoldLogin()
	d.mounts[m.Dir] = m
	d.limitMemory()
	return true
}

// mountMemory is the memory, in bytes, that the memory limit is raised by for each mount: about as much as an idle
// mount uses, mostly for buffers.
const mountMemory = 1 << 20

// limitMemory sets the memory limit of the Go runtime to that of the user plus mountMemory for each mount, because with
// a limit below the size of the live heap, the garbage collector would run continuously. It does nothing if the user
// has set no limit. The caller holds d.mu.
func (d *Daemon) limitMemory() {
	if d.memoryLimit < math.MaxInt64/2 { // math.MaxInt64 means that no limit is set
		debug.SetMemoryLimit(d.memoryLimit + int64(len(d.mounts))*mountMemory)
	}
}

// Remove removes m from the table of mounts. If m was the last mount, Remove closes the channel that Idle returns. The
// caller must not hold d.mu.
func (d *Daemon) Remove(m *mount.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounts, m.Dir)
	d.host.Remotes.Drop(m.Request)
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

// find returns the mount that contains the path dir: the mount whose directory is dir, or else the mount at the nearest
// directory above dir. dir must be absolute. It returns false if dir is not in a mount.
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
