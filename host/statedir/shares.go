package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/ulid"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// A share is a directory below shares/ with contents files that do not change any more, so that the overlays of several
// homes can use them. The overlay of a home lists the shares that it uses (overlay.ListedShares), also while the home
// is in the trash. There is no counter that a crash could falsify: a share that no home lists is removed.
//
// A process that is about to add a share to the list of a home holds a shared lock (flock) on the share until the list
// is on disk. A process that removes shares locks a share exclusively before it reads the lists. So it either finds
// the share in a list, or does not get the lock.

// SharesDir returns the path of the directory shares/ of a state directory.
func SharesDir(state string) string { return filepath.Join(state, "shares") }

// Share is a share of a state directory.
type Share struct {
	ID, Dir string
	Users   []string // paths of the homes that use the share, also of those in the trash
}

// NewShare creates an empty share. Until the function release is called, no process removes the share. If the share is
// still empty then, and nobody else holds it, release removes it.
func (h Homes) NewShare(now time.Time) (id string, release func(), err error) {
	id = string(ulid.New(now))
	release, err = h.MakeShare(id)
	return id, release, err
}

// MakeShare creates the share id, unless it exists, and holds it as NewShare does. A home can list a share that does
// not exist, because a fork failed before files were moved to the share: the next fork moves them.
func (h Homes) MakeShare(id string) (release func(), err error) {
	all := SharesDir(h.State)
	made := os.Mkdir(all, 0o700)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return nil, fmt.Errorf("create share: %w", made)
	}
	dir := filepath.Join(all, id)
	for start := time.Now(); ; {
		var f *os.File
		if err = os.Mkdir(dir, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			f, err = h.lockShare(id)
		}
		switch {
		case err == nil:
			err = disk.OS.SyncDir(all)
			if err == nil && made == nil {
				err = disk.OS.SyncDir(h.State)
			}
			if err != nil {
				disk.Unlock(f)
				return nil, fmt.Errorf("create share: %w", err)
			}
			return func() {
				if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // nobody is about to move files to it
					_ = os.Remove(dir) // fails if the share is not empty
				}
				disk.Unlock(f)
			}, nil
		// another process has removed the share before it was locked
		case errors.Is(err, fs.ErrNotExist) && time.Since(start) < holdTime:
		default:
			return nil, fmt.Errorf("create share: %w", err)
		}
	}
}

// CheckShares returns an error that wraps unix.EXDEV if the shares are not on the file system of the home at dir, so
// that the contents of its overlay cannot be moved to a share.
func (h Homes) CheckShares(dir string) error {
	shares, err := os.Stat(SharesDir(h.State))
	if errors.Is(err, fs.ErrNotExist) {
		shares, err = os.Stat(h.State)
	}
	if err != nil {
		return fmt.Errorf("create share: %w", err)
	}
	overlay, err := os.Stat(filepath.Join(dir, "overlay"))
	if err != nil {
		return fmt.Errorf("create share: %w", err)
	}
	if a, b := shares.Sys().(*syscall.Stat_t), overlay.Sys().(*syscall.Stat_t); a.Dev != b.Dev {
		return fmt.Errorf("create share: %s is on another file system than %s: %w", SharesDir(h.State), dir, unix.EXDEV)
	}
	return nil
}

// HoldShare prevents other processes from removing a share, until the function release is called. It returns
// fs.ErrNotExist if the share does not exist. The caller must not hold mounts.lock, because a process that removes
// shares waits for it.
func (h Homes) HoldShare(id string) (release func(), err error) {
	f, err := h.lockShare(id)
	if err != nil {
		return nil, err
	}
	return func() { disk.Unlock(f) }, nil
}

// lockShare locks the directory of a share against its removal.
func (h Homes) lockShare(id string) (*os.File, error) {
	for start := time.Now(); ; time.Sleep(holdPause) {
		f, err := lockDir(filepath.Join(SharesDir(h.State), id), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("use share %s: %w", id, err)
		case time.Since(start) > holdTime:
			return nil, fmt.Errorf("use share %s: %w", id, errStoreLocked)
		}
	}
}

// Shares returns all shares with their users, and the paths of directories whose removal a killed process has begun.
func (h Homes) Shares() (shares []Share, removed []string, err error) {
	shares, removed, err = h.shareDirs()
	if err != nil || len(shares) == 0 {
		return shares, removed, err
	}
	release, err := h.lockAll()
	if err != nil {
		return nil, nil, fmt.Errorf("list shares: %w", err)
	}
	defer release()
	users, err := h.shareUsers()
	if err != nil {
		return nil, nil, err
	}
	for i := range shares {
		shares[i].Users = users[shares[i].ID]
	}
	return shares, removed, nil
}

// shareDirs does the same as Shares, but does not set the users.
func (h Homes) shareDirs() (shares []Share, removed []string, err error) {
	entries, err := os.ReadDir(SharesDir(h.State))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list shares: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(SharesDir(h.State), e.Name())
		switch {
		case strings.HasPrefix(e.Name(), RemovedPrefix):
			removed = append(removed, dir)
		case e.IsDir():
			shares = append(shares, Share{ID: e.Name(), Dir: dir})
		}
	}
	return shares, removed, nil
}

// shareUsers returns the paths of the homes that list each share. If it returns an error, some home could not be read
// and may use any share. The caller holds mounts.lock, so that no home is moved to or from the trash in the meantime.
func (h Homes) shareUsers() (map[string][]string, error) {
	ids, _, err := h.IDs()
	if err != nil {
		return nil, err
	}
	deleted, err := h.Trash()
	if err != nil {
		return nil, err
	}
	var homes []string
	for _, id := range ids {
		homes = append(homes, filepath.Join(h.Dir(), id))
	}
	for _, t := range deleted {
		homes = append(homes, t.Dir)
	}
	users := map[string][]string{}
	for _, home := range homes {
		listed, err := overlay.ListedShares(filepath.Join(home, "overlay"))
		if err != nil {
			return nil, fmt.Errorf("list the users of shares: %w", err)
		}
		for _, id := range listed {
			users[id] = append(users[id], home)
		}
	}
	return users, nil
}

// RemoveShares removes the shares that no home uses, and returns them. If dry is true, it only returns them. It skips a
// share that another process has locked. If some home cannot be read, it returns an error and removes no share.
func (h Homes) RemoveShares(dry bool) (unused []Share, err error) {
	unused, err = h.putAsideShares(dry)
	if !dry {
		err = errors.Join(err, removeDropped(context.Background(), h))
	}
	return unused, err
}

// DropShares does the same as RemoveShares, but if h has a Sweeper, it does not wait until the files are removed.
func (h Homes) DropShares() error {
	if h.Sweeper == nil {
		_, err := h.RemoveShares(false)
		return err
	}
	_, err := h.putAsideShares(false)
	select {
	case h.Sweeper.wake <- struct{}{}:
	default:
	}
	return err
}

// putAsideShares returns the shares that no home uses, and renames them, so that removeDropped finds them, unless dry
// is true.
func (h Homes) putAsideShares(dry bool) (unused []Share, err error) {
	shares, _, err := h.shareDirs()
	if err != nil {
		return nil, err
	}
	// Shares in use are not locked, because a lock on one keeps another process from removing it after its last user.
	shares, err = h.withoutUsers(shares)
	var locks []*os.File
	shares = slices.DeleteFunc(shares, func(s Share) bool {
		f, lockErr := lockDir(s.Dir, unix.LOCK_EX|unix.LOCK_NB)
		if lockErr == nil {
			locks = append(locks, f)
		} else if !errors.Is(lockErr, unix.EWOULDBLOCK) && !errors.Is(lockErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove share: %w", lockErr))
		}
		return lockErr != nil
	})
	if len(shares) == 0 {
		return nil, err
	}
	unused, moveErr := h.putAsideUnused(shares, dry)
	// Removing the files can take long. Forks of other sessions do not wait for it.
	for _, f := range locks {
		disk.Unlock(f)
	}
	return unused, errors.Join(err, moveErr)
}

// withoutUsers returns those of the shares that no home uses.
func (h Homes) withoutUsers(shares []Share) ([]Share, error) {
	if len(shares) == 0 {
		return nil, nil
	}
	release, err := h.lockAll()
	if err != nil {
		return nil, fmt.Errorf("remove shares: %w", err)
	}
	defer release()
	return h.unused(shares)
}

// unused does the work of withoutUsers. The caller holds mounts.lock.
func (h Homes) unused(shares []Share) ([]Share, error) {
	users, err := h.shareUsers()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(shares, func(s Share) bool { return len(users[s.ID]) > 0 }), nil
}

// putAsideUnused returns those of the shares that no home uses, and renames them, unless dry is true. The caller has
// locked the shares.
func (h Homes) putAsideUnused(shares []Share, dry bool) (unused []Share, err error) {
	release, err := h.lockAll()
	if err != nil {
		return nil, fmt.Errorf("remove shares: %w", err)
	}
	defer release()
	if shares, err = h.unused(shares); err != nil {
		return nil, err
	}
	for _, s := range shares {
		to := filepath.Join(SharesDir(h.State), RemovedPrefix+strconv.Itoa(os.Getpid())+"-"+s.ID)
		if !dry {
			if moveErr := os.Rename(s.Dir, to); moveErr != nil {
				err = errors.Join(err, fmt.Errorf("remove share: %w", moveErr))
				continue
			}
		}
		unused = append(unused, s)
	}
	return unused, err
}

// removeUnusedShares drops the shares that no home uses, after a home was removed. It only logs errors, because the
// next call tries again.
func (h Homes) removeUnusedShares() {
	if err := h.DropShares(); err != nil {
		h.Log.Warn("remove unused shares", zap.Error(err))
	}
}
