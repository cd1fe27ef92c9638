package daemon

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

	"github.com/artifactfs/artifactfs/config"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// A redirect is a path of a mount whose files live in a plain directory below the mount's home, its backing: what is
// large, of no worth, and made again by a command, such as node_modules. It costs no request to us and is thrown away
// with the mount.
//
// Root gets it by a bind mount over the directory, made when somebody makes the directory; others by a symbolic link
// that is there from the start. The placeholder, directory or link, is in the overlay but nobody's work: it goes with
// the mount, and the record remembers it for the next one if this one is killed.

// redirects are those of one mount.
type redirects struct {
	mount *mount
	notes []string // why some are not possible; frozen when the mount is there
	all   []*redirect

	// mu is read-locked while the kernel binds, and locked while it unbinds. Both may take requests to this very process;
	// none of those needs it. Binds do not wait for each other: the kernel may have one's directory locked for another.
	mu     sync.RWMutex
	ending bool
}

type redirect struct {
	statedir.Redirect
	mu     sync.Mutex // one bind at a time; taken under redirects.mu
	active atomic.Bool
}

func (r *redirects) dir() string { return filepath.Join(r.mount.home.Dir, "redirect") }

func (r *redirects) backing(d statedir.Redirect) string { return filepath.Join(r.dir(), d.Backing) }

// shown lists the directories whose files others can change without our knowing, as git's monitor names them.
func (r *redirects) shown() []string {
	var dirs []string
	for _, d := range r.all {
		if d.active.Load() {
			dirs = append(dirs, d.Path+"/")
		}
	}
	return dirs
}

// plan decides which paths are redirected, and takes away what an earlier mount of the session left of others. The
// kernel does not have the mount yet. The record is changed, not saved.
func (r *redirects) plan(ctx context.Context) error {
	m := r.mount
	wanted := m.request.Redirects
	if !m.request.RedirectsOnly {
		wanted = append(slices.Clone(wanted), r.configured(ctx)...)
	}
	old := m.record.Redirects
	for _, p := range wanted {
		err := r.possible(ctx, p)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && m.request.RedirectsOnly:
			return &control.Error{Code: control.ExitUsage, Verb: "redirect", Object: p, Cause: err.Error(), Hint: "--redirect takes paths that the repository does not have"}
		case err != nil:
			r.notes = append(r.notes, fmt.Sprintf("%s is not redirected: %v", p, err))
			continue
		}
		r.all = append(r.all, &redirect{Redirect: statedir.Redirect{Path: p, Backing: nextBacking(old, r.all, p)}})
	}
	for _, d := range old {
		if !slices.ContainsFunc(r.all, func(n *redirect) bool { return n.Redirect == d }) {
			r.clear(ctx, d)
		} else if attr, err := r.attr(ctx, d.Path); err == nil && attr.Mode&unix.S_IFMT == unix.S_IFLNK {
			r.clearPlaceholder(ctx, d) // of a mount by one who could not bind
		}
	}
	m.record.Redirects = nil
	for _, d := range r.all {
		m.record.Redirects = append(m.record.Redirects, d.Redirect)
	}
	return nil
}

// nextBacking gives a path the backing it had, or the next one that is free.
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

// configured gives what the repository's configuration names. It is read once in the life of a session: the base tree
// never changes, and going on needs no network.
func (r *redirects) configured(ctx context.Context) []string {
	m := r.mount
	if m.resumed {
		return m.record.Configured
	}
	file, err := readConfig(ctx, m.view, m.snap.Tree)
	if err != nil {
		r.notes = append(r.notes, fmt.Sprintf("%s is ignored: %v", config.Name, err))
	}
	m.record.Configured = file.Redirect
	return file.Redirect
}

func readConfig(ctx context.Context, v *fetch.View, root object.ID) (config.File, error) {
	// Parse has its own limit; this one is of what is read for it.
	text, err := readRootFile(ctx, v, root, config.Name, 1<<20)
	if err != nil || text == nil {
		return config.File{}, err
	}
	return config.Parse(text)
}

// possible says why a path cannot be redirected: it, or a file above it, is tracked.
func (r *redirects) possible(ctx context.Context, p string) error {
	for _, d := range r.all {
		if p == d.Path || strings.HasPrefix(p, d.Path+"/") || strings.HasPrefix(d.Path, p+"/") {
			return fmt.Errorf("%s is redirected", d.Path)
		}
	}
	tree := r.mount.snap.Tree
	names := strings.Split(p, "/")
	for i, name := range names {
		entries, err := r.mount.view.Tree(ctx, tree)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
		switch {
		case at < 0:
			return nil
		case i == len(names)-1:
			return errors.New("the repository tracks it")
		case entries[at].Mode != object.ModeDir:
			return fmt.Errorf("%s is no directory", strings.Join(names[:i+1], "/"))
		}
		tree = entries[at].ID
	}
	return nil
}

// hook is asked by package fuse about every directory that is made, with its path. bind then redirects it.
func (r *redirects) hook(p string) (bind func() error, ok bool) {
	at := slices.IndexFunc(r.all, func(d *redirect) bool { return d.Path == p })
	if at < 0 {
		return nil, false
	}
	d := r.all[at]
	return func() error { return r.bind(d) }, true
}

// bind mounts the backing over the directory. It must run on the thread whose look-ups package fuse answers at once.
// The directory is opened without following links, and mounted on by its descriptor: whoever owns the mount's files
// could put a link in the way that leads out of it. What has files in it is left as it is: nobody would see them.
func (r *redirects) bind(d *redirect) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.ending || d.active.Load() {
		return nil
	}
	if err := r.makeBacking(d); err != nil {
		return err
	}
	root, err := unix.Open(r.mount.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open mount: %w", err)
	}
	defer unix.Close(root)
	dir, err := unix.Openat2(root, d.Path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", d.Path, err)
	}
	defer unix.Close(dir)
	if _, empty, err := r.bare(context.Background(), d.Path); err != nil {
		return err
	} else if !empty {
		return fault.ErrHasFiles
	}
	if err := unix.Mount(r.backing(d.Redirect), proc.Thread.FDPath(dir), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", d.Path, err)
	}
	d.active.Store(true)
	return nil
}

// makeBacking makes the directory that is shown in the other's place, with its owner and permissions.
func (r *redirects) makeBacking(d *redirect) error {
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

// bare gives the directory that a path is in the tree, and whether nothing is in it.
func (r *redirects) bare(ctx context.Context, p string) (attr worktree.Attr, empty bool, err error) {
	if attr, err = r.attr(ctx, p); err != nil || attr.Mode&unix.S_IFMT != unix.S_IFDIR {
		return attr, false, err
	}
	empty = true
	err = r.mount.tree.ReadDir(ctx, attr.Node, 0, func(worktree.Entry) bool { empty = false; return false })
	return attr, empty && err == nil, err
}

func (r *redirects) attr(ctx context.Context, p string) (worktree.Attr, error) {
	n, err := r.mount.tree.Resolve(ctx, p)
	if err != nil {
		return worktree.Attr{}, err
	}
	return r.mount.tree.Attr(ctx, n)
}

// link makes the symbolic links of those who may not mount. The kernel does not have the mount yet.
func (r *redirects) link(ctx context.Context) {
	tree := r.mount.tree
	for _, d := range r.all {
		target := r.backing(d.Redirect)
		r.clearPlaceholder(ctx, d.Redirect)
		parent, err := tree.Resolve(ctx, parentOf(d.Path))
		if err == nil {
			err = os.MkdirAll(target, 0o755)
		}
		if err == nil {
			_, err = tree.Symlink(ctx, parent, path.Base(d.Path), target, worktree.Cred{UID: r.mount.request.UID, GID: r.mount.request.GID})
		}
		if err != nil {
			r.notes = append(r.notes, fmt.Sprintf("%s is not redirected: %v", d.Path, err))
			continue
		}
		d.active.Store(true)
	}
}

// bindExisting redirects the directories that are there already. One with files in it holds work, and is left alone.
func (r *redirects) bindExisting(ctx context.Context) {
	for _, d := range r.all {
		attr, empty, err := r.bare(ctx, d.Path)
		if attr.Node == 0 {
			continue // it is made later, or never
		}
		if !empty || err != nil {
			r.notes = append(r.notes, fmt.Sprintf("%s is not redirected: the session has files of its own there", d.Path))
			continue
		}
		err = fuse.WithoutDevice(func() error { return r.bind(d) })
		if err != nil {
			r.notes = append(r.notes, fmt.Sprintf("%s is not redirected: %v", d.Path, err))
		}
	}
}

// unbind takes all bind mounts away, or none: if one is busy the error is fuse.ErrBusy, unless force detaches it. No
// directory is redirected any more until rebind.
func (r *redirects) unbind(force bool) error {
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
			// Where it is now: a directory above it may have been renamed.
			at, ok := boundAt(mounts, r.mount.dir, r.source(d.Redirect))
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

// rebind undoes unbind: the mount stays.
func (r *redirects) rebind(ctx context.Context) {
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
		r.redirect(ctx, d)
	}
}

// source is how the table of mounts ends what is bound.
func (r *redirects) source(d statedir.Redirect) string {
	return filepath.Join("mounts", r.mount.id, "redirect", d.Backing)
}

// boundAt finds a bind mount below dir of what ends in source.
func boundAt(mounts mountinfo.Table, dir, source string) (at string, ok bool) {
	for _, m := range mounts {
		if m.Point != dir && mountinfo.Within(dir, m.Point) && strings.HasSuffix(m.Root, "/"+source) {
			at, ok = m.Point, true
		}
	}
	return at, ok
}

// end takes away what was made in the overlay and the backings. The kernel does not have the mount any more.
func (r *redirects) end(ctx context.Context) {
	for _, d := range r.all {
		r.clear(ctx, d.Redirect)
	}
	r.mount.record.Redirects = nil
	if err := os.RemoveAll(r.dir()); err != nil {
		r.mount.daemon.log.Warn("remove redirected files", zap.String("dir", r.dir()), zap.Error(err))
	}
}

func (r *redirects) clear(ctx context.Context, d statedir.Redirect) {
	r.clearPlaceholder(ctx, d)
	if err := os.RemoveAll(r.backing(d)); err != nil {
		r.mount.daemon.log.Warn("remove redirected files", zap.String("dir", r.backing(d)), zap.Error(err))
	}
}

// clearPlaceholder removes an empty directory, or our link. Anything else is the user's.
func (r *redirects) clearPlaceholder(ctx context.Context, d statedir.Redirect) {
	tree := r.mount.tree
	parent, err := tree.Resolve(ctx, parentOf(d.Path))
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
		r.mount.daemon.log.Warn("remove what stood for redirected files", zap.String("dir", r.mount.dir), zap.String("path", d.Path), zap.Error(err))
	}
}

func parentOf(p string) string {
	if parent := path.Dir(p); parent != "." {
		return parent
	}
	return ""
}

// status tells of every redirect.
func (r *redirects) status() []control.RedirectStatus {
	var all []control.RedirectStatus
	for _, d := range r.all {
		all = append(all, control.RedirectStatus{Path: d.Path, Target: r.backing(d.Redirect), Active: d.active.Load()})
	}
	return all
}

// placeholders counts what stands for redirected files; it is in the overlay, but no change of the user's.
func (r *redirects) placeholders() (n int64) {
	for _, d := range r.all {
		if d.active.Load() {
			n++
		}
	}
	return n
}
