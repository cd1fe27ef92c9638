package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Sole returns a function that finds the shares that only the home at dir uses, for overlay.Reclaim. A home in the
// trash is a user, too. A share is skipped if another process is about to add it to the list of a home.
//
// The function remembers one other user of each share, and first looks whether that one still uses the share, so that
// many homes with the same shares do not read the lists of all homes again and again. Its calls run one after the
// other.
func (h Homes) Sole(dir string) overlay.Sole {
	other := map[string]string{} // path of the home of another user of a share
	return func(ids []string) (sole []string, release func(), err error) {
		var locks []*os.File
		release = func() {
			for _, f := range locks {
				disk.Unlock(f)
			}
		}
		var locked []string
		for _, id := range ids {
			if user := other[id]; user != "" && lists(user, id) {
				continue
			}
			delete(other, id)
			f, err := lockDir(filepath.Join(SharesDir(h.State), id), unix.LOCK_EX|unix.LOCK_NB)
			switch {
			case err == nil:
				locks, locked = append(locks, f), append(locked, id)
			case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist):
				release()
				return nil, nil, fmt.Errorf("lock share %s: %w", id, err)
			}
		}
		if len(locked) == 0 {
			return nil, release, nil
		}
		users, err := h.lockedUsers()
		if err != nil {
			release()
			return nil, nil, err
		}
		for _, id := range locked {
			others := slices.DeleteFunc(slices.Clone(users[id]), func(user string) bool { return user == dir })
			switch {
			case len(others) > 0: // a random one, so that not all homes remember the same one
				other[id] = others[rand.N(len(others))]
			case len(users[id]) > 0:
				sole = append(sole, id)
			}
		}
		return sole, release, nil
	}
}

// lists reports whether the home at dir lists a share. The home may have been moved or removed.
func lists(dir, share string) bool {
	ids, err := overlay.ListedShares(filepath.Join(dir, "overlay"))
	return err == nil && slices.Contains(ids, share)
}

// lockedUsers returns the users of all shares, as shareUsers does.
func (h Homes) lockedUsers() (map[string][]string, error) {
	release, err := h.lockAll()
	if err != nil {
		return nil, fmt.Errorf("list the users of shares: %w", err)
	}
	defer release()
	return h.shareUsers()
}

// ReclaimShares removes the sealed contents files that the home called id uses alone and does not need, if the home is
// not mounted, and returns what it has removed. If dry is true, it only returns what it would remove.
func (h Homes) ReclaimShares(id string, dry bool) (overlay.Reclaimed, error) {
	dir := filepath.Join(h.Dir(), id, "overlay")
	if listed, err := overlay.ListedShares(dir); err != nil || len(listed) == 0 {
		return overlay.Reclaimed{}, err
	}
	t, err := h.LockExisting(id)
	if errors.Is(err, disk.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return overlay.Reclaimed{}, nil
	}
	if err != nil {
		return overlay.Reclaimed{}, err
	}
	o := overlay.Options{Shares: SharesDir(h.State), BeforeSync: func() error {
		return syncFile(filepath.Join(t.Dir, InodesName))
	}}
	return overlay.ReclaimClosed(dir, o, h.Sole(t.Dir), t.Unlock, dry)
}

// syncFile syncs a file if it exists.
func syncFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
