package daemon

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
)

// gitInside shows a mount's git directory as .git in its root, for those who see nothing but the mount (a container): the
// native directory is mounted over an empty one of the overlay, and what it needs from elsewhere over places in it (package
// gitdir, inside.go). All of it is the kernel's, and outlives the process that served the mount.
//
// The store's objects are there read-only: a container must not be able to change what other mounts share.
type gitInside struct {
	mount  *mount
	thread atomic.Uint32 // that goes there to mount, whose look-ups of .git wait for nothing
}

// wanted says whether the mount is to have it.
func (g *gitInside) wanted() bool { return g.mount.request.GitDir == control.GitDirInside }

// possible refuses what cannot be, before anything is done.
func (g *gitInside) possible() error {
	switch {
	case !g.wanted():
		return nil
	case g.mount.request.ReadOnly && g.mount.session != "":
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: g.mount.dir, Cause: "--git-dir inside needs a mount that can be changed, or one without a session"}
	case g.mount.request.Through != "":
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: g.mount.dir, Cause: "--git-dir inside does not go with an automount"}
	case !mountpoint.MayBind():
		return &control.Error{Code: control.ExitFailed, Verb: "mount", Object: g.mount.dir, Cause: "--git-dir inside takes bind mounts, which only root may make",
			Hint: "as root of a user namespace it works: unshare --user --map-root-user --mount, and all that uses the mount in there"}
	}
	return nil
}

// boundPlace is one of the mounts: source over a path below .git.
type boundPlace struct {
	source, at string
	readOnly   bool
}

func (g *gitInside) places() ([]boundPlace, error) {
	m := g.mount
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	places := []boundPlace{
		{m.gitPath(), "", false},
		{filepath.Join(m.store.GitDir(), "objects"), gitdir.InsideObjects, true},
		{program, gitdir.InsideHelper, true},
		{hookProgram(program), gitdir.InsideMonitor, true},
	}
	if m.record.Point != nil {
		places = append(places, boundPlace{m.sessionObjects(), gitdir.InsideSession, true})
	}
	return places, nil
}

// bind mounts what is not mounted yet. The kernel has the mount, and nobody was told of it yet.
func (g *gitInside) bind() error {
	if !g.wanted() {
		return nil
	}
	if err := gitdir.PrepareInside(g.mount.gitPath()); err != nil {
		return err
	}
	places, err := g.places()
	if err != nil {
		return err
	}
	return g.going(func(mounts mountinfo.Table) error {
		for _, p := range places {
			if mountpoint.IsMounted(mounts, g.at(p.at)) {
				continue
			}
			if err := g.bindOne(p); err != nil {
				return fmt.Errorf("mount %s over %s: %w", p.source, g.at(p.at), err)
			}
		}
		return nil
	})
}

func (g *gitInside) at(place string) string { return filepath.Join(g.mount.dir, ".git", place) }

// going runs f on a thread that holds none of our devices and whose look-ups of .git are answered at once.
func (g *gitInside) going(f func(mountinfo.Table) error) error {
	return fuse.WithoutDevice(func() error {
		g.thread.Store(uint32(unix.Gettid()))
		defer g.thread.Store(0)
		mounts, err := mountinfo.Self()
		if err != nil {
			return err
		}
		return f(mounts)
	})
}

// bindOne mounts a copy of the source, restricted before anybody can see it, over what the path leads to without links: who
// owns the files of the mount must not be able to lead us out of it.
func (g *gitInside) bindOne(p boundPlace) error {
	root, err := unix.Open(g.mount.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	target, err := unix.Openat2(root, path.Join(".git", p.at), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(target)
	source, err := unix.OpenTree(unix.AT_FDCWD, p.source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if p.readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(source, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(source, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// unbind takes the mounts away, or tells that one is busy and leaves those that are left; bind completes them again. force
// detaches them.
func (g *gitInside) unbind(force bool) error {
	if !g.wanted() {
		return nil
	}
	places, err := g.places()
	if err != nil {
		return err
	}
	return g.going(func(mounts mountinfo.Table) error {
		if force && mountpoint.IsMounted(mounts, g.at("")) {
			return unix.Unmount(g.at(""), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		for _, p := range slices.Backward(places) {
			if !mountpoint.IsMounted(mounts, g.at(p.at)) {
				continue
			}
			if err := mountpoint.UnmountIdle(g.at(p.at), unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("%w: .git", fuse.ErrBusy)
			} else if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", g.at(p.at), err)
			}
		}
		return nil
	})
}
