// Package daemon serves mounts: it joins a remote's store, a namespace and the kernel into a mount, keeps the
// registry of what is mounted, and starts and stops all of it in order.
//
// One process holds any number of mounts. Mounts of one remote share a store; all stores share the cache of
// contents on disk and the memory budget.
//
// Lock order: Daemon.mu, then mount.mu; neither is held across network, disk or kernel waits.
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
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
)

// What a request that leaves it open gets.
const (
	DefaultCacheSize = 20 << 30  // bytes of contents on disk
	DefaultBudget    = 256 << 20 // content bytes that prefetch auto brings for one mount
	DefaultDeadline  = time.Minute
)

const (
	memoryBudget = 24 << 20 // bytes of parsed trees and small contents in memory
	retries      = 3
)

// Config is the configuration of a daemon.
type Config struct {
	State string // directory, see DESIGN: stores/, mounts/, blobs/
	Log   *zap.Logger

	Keeper    takeover.Keeper // nil: mounts end with this process
	Kept      []keeper.Kept   // files that a predecessor has kept
	Reason    string          // why the predecessor ended; "": there was none
	Takeovers int             // number of predecessors since the mounts began
}

// remove takes a file out of what was kept; nil: there is none of that name.
func (c *Config) take(name string) *os.File {
	at := slices.IndexFunc(c.Kept, func(k keeper.Kept) bool { return k.Name == name })
	if at < 0 {
		return nil
	}
	f := c.Kept[at].File
	c.Kept = slices.Delete(slices.Clone(c.Kept), at, at+1)
	return f
}

// Daemon implements control.Handler.
type Daemon struct {
	state   string
	log     *zap.Logger
	sampled *zap.Logger // the same, for what requests may say very often
	homes   statedir.Homes

	keeper   takeover.Keeper // nil: mounts end with this process
	failures statedir.Failures
	departed departed
	watch    *watcher

	ctx      context.Context // of what goes on behind; ends with Close
	end      context.CancelFunc
	behind   sync.WaitGroup
	creating sync.Mutex     // held while a command creates a session remote
	served   chan struct{}  // closed when the kernel has an answer for all of these that are not suspect
	resuming sync.WaitGroup // mounts of another process that are being taken over

	memory *cache.Memory
	blobs  *cache.Blobs

	ahead     transport.Ahead
	latencies fuse.Latencies // of all mounts
	taken     int            // processes before this one whose mounts went on

	readers     fetch.Readers
	turns       turns
	memoryLimit int64 // of the process without mounts, in bytes

	mu     sync.Mutex
	closed bool
	unfit  error // a mount is there that this version cannot serve
	stores map[storeKey]*sharedStore
	mounts map[string]*mount // by directory
	idle   chan struct{}     // closed while there is no mount
}

// sharedStore is a store with the number of mounts that use it.
type sharedStore struct {
	*fetch.Store
	users  int
	opened chan struct{} // closed when Store or err is set
	err    error
	leave  func() // lets other processes remove it
}

var _ control.Handler = (*Daemon)(nil)

// New opens the state directory, creates it if it is missing, and begins to take over the mounts of a predecessor. The caller calls
// Close.
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
	d := &Daemon{
		state: c.State, log: c.Log, sampled: fuse.Sampled(c.Log), homes: statedir.Homes{State: c.State, Log: c.Log}, memory: memory, blobs: blobs,
		keeper: c.Keeper, failures: statedir.Failures{State: c.State, Log: c.Log}, watch: newWatcher(c.Keeper, c.take(keptWatch)), served: make(chan struct{}),
		stores: map[storeKey]*sharedStore{}, mounts: map[string]*mount{}, idle: idle, taken: c.Takeovers,
		turns: turns{turn: make(chan struct{}, 1)},
	}
	d.memoryLimit = debug.SetMemoryLimit(-1)
	d.ctx, d.end = context.WithCancel(context.Background())
	if len(c.Kept) > 0 {
		d.log.Info("took over the mounts", zap.String("reason", c.Reason), zap.Int("takeovers", c.Takeovers), zap.Int("kept", len(c.Kept)))
		d.takeOverAll(c.Kept)
		d.behind.Go(func() { // the kernel first
			d.resuming.Wait()
			if err := d.homes.RemoveLeftovers(); err != nil {
				d.log.Warn("look for what killed processes left", zap.Error(err))
			}
		})
		return d, nil
	}
	if err := d.homes.RemoveLeftovers(); err != nil {
		return nil, errors.Join(fmt.Errorf("open state directory: %w", err), d.Close(context.Background()))
	}
	d.behind.Go(func() { d.expire(d.ctx, time.Now()) })
	return d, nil
}

// Close unmounts everything and releases what the daemon holds. Busy mounts are detached: none is left without a process that
// serves it.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	var mounts []*mount
	for _, m := range d.mounts {
		mounts = append(mounts, m)
	}
	d.mu.Unlock()
	d.end()
	errs := make([]error, len(mounts), len(mounts)+2)
	errs = append(errs, d.Resumed(ctx))
	var all sync.WaitGroup
	for i, m := range mounts {
		if m.parent == nil { // submodules end with the mount around them
			all.Go(func() { errs[i] = m.stop(ctx, true) })
		}
	}
	all.Wait()
	d.behind.Wait()
	d.watch.close()
	errs = append(errs, d.blobs.Close())
	d.memory.Close()
	return errors.Join(errs...)
}

// Shutdown unmounts everything. It stops at the first busy mount and returns it as the error.
func (d *Daemon) Shutdown(ctx context.Context) error {
	if err := d.Resumed(ctx); err != nil {
		return fault.Explain("shut down", "daemon", err)
	}
	for _, m := range d.list() {
		if err := m.stop(ctx, false); err != nil {
			return fault.Explain("unmount", m.dir, err)
		}
		d.unregister(m)
	}
	return nil
}

// Idle returns a channel that is closed while there is no mount and none is being made. After a new mount it returns another channel.
func (d *Daemon) Idle() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.idle
}

// add adds a mount to the registry. It returns false if another mount has the directory. The caller holds mu.
func (d *Daemon) add(m *mount) bool {
	if _, taken := d.mounts[m.dir]; taken {
		return false
	}
	if len(d.mounts) == 0 {
		d.idle = make(chan struct{})
	}
	m.login = d.loginFor(givenFor(m.request.Remote, string(m.request.Token), m.request.TokenFile))
	d.mounts[m.dir] = m
	d.limitMemory()
	return true
}

// mountMemory is what an idle mount has in memory, in bytes, most of it buffers that are hardly ever touched.
const mountMemory = 1 << 20

// limitMemory lets the heap grow with the number of mounts: at a limit below what is alive the collector runs all the time. The
// caller holds mu.
func (d *Daemon) limitMemory() {
	if d.memoryLimit < math.MaxInt64/2 { // there is one
		debug.SetMemoryLimit(d.memoryLimit + int64(len(d.mounts))*mountMemory)
	}
}

func (d *Daemon) remove(m *mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounts, m.dir)
	d.limitMemory()
	if len(d.mounts) == 0 {
		close(d.idle)
	}
}

func (d *Daemon) list() []*mount {
	d.mu.Lock()
	defer d.mu.Unlock()
	var mounts []*mount
	for _, m := range d.mounts {
		mounts = append(mounts, m)
	}
	sort.Slice(mounts, func(i, j int) bool { return mounts[i].dir < mounts[j].dir })
	return mounts
}

// find returns the mount at a directory or at the nearest one above it.
func (d *Daemon) find(dir string) (*mount, bool) {
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

// storeKey is what mounts that share a store have in common: everything that the store was opened with.
type storeKey struct {
	dir, remote string
	login       *login
	env         string
	timeout     time.Duration
}

// store returns the store of a mount's remote, which it opens if no other mount has. The caller calls release once.
func (d *Daemon) store(m *mount) (s *fetch.Store, release func(), err error) {
	r := m.request
	deadline := r.Timeout
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	remote, err := transport.Open(r.Remote, transport.Options{
		Login: m.login.Login, Env: environment(r), Retries: retries, Log: d.log, Stall: r.Timeout, Patience: deadline, Ahead: &d.ahead,
	})
	if err != nil {
		return nil, nil, err
	}
	if r.CacheSize > 0 {
		d.blobs.SetQuota(r.CacheSize)
	}
	dir := statedir.StoreName(remote.URL())
	key := storeKey{dir, r.Remote, m.login, environment(r).Fingerprint(), r.Timeout}
	d.mu.Lock()
	shared, ok := d.stores[key]
	if !ok {
		shared = &sharedStore{opened: make(chan struct{})}
		d.stores[key] = shared
	}
	shared.users++
	d.mu.Unlock()
	release = func() { d.release(key, shared) }
	if ok {
		remote.Close()
		<-shared.opened
	} else {
		path := filepath.Join(d.state, "stores", dir)
		if shared.leave, shared.err = statedir.HoldStore(path); shared.err == nil {
			shared.Store, shared.err = fetch.Open(fetch.Config{
				Dir: path, Remote: remote, Blobs: d.blobs, Memory: d.memory, Readers: &d.readers,
				Deadline: deadline, Env: environment(r), Credential: stockCredential(givenFor(r.Remote, "", ""), m.login.Login), Log: d.log.With(zap.String("remote", remote.URL())),
			})
		}
		close(shared.opened)
	}
	if shared.err != nil {
		release()
		return nil, nil, shared.err
	}
	shared.Forgive() // a new mount tries again at once
	return shared.Store, release, nil
}

func (d *Daemon) release(key storeKey, shared *sharedStore) {
	d.mu.Lock()
	shared.users--
	last := shared.users == 0
	if last {
		delete(d.stores, key)
	}
	d.mu.Unlock()
	if last && shared.Store != nil {
		if err := shared.Close(); err != nil {
			d.log.Warn("close store", zap.Error(err))
		}
	}
	if last && shared.leave != nil {
		shared.leave()
	}
}
