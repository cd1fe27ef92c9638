package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Every process that has a store open holds a shared lock (flock) on the store's directory. A process that removes a
// store holds the exclusive lock, and renames the store before it deletes it, so that a process that opens the store at
// that time creates a new one.

var (
	// ErrStoreUsed means that another process has the store open.
	ErrStoreUsed = errors.New("store is used by a mount")
	// errStoreLocked means that a process does not release the exclusive lock of a store.
	errStoreLocked = errors.New("another process has locked the directory; a container that sees the directory can do that too")
	// errBeingMounted means that a process has locked a home but has not written the record of the home yet.
	errBeingMounted = errors.New("session is being mounted")
)

// holdTime is the maximum time, and holdPause the interval, for which HoldStore waits for the exclusive lock of a
// store. The process that holds the lock may have renamed the directory, so that HoldStore can create a new one.
var holdTime = 30 * time.Second

const holdPause = 10 * time.Millisecond

// HoldStore opens the store in the directory dir, and creates the directory if it does not exist. Until the function
// release is called, other processes cannot remove the store.
func HoldStore(dir string) (release func(), err error) {
	for start := time.Now(); ; {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		f, err := lockDir(dir, unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return func() {
				// A child process that is being forked may have a copy of the descriptor, so closing the file alone would not
				// release the lock.
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
				f.Close()
			}, nil
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("open store: %w", err)
		case time.Since(start) > holdTime:
			return nil, fmt.Errorf("open store %s: %w", dir, errStoreLocked)
		default:
			time.Sleep(holdPause)
		}
	}
}

// lockDir locks a directory with flock(2), to which it passes the operation how. It returns fs.ErrNotExist if the
// directory was renamed before it was locked.
func lockDir(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		var mine, there os.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Stat(dir)
		}
		if err == nil && !os.SameFile(mine, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LockStore acquires the exclusive lock of the store in the directory dir, without waiting. It returns ErrStoreUsed if
// another process has the store open. Closing the returned file releases the lock.
func LockStore(dir string) (*os.File, error) {
	f, err := lockDir(dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrStoreUsed
	}
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return f, nil
}

// RemoveStore removes the store in the directory dir. It returns ErrStoreUsed if a process has the store open.
func RemoveStore(dir string) error {
	f, err := LockStore(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	gone := filepath.Join(filepath.Dir(dir), RemovedPrefix+strconv.Itoa(os.Getpid())+"-"+filepath.Base(dir))
	if err := os.Rename(dir, gone); err != nil {
		return fmt.Errorf("remove store: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove store: %w", err)
	}
	return nil
}

// StoreDirs returns the paths of the stores, and the paths of directories whose removal a killed process has begun.
func StoreDirs(state string) (stores, removed []string, err error) {
	entries, err := os.ReadDir(filepath.Join(state, "stores"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list stores: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(state, "stores", e.Name())
		switch {
		case strings.HasPrefix(e.Name(), RemovedPrefix):
			removed = append(removed, path)
		case e.IsDir():
			stores = append(stores, path)
		}
	}
	return stores, removed, nil
}

// NeededStores returns the names of the stores that the mounts and sessions of a state directory need, also those in
// the trash. If it returns an error, the list of names may be incomplete, so the caller must remove no store.
func NeededStores(state string) (map[string]bool, error) {
	h := Homes{State: state, Log: zap.NewNop()}
	needed := map[string]bool{}
	// Meanwhile sessions may be moved to the trash and back, so it is read before the homes and after them.
	if err := h.addStoresOfTrash(needed); err != nil {
		return nil, err
	}
	ids, _, err := h.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		dir := filepath.Join(h.Dir(), id)
		borrowed, err := addStores(needed, state, dir)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return needed, err
		case err == nil || borrowed:
		case HasOverlay(dir):
			return needed, fmt.Errorf("read session record %s: %w", id, ErrNoRecord)
		default:
			t, err := h.LockExisting(id)
			if err == nil { // no other process holds the lock, so a killed process has left the home behind
				t.Unlock()
			} else if errors.Is(err, disk.ErrLocked) {
				return needed, fmt.Errorf("read session record %s: %w", id, errBeingMounted)
			}
		}
	}
	if err := h.addStoresOfTrash(needed); err != nil {
		return needed, err
	}
	// A registered mount is restored later, perhaps at a time when its remote cannot be reached.
	files, err := disk.Glob(filepath.Join(state, "registry"), "*.json")
	for _, path := range files {
		text, readErr := os.ReadFile(path)
		var r Registered
		if errors.Is(readErr, fs.ErrNotExist) {
			continue // the mount was removed from the registry after the files were listed
		}
		if err = errors.Join(err, readErr); err == nil {
			err = json.Unmarshal(text, &r)
		}
		needed[StoreName(r.Request.Remote)] = true
	}
	if err != nil {
		return needed, fmt.Errorf("read registry: %w", err)
	}
	return needed, nil
}

// addStoresOfTrash adds to needed the names of the stores that the sessions in the trash need. They may be restored at
// a time when their remotes no longer have their base commits.
func (h Homes) addStoresOfTrash(needed map[string]bool) error {
	deleted, err := h.Trash()
	for _, t := range deleted {
		_, failed := addStores(needed, h.State, t.Dir)
		// A home that was removed or moved since, or whose record is damaged, cannot be restored from here.
		if !errors.Is(failed, fs.ErrNotExist) && !errors.Is(failed, ErrRecord) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// addStores adds to needed the names of the stores that the home at dir needs. borrowed is whether the git directory of
// the home reads objects from a store. The error is that of ReadRecord if the record cannot be read.
func addStores(needed map[string]bool, state, dir string) (borrowed bool, err error) {
	// Git reads objects through these alternates, even if the record names another store.
	text, err := os.ReadFile(filepath.Join(dir, "git", "objects", "info", "alternates"))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), filepath.Join(state, "stores")+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			needed[name] = true
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read session record %s: %w", dir, err)
	}
	r, err := ReadRecord(dir)
	if err == nil {
		needed[StoreName(r.Remote)] = true
	}
	return len(text) > 0, err
}

// BundleDir returns the directory in which the bundle at url is unpacked. It is a part of the store for this URL in the
// state directory state.
func BundleDir(state, url string) string {
	return filepath.Join(state, "stores", StoreName(url), "bundle")
}

// StoreName returns the name of the directory of the store for a remote. It consists of the end of the URL, for human
// readers, and a hash of the URL.
func StoreName(url string) string {
	sum := sha256.Sum256([]byte(url))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, strings.TrimSuffix(url, ".git"))
	if len(name) > 60 {
		name = name[len(name)-60:]
	}
	return strings.TrimLeft(name, "._-") + "-" + hex.EncodeToString(sum[:6])
}
