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

// redirects are directories over which something else is mounted as soon as they are made, before anybody can look
// into them: their maker gets an entry that the kernel may not keep, so whoever goes there next makes it ask, and
// that LOOKUP waits until the mount is in place. Only the thread that mounts does not wait: its own way there makes
// the kernel ask as well.
type redirects struct {
	hook func(path string) (bind func() error, ok bool)
	dir  string // where the tree is mounted
	log  *zap.Logger

	running atomic.Int32   // len of binding: most look-ups need no lock
	binds   sync.WaitGroup // that run

	mu      sync.Mutex
	binding map[place]*redirect
	threads map[uint32]bool // that mount; several may be about the same place
}

// place is a name in a directory.
type place struct {
	dir  worktree.Node
	name string
}

type redirect struct {
	node  worktree.Node // the directory; guarded by redirects.mu
	once  sync.Once
	asked chan struct{} // closed by once when somebody else looks the name up
	done  chan struct{}
}

const (
	askAgain = time.Millisecond
	// longestWait bounds how long a look-up is kept from a directory that is being redirected. The kernel may hold locks
	// for it that mounting needs; better that one process sees the bare directory than that none goes on.
	longestWait = 5 * time.Second
)

// asked says whether a new directory is to be redirected, where it is from the root of the tree, and by what.
func (r *redirects) asked(t *worktree.Tree, dir worktree.Node, name string) (bind func() error, at string, ok bool) {
	if r.hook == nil {
		return nil, "", false
	}
	parent, err := t.Path(dir)
	if err != nil {
		return nil, "", false // it was removed; so the request will fail
	}
	at = path.Join(parent, name)
	bind, ok = r.hook(at)
	return bind, at, ok
}

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
		defer r.mounts(uint32(unix.Gettid()))()
		return d.bind(bind, noted)
	})
}

// mounts has the look-ups of a thread answered at once until the returned function is called. Whoever mounts for the
// same place may wait for the other, and must not wait here for what that one does.
func (r *redirects) mounts(thread uint32) (over func()) {
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

// unfinished is a directory that was made and for which bind was not called, or did not get to its end.
type unfinished struct {
	place
	*redirect
	bind func() error
	path string
}

// remember has everybody wait for these directories from now on. The kernel is not served yet.
func (r *redirects) remember(t *worktree.Tree, list []worktree.Place) (found []unfinished) {
	for _, at := range list {
		p := place{at.Dir, at.Name}
		if bind, path, ok := r.asked(t, at.Dir, at.Name); ok {
			found = append(found, unfinished{p, r.begin(p), bind, path})
		}
	}
	return found
}

// finish redirects them. Nobody waits for that.
func (r *redirects) finish(list []unfinished) {
	for _, u := range list {
		r.binds.Go(func() {
			if err := r.run(u.place, u.redirect, u.bind, u.path); err != nil {
				r.log.Error("redirect directory", zap.String("path", u.path), zap.Error(err))
			}
		})
	}
}

// Redirect calls bind for a directory that is there already, and waits for it. Others wait meanwhile as they do for one
// that was just made.
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

// afterMkdir gives what is closed when the kernel has taken note of a directory just made. Until then it knows the name
// as absent and would not ask us. mkdir(2) has the parent locked meanwhile, and so has who looks up a name there that
// the kernel cannot know (fs/namei.c, lookup_slow): it waits for mkdir. The name is one that no directory has.
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

// bind mounts when the kernel has taken note of the directory: it says so, or asks for the name. The latter may come
// from another mkdir(2) of the same name, which has the parent locked until we have answered it: who waited for the
// parent then would wait for ever. It may also come from before; then the name is not found yet.
func (d *redirect) bind(bind func() error, noted <-chan struct{}) error {
	select {
	case <-noted:
		return bind()
	case <-d.asked:
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

func (r *redirects) begin(p place) *redirect {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding == nil {
		r.binding = make(map[place]*redirect)
	}
	d := &redirect{asked: make(chan struct{}), done: make(chan struct{})}
	r.binding[p] = d
	r.running.Store(int32(len(r.binding)))
	return d
}

func (r *redirects) end(p place, d *redirect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding[p] == d { // not another that was made since in its place
		delete(r.binding, p)
	}
	r.running.Store(int32(len(r.binding)))
	close(d.done)
}

// wait waits until a name is no directory that something is just being mounted over. For a thread that mounts it
// says true instead: what that is shown, the kernel must not keep for others.
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
		d.once.Do(func() { close(d.asked) })
		if late == nil {
			timer := time.NewTimer(longestWait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-d.done: // there may be another that was begun since
		case <-late:
			return true, nil
		case <-w.Done():
			return false, w.Err()
		}
	}
	return false, nil
}

// busy says whether something is just being mounted over a directory, which a listing must not show to the kernel.
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

// idle returns when nothing is just being mounted.
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
