package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/session/trash"
)

// Trashed is the home of a deleted session in the trash.
type Trashed struct {
	// Session is the name of the session.
	Session string
	// At is the time at which the session was deleted, in whole seconds.
	At time.Time
	// Dir is the path of the home in the trash.
	Dir string
}

// Is reports whether the home is that of the session called name, deleted at the time at. Any time matches a zero at.
func (t Trashed) Is(name string, at time.Time) bool {
	return t.Session == name && (at.IsZero() || t.At.Unix() == at.Unix())
}

// trashDir returns the path of the directory trash/.
func (h Homes) trashDir() string { return filepath.Join(h.State, "trash") }

// ToTrash moves the home of the session called name to the trash, and unlocks it. now is the time of deletion. at is
// the time that the trash has for it, in whole seconds: no other session of this name has the same.
func (t *Home) ToTrash(name string, now time.Time) (at time.Time, err error) {
	defer t.Unlock()
	if err := os.MkdirAll(t.Homes.trashDir(), 0o700); err != nil {
		return at, fmt.Errorf("delete session %s: %w", name, err)
	}
	release, err := t.Homes.lockAll()
	if err != nil {
		return at, fmt.Errorf("delete session %s: %w", name, err)
	}
	defer release()
	seconds := now.Unix()
	to := func() string { return filepath.Join(t.Homes.trashDir(), name+"."+strconv.FormatInt(seconds, 10)) }
	for _, err := os.Lstat(to()); err == nil; _, err = os.Lstat(to()) {
		seconds++ // another session with this name was deleted in the same second, so use the next second
	}
	if err := os.Rename(t.Dir, to()); err != nil {
		return at, fmt.Errorf("delete session %s: %w", name, err)
	}
	return time.Unix(seconds, 0), nil
}

// Trash returns the homes in the trash, the one that was deleted last first.
func (h Homes) Trash() ([]Trashed, error) {
	entries, err := os.ReadDir(h.trashDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list deleted sessions: %w", err)
	}
	var all []Trashed
	for _, e := range entries {
		i := strings.LastIndexByte(e.Name(), '.')
		if i < 0 {
			continue
		}
		if at, err := strconv.ParseInt(e.Name()[i+1:], 10, 64); err == nil {
			all = append(all, Trashed{e.Name()[:i], time.Unix(at, 0), filepath.Join(h.trashDir(), e.Name())})
		}
	}
	slices.SortFunc(all, func(a, b Trashed) int { return b.At.Compare(a.At) })
	return all, nil
}

// FromTrash moves the home of the session called name that was deleted at the time at from the trash back to mounts/.
// If at is zero, that is the most recently deleted one. It returns trash.ErrNone if the trash has no such home, and
// trash.ErrThere if the session exists.
func (h Homes) FromTrash(name string, at time.Time) error {
	all, err := h.Trash()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(t Trashed) bool { return t.Is(name, at) })
	if i < 0 {
		return fmt.Errorf("restore session %s: %w", name, trash.ErrNone)
	}
	release, err := h.lockAll()
	if err != nil {
		return err
	}
	defer release()
	to := filepath.Join(h.Dir(), name)
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore session %s: %w", name, trash.ErrThere)
	}
	r, err := ReadRecord(all[i].Dir)
	if err == nil && !r.Until.IsZero() { // without this, the session would be moved to the trash again immediately
		r.Until = time.Time{}
		err = r.Save(all[i].Dir)
	}
	if err != nil {
		return fmt.Errorf("restore session %s: %w", name, err)
	}
	return os.Rename(all[i].Dir, to)
}

// EmptyTrash removes the homes that were deleted more than trash.Keep before now, and the shares that no other home
// uses. It stops at the first error, which it logs.
func (h Homes) EmptyTrash(now time.Time) {
	all, err := h.Trash()
	removed := false
	for _, t := range all {
		if err == nil && now.Sub(t.At) > trash.Keep {
			err = os.RemoveAll(t.Dir)
			removed = true
		}
	}
	if removed {
		h.removeUnusedShares()
	}
	if err != nil {
		h.Log.Warn("empty the trash", zap.Error(err))
	}
}
