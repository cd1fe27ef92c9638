package bind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// A redirect is a path of a mount whose files are stored in a plain directory, the backing, in the home of the mount.
// Redirects are meant for large amounts of files that commands can create again, such as node_modules. Accesses to
// these files cause no request to this process, and the files are removed with the mount.
//
// If this process runs as root, it bind-mounts the backing over the directory as soon as a process creates that
// directory. Otherwise it creates a symbolic link to the backing when it mounts. The directory or link is called the
// placeholder. The placeholder is in the overlay, but does not count as a change of the user, and is removed with the
// mount. The session's record lists the placeholder, so that the next mount can remove it if this process is killed.

// Server is the part of package fuse with which a directory is looked up and mounted over while other lookups of the
// directory wait.
type Server interface {
	// Redirect calls the function bind and returns its error. While bind runs, lookups of the directory at this place
	// wait, except for those of the thread that runs bind.
	Redirect(at worktree.Place, bind func() error) error
}

// Redirects has the redirects of one mount. The zero value has none.
//
// Plan, TakeOver, Link and Remove must be called while the kernel does not have the mount. The other methods may be
// called from any goroutine.
type Redirects struct {
	o Options
	// all has every redirect of the mount. Plan or TakeOver sets it, and it does not change afterwards.
	all []*redirect

	noteMu sync.Mutex
	notes  []string // messages about paths that could not be redirected; protected by noteMu

	// mu is held shared while a backing is bind-mounted, and exclusively while a backing is unmounted. Both operations may
	// cause requests to this process, but the handlers of these requests do not acquire mu. Two backings may be
	// bind-mounted at the same time, because the kernel may hold the lock of one directory while it mounts over another.
	mu sync.RWMutex
	// ending is whether Unbind was called, so that no new bind mounts are created; protected by mu.
	ending bool
}

// Options describes the mount to which Redirects belong.
type Options struct {
	Dir   string         // directory of the mount
	Home  string         // home of the mount
	ID    string         // name of the home
	Tree  *worktree.Tree // working tree of the mount
	Owner worktree.Cred  // owner of symbolic links
	// Writable is whether programs may change the working tree.
	Writable bool
	Log      *zap.Logger
}

// redirect is one redirect, with its state.
type redirect struct {
	statedir.Redirect
	mu sync.Mutex // serializes binds; locked after Redirects.mu
	// active is whether the backing is mounted over the directory, or the symbolic link exists.
	active atomic.Bool
}

// dir returns the path of the directory that contains all backings.
func (r *Redirects) dir() string { return filepath.Join(r.o.Home, "redirect") }

// backing returns the path of a redirect's backing, the directory that stores its files.
func (r *Redirects) backing(d statedir.Redirect) string { return filepath.Join(r.dir(), d.Backing) }

// Paths returns the paths of the redirects that are in effect, whose files change without a request to this process.
// Each path ends in a slash, as in replies to git's fsmonitor queries.
func (r *Redirects) Paths() []string {
	var dirs []string
	for _, d := range r.all {
		if d.active.Load() {
			dirs = append(dirs, d.Path+"/")
		}
	}
	return dirs
}

// Any reports whether the mount has redirects.
func (r *Redirects) Any() bool { return len(r.all) > 0 }

// Notes returns one message for each path that could not be redirected, with the reason.
func (r *Redirects) Notes() []string {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	return slices.Clone(r.notes)
}

// Note adds a message to the result of Notes. format and args are those of fmt.Sprintf.
func (r *Redirects) Note(format string, args ...any) {
	r.noteMu.Lock()
	defer r.noteMu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// Wish describes which redirects a mount should have.
type Wish struct {
	Paths  []string // paths to redirect, relative to the root of the mount
	Strict bool     // whether Plan returns an error, instead of adding a note, for a path that cannot be redirected
	// Old lists the redirects of the previous mount of the session.
	Old []statedir.Redirect
	// Base returns the entries of the tree id of a directory of the base tree. Paths in the base tree cannot be
	// redirected.
	Base func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	Root object.ID // ID of the root of the base tree
}

// Plan determines which paths are redirected, and returns the redirects for the session's record. It removes the
// placeholders and backings of an earlier mount of the session that this mount does not need. If w.Strict is set, Plan
// returns a *control.Error for a path that cannot be redirected.
func (r *Redirects) Plan(ctx context.Context, o Options, w Wish) ([]statedir.Redirect, error) {
	r.o = o
	for _, p := range w.Paths {
		err := r.possible(ctx, w, p)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && w.Strict:
			return nil, &control.Error{Code: control.ExitUsage, Verb: "redirect", Object: p, Cause: err.Error(),
				Hint: "pass a path to --redirect at which the repository has no files"}
		case err != nil:
			r.Note("%s is not redirected: %v", p, err)
			continue
		}
		r.all = append(r.all, &redirect{Redirect: statedir.Redirect{Path: p, Backing: nextBacking(w.Old, r.all, p)}})
	}
	for _, d := range w.Old {
		if !slices.ContainsFunc(r.all, func(n *redirect) bool { return n.Redirect == d }) {
			r.clear(ctx, d)
		} else if attr, err := r.attr(ctx, d.Path); err == nil && attr.Mode&unix.S_IFMT == unix.S_IFLNK {
			r.clearPlaceholder(ctx, d) // an earlier process without the right to bind-mount has created the link
		}
	}
	var record []statedir.Redirect
	for _, d := range r.all {
		record = append(record, d.Redirect)
	}
	return record, nil
}

// nextBacking returns the name of the backing of path: that of the previous mount or, if path is new, the first unused
// name.
func nextBacking(old []statedir.Redirect, taken []*redirect, path string) string {
	used := map[string]bool{}
	for _, d := range old {
		if d.Path == path {
			return d.Backing
		}
		used[d.Backing] = true
	}
	for _, d := range taken {
		used[d.Backing] = true
	}
	for n := 0; ; n++ {
		if name := strconv.Itoa(n); !used[name] {
			return name
		}
	}
}

// possible returns nil if the path p can be redirected. Otherwise it returns the reason: the path exists in the base
// tree, a file has the path of a parent directory, or the path overlaps another redirect.
func (r *Redirects) possible(ctx context.Context, w Wish, p string) error {
	for _, d := range r.all {
		if p == d.Path || strings.HasPrefix(p, d.Path+"/") || strings.HasPrefix(d.Path, p+"/") {
			return fmt.Errorf("path overlaps the existing redirect %s", d.Path)
		}
	}
	tree := w.Root
	names := strings.Split(p, "/")
	for i, name := range names {
		entries, err := w.Base(ctx, tree)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
		switch {
		case at < 0:
			return nil
		case i == len(names)-1:
			return errors.New("repository has files at this path")
		case entries[at].Mode != object.ModeDir:
			return fmt.Errorf("%s is not a directory", strings.Join(names[:i+1], "/"))
		}
		tree = entries[at].ID
	}
	return nil
}

// Hook returns a function that bind-mounts the backing over the directory p, or false if p is not a redirect. Package
// fuse calls Hook for every directory that a process creates.
func (r *Redirects) Hook(p string) (bind func() error, ok bool) {
	at := slices.IndexFunc(r.all, func(d *redirect) bool { return d.Path == p })
	if at < 0 {
		return nil, false
	}
	d := r.all[at]
	return func() error { return r.bind(d) }, true
}

// bind bind-mounts the backing of the redirect d over its directory. It must be called on the thread whose lookups
// package fuse answers at once. It returns fault.ErrHasFiles if the directory has entries, because the bind mount would
// hide them. It does nothing if Unbind was called, or if the backing is mounted already.
func (r *Redirects) bind(d *redirect) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.ending || d.active.Load() {
		return nil
	}
	// To read the attributes of the directory, the working tree may need files that are closed on this thread.
	if err := fuse.WithAllFiles(func() error { return r.makeBacking(d) }); err != nil {
		return err
	}
	root, err := unix.Open(r.o.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open mount's root directory: %w", err)
	}
	defer unix.Close(root)
	dir, err := unix.Openat2(root, d.Path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("open redirected directory %s: %w", d.Path, err)
	}
	defer unix.Close(dir)
	err = fuse.WithAllFiles(func() error {
		_, empty, err := r.bare(context.Background(), d.Path)
		if err == nil && !empty {
			err = fault.ErrHasFiles
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := unix.Mount(r.backing(d.Redirect), proc.Thread.FDPath(dir), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind-mount redirect %s: %w", d.Path, err)
	}
	d.active.Store(true)
	return nil
}

// makeBacking creates the backing of the redirect d, with the owner and permissions of the directory in the mount that
// it replaces.
func (r *Redirects) makeBacking(d *redirect) error {
	backing := r.backing(d.Redirect)
	if err := os.MkdirAll(backing, 0o755); err != nil {
		return err
	}
	attr, err := r.attr(context.Background(), d.Path)
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(backing, int(attr.UID), int(attr.GID)), os.Chmod(backing, os.FileMode(attr.Mode&0o777)))
}

// bare returns the attributes of the path p in the working tree. empty is whether p is a directory without entries.
func (r *Redirects) bare(ctx context.Context, p string) (attr worktree.Attr, empty bool, err error) {
	if attr, err = r.attr(ctx, p); err != nil || attr.Mode&unix.S_IFMT != unix.S_IFDIR {
		return attr, false, err
	}
	empty = true
	err = r.o.Tree.ReadDir(ctx, attr.Node, 0, func(worktree.Entry) bool { empty = false; return false })
	return attr, empty && err == nil, err
}

// attr returns the attributes of the path p in the working tree.
func (r *Redirects) attr(ctx context.Context, p string) (worktree.Attr, error) {
	n, err := r.o.Tree.Resolve(ctx, p)
	if err != nil {
		return worktree.Attr{}, err
	}
	return r.o.Tree.Attr(ctx, n)
}

// Link creates symbolic links to the backings, which are used instead of bind mounts if this process may not create
// bind mounts. It adds a note for each failure.
func (r *Redirects) Link(ctx context.Context) {
	tree := r.o.Tree
	for _, d := range r.all {
		target := r.backing(d.Redirect)
		r.clearPlaceholder(ctx, d.Redirect)
		parent, err := tree.Resolve(ctx, path.Dir(d.Path))
		if err == nil {
			err = os.MkdirAll(target, 0o755)
		}
		if err == nil {
			_, err = tree.Symlink(ctx, parent, path.Base(d.Path), target, r.o.Owner)
		}
		if err != nil {
			r.Note("%s is not redirected: %v", d.Path, err)
			continue
		}
		d.active.Store(true)
	}
}

// BindExisting bind-mounts the backings over those directories that exist already. If a directory has entries, which
// are files of the session, BindExisting adds a note and skips the directory.
func (r *Redirects) BindExisting(ctx context.Context) {
	for _, d := range r.all {
		attr, empty, err := r.bare(ctx, d.Path)
		if attr.Node == 0 { // the directory does not exist
			continue // Hook binds the backing when a process creates the directory
		}
		if !empty || err != nil {
			r.Note("%s is not redirected: the session has other files at this path", d.Path)
			continue
		}
		err = fuse.WithoutDevice(func() error { return r.bind(d) })
		if err != nil {
			r.Note("%s is not redirected: %v", d.Path, err)
		}
	}
}

// Unbind removes all bind mounts of redirects, and prevents new ones until Rebind is called. If a bind mount is in use,
// Unbind detaches it if force is true, and otherwise returns fuse.ErrBusy. After an error, Rebind restores the bind
// mounts that were removed.
func (r *Redirects) Unbind(force bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		flags |= unix.MNT_DETACH
	}
	return fuse.WithoutDevice(func() error {
		mounts, err := mountinfo.Self()
		if err != nil {
			return err
		}
		for _, d := range r.all {
			// The directory may now have another path than d.Path, because a directory above it may have been renamed.
			at, ok := boundAt(mounts, r.o.Dir, r.source(d.Redirect))
			if !ok {
				continue
			}
			if err := mountpoint.UnmountIdle(at, flags); errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("%w: %s", fuse.ErrBusy, d.Path)
			} else if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", at, err)
			}
			d.active.Store(false)
		}
		return nil
	})
}

// Rebind restores the bind mounts that Unbind has removed, because the mount could not be unmounted.
func (r *Redirects) Rebind(ctx context.Context, server Server) {
	r.mu.Lock()
	r.ending = false
	r.mu.Unlock()
	for _, d := range r.all {
		if _, err := os.Lstat(r.backing(d.Redirect)); err != nil || d.active.Load() {
			continue
		}
		if _, err := r.attr(ctx, d.Path); err != nil {
			continue
		}
		r.redirect(ctx, server, d)
	}
}

// source returns the last part of the path that the mount table has as the root of the redirect's bind mount.
func (r *Redirects) source(d statedir.Redirect) string {
	return filepath.Join("mounts", r.o.ID, "redirect", d.Backing)
}

// boundAt returns the path, below dir, of the bind mount whose root in the mount table ends with source, or false if
// there is none.
func boundAt(mounts mountinfo.Table, dir, source string) (at string, ok bool) {
	for _, m := range mounts {
		if m.Point != dir && mountinfo.Within(dir, m.Point) && strings.HasSuffix(m.Root, "/"+source) {
			at, ok = m.Point, true
		}
	}
	return at, ok
}

// Remove removes all placeholders (directories or links of redirects) from the overlay, and all backings. Errors are
// only logged.
func (r *Redirects) Remove(ctx context.Context) {
	if r.o.Home == "" { // Plan was not called, so the mount has no redirects
		return
	}
	for _, d := range r.all {
		r.clear(ctx, d.Redirect)
	}
	if err := os.RemoveAll(r.dir()); err != nil {
		r.o.Log.Warn("remove redirected files", zap.String("dir", r.dir()), zap.Error(err))
	}
}

// clear removes the placeholder (directory or link) and the backing of the redirect d. Errors are only logged.
func (r *Redirects) clear(ctx context.Context, d statedir.Redirect) {
	r.clearPlaceholder(ctx, d)
	if err := os.RemoveAll(r.backing(d)); err != nil {
		r.o.Log.Warn("remove redirected files", zap.String("dir", r.backing(d)), zap.Error(err))
	}
}

// clearPlaceholder removes the placeholder of the redirect d: an empty directory, or a symbolic link to the backing.
// Any other file at this path belongs to the user and is kept.
func (r *Redirects) clearPlaceholder(ctx context.Context, d statedir.Redirect) {
	tree := r.o.Tree
	parent, err := tree.Resolve(ctx, path.Dir(d.Path))
	if err != nil {
		return
	}
	attr, err := tree.Lookup(ctx, parent, path.Base(d.Path))
	if err != nil {
		return
	}
	switch attr.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		err = tree.Rmdir(ctx, parent, path.Base(d.Path))
	case unix.S_IFLNK:
		var target []byte
		if target, err = tree.Readlink(ctx, attr.Node); err == nil && string(target) == r.backing(d) {
			err = tree.Unlink(ctx, parent, path.Base(d.Path))
		}
	}
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		r.o.Log.Warn("remove placeholder of redirected files", zap.String("dir", r.o.Dir), zap.String("path", d.Path),
			zap.Error(err))
	}
}

// Status returns the path, the backing and the state of every redirect.
func (r *Redirects) Status() []control.RedirectStatus {
	var all []control.RedirectStatus
	for _, d := range r.all {
		all = append(all, control.RedirectStatus{Path: d.Path, Target: r.backing(d.Redirect), Active: d.active.Load()})
	}
	return all
}

// Placeholders returns the number of directories and links in the overlay that were created for redirects, and so are
// no changes of the user.
func (r *Redirects) Placeholders() (n int64) {
	for _, d := range r.all {
		if d.active.Load() {
			n++
		}
	}
	return n
}
