package daemon

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
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay"
)

// Every mount has a home, a directory below mounts/. That of a session is named like it and stays while it holds work;
// that of a mount without a session lives as long as the mount. A lock in it says that somebody uses it, and its text
// says who: a mount, by process and directory, or, without a text, somebody who looks or removes and is done soon.
//
// mounts.lock is held while homes are made, looked for, locked and renamed, never longer: a home that is being made does
// not look like one that somebody left, and who only looks keeps no mount from starting.
//
// A home holds work, and is never removed but on demand, if its overlay has changes or its git directory work that no
// remote has given; and if any of that cannot be read.

const (
	lookTime  = 10 * time.Second // for somebody who looks into a home to be done
	lookPause = 10 * time.Millisecond
	listTime  = time.Second // longest wait of a list of sessions for all homes that other commands have locked

	largeLog = 8 << 20 // bytes of an overlay's log that is not there for nothing

	removedPrefix = ".removed-" // a home that is on its way out; no session is named so
)

// inUseError says that a home is locked by a mount.
type inUseError struct{ session, dir, pid string }

func (e inUseError) Error() string {
	return fmt.Sprintf("session %s is mounted at %s by process %s", e.session, e.dir, e.pid)
}

// homes is the directory mounts/ of a state directory.
type homes struct {
	state string
	log   *zap.Logger
}

// home is one that we hold the lock of.
type home struct {
	homes  homes
	id     string
	dir    string
	fresh  bool     // made just now
	lock   *os.File // held
	unlock func()
}

func (h homes) dir() string { return filepath.Join(h.state, "mounts") }

func (h homes) lock() (unlock func(), err error) {
	return disk.Lock(filepath.Join(h.state, "mounts.lock"))
}

// take locks the home of a mount, making it if it is missing; an inUseError if another mount has it.
func (h homes) take(ctx context.Context, id, mountDir string) (*home, error) {
	for start := time.Now(); ; {
		taken, err := h.tryTake(id)
		if err == nil {
			taken.sign(fmt.Sprintf("%d %s\n", os.Getpid(), mountDir))
			return taken, nil
		}
		if !errors.Is(err, disk.ErrLocked) {
			return nil, fmt.Errorf("make mount's directory: %w", err)
		}
		late := time.Since(start) > lookTime
		if holder, ok := h.holder(id); ok && (late || !holder.dead()) {
			return nil, holder
		}
		if late {
			return nil, fmt.Errorf("make mount's directory: %w", err)
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h homes) tryTake(id string) (*home, error) {
	release, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer release()
	t := &home{homes: h, id: id, dir: filepath.Join(h.dir(), id)}
	err = os.Mkdir(t.dir, 0o700)
	t.fresh = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err = t.tryLock(); err != nil && t.fresh {
		os.RemoveAll(t.dir)
	}
	return t, err
}

func (t *home) tryLock() (err error) {
	t.lock, err = disk.TryLockFile(filepath.Join(t.dir, "lock"))
	t.unlock = func() { disk.Unlock(t.lock) }
	return err
}

// inherit goes on with a home whose lock a process had that is dead; fs.ErrNotExist: it has removed it.
func (h homes) inherit(id, mountDir string, lock *os.File) (*home, error) {
	t := &home{homes: h, id: id, dir: filepath.Join(h.dir(), id), lock: lock}
	there, err := os.Stat(filepath.Join(t.dir, "lock"))
	if err != nil {
		return nil, err
	}
	if own, err := lock.Stat(); err != nil || !os.SameFile(own, there) {
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	if err := disk.Relock(lock); err != nil { // it may have been given up in the end
		return nil, err
	}
	t.unlock = func() { disk.Unlock(lock) }
	t.sign(fmt.Sprintf("%d %s\n", os.Getpid(), mountDir))
	return t, nil
}

// existing locks a home that is there; disk.ErrLocked if somebody has it, fs.ErrNotExist if there is none.
func (h homes) existing(id string) (*home, error) {
	release, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer release()
	t := &home{homes: h, id: id, dir: filepath.Join(h.dir(), id)}
	if _, err := os.Lstat(t.dir); err != nil {
		return nil, err
	}
	if err := t.tryLock(); err != nil {
		return nil, err
	}
	t.sign("")
	return t, nil
}

// sign says who holds the lock; a full or read-only disk leaves it unsaid.
func (t *home) sign(text string) {
	if err := os.WriteFile(filepath.Join(t.dir, "lock"), []byte(text), 0o600); err != nil {
		t.homes.log.Debug("sign lock", zap.String("home", t.dir), zap.Error(err))
	}
}

// giveUp ends a mount's use of its home, which stays.
func (t *home) giveUp() {
	t.sign("")
	t.unlock()
}

// holder tells which mount holds a lock; false: it is not a mount.
func (h homes) holder(id string) (inUseError, bool) {
	text, err := os.ReadFile(filepath.Join(h.dir(), id, "lock"))
	pid, dir, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	if _, numberErr := strconv.Atoi(pid); err != nil || numberErr != nil || !ok {
		return inUseError{}, false
	}
	return inUseError{id, dir, pid}, true
}

// dead reports whether the process of the mount has ended, or is ending. The kernel takes the memory of a killed process before it
// closes the process's files, which can take a while, and ends the lock only then.
func (e inUseError) dead() bool {
	args, err := os.ReadFile(filepath.Join("/proc", e.pid, "cmdline"))
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(args) == 0
}

// remove removes the home and gives up its lock. It gets another name first, so that one of the same name can be made
// at once, and a process killed here leaves what the next one knows to remove.
func (t *home) remove() error {
	defer t.unlock()
	release, err := t.homes.lock()
	if err != nil {
		return fmt.Errorf("remove %s: %w", t.dir, err)
	}
	gone := filepath.Join(t.homes.dir(), removedPrefix+strconv.Itoa(os.Getpid())+"-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	err = os.Rename(t.dir, gone)
	release()
	if err != nil {
		return fmt.Errorf("remove %s: %w", t.dir, err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove %s: %w", gone, err)
	}
	return nil
}

// ids lists the homes; removed lists the directories that a killed process was about to remove.
func (h homes) ids() (ids, removed []string, err error) {
	entries, err := os.ReadDir(h.dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list sessions: %w", err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), removedPrefix):
			removed = append(removed, filepath.Join(h.dir(), e.Name()))
		case e.IsDir():
			ids = append(ids, e.Name())
		}
	}
	return ids, removed, nil
}

// work is what a home holds that exists nowhere else.
type work struct {
	changed, bytes int64
	git            bool // what only its git directory has
	damaged        bool // not all that it held can be read
	removed        bool // removed files that are kept for a checkpoint
	carried        bool // points, or commits that were carried away from it
}

func (w work) any() bool { return w.changed > 0 || w.git || w.damaged || w.removed || w.carried }

// look finds out what an unmounted home holds. An error means that it may hold anything.
func (t *home) look() (record, work, error) {
	var w work
	r, err := readRecord(t.dir)
	w.carried = hasRepo(t.dir)
	if errors.Is(err, fs.ErrNotExist) && !hasOverlay(t.dir) {
		return record{}, work{}, nil // of a mount without a session, or killed before it could be written to
	}
	if err != nil {
		return r, w, err
	}
	if w.git, err = gitdir.HasWork(context.Background(), filepath.Join(t.dir, "git")); err != nil {
		return r, w, err
	}
	if r.Counted || !hasOverlay(t.dir) {
		w.changed, w.bytes = r.Changed, r.Bytes
		return r, w, nil
	}
	layer, recovery, err := overlay.Open(filepath.Join(t.dir, "overlay"), overlay.Options{ReadOnly: true, Log: t.homes.log})
	if err != nil {
		return r, w, fmt.Errorf("read session %s: %w", r.Session, err)
	}
	w.changed, w.bytes, w.damaged = layer.Changed(), layer.Stats().Bytes, len(recovery.Problems) > 0
	w.removed = layer.Keeps()
	return r, w, layer.Close()
}

// removeLeftovers removes what killed processes left and nobody needs. Work stays, and is counted for those who list it.
func (h homes) removeLeftovers() error {
	ids, removed, err := h.ids()
	if err != nil {
		return err
	}
	for _, dir := range removed {
		if err := os.RemoveAll(dir); err != nil {
			h.log.Warn("remove what a mount left", zap.String("path", dir), zap.Error(err))
		}
	}
	for _, id := range ids {
		t, err := h.existing(id)
		if errors.Is(err, disk.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		t.tidy()
	}
	return nil
}

// tidy removes a home that a killed process left if it holds no work, and gives up its lock.
func (t *home) tidy() {
	log := t.homes.log.With(zap.String("home", t.dir))
	if hasLargeLog(t.dir) { // a daemon that starts does not read it only to count
		t.giveUp()
		return
	}
	r, w, err := t.look()
	switch {
	case err != nil:
		log.Warn("a session cannot be read; run artifactfs doctor", zap.Error(err))
		t.giveUp()
	case w.any():
		if !r.Counted && !w.damaged && !w.removed {
			r.Counted, r.Changed, r.Bytes = true, w.changed, w.bytes
			if err := r.save(t.dir); err != nil {
				log.Warn("count a session's changes", zap.Error(err))
			}
		}
		t.giveUp()
	default:
		if err := t.remove(); err != nil {
			log.Warn("remove what a mount left", zap.Error(err))
			return
		}
		log.Info("removed what a killed process left")
	}
}

func hasLargeLog(home string) bool {
	info, err := os.Stat(filepath.Join(home, "overlay", "log"))
	return err == nil && info.Size() > largeLog
}

// Kept lists the sessions that hold work and are not mounted, as their status shows them.
func Kept(state string) ([]control.MountStatus, error) {
	h := homes{state, zap.NewNop()}
	ids, _, err := h.ids()
	if err != nil {
		return nil, err
	}
	var kept []control.MountStatus
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	for _, id := range ids {
		t, err := h.waitExisting(ctx, id)
		if err != nil {
			if errors.Is(err, disk.ErrLocked) || errors.Is(err, errBusySession) || errors.Is(err, errNoSession) {
				continue
			}
			if r, readErr := readRecord(filepath.Join(h.dir(), id)); errors.Is(err, unix.EROFS) && readErr == nil && r.Counted {
				kept = append(kept, unmountedStatus(id, r, work{changed: r.Changed, bytes: r.Bytes})) // nobody mounts there
				continue
			}
			return kept, fmt.Errorf("list sessions: %w", err)
		}
		r, w, err := t.look()
		carried := t.carried(r)
		t.unlock()
		switch {
		case err != nil:
			r.Session = id
			s := unmountedStatus(id, r, work{changed: -1})
			s.Error = err.Error()
			kept = append(kept, s)
		case w.any():
			s := unmountedStatus(id, r, w)
			s.Session = carried
			kept = append(kept, s)
		}
	}
	return kept, nil
}

func unmountedStatus(id string, r record, w work) control.MountStatus {
	return control.MountStatus{
		ID: id, Dir: r.Dir, Remote: r.Remote, Ref: shortRef(r.Ref), Commit: r.Commit, State: control.StateUnmounted,
		History: control.HistoryShallow, Overlay: control.OverlayStatus{Changed: w.changed, Bytes: w.bytes},
		Session: control.SessionStatus{Name: r.Session},
	}
}

// Discard puts a session that is not mounted into the trash of a state directory; an inUseError if it is mounted. What is of it
// on a session remote stays: see Elsewhere.
func Discard(state, session string) error { return homes{state, zap.NewNop()}.discard(session, true) }

// Elsewhere reports whether a session that is not mounted has a session remote besides the repository in the state directory, so
// that a daemon is needed to delete it there.
func Elsewhere(state, session string) bool {
	h := homes{state, zap.NewNop()}
	r, err := readRecord(filepath.Join(h.dir(), session))
	at, _ := sessionURL(control.MountRequest{Remote: r.Remote, SessionOptions: r.Carried})
	return err == nil && at != ""
}

// discard throws away a session that is not mounted, for good or into the trash.
func (h homes) discard(session string, trash bool) error {
	t, err := h.existing(session)
	switch {
	case errors.Is(err, disk.ErrLocked):
		if holder, ok := h.holder(session); ok {
			return holder
		}
		return err
	case err != nil:
		return fmt.Errorf("discard session %s: %w", session, err)
	}
	if trash {
		return t.toTrash(session, time.Now())
	}
	return t.remove()
}
