package fuse

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// redirects are directories over which something is mounted as soon as they are created, before any
// process can enter them. The reply to the MKDIR forbids the kernel to cache the entry, so the
// next use of the path sends a LOOKUP, which waits until the mount is in place. Only the thread
// that mounts does not wait: its own path look-up sends a LOOKUP too.
type redirects struct {
	hook func(path string) (bind func() error, ok bool) // Options.Redirect
	dir  string                                         // the mount point of the tree
	log  *zap.Logger

	running atomic.Int32   // len of binding, so that most look-ups need no lock
	binds   sync.WaitGroup // binds in progress

	mu      sync.Mutex
	binding map[place]*redirect
	threads map[uint32]bool // threads that mount; several may mount at the same place
}

// place is a name in a directory.
type place struct {
	dir  worktree.Node
	name string
}

// redirect is a directory over which another one is being mounted.
type redirect struct {
	node     worktree.Node // the directory; guarded by redirects.mu
	once     sync.Once
	lookedUp chan struct{} // closed by once when another process looks the name up
	done     chan struct{} // closed when bind has returned
}

const (
	// askAgain is the pause before bind is called again for a name that does not exist yet.
	askAgain = time.Millisecond
	// longestWait bounds how long a look-up waits for a directory that is being redirected. The
	// kernel may hold locks for the look-up that mounting needs. Better that one process sees the
	// bare directory than that all of them hang.
	longestWait = 5 * time.Second
)

// bindFor reports whether a new directory is to be redirected, with its path from the root of the
// tree and the function that mounts.
func (r *redirects) bindFor(t *worktree.Tree, dir worktree.Node, name string) (bind func() error, at string, ok bool) {
	if r.hook == nil {
		return nil, "", false
	}
	parent, err := t.Path(dir)
	if err != nil {
		return nil, "", false // the directory was removed, so the request will fail
	}
	at = path.Join(parent, name)
	bind, ok = r.hook(at)
	return bind, at, ok
}

// mkdirRedirected creates a directory and starts bind, which mounts another one over it. It does not
// wait for the mount: the kernel must not cache the reply, and the next look-up waits instead.
func (f *writable) mkdirRedirected(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut,
	mkdir func(*waiter, worktree.Cred) (worktree.Attr, error), bind func() error, at string,
) raw.Status {
	r, p := &f.redirects, place{worktree.Node(in.NodeId), strings.Clone(name)}
	d := r.begin(p)
	status := f.make(opMkdir, cancel, &in.InHeader, in.Umask, name, out, mkdir)
	if status != raw.OK {
		r.end(p, d)
		return status
	}
	out.SetEntryTimeout(0)
	r.mu.Lock()
	d.node = worktree.Node(out.NodeId)
	r.mu.Unlock()
	r.binds.Go(func() {
		if err := r.run(p, d, bind, at); err != nil {
			r.log.Error("redirect directory", zap.String("path", at), zap.Error(err))
		}
	})
	return raw.OK
}

// run calls bind and ends the redirect.
func (r *redirects) run(p place, d *redirect, bind func() error, at string) error {
	defer r.end(p, d)
	noted := r.afterMkdir(at)
	return WithoutDevice(func() error {
		defer r.exempt(uint32(unix.Gettid()))()
		return d.bind(bind, noted)
	})
}

// exempt makes look-ups of a thread return at once until over is called. A thread that mounts at
// the same place as another may wait for that one in the kernel, and must not wait here too.
func (r *redirects) exempt(thread uint32) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.threads == nil {
		r.threads = make(map[uint32]bool)
	}
	r.threads[thread] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.threads, thread)
	}
}

// unfinished is a directory for which bind was not called, or did not return, before the previous
// process ended.
type unfinished struct {
	place
	*redirect
	bind func() error
	path string
}

// remember makes look-ups of these directories wait from now on. The mount is not served yet.
func (r *redirects) remember(t *worktree.Tree, list []worktree.Place) (found []unfinished) {
	for _, at := range list {
		p := place{at.Dir, at.Name}
		if bind, path, ok := r.bindFor(t, at.Dir, at.Name); ok {
			found = append(found, unfinished{p, r.begin(p), bind, path})
		}
	}
	return found
}

// finish redirects them in the background.
func (r *redirects) finish(list []unfinished) {
	for _, u := range list {
		r.binds.Go(func() {
			if err := r.run(u.place, u.redirect, u.bind, u.path); err != nil {
				r.log.Error("redirect directory", zap.String("path", u.path), zap.Error(err))
			}
		})
	}
}

// Redirect calls bind for an existing directory and returns its result. Look-ups wait meanwhile as
// they do for a new directory.
func (s *Server) Redirect(at worktree.Place, bind func() error) error {
	r, p := s.redirects, place{at.Dir, at.Name}
	parent, err := s.fs.tree.Path(at.Dir)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	d := r.begin(p)
	r.binds.Go(func() { done <- r.run(p, d, bind, path.Join(parent, at.Name)) })
	return <-done
}

// afterMkdir returns a channel that is closed when the kernel has seen the reply to a mkdir. Until
// then it knows the name as absent and sends no look-ups. mkdir(2) holds the lock of the parent
// meanwhile, as do look-ups of names there that the kernel does not know (fs/namei.c, lookup_slow):
// so a look-up of a name that cannot exist waits for the mkdir.
func (r *redirects) afterMkdir(at string) (noted <-chan struct{}) {
	done := make(chan struct{})
	r.binds.Go(func() {
		defer close(done)
		_ = WithoutDevice(func() error {
			var st unix.Stat_t
			return unix.Lstat(filepath.Join(r.dir, path.Dir(at), strings.Repeat("x", object.MaxNameLen+1)), &st)
		})
	})
	return done
}

// bind mounts once the kernel has seen the reply to the mkdir, or looks the name up. That look-up
// may belong to another mkdir(2) of the same name, which holds the lock of the parent until it is
// answered, so waiting for the parent would never end. It may also have been sent before the reply;
// the name is then not found yet.
func (d *redirect) bind(bind func() error, noted <-chan struct{}) error {
	select {
	case <-noted:
		return bind()
	case <-d.lookedUp:
	}
	for {
		err := bind()
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		select {
		case <-noted:
			return bind()
		case <-time.After(askAgain):
		}
	}
}

// begin records that the directory at p is being redirected, so that look-ups of it wait.
func (r *redirects) begin(p place) *redirect {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding == nil {
		r.binding = make(map[place]*redirect)
	}
	d := &redirect{lookedUp: make(chan struct{}), done: make(chan struct{})}
	r.binding[p] = d
	r.running.Store(int32(len(r.binding)))
	return d
}

// end wakes the look-ups that wait for d.
func (r *redirects) end(p place, d *redirect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding[p] == d { // not another one that was created since
		delete(r.binding, p)
	}
	r.running.Store(int32(len(r.binding)))
	close(d.done)
}

// wait waits until a name is not being redirected. For a thread that mounts there it returns true
// at once: the kernel must not cache that reply for others.
func (r *redirects) wait(w *waiter, dir worktree.Node, name string) (mounting bool, err error) {
	var late <-chan time.Time
	for r.running.Load() > 0 {
		r.mu.Lock()
		d, ok := r.binding[place{dir, name}]
		mounts := r.threads[w.pid]
		r.mu.Unlock()
		if !ok || mounts {
			return ok, nil
		}
		d.once.Do(func() { close(d.lookedUp) })
		if late == nil {
			timer := time.NewTimer(longestWait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-d.done: // another redirect may have begun since
		case <-late:
			return true, nil
		case <-w.Done():
			return false, w.Err()
		}
	}
	return false, nil
}

// busy reports whether a directory is being redirected, so that a listing must not show it to the
// kernel.
func (r *redirects) busy(n worktree.Node) bool {
	if r.running.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.binding {
		if d.node == n {
			return true
		}
	}
	return false
}

// idle waits until no directory is being redirected.
func (r *redirects) idle(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.binds.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
