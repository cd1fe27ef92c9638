package bind

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// GitDir bind-mounts the git directory of a mount as ".git" in the root of the mount, for processes that see only the
// mount, such as those in a container. The git directory is mounted over an empty directory of the overlay. Files
// elsewhere to which the git directory refers are bind-mounted over paths in it (see package gitdir, inside.go).
//
// The objects of the store are mounted read-only, because a container must not be able to change objects that other
// mounts share.
//
// A nil *GitDir belongs to a mount whose ".git" is a file; its methods do nothing. The methods may be called from any
// goroutine. Mounts and Bind may be called at any time. Only one of the other methods may run at a time.
type GitDir struct {
	dir     string // directory of the mount
	owner   owner  // owner of the git directory for the processes that use the mount
	sources func() (Sources, error)
	log     *zap.Logger
	thread  atomic.Uint32 // ID of the thread that is creating or removing bind mounts; 0 if there is none
	binding sync.Mutex    // held while Bind looks which bind mounts exist, and creates the others
}

// Sources has the paths of the files and directories that are bind-mounted at ".git" or below it.
type Sources struct {
	Git     string // git directory
	Objects string // objects directory of the store
	Session string // object directory of the session, if the mounted checkpoint needs it; "" otherwise
	Program string // path of this program
	Monitor string // program that answers git's fsmonitor queries
}

// NewGitDir returns the GitDir of the mount at dir, whose files belong to the user uid and the group gid. Each call of
// Bind and Unbind calls the function sources.
func NewGitDir(dir string, uid, gid uint32, sources func() (Sources, error), log *zap.Logger) *GitDir {
	return &GitDir{dir: dir, owner: owner{uid, gid}, sources: sources, log: log}
}

// Wanted reports whether the mount has its git directory bind-mounted as ".git".
func (g *GitDir) Wanted() bool { return g != nil }

// Mounts reports whether tid is the ID of the thread that is bind-mounting the git directory. When this thread looks up
// ".git", package fuse must reply at once, because the git directory is available only after the thread has continued.
func (g *GitDir) Mounts(tid uint32) bool { return g != nil && tid != 0 && tid == g.thread.Load() }

// boundPlace is one bind mount: the file or directory source is mounted over the path at, which is relative to ".git".
type boundPlace struct {
	source, at string
	readOnly   bool
}

// places returns the bind mounts for the sources s in the order in which they are created, the outermost first.
func places(s Sources) []boundPlace {
	all := []boundPlace{
		{s.Git, "", false},
		{s.Objects, gitdir.InsideObjects, true},
		{s.Program, gitdir.InsideHelper, true},
		{s.Monitor, gitdir.InsideMonitor, true},
	}
	if s.Session != "" {
		all = append(all, boundPlace{s.Session, gitdir.InsideSession, true})
	}
	return all
}

// Guard protects the host from what programs in a container may have put into the git directory (see package guard). It
// must be called before this process reads the git directory, also in a takeover.
func (g *GitDir) Guard() error {
	if g == nil {
		return nil
	}
	s, err := g.sources()
	if err != nil {
		return err
	}
	if err := guard.Mount(s.Git); err != nil || guard.Exists(s.Git) {
		return err
	}
	objects := []string{s.Objects}
	if s.Session != "" {
		objects = append(objects, s.Session)
	}
	return guard.Create(s.Git, objects)
}

// Bind creates those bind mounts that do not exist yet.
func (g *GitDir) Bind() error {
	if g == nil {
		return nil
	}
	s, err := g.sources()
	if err != nil {
		return err
	}
	if err := gitdir.PrepareInside(s.Git); err != nil {
		return err
	}
	g.binding.Lock()
	defer g.binding.Unlock()
	return g.going(func(mounts mountinfo.Table) error {
		for _, p := range places(s) {
			if mountpoint.IsMounted(mounts, g.at(p.at)) {
				continue
			}
			if err := g.bindOne(p); err != nil {
				return fmt.Errorf("bind-mount %s over %s: %w", p.source, g.at(p.at), err)
			}
		}
		return nil
	})
}

// at returns the absolute path of a place, which is relative to ".git".
func (g *GitDir) at(place string) string { return filepath.Join(g.dir, ".git", place) }

// going calls the function f with the mount table, on a thread that has no FUSE device of this process open and whose
// lookups of ".git" are answered at once.
func (g *GitDir) going(f func(mountinfo.Table) error) error {
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

// bindOne creates one bind mount. The restrictions (nosuid, nodev, and possibly read-only) are set on a detached clone
// before the clone is attached, so that no process can use the bind mount without these restrictions.
func (g *GitDir) bindOne(p boundPlace) error {
	root, err := unix.Open(g.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
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
	if p.at == "" {
		attr.Attr_clr = guard.Restrictions
		g.setOwner(source)
	}
	if err := unix.MountSetattr(source, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(source, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// setOwner makes the git directory belong to g.owner in the mount that the descriptor source refers to. If that is
// impossible, it belongs to the user of the daemon there, so that git commands of other users refuse it unless the
// setting safe.directory names it.
func (g *GitDir) setOwner(source int) {
	if g.owner == (owner{}) || os.Geteuid() != 0 {
		return
	}
	fd, err := g.owner.namespace()
	if err == nil {
		defer unix.Close(fd)
		err = unix.MountSetattr(source, "", unix.AT_EMPTY_PATH,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(fd)})
	}
	if err != nil {
		g.log.Warn("set owner of the git directory in the mount", zap.Uint32("uid", g.owner.uid),
			zap.Uint32("gid", g.owner.gid), zap.Error(err))
	}
}

// Unbind unmounts all bind mounts of the git directory, the innermost first. If force is false, it stops at the first
// that is in use and returns fuse.ErrBusy; the caller can then restore the removed bind mounts with Bind. If force is
// true, it detaches all.
func (g *GitDir) Unbind(force bool) error {
	if g == nil {
		return nil
	}
	return g.going(func(mounts mountinfo.Table) error {
		if force && mountpoint.IsMounted(mounts, g.at("")) {
			return unix.Unmount(g.at(""), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		// A container may have renamed the directories of the places, so they are searched in the mount table, where a
		// mount precedes the mounts on it.
		for _, m := range slices.Backward(mounts) {
			if !mountinfo.Within(g.at(""), m.Point) {
				continue
			}
			if err := mountpoint.UnmountIdle(m.Point, unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("%w: .git", fuse.ErrBusy)
			} else if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", m.Point, err)
			}
		}
		return nil
	})
}
