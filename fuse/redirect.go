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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// redirects is the set of directories over which another directory is being mounted. Mounting starts as soon as such a
// directory is created, before any process can enter it. The reply to the MKDIR does not let the kernel cache the
// entry, so the next use of the path sends a LOOKUP, and that LOOKUP waits until the other directory is mounted. A
// LOOKUP by the thread that mounts does not wait, because mount(2) itself looks up the path.
type redirects struct {
	hook func(path string) (bind func() error, ok bool) // a copy of Options.Redirect; nil: no directory is redirected
	dir  string                                         // directory at which the tree is mounted
	log  *zap.Logger

	running atomic.Int32   // length of the map binding; if it is 0, a look-up needs no lock
	binds   sync.WaitGroup // waits for the goroutines that mount

	mu sync.Mutex
	// binding contains the directories that are being redirected, by name.
	binding map[place]*redirect
	threads map[uint32]bool // ids of the threads that mount, whose look-ups do not wait
}

// place is a name in a directory.
type place struct {
	dir  worktree.Node
	name string
}

// redirect is one directory over which another directory is being mounted.
type redirect struct {
	node     worktree.Node // node of the directory; set once the directory was created; protected by redirects.mu
	once     sync.Once
	lookedUp chan struct{} // closed by once when another process looks the name up
	done     chan struct{} // closed when bind has returned
}

const (
	// askAgain is the pause before bind is called again if bind has failed because the directory does not exist yet.
	askAgain = time.Millisecond
	// longestWait is the maximum time that a look-up waits for a directory that is being redirected. During the look-up
	// the kernel may hold locks that mounting needs, so without a limit all processes that use the path could hang.
	// After this time, the look-up returns the directory as it is without the redirect.
	longestWait = 5 * time.Second
)

// bindFor reports whether the new directory with this name in dir must be redirected. bind is the function that mounts,
// and the result at is the directory's path, relative to the root of the tree.
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

// mkdirRedirected creates a directory by calling mkdir, and starts bind, which mounts another directory over the new
// one. It does not wait for bind, because the kernel holds the lock of the parent until the reply. The reply forbids
// the kernel to cache the entry, so the kernel sends the next look-up, which then waits for bind.
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

// run calls bind once the kernel has processed the reply to the MKDIR, and then ends the redirect. It returns the error
// of bind.
func (r *redirects) run(p place, d *redirect, bind func() error, at string) error {
	defer r.end(p, d)
	noted := r.afterMkdir(at)
	return WithoutDevice(func() error {
		defer r.exempt(uint32(unix.Gettid()))()
		return d.bind(bind, noted)
	})
}

// exempt makes look-ups by a thread return without waiting for redirects, until the returned function is called. Two
// threads may mount at the same directory at the same time. One of them may then wait in the kernel until the other has
// mounted, so the look-ups of both threads must be answered without waiting.
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

// unfinished is a directory for which bind was not called, or had not returned, when the previous process ended.
type unfinished struct {
	place
	*redirect
	bind func() error // mounts another directory over this directory
	path string       // path of the directory, relative to the root of the tree
}

// remember records that the directories in list are being redirected, so that look-ups of them wait. It must be called
// before this process serves the mount. The caller passes the result to finish.
func (r *redirects) remember(t *worktree.Tree, list []worktree.Place) (found []unfinished) {
	for _, at := range list {
		p := place{at.Dir, at.Name}
		if bind, path, ok := r.bindFor(t, at.Dir, at.Name); ok {
			found = append(found, unfinished{p, r.begin(p), bind, path})
		}
	}
	return found
}

// finish calls bind for each of the directories that remember returned, in the background. Errors are logged.
func (r *redirects) finish(list []unfinished) {
	for _, u := range list {
		r.binds.Go(func() {
			if err := r.run(u.place, u.redirect, u.bind, u.path); err != nil {
				r.log.Error("redirect directory", zap.String("path", u.path), zap.Error(err))
			}
		})
	}
}

// Redirect calls bind for an existing directory and returns its error. Until bind returns, look-ups of the directory
// by other threads wait.
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

// afterMkdir returns a channel that is closed when the kernel has processed the reply to a MKDIR. Until then the kernel
// has the name cached as absent and sends no look-up for it, so mounting at that name would fail. To notice this
// moment, afterMkdir looks up a name in the parent that is too long to exist: mkdir(2) holds the lock of the parent
// until it has processed the reply, and look-ups of unknown names need the same lock (fs/namei.c, lookup_slow).
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

// The method bind calls the function bind when the kernel has processed the reply to the MKDIR (the channel noted is
// closed), or as soon as a process looks up the name. The channel alone would not suffice: the look-up may be part of
// another mkdir(2) of the same name, which holds the lock of the parent until the look-up is answered, so noted would
// never be closed. If that look-up was sent before the directory was created, mounting fails with ENOENT and is tried
// again.
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

// begin records that the directory p is being redirected, so that look-ups of p wait. The caller must call end.
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

// end records that the redirect d has ended, and wakes the look-ups that wait for it.
func (r *redirects) end(p place, d *redirect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding[p] == d { // the directory p may have been created again, with another redirect
		delete(r.binding, p)
	}
	r.running.Store(int32(len(r.binding)))
	close(d.done)
}

// wait returns when the name in dir is not being redirected. For a thread that mounts it returns immediately. mounting
// is true if the redirect is still in progress, which happens for such a thread and after longestWait; the kernel must
// then not cache the reply.
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
		case <-d.done: // check again, because another redirect of the name may have begun
		case <-late:
			return true, nil
		case <-w.Done():
			return false, w.Err()
		}
	}
	return false, nil
}

// busy reports whether a directory is being redirected. A listing must not contain the attributes of such a
// directory.
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

// idle returns nil when no directory is being redirected, or the error of ctx if ctx ends before.
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
