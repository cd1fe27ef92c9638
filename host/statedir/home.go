package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/session/trash"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Every mount has a home, which is a directory below mounts/. The home of a session has the session's name and exists
// as long as it contains changes. The home of a mount without a session exists as long as the mount. The process that
// uses a home holds a lock on the file "lock" in the home. The text of that file names the mount by process ID and
// directory. The text is empty if the process only reads or removes the home and then exits.
//
// The lock mounts.lock is held only while homes are created, listed, locked and renamed. So a home that is being
// created is never mistaken for a home that a killed process left behind, and a process that only reads a home does not
// prevent a mount from starting.
//
// A home is removed only at the user's request if its overlay contains changes, if its git directory has objects that
// no remote has, or if the overlay or the git directory cannot be read.

const (
	lookTime = 10 * time.Second // maximum time to wait for processes that only read a home
	// LookPause is the pause between two attempts to lock a home that another process reads.
	LookPause = 10 * time.Millisecond
	// ListTime is the maximum total time for which a list of sessions waits for homes that other commands have locked.
	ListTime = time.Second

	largeLog = 8 << 20 // size in bytes; if the log of an overlay is larger, the overlay certainly contains changes

	// RemovedPrefix is the prefix of the name of a home or store that is being removed. No session name begins with this
	// prefix.
	RemovedPrefix = ".removed-"
)

// InUseError means that a mount holds the lock of a home. Dir is the directory of the mount, and PID the ID of the
// process that serves it.
type InUseError struct{ Session, Dir, PID string }

// Error returns a message that names the session, the directory where it is mounted, and the process ID.
func (e InUseError) Error() string {
	return fmt.Sprintf("session %s is mounted at %s by process %s", e.Session, e.Dir, e.PID)
}

// Homes accesses the directory mounts/ of a state directory, which contains the homes of all mounts and sessions. Its
// methods may be called concurrently, and by several processes.
type Homes struct {
	// State is the path of the state directory.
	State string
	Log   *zap.Logger
	// Sweeper removes the files of shares in the background. If it is nil, they are removed at once.
	Sweeper *Sweeper
}

// Home is the home of a mount or session, whose lock this process holds.
type Home struct {
	// Homes is the directory that contains the home.
	Homes    Homes
	id       string   // name of the home in mounts/
	Dir      string   // path of the home
	Created  bool     // whether the call of Lock that returned this Home has created it
	LockFile *os.File // the file "lock" of the home, which is open and locked
	// Unlock releases the lock of the home.
	Unlock func()
}

// Dir returns the path of the directory mounts/.
func (h Homes) Dir() string { return filepath.Join(h.State, "mounts") }

// lockAll acquires the lock mounts.lock, which serializes changes of the list of homes. It waits while another process
// holds this lock.
func (h Homes) lockAll() (unlock func(), err error) {
	return disk.Lock(filepath.Join(h.State, "mounts.lock"))
}

// Lock locks the home called id for a mount at mountDir, and creates the home if it does not exist. It waits up to
// lookTime for processes that only read the home, and returns an InUseError if another mount holds the lock.
func (h Homes) Lock(ctx context.Context, id, mountDir string) (*Home, error) {
	for start := time.Now(); ; {
		taken, err := h.tryLock(id)
		if err == nil {
			taken.Sign(fmt.Sprintf("%d %s\n", os.Getpid(), mountDir))
			return taken, nil
		}
		if !errors.Is(err, disk.ErrLocked) {
			return nil, fmt.Errorf("create mount's directory: %w", err)
		}
		late := time.Since(start) > lookTime
		if holder, ok := h.Holder(id); ok && (late || !holder.dead()) {
			return nil, holder
		}
		if late {
			return nil, fmt.Errorf("create mount's directory: %w", err)
		}
		select {
		case <-time.After(LookPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryLock makes one attempt to lock the home called id, which it creates if necessary. It returns disk.ErrLocked if
// another process holds the lock.
func (h Homes) tryLock(id string) (*Home, error) {
	release, err := h.lockAll()
	if err != nil {
		return nil, err
	}
	defer release()
	t := &Home{Homes: h, id: id, Dir: filepath.Join(h.Dir(), id)}
	err = os.Mkdir(t.Dir, 0o700)
	t.Created = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err = t.tryLock(); err != nil && t.Created {
		os.RemoveAll(t.Dir)
	}
	return t, err
}

// tryLock locks the file "lock" of the home without waiting, and sets LockFile and Unlock.
func (t *Home) tryLock() (err error) {
	t.LockFile, err = disk.TryLockFile(filepath.Join(t.Dir, "lock"))
	t.Unlock = func() { disk.Unlock(t.LockFile) }
	return err
}

// TakeOver returns the home of a mount whose worker has died, for the worker that continues the mount. The parameter
// lock is the open lock file, which this process has inherited from its predecessor. TakeOver returns fs.ErrNotExist if
// the predecessor has removed the home.
func (h Homes) TakeOver(id, mountDir string, lock *os.File) (*Home, error) {
	t := &Home{Homes: h, id: id, Dir: filepath.Join(h.Dir(), id), LockFile: lock}
	there, err := os.Stat(filepath.Join(t.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	if own, err := lock.Stat(); err != nil || !os.SameFile(own, there) {
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	// lock the file again, because the predecessor may have unlocked it before it died
	if err := disk.Relock(lock); err != nil {
		return nil, err
	}
	t.Unlock = func() { disk.Unlock(lock) }
	t.Sign(fmt.Sprintf("%d %s\n", os.Getpid(), mountDir))
	return t, nil
}

// LockExisting locks the home called id without waiting. It returns disk.ErrLocked if another process holds the lock,
// and fs.ErrNotExist if the home does not exist.
func (h Homes) LockExisting(id string) (*Home, error) {
	release, err := h.lockAll()
	if err != nil {
		return nil, err
	}
	defer release()
	t := &Home{Homes: h, id: id, Dir: filepath.Join(h.Dir(), id)}
	if _, err := os.Lstat(t.Dir); err != nil {
		return nil, err
	}
	if err := t.tryLock(); err != nil {
		return nil, err
	}
	t.Sign("")
	return t, nil
}

// Sign writes text into the lock file of the home. The text names the mount that holds the lock; a process without a
// mount writes an empty text. Sign only logs an error, for example that the disk is full or read-only.
func (t *Home) Sign(text string) {
	if err := os.WriteFile(filepath.Join(t.Dir, "lock"), []byte(text), 0o600); err != nil {
		t.Homes.Log.Debug("write process ID to lock file", zap.String("home", t.Dir), zap.Error(err))
	}
}

// Release unlocks the home without removing it.
func (t *Home) Release() {
	t.Homes.unmountGuard(t.Dir)
	t.Sign("")
	t.Unlock()
}

// unmountGuard unmounts the git directory in the home at dir. That directory is a mount point while containers use the
// mount (see package guard).
func (h Homes) unmountGuard(dir string) {
	if err := guard.Unmount(filepath.Join(dir, "git")); err != nil {
		h.Log.Warn("unmount git directory", zap.Error(err))
	}
}

// Holder returns the mount that the lock file of the home called id names, or false if the file names no mount.
func (h Homes) Holder(id string) (InUseError, bool) {
	text, err := os.ReadFile(filepath.Join(h.Dir(), id, "lock"))
	pid, dir, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	if _, numberErr := strconv.Atoi(pid); err != nil || numberErr != nil || !ok {
		return InUseError{}, false
	}
	return InUseError{id, dir, pid}, true
}

// dead reports whether the process that serves the mount has exited or is exiting. When a process is killed, the kernel
// first frees the process's memory, which contains its arguments, and some time later closes its files and so releases
// the lock. Therefore a process without arguments counts as dead.
func (e InUseError) dead() bool {
	args, err := proc.Process(proc.Root + e.PID).Args()
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(args) == 0
}

// Remove removes the home, with its lock. It first renames the home, so that a new home with the same name can be
// created immediately. If this process is killed before the home is deleted, RemoveLeftovers recognizes the home by its
// new name.
func (t *Home) Remove() error {
	defer t.Unlock()
	release, err := t.Homes.lockAll()
	if err != nil {
		return fmt.Errorf("remove %s: %w", t.Dir, err)
	}
	gone := filepath.Join(t.Homes.Dir(), RemovedPrefix+strconv.Itoa(os.Getpid())+"-"+
		strconv.FormatInt(time.Now().UnixNano(), 36))
	err = os.Rename(t.Dir, gone)
	release()
	if err != nil {
		return fmt.Errorf("remove %s: %w", t.Dir, err)
	}
	t.Homes.unmountGuard(gone)
	listed, listErr := overlay.ListedShares(filepath.Join(gone, "overlay"))
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove %s: %w", gone, err)
	}
	if listErr != nil || len(listed) > 0 {
		t.Homes.removeUnusedShares()
	}
	return nil
}

// IDs returns the names of the homes, and the paths of directories whose removal was begun by a process that was then
// killed.
func (h Homes) IDs() (ids, removed []string, err error) {
	entries, err := os.ReadDir(h.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list sessions: %w", err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), RemovedPrefix):
			removed = append(removed, filepath.Join(h.Dir(), e.Name()))
		case e.IsDir():
			ids = append(ids, e.Name())
		}
	}
	return ids, removed, nil
}

// Unsaved describes the changes in a home that exist nowhere else.
type Unsaved struct {
	Paths, Bytes int64 // number of changed paths, and size of changed contents
	Git          bool  // whether the git directory has objects or refs that exist nowhere else
	Damaged      bool  // whether a part of the overlay cannot be read
	Removed      bool  // whether removed files are kept for the next checkpoint
	Checkpoints  bool  // whether the home has a session repository
	// Settings is whether the git directory has the settings of a clone, which a new one would not have. It is set only if
	// the daemon mounts the session again when it starts next.
	Settings bool
	// Carried is whether the overlay has files that were carried from another session and are unchanged. They may exist
	// nowhere else: the other session can have removed them since.
	Carried bool
}

// Any reports whether the home has any changes that exist nowhere else.
func (w Unsaved) Any() bool {
	return w.Paths > 0 || w.Git || w.Damaged || w.Removed || w.Checkpoints || w.Settings || w.Carried
}

// OnlyCarried reports whether the home has carried files and no changes.
func (w Unsaved) OnlyCarried() bool {
	carried := w.Carried
	w.Carried = false
	return carried && !w.Any()
}

// String returns the number of changed paths as text, for users.
func (w Unsaved) String() string {
	switch {
	case w.OnlyCarried():
		return "carried files"
	case w.Paths == 1:
		return "1 changed path"
	}
	return fmt.Sprintf("%d changed paths", w.Paths)
}

// Inspect returns the record of the home, and the changes that exist only there. The home must not be mounted. If
// Inspect returns an error, the caller must treat the home as one that contains changes. If the record does not contain
// the numbers, Inspect reads the overlay, which can take seconds.
func (t *Home) Inspect() (Record, Unsaved, error) {
	var w Unsaved
	r, err := ReadRecord(t.Dir)
	w.Checkpoints = HasSessionRepo(t.Dir)
	if errors.Is(err, fs.ErrNotExist) && !HasOverlay(t.Dir) {
		// This is the home of a mount without a session, or of a process that was killed before its first write.
		return Record{}, Unsaved{}, nil
	}
	if err != nil {
		return r, w, err
	}
	if r.Fork.Unfinished {
		return r, Unsaved{}, nil
	}
	w.Settings = len(r.Checkout) > 0 && t.Homes.registered(r.Dir)
	if w.Git, err = gitdir.HasWork(context.Background(), filepath.Join(t.Dir, "git")); err != nil {
		return r, w, err
	}
	// A record with counts is that of a home with changes of the user, so it does not matter whether it has carried files.
	if r.Counted || !HasOverlay(t.Dir) {
		w.Paths, w.Bytes = r.Changed, r.Bytes
		return r, w, nil
	}
	layer, recovery, err := overlay.Open(filepath.Join(t.Dir, "overlay"),
		overlay.Options{ReadOnly: true, Shares: SharesDir(t.Homes.State), Log: t.Homes.Log})
	if err != nil {
		return r, w, fmt.Errorf("read session %s: %w", r.Session, err)
	}
	stats := layer.Stats()
	w.Paths, w.Bytes, w.Damaged = layer.Changed(), stats.Bytes, len(recovery.Problems) > 0
	w.Removed, w.Carried = layer.Keeps(), stats.Carried > 0
	return r, w, layer.Close()
}

// registered reports whether there is a registry file for the mount at dir, from which the daemon mounts it again.
func (h Homes) registered(dir string) bool {
	_, err := os.Lstat(filepath.Join(h.State, "registry", FileName(dir)))
	return err == nil
}

// RemoveLeftovers removes the homes that killed processes have left and that contain no changes, and the shares that no
// home uses. If a home contains changes, RemoveLeftovers stores their number in the home's record. It skips locked
// homes.
func (h Homes) RemoveLeftovers() error {
	ids, removed, err := h.IDs()
	if err != nil {
		return err
	}
	for _, dir := range removed {
		h.unmountGuard(dir)
		if err := os.RemoveAll(dir); err != nil {
			h.Log.Warn("remove leftovers of mount", zap.String("path", dir), zap.Error(err))
		}
	}
	for _, id := range ids {
		t, err := h.LockExisting(id)
		if errors.Is(err, disk.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		t.Tidy()
	}
	h.removeUnusedShares()
	return nil
}

// Tidy removes the home of a killed process if it contains no changes. Otherwise Tidy stores the number of changes in
// the home's record. In both cases it unlocks the home.
func (t *Home) Tidy() {
	log := t.Homes.Log.With(zap.String("home", t.Dir))
	// Do not read a large log to count the changes, because that would delay the start of the daemon.
	if r, err := ReadRecord(t.Dir); HasLargeLog(t.Dir) && (err != nil || !r.Fork.Unfinished) {
		t.Release()
		return
	}
	r, w, err := t.Inspect()
	switch {
	case err != nil:
		log.Warn("read session; artifactfs doctor shows the cause", zap.Error(err))
		t.Release()
	case w.Any():
		if !r.Counted && !w.Damaged && !w.Removed && !w.OnlyCarried() {
			r.Counted, r.Changed, r.Bytes = true, w.Paths, w.Bytes
			if err := r.Save(t.Dir); err != nil {
				log.Warn("count changes of session", zap.Error(err))
			}
		}
		t.Release()
	default:
		if err := t.Remove(); err != nil {
			log.Warn("remove leftovers of mount", zap.Error(err))
			return
		}
		log.Info("removed leftovers of killed process")
	}
}

// HasLargeLog reports whether the log in the overlay of a home is larger than largeLog, so that reading it to count the
// changes would take too long.
func HasLargeLog(home string) bool {
	info, err := os.Stat(filepath.Join(home, "overlay", "log"))
	return err == nil && info.Size() > largeLog
}

// ErrBusySession means that another process has mounted the session.
var ErrBusySession = errors.New("session is mounted by another process")

// IDOf returns the name of the home of a session that is not mounted. The parameter of is the name of the session, or
// the directory where it was last mounted. IDOf returns ErrNoSession if no session was mounted at that directory.
func (h Homes) IDOf(of string) (id string, err error) {
	if !filepath.IsAbs(of) {
		if err := control.ValidSession(of); err != nil {
			return "", err
		}
		return of, nil
	}
	ids, _, err := h.IDs()
	if err != nil {
		return "", err
	}
	var newest Record
	for _, candidate := range ids {
		r, err := ReadRecord(filepath.Join(h.Dir(), candidate))
		if err == nil && r.Dir == filepath.Clean(of) && !r.Began.Before(newest.Began) {
			id, newest = candidate, r
		}
	}
	if id == "" {
		return "", ErrNoSession
	}
	return id, nil
}

// WaitExisting locks the home called id, but waits for processes that only read the home. If such a process still has
// the lock when lookTime has passed or ctx ends, WaitExisting returns disk.ErrLocked. It returns ErrNoSession if the
// home does not exist, and an error that wraps ErrBusySession and an InUseError if a mount holds the lock.
func (h Homes) WaitExisting(ctx context.Context, id string) (*Home, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for {
		t, err := h.LockExisting(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, ErrNoSession
		case !errors.Is(err, disk.ErrLocked):
			return t, err
		}
		holder, mounted := h.Holder(id)
		if mounted && !holder.dead() || !clock.Wait(ctx, LookPause) {
			if mounted {
				return nil, fmt.Errorf("%w: %w", ErrBusySession, holder)
			}
			return nil, err
		}
	}
}

// ErrNoSession means that the state directory does not contain the session.
var ErrNoSession = errors.New("no such session")

// Discard deletes the home of a session that is not mounted. If toTrash is set, it moves the home to the trash instead,
// where it stays until the time until. It returns an InUseError if the session is mounted.
func (h Homes) Discard(session string, toTrash bool) (until time.Time, err error) {
	t, err := h.LockExisting(session)
	switch {
	case errors.Is(err, disk.ErrLocked):
		if holder, ok := h.Holder(session); ok {
			return until, holder
		}
		return until, err
	case err != nil:
		return until, fmt.Errorf("discard session %s: %w", session, err)
	case toTrash:
		at, err := t.ToTrash(session, time.Now())
		return at.Add(trash.Keep), err
	}
	return until, t.Remove()
}
