// Package attach has the working tree of a mount, and attaches it to the kernel: the mount point, the FUSE server, the
// bind mounts inside the mount, and the inotify events of its files.
package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/bind"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/inotify"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// Attachment is the working tree of one mount, with everything that attaches the working tree to the kernel.
//
//	New -> Prepare -> Open ---> Attach --> attached -- Detach --> detached -- Close --> closed
//	                   |                      ^  |
//	                   +-> TakeOver ----------+  +-- Detach of a busy mount fails: attached again
//
// As long as the mount is being prepared, only the goroutine that prepares it may use the Attachment. After that, the
// exported fields do not change until the mount ends, and the methods may be called from any goroutine, but Detach and
// Close only by the goroutine that ends the mount.
type Attachment struct {
	Point     mountpoint.Point // mount point, with the directories that were created for it
	Tree      *worktree.Tree   // base tree and overlay; nil until it is opened
	Server    *fuse.Server     // answers the requests of the kernel; nil while the mount is not attached
	Redirects bind.Redirects   // paths that are served from a plain directory elsewhere
	Inside    *bind.GitDir     // git directory that is bind-mounted as ".git"; nil if ".git" is a file
	Events    *inotify.Raiser  // raises inotify events for paths that the daemon changes; nil if it raises none

	of Owner
}

// Owner describes the mount to which an Attachment belongs, and the parts of the mount that it uses.
type Owner struct {
	ID        string                // name of the home
	Dir       string                // root directory of the mount
	State     string                // path of the state directory
	Session   string                // name of the session; "" if the mount has none
	TakenOver bool                  // whether an earlier process has started the mount
	Request   *control.MountRequest // the request for the mount
	Home      *home.Home
	Contents  *contents.Contents
	Handover  *takeover.Handover // passes state and descriptors to a successor
	Latencies *fuse.Latencies    // durations of the kernel requests of all mounts
	Log       *zap.Logger
	Sampled   *zap.Logger // log for messages that file-system requests may cause very often
}

// New returns the Attachment of a mount, of which nothing is opened yet.
func New(of Owner) *Attachment {
	a := &Attachment{of: of}
	a.Inside = a.gitDirInside()
	return a
}

// Writable reports whether the mount has a session and is not read-only.
func (a *Attachment) Writable() bool { return a.of.Session != "" && !a.of.Request.ReadOnly }

// log returns the log for messages about the mount.
func (a *Attachment) log() *zap.Logger { return a.of.Log.With(zap.String("mount", a.of.Dir)) }

// Prepare creates or checks the directory of the mount. parent is the root directory of the mount that contains this
// one as a submodule, or "" if there is none.
func (a *Attachment) Prepare(ctx context.Context, parent string) (err error) {
	switch {
	// Another program has already mounted the FUSE device, so the directory is not created.
	case a.of.Request.Device != nil:
		a.Point, err = mountpoint.CheckAdopted(*a.of.Request)
	case a.of.Request.Through != "": // an access to the directory would wait until this process serves the mount
		a.Point, err = mountpoint.Point{Dir: a.of.Dir}, mountpoint.CheckDevice()
	case parent == "":
		a.Point, err = mountpoint.Prepare(ctx, a.of.Dir, "")
	default:
		// The directory of a submodule is in another mount of this process.
		err = fuse.WithoutDevice(func() error {
			a.Point, err = mountpoint.Prepare(ctx, a.of.Dir, parent)
			return err
		})
	}
	if err == nil && len(a.Point.Created) > 0 {
		a.of.Handover.Update(func(h *takeover.State) { h.Made = a.Point.Created })
	}
	return err
}

// Open opens the working tree. Before that, it saves the session's record, so that no overlay with changes exists
// without a record. keepRemoved states whether the contents of removed files are kept for the next checkpoint. fork
// states whether the session is a fork, and carried are the files that it has in addition to its checkpoint, or nil.
func (a *Attachment) Open(keepRemoved, fork bool, carried *carry.Files) (err error) {
	snap, h := a.of.Contents.Snapshot(), a.of.Home
	o := worktree.Options{
		Root: snap.Tree, Time: snap.Time, TakeOver: a.of.TakenOver, UID: a.of.Request.UID, GID: a.of.Request.GID,
		Modes: a.of.Contents.Modes, Log: a.log(), Shares: statedir.SharesDir(a.of.State),
	}
	if carried != nil {
		o.Segments = carried.Segments
	}
	o.Overlay, o.Journal = filepath.Join(h.Dir, "overlay"), filepath.Join(h.Dir, "journal")
	switch {
	case a.Writable():
		o.GitFile, o.GitDir, o.KeepRemoved = h.GitFile(), a.Inside.Wanted(), keepRemoved
	case a.of.Session != "":
		o.OverlayReadOnly = true
	default: // in a mount without a session, the overlay contains nothing but .git
		o.GitFile, o.GitDir, o.ReadOnly = h.GitFile(), a.Inside.Wanted(), true
	}
	if a.Writable() && !a.of.TakenOver {
		h.Record.Fork.Unfinished = fork && !h.Resumed
		if a.Point.Created, err = h.Occupy(a.Point.Created); err != nil {
			return err
		}
	}
	o.ForgetSizes = !a.of.Contents.SameSizes
	a.Tree, err = worktree.Open(filepath.Join(h.Dir, statedir.InodesName), a.of.Contents.Source(), o)
	if err != nil {
		return err
	}
	return a.of.Contents.Filters.Begin()
}

// Changed returns the number of paths that the user has changed. It does not count the directories that were created
// for redirects.
func (a *Attachment) Changed() int64 {
	return max(0, a.Tree.Overlay().Changed()-a.Redirects.Placeholders())
}

// Services are functions and interfaces of a mount that package fuse calls while it answers requests.
type Services struct {
	Await   func(ctx context.Context, pid uint32) (done bool) // delays lookups of ".git" until git commands can run
	Objects fuse.Objects                                      // objects that git commands read in the mount
	// decides which paths programs must not change; nil if they may change all
	Guard fuse.Guard
}

// Attach attaches the mount to the kernel and starts to answer the kernel's requests. If the mount request contains an
// open FUSE device, Attach uses that device and does not call mount(2).
func (a *Attachment) Attach(s Services) error {
	o := a.options(s)
	var device *fuse.Device
	var err error
	if a.of.Request.Device != nil {
		device, err = fuse.Adopt(a.of.Request.Device)
	} else {
		device, err = fuse.Attach(a.of.Dir, o)
	}
	if err == nil {
		// On some kernels, a FUSE device cannot be handed to another process.
		if device.CanMove() {
			a.of.Handover.Keep(takeover.PartDevice, device.File())
		}
		a.Server, err = fuse.Serve(a.Tree, a.of.Dir, device, o)
	}
	if err != nil && os.Geteuid() != 0 {
		err = fmt.Errorf("%w: %w", mountpoint.ErrUserMount, err)
	}
	if err == nil {
		a.of.Handover.Update(func(h *takeover.State) { h.Hello = device.Hello() })
	}
	return err
}

// TakeOver starts to answer the kernel's requests on the FUSE device of the predecessor. hello is the first message of
// the kernel on this device.
func (a *Attachment) TakeOver(device *os.File, hello []byte, s Services) error {
	d, err := fuse.Inherit(device, hello)
	if err != nil {
		return err
	}
	if a.Server, err = fuse.Serve(a.Tree, a.of.Dir, d, a.options(s)); err != nil && a.Server == nil {
		return err
	} else if err != nil { // the mount was unmounted just before
		a.of.Log.Warn("take over mount", zap.String("dir", a.of.Dir), zap.Error(err))
	}
	return nil
}

// options returns the options for package fuse. They are the same in each process that serves the mount.
func (a *Attachment) options(s Services) fuse.Options {
	r := a.of.Request
	o := fuse.Options{
		FsName: a.of.Contents.Store.URL(), AllowOther: r.AllowOther, StatFS: a.of.State,
		Log:      a.of.Sampled.With(zap.String("mount", a.of.Dir)),
		ReadOnly: r.ReadOnly, ACL: r.ACL, IDMap: r.IDMap, Through: r.Through, Latencies: a.of.Latencies,
		Await: s.Await, Objects: s.Objects, Guard: s.Guard, Hidden: gitdir.Hidden,
		EventProcess: a.of.Handover.State().Events,
	}
	if !a.Inside.Wanted() {
		o.Git = &fuse.GitDir{Path: a.of.Home.GitDir(), Hides: gitdir.HiddenInCopies, Copied: gitdir.CopiedConfig}
	}
	if a.Writable() && mountpoint.MayBind() && a.Redirects.Any() {
		o.Redirect = a.Redirects.Hook
		// The directories of redirects that the predecessor has not bound yet are bound by this process.
		if a.of.TakenOver {
			o.Unbound = a.Redirects.Unbound()
		}
	}
	return o
}

// RaiseEvents starts to raise inotify events. A mount that is not writable has none, because the kernel refuses the
// system calls that would raise them.
func (a *Attachment) RaiseEvents() {
	if !a.Writable() {
		return
	}
	a.Events = inotify.New(&inotify.Raiser{
		Dir: a.of.Dir, Server: a.Server, Kernel: a.Tree.Kernel(), Log: a.of.Log,
		Note: func(p fuse.EventProcess) { a.of.Handover.Update(func(h *takeover.State) { h.Events = p }) },
	})
}

// Detach unmounts the bind mounts inside the mount, and then the mount itself. If the unmount fails and force is false,
// it restores the bind mounts and returns an error that names the processes that use the mount. If force is true, it
// detaches everything instead. It does nothing if the mount is not attached.
func (a *Attachment) Detach(ctx context.Context, force bool) error {
	if a.Server == nil {
		return nil
	}
	defer a.Events.Pause()()
	// Idle filter programs would keep the mount busy, because their working directory is in it.
	a.of.Contents.Filters.Release()
	if a.Foreign() {
		return a.prepareForeignEnd(force)
	}
	if busy := mountpoint.AwaitCopies(ctx, a.of.Dir, force); busy != nil && !force {
		return busy
	} else if busy != nil {
		return a.detachBusy(busy)
	}
	err := a.Inside.Unbind(false)
	if err == nil {
		err = a.Redirects.Unbind(false)
	}
	if err == nil {
		err = a.Server.Unmount(ctx)
	}
	if errors.Is(err, fuse.ErrElsewhere) {
		// The directory is free, as after Detach. Another program has unmounted it, or a namespace was copied during
		// the unmount.
		a.of.Log.Warn("unmount, while another mount of the same file system is in use", zap.String("dir", a.of.Dir),
			zap.Error(err))
		return nil
	}
	if err == nil {
		return nil
	}
	if !force {
		a.Redirects.Rebind(ctx, a.Server)
		if bindErr := a.Inside.Bind(); bindErr != nil {
			a.of.Log.Warn("bind-mount the git directory again", zap.String("dir", a.of.Dir), zap.Error(bindErr))
		}
		return mountpoint.NameUsers(a.of.Dir, err)
	}
	return a.detachBusy(err)
}

// detachBusy removes a busy mount from the directory tree (MNT_DETACH), after it has made the kernel write its cached
// changes. busy is the error of the attempt to unmount, which is logged.
func (a *Attachment) detachBusy(busy error) error {
	a.of.Log.Warn("detaching busy mount", zap.String("dir", a.of.Dir), zap.Error(busy))
	mountpoint.Flush(a.of.Dir, a.of.Log)
	if err := a.Inside.Unbind(true); err != nil {
		a.of.Log.Warn("detach git directory", zap.String("dir", a.of.Dir), zap.Error(err))
	}
	if err := a.Redirects.Unbind(true); err != nil {
		a.of.Log.Warn("detach redirected directories", zap.String("dir", a.of.Dir), zap.Error(err))
	}
	return a.Server.Detach()
}

// Close closes the working tree of a mount that the kernel has unmounted. It returns the changes of the user, and an
// error if some of them could not be stored. It does nothing if the working tree was not opened.
func (a *Attachment) Close(ctx context.Context) (left statedir.Unsaved, err error) {
	if a.Tree == nil {
		return left, nil
	}
	if a.Writable() {
		a.EndRedirects(ctx)
		stats := a.Tree.Overlay().Stats()
		left.Paths, left.Bytes, left.Carried = a.Tree.Overlay().Changed(), stats.Bytes, stats.Carried > 0
	}
	// If the mount was detached, calls may still wait for objects, and Close of the tree would wait for these calls.
	// Closing the view ends them.
	a.of.Contents.View.Close()
	return left, a.Tree.Close()
}
