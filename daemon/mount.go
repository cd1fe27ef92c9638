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
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	flushTime = 10 * time.Second // for what processes wrote to a busy mount that ends

	namelessPrefix = "_" // of the id of a mount without a session; no session is named so
)

// mount is one working tree at one directory.
type mount struct {
	daemon  *Daemon
	id      string
	dir     string
	request control.MountRequest
	since   time.Time
	before  fetch.Stats // what the store had done when the mount began

	session string // "" if nothing is kept; the id of all others is the session's name
	resumed bool   // it was there already
	record  record // of the session

	otherOwner bool // than was asked for: a session's files keep theirs

	point   mountpoint
	home    *home
	store   *fetch.Store
	release func()
	local   *fetch.Local // what its git directory has
	snap    *fetch.Snapshot
	view    *fetch.View
	filters *filter.Programs
	tree    *worktree.Tree
	server  *fuse.Server
	git     stockGit

	redirects  redirects
	around     *mount // that this one is a submodule of; nil: it stands for itself
	submodules submodules

	abort context.CancelFunc // ends the start
	work  sync.WaitGroup     // behind the mount
	gone  chan struct{}      // closed when nothing of the mount is left

	// Closed when the first try is over, whether it went well or not.
	gitTried, historyTried, hydrateTried chan struct{}

	hurry atomic.Bool // a git command waits for history

	shown chan struct{} // holds one when another tree is shown than the one that was hydrated last

	mu       sync.Mutex
	state    control.State      // until it leaves preparing, the fields above belong to start alone
	aborted  bool               // somebody ended the start
	cancel   context.CancelFunc // ends the work behind the mount
	gitReady bool
	failures map[string]error // what behind the mount fails at present, by what was being done
	stopping bool
	discard  bool    // throw away the work at the end
	outcome  outcome // frozen once gone is closed
}

// Mount acquires and mounts. Whatever fails, or if ctx ends, nothing is left of it.
func (d *Daemon) Mount(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
	_, reply, err := d.mount(ctx, r, nil, progress)
	return reply, err
}

// mount is Mount, also of a submodule of the mount around it.
func (d *Daemon) mount(ctx context.Context, r control.MountRequest, around *mount, progress func(control.Progress)) (*mount, control.MountReply, error) {
	start := time.Now()
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	m, err := d.reserve(r, around, abort)
	if err != nil {
		return nil, control.MountReply{}, explain("mount", r.Dir, err)
	}
	reply, err := m.start(ctx, start, progress)
	if err == nil {
		if r.Submodules {
			m.submodules.enter(ctx)
		}
		m.greet(progress)
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
		return nil, control.MountReply{}, explainMount(m, err)
	}
	d.log.Info("mounted", zap.String("dir", m.dir), zap.String("remote", reply.Remote), zap.String("commit", reply.Commit),
		zap.Int64("total_ms", reply.Timings.Total))
	return m, reply, nil
}

// reserve takes a directory's place in the registry, so that it is mounted once.
func (d *Daemon) reserve(r control.MountRequest, around *mount, abort context.CancelFunc) (*mount, error) {
	id, dir := r.Session, filepath.Clean(r.Dir)
	if id == "" && !r.ReadOnly {
		id = SessionName(secretFree(r.Remote), dir)
	}
	session := id
	if session == "" {
		var random [4]byte
		rand.Read(random[:])
		id = namelessPrefix + hex.EncodeToString(random[:])
	}
	m := &mount{
		daemon: d, id: id, session: session, dir: dir, request: r, since: time.Now(), state: control.StatePreparing,
		around: around, abort: abort, gone: make(chan struct{}), failures: map[string]error{},
		gitTried: make(chan struct{}), historyTried: make(chan struct{}), hydrateTried: make(chan struct{}),
		shown: make(chan struct{}, 1),
	}
	m.redirects.mount, m.submodules.mount = m, m
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

// start brings the mount up to the point where its root directory is readable.
func (m *mount) start(ctx context.Context, start time.Time, progress func(control.Progress)) (control.MountReply, error) {
	var reply control.MountReply
	var err error
	if m.point, err = m.prepare(ctx); err != nil {
		return reply, err
	}
	if m.store, m.release, err = m.daemon.store(m.request); err != nil {
		return reply, err
	}
	m.before = m.store.Stats()
	progress(control.Progress{Phase: "connect"})
	if err = m.enter(ctx); err != nil {
		return reply, err
	}
	m.local = m.store.Lend(filepath.Join(m.gitPath(), "objects"))
	if err = m.acquire(ctx, progress); err != nil {
		return reply, err
	}
	m.filters = m.newFilters()
	m.view = m.store.View(m.snap, gitdir.CheckoutSettings(ctx, m.gitPath()), m.filters)
	m.showAgain()
	if err = m.open(); err != nil {
		return reply, err
	}
	progress(control.Progress{Phase: "trees"})
	rootReady := m.readRoot(ctx)
	if err = m.redirect(ctx); err != nil {
		return reply, err
	}
	if err = m.serve(); err != nil {
		return reply, err
	}
	mounted := time.Since(start)
	if m.writable() {
		if err = syncRecord(m.home.dir); err != nil {
			return reply, err
		}
		if os.Geteuid() == 0 {
			m.redirects.bindExisting(ctx)
		}
	}
	if err := <-rootReady; err != nil {
		return reply, remoteFault(err)
	}
	if !m.goBehind() {
		return reply, context.Canceled
	}
	return control.MountReply{
		Session: m.session, Resumed: m.resumed, Changed: m.changed(),
		ID: m.id, Dir: m.dir, Remote: m.store.URL(), Ref: shortRef(m.snap.Ref), Commit: m.snap.Commit.String(), Files: -1,
		Timings: control.Timings{
			Connect: m.snap.Connect.Milliseconds(), Tree: time.Since(start).Milliseconds(), Mounted: mounted.Milliseconds(),
		},
	}, nil
}

// redirect settles what is redirected before the kernel can make any of it.
func (m *mount) redirect(ctx context.Context) error {
	if !m.writable() {
		return nil
	}
	before := len(m.record.Redirects) + len(m.record.Configured)
	if err := m.redirects.plan(ctx); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		m.redirects.link(ctx)
	}
	if before+len(m.record.Redirects)+len(m.record.Configured) == 0 {
		return nil // as it was saved
	}
	return m.record.save(m.home.dir)
}

// serve gives the tree to the kernel.
func (m *mount) serve() error {
	o := fuse.Options{
		FsName: m.store.URL(), AllowOther: m.request.AllowOther, StatFS: m.daemon.state, Log: m.daemon.log.With(zap.String("mount", m.dir)),
		ReadOnly: m.request.ReadOnly, Await: m.awaitGit,
	}
	if m.writable() && os.Geteuid() == 0 && len(m.redirects.all) > 0 {
		o.Redirect = m.redirects.hook
	}
	var err error
	m.server, err = fuse.Mount(m.tree, m.dir, o)
	if err != nil && os.Geteuid() != 0 {
		err = fmt.Errorf("%w: %w", errUserMount, err)
	}
	return err
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
	if err := m.submodules.leave(ctx, force); err != nil {
		return err
	}
	if m.server != nil {
		if err := m.unserve(ctx, force); err != nil {
			m.submodules.again(ctx)
			return err
		}
	}
	m.finish()
	return nil
}

// unserve takes the mount from the kernel: first what is bound over its directories, then the mount itself.
func (m *mount) unserve(ctx context.Context, force bool) error {
	m.filters.Release() // they keep it busy
	err := m.redirects.unbind(false)
	if err == nil {
		err = m.server.Unmount(ctx)
	}
	if err == nil {
		return nil
	}
	if !force {
		m.redirects.rebind(ctx)
		return err
	}
	m.daemon.log.Warn("detaching busy mount", zap.String("dir", m.dir), zap.Error(err))
	m.flush()
	if err := m.redirects.unbind(true); err != nil {
		m.daemon.log.Warn("detach redirected directories", zap.String("dir", m.dir), zap.Error(err))
	}
	return m.server.Detach()
}

// flush has the kernel write what processes wrote to a mount that ends under them.
func (m *mount) flush() {
	done := make(chan error, 1)
	go func() {
		done <- fuse.WithoutDevice(func() error {
			fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Syncfs(fd)
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(flushTime):
		err = context.DeadlineExceeded
	}
	if err != nil {
		m.daemon.log.Warn("flush mount", zap.String("dir", m.dir), zap.Error(err))
	}
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
	if err := m.git.close(); err != nil {
		m.daemon.log.Warn("stop answering git", zap.String("dir", m.dir), zap.Error(err))
	}
	o := m.leave()
	if m.view != nil {
		m.filters.Close()
		m.view.Close()
	}
	if m.local != nil {
		if err := m.local.Close(); err != nil {
			m.daemon.log.Warn("close objects of git directory", zap.String("dir", m.dir), zap.Error(err))
		}
	}
	if m.release != nil {
		m.release()
	}
	m.mu.Lock()
	m.outcome = o
	m.mu.Unlock()
	m.point.remove()
	m.daemon.log.Info("unmounted", zap.String("dir", m.dir), zap.String("session", m.session), zap.Int64("kept", o.kept.changed))
	m.daemon.remove(m) // first: whoever waits may mount there again at once
	close(m.gone)
}

// Unmount ends the mount at a directory. Work that could not be settled is an error, though the mount is gone.
func (d *Daemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || m.dir != filepath.Clean(r.Dir) {
		return control.UnmountReply{}, notMounted("unmount", r.Dir)
	}
	m.setDiscard(r.Discard)
	if err := m.stop(ctx, false); err != nil {
		m.setDiscard(false)
		return control.UnmountReply{}, explain("unmount", m.dir, err)
	}
	m.mu.Lock()
	o := m.outcome
	m.mu.Unlock()
	if o.err != nil {
		return control.UnmountReply{}, &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir,
			Cause: "it is unmounted, and its work is kept, but not all of it could be written out: " + o.err.Error(),
			Hint:  "artifactfs doctor tells how it is"}
	}
	reply := control.UnmountReply{ID: m.id, Dir: m.dir, Submodules: m.submodules.settle(r.Discard)}
	if o.kept.any() {
		reply.Session, reply.Kept = m.session, o.kept.changed
	}
	return reply, nil
}

func (m *mount) setDiscard(discard bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.discard = discard
}

func shortRef(name string) string {
	for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return short
		}
	}
	return name
}
