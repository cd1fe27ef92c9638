package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/worktree"
)

// mount is one working tree at one directory.
type mount struct {
	daemon  *Daemon
	id      string
	dir     string
	request control.MountRequest
	since   time.Time
	before  fetch.Stats // what the store had done when the mount began

	point   mountpoint
	unlock  func() // of home
	store   *fetch.Store
	release func()
	snap    *fetch.Snapshot
	view    *fetch.View
	tree    *worktree.Tree
	server  *fuse.Server

	abort context.CancelFunc // ends the start
	work  sync.WaitGroup     // behind the mount
	gone  chan struct{}      // closed when nothing of the mount is left

	// Closed when the first try is over, whether it went well or not.
	gitTried, historyTried, hydrateTried chan struct{}

	mu       sync.Mutex
	state    control.State      // until it leaves preparing, the fields above belong to start alone
	aborted  bool               // somebody ended the start
	cancel   context.CancelFunc // ends the work behind the mount
	gitReady bool
	failures map[string]error // what behind the mount fails at present, by what was being done
	stopping bool
}

// Mount acquires and mounts. Whatever fails, or if ctx ends, nothing is left of it.
func (d *Daemon) Mount(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
	start := time.Now()
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	m, err := d.reserve(r, abort)
	if err != nil {
		return control.MountReply{}, explain("mount", r.Dir, err)
	}
	reply, err := m.start(ctx, start, progress)
	if err == nil {
		for _, note := range m.store.Stats().Notices {
			progress(control.Progress{Message: note})
		}
		err = m.await(ctx, progress)
		reply.Timings.Total = time.Since(start).Milliseconds()
		if snap := m.snapshot(); snap != nil && snap.Whole() {
			reply.Timings.Trees = snap.Took().Milliseconds()
			if r.Wait != control.WaitTree {
				reply.Files = int64(m.view.Hydration(ctx).Files)
			}
		}
	}
	if err != nil {
		if ctx.Err() != nil { // whatever else went wrong, this is why
			err = ctx.Err()
		}
		if stopErr := m.takeDown(context.WithoutCancel(ctx), true); stopErr != nil {
			d.log.Warn("undo mount", zap.String("dir", m.dir), zap.Error(stopErr))
		}
		return control.MountReply{}, explainMount(m, err)
	}
	d.log.Info("mounted", zap.String("dir", m.dir), zap.String("remote", reply.Remote), zap.String("commit", reply.Commit),
		zap.Int64("total_ms", reply.Timings.Total))
	return reply, nil
}

// reserve takes a directory's place in the registry, so that it is mounted once.
func (d *Daemon) reserve(r control.MountRequest, abort context.CancelFunc) (*mount, error) {
	var id [4]byte
	rand.Read(id[:])
	m := &mount{
		daemon: d, id: hex.EncodeToString(id[:]), dir: filepath.Clean(r.Dir), request: r, since: time.Now(), state: control.StatePreparing,
		abort: abort, gone: make(chan struct{}), failures: map[string]error{},
		gitTried: make(chan struct{}), historyTried: make(chan struct{}), hydrateTried: make(chan struct{}),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the daemon is shutting down")
	}
	if !d.add(m) {
		return nil, errAlreadyMounted
	}
	return m, nil
}

// home is the mount's own directory below the state directory.
func (m *mount) home() string { return filepath.Join(m.daemon.homes(), m.id) }

// start brings the mount up to the point where its root directory is readable.
func (m *mount) start(ctx context.Context, start time.Time, progress func(control.Progress)) (control.MountReply, error) {
	var reply control.MountReply
	var err error
	if m.point, err = prepareMountpoint(ctx, m.dir); err != nil {
		return reply, err
	}
	if m.store, m.release, err = m.daemon.store(m.request); err != nil {
		return reply, err
	}
	m.before = m.store.Stats()
	progress(control.Progress{Phase: "connect"})
	if m.snap, err = m.store.Acquire(ctx, m.request.Ref); err != nil {
		return reply, remoteFault(err)
	}
	m.view = m.store.View(m.snap, gitdir.CheckoutSettings(ctx))
	if m.unlock, err = m.daemon.makeHome(m.home()); err != nil {
		return reply, err
	}
	m.tree, err = worktree.Open(filepath.Join(m.home(), "inodes"), source{m.view}, worktree.Options{
		Root: m.snap.Tree, Time: m.snap.Time, UID: m.request.UID, GID: m.request.GID,
	})
	if err != nil {
		return reply, err
	}
	progress(control.Progress{Phase: "trees"})
	rootReady := m.readRoot(ctx)
	m.server, err = fuse.Mount(m.tree, m.dir, fuse.Options{
		FsName: m.store.URL(), AllowOther: m.request.AllowOther, StatFS: m.daemon.state, Log: m.daemon.log.With(zap.String("mount", m.dir)),
	})
	if err != nil && os.Geteuid() != 0 {
		err = fmt.Errorf("%w: %w", errUserMount, err)
	}
	if err != nil {
		return reply, err
	}
	mounted := time.Since(start)
	if err := <-rootReady; err != nil {
		return reply, remoteFault(err)
	}
	if !m.goBehind() {
		return reply, context.Canceled
	}
	return control.MountReply{
		ID: m.id, Dir: m.dir, Remote: m.store.URL(), Ref: shortRef(m.snap.Ref), Commit: m.snap.Commit.String(), Files: -1,
		Timings: control.Timings{
			Connect: m.snap.Connect.Milliseconds(), Tree: time.Since(start).Milliseconds(), Mounted: mounted.Milliseconds(),
		},
	}, nil
}

// readRoot reads the root tree beside the kernel's mount.
func (m *mount) readRoot(ctx context.Context) <-chan error {
	ready := make(chan error, 1)
	go func() {
		_, err := m.view.Tree(ctx, m.snap.Tree)
		ready <- err
	}()
	return ready
}

// await blocks until what the request waits for is there.
func (m *mount) await(ctx context.Context, progress func(control.Progress)) error {
	var waitFor []<-chan struct{}
	if m.request.Wait != control.WaitTree {
		waitFor = append(waitFor, m.gitTried)
	}
	if m.request.History == control.HistoryFull {
		waitFor = append(waitFor, m.historyTried)
	}
	if m.request.Wait == control.WaitAll {
		waitFor = append(waitFor, m.historyTried, m.hydrateTried)
	}
	for _, ch := range waitFor {
		if err := m.awaitOne(ctx, ch, progress); err != nil {
			return err
		}
	}
	if len(waitFor) > 0 {
		return m.failure()
	}
	return nil
}

func (m *mount) awaitOne(ctx context.Context, ch <-chan struct{}, progress func(control.Progress)) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-m.gone:
			return errors.New("unmounted meanwhile")
		case <-tick.C:
			progress(m.step(ctx))
		}
	}
}

// step says what the mount is busy with.
func (m *mount) step(ctx context.Context) control.Progress {
	if snap := m.snapshot(); !snap.Whole() {
		n, _ := snap.Arrived()
		return control.Progress{Phase: "trees", Done: n, Unit: "objects"}
	}
	select {
	case <-m.hydrateTried:
		st := m.store.Stats()
		return control.Progress{Phase: "history", Done: st.BytesIn - m.before.BytesIn, Unit: "bytes"}
	default:
		h := m.view.Hydration(ctx)
		return control.Progress{Phase: "hydrate", Done: int64(h.Hydrated), Total: int64(h.Blobs), Unit: "blobs"}
	}
}

// stop unmounts. A busy mount is an error that changes nothing, unless force detaches it. One that is being
// prepared is told to give up, and whoever prepares it takes it down.
func (m *mount) stop(ctx context.Context, force bool) error {
	m.mu.Lock()
	preparing := m.state == control.StatePreparing
	m.aborted = m.aborted || preparing
	m.mu.Unlock()
	if !preparing {
		return m.takeDown(ctx, force)
	}
	m.abort()
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDown unmounts a mount that is not, or no longer, being prepared by somebody else.
func (m *mount) takeDown(ctx context.Context, force bool) error {
	if m.server != nil {
		if err := m.server.Unmount(ctx); err != nil {
			if !force {
				return err
			}
			m.daemon.log.Warn("detaching busy mount", zap.String("dir", m.dir), zap.Error(err))
			if err := m.server.Detach(); err != nil {
				return err
			}
		}
	}
	m.finish()
	return nil
}

// finish takes down everything behind a mount that the kernel no longer has. Several may call it; all return
// when it is done.
func (m *mount) finish() {
	m.mu.Lock()
	if m.stopping {
		m.mu.Unlock()
		<-m.gone
		return
	}
	m.stopping, m.state = true, control.StateUnmounted
	cancel := m.cancel
	m.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	m.work.Wait()
	if m.view != nil {
		m.view.Close() // whoever still waits for an object of a detached mount
	}
	if m.tree != nil {
		if err := m.tree.Close(); err != nil {
			m.daemon.log.Warn("close inode table", zap.Error(err))
		}
	}
	if m.release != nil {
		m.release()
	}
	if m.unlock != nil {
		os.RemoveAll(m.home())
		m.unlock()
	}
	m.point.remove()
	m.daemon.log.Info("unmounted", zap.String("dir", m.dir))
	m.daemon.remove(m) // first: whoever waits may mount there again at once
	close(m.gone)
}

// Unmount ends the mount at a directory.
func (d *Daemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || m.dir != filepath.Clean(r.Dir) {
		return control.UnmountReply{}, notMounted("unmount", r.Dir)
	}
	if err := m.stop(ctx, false); err != nil {
		return control.UnmountReply{}, explain("unmount", m.dir, err)
	}
	return control.UnmountReply{ID: m.id, Dir: m.dir}, nil
}

func shortRef(name string) string {
	for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return short
		}
	}
	return name
}
