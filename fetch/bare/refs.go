package bare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// lockPoll is the interval at which LockHistory checks whether another process has released the lock.
const lockPoll = 200 * time.Millisecond

// refsFile returns the path of git's file packed-refs. The file exists only after the history was completed.
func (r *Repo) refsFile() string { return filepath.Join(r.Path(), "packed-refs") }

// Complete reports whether the whole history has been fetched at least once. It checks whether the file packed-refs
// exists, which is written after the history was fetched.
func (r *Repo) Complete() bool {
	_, err := os.Stat(r.refsFile())
	return err == nil
}

// maxHaves is the maximum number of haves (ids of commits that the remote need not send) in one request.
const maxHaves = 64

// CompleteTips returns at most maxHaves commits whose whole history is in the repository. These are the commits to
// which the remote's branches pointed when the history was last completed.
func (r *Repo) CompleteTips() []object.ID {
	content, err := os.ReadFile(r.refsFile())
	if err != nil {
		return nil
	}
	var ids []object.ID
	for line := range strings.Lines(string(content)) {
		hex, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id, err := object.ParseID(hex); err == nil && strings.HasPrefix(name, "refs/heads/") && len(ids) < maxHaves {
			ids = append(ids, id)
		}
	}
	return ids
}

// LockHistory acquires the lock under which history is fetched and refs are written. If another process holds this
// lock, perhaps for a long time, LockHistory waits. If ctx ends first, LockHistory returns the error of ctx.
func (r *Repo) LockHistory(ctx context.Context) (unlock func(), err error) {
	for {
		unlock, err := disk.TryLock(filepath.Join(r.dir, "history.lock"))
		if !errors.Is(err, disk.ErrLocked) {
			return unlock, err
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// WriteRefs replaces the refs of the repository by those in list. If head is not "", WriteRefs also makes HEAD point to
// the branch with this name. Afterwards, Complete returns true. The caller holds the lock of LockHistory.
func (r *Repo) WriteRefs(head string, list []packedrefs.Ref) error {
	if err := disk.WriteFile(r.refsFile(), packedrefs.Encode(nil, list), 0o644); err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	if head == "" {
		return nil
	}
	if err := disk.WriteFile(filepath.Join(r.Path(), "HEAD"), []byte("ref: "+head+"\n"), 0o644); err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	return nil
}

// Refs returns the refs that WriteRefs has written, or none if the file cannot be read.
func (r *Repo) Refs() []packedrefs.Ref { return readRefs(r.refsFile()) }

// Changed returns the time at which the refs were last written, or the zero time if they were not.
func (r *Repo) Changed() time.Time {
	info, err := os.Stat(r.refsFile())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// listedFile returns the path of the file of WriteListed, which has the format of packed-refs.
func (r *Repo) listedFile() string { return filepath.Join(r.dir, "listed") }

// WriteListed records refs of the remote that mounts show although the history is not complete. The repository itself
// does not get these refs.
func (r *Repo) WriteListed(list []packedrefs.Ref) error {
	if err := disk.WriteFileUnsynced(r.listedFile(), packedrefs.Encode(nil, list), 0o600); err != nil {
		return fmt.Errorf("record refs: %w", err)
	}
	return nil
}

// Listed returns the refs that WriteListed has recorded.
func (r *Repo) Listed() []packedrefs.Ref { return readRefs(r.listedFile()) }

// ForgetListed removes the list of refs that WriteListed has recorded.
func (r *Repo) ForgetListed() error {
	if err := os.Remove(r.listedFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget refs: %w", err)
	}
	return nil
}

// readRefs returns the refs in a file, or none if it cannot be read.
func readRefs(path string) []packedrefs.Ref {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	list, err := packedrefs.Decode(text)
	if err != nil {
		return nil
	}
	return list
}

// MoveRef sets one ref to the commit tip, whose history is in the repository, and does not change the other refs. It
// returns all refs. The caller holds the lock of LockHistory.
func (r *Repo) MoveRef(ref string, tip object.ID) ([]packedrefs.Ref, error) {
	text, err := os.ReadFile(r.refsFile())
	if err != nil {
		return nil, fmt.Errorf("write refs: %w", err)
	}
	list, err := packedrefs.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("write refs: %w", err)
	}
	list = slices.DeleteFunc(list, func(r packedrefs.Ref) bool { return r.Name == ref })
	list = append(list, packedrefs.Ref{Name: ref, ID: tip})
	return list, r.WriteRefs("", list)
}

// Head returns the full name of the branch to which HEAD points; "" if HEAD does not point to a branch. Until WriteRefs
// was called, this is the default branch of `git init`.
func (r *Repo) Head() string {
	text, err := os.ReadFile(filepath.Join(r.Path(), "HEAD"))
	name, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "ref: ")
	if err != nil || !ok {
		return ""
	}
	return name
}
