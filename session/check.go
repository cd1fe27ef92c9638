package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// Health is the result of Check: the state of a session's repository.
type Health struct {
	Checkpoints int           // number of checkpoints
	Newest      *Checkpoint   // newest checkpoint that can be read; nil if there is none
	Broken      []string      // names of refs whose files hold no valid value
	Lost        []LostRef     // refs from which missing or damaged objects are reachable
	Locks       []Lock        // lock files in the repository
	Packs       []odb.Problem // damaged packs
}

// LostRef is a ref from which a missing or damaged object is reachable.
type LostRef struct {
	Ref string // full name of the ref, or a common prefix of several refs
	Err error  // error that names the object and states the damage
}

// Lock is a lock file in the repository that git or another program has created. The process that created it may still
// run.
type Lock struct {
	Path  string    // absolute path of the lock file
	Since time.Time // time of the last change
}

// Whole reports whether Check found no damage. A lock file does not count as damage.
func (h Health) Whole() bool { return len(h.Broken)+len(h.Lost)+len(h.Packs) == 0 }

// Check verifies that all refs can be read and that their objects exist, that the newest checkpoint of each segment and
// every pinned checkpoint have their trees and their State, and that the packs are intact. If deep is set, it also
// reads every object in the packs. Check changes nothing. If another process changes the repository while Check runs,
// the report may contain damage that does not exist.
func (r *Repo) Check(ctx context.Context, deep bool) (Health, error) {
	var h Health
	refs, broken, err := r.AllRefs("")
	if err != nil {
		return h, fmt.Errorf("check session: %w", err)
	}
	h.Broken = broken
	seen := map[object.ID]bool{}
	for _, ref := range refs {
		if err := ctx.Err(); err != nil {
			return h, err
		}
		lost := func(err error) {
			if err != nil {
				h.Lost = append(h.Lost, LostRef{ref.Name, err})
			}
		}
		switch {
		case isLane(ref.Name, r.session), strings.HasPrefix(ref.Name, PinPrefix(r.session)):
			p, err := r.CheckpointAt(ref.ID)
			if err == nil {
				err = wholeCheckpoint(r, p, seen)
			}
			if err == nil && (h.Newest == nil || p.ID > h.Newest.ID) && isLane(ref.Name, r.session) {
				h.Newest = &p
			}
			lost(err)
		case ref.Name == MetaRef(r.session):
			_, _, err := ReadMeta(r, r.session)
			lost(err)
		default:
			_, _, err := r.Size(ref.ID)
			lost(err)
		}
	}
	// EachCheckpoint stops at the first damaged checkpoint. If damage is reported already, drop the error of
	// EachCheckpoint, because it describes the same damage.
	if err := r.EachCheckpoint(func(Checkpoint) bool { h.Checkpoints++; return ctx.Err() == nil }); err != nil &&
		len(h.Lost) == 0 {
		h.Lost = append(h.Lost, LostRef{LanePrefix(r.session), err})
	}
	if h.Locks, err = lockFiles(r.dir); err != nil {
		return h, fmt.Errorf("check session: %w", err)
	}
	if h.Packs, err = odb.Check(r.own.dir, r.format, deep); err != nil {
		return h, fmt.Errorf("check session: %w", err)
	}
	return h, ctx.Err()
}

// isLane reports whether ref is the name of the ref of a segment, of any lane of the session.
func isLane(ref, session string) bool { return strings.HasPrefix(ref, LanePrefix(session)) }

// wholeCheckpoint returns an error if a checkpoint lacks its State or a tree. It does not look for blobs: a missing
// blob is on the mounted remote, or in a pack that Check reports as damaged. It reads only owned trees; of other trees
// it checks only that they exist, because the trees of a snapshot are stored and removed together. It adds the trees
// that it has checked to seen.
func wholeCheckpoint(r *Repo, p Checkpoint, seen map[object.ID]bool) error {
	if _, err := r.State(p); err != nil {
		return err
	}
	stack := []object.ID{p.Tree}
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		// A tree that the Repo does not own only has to exist. Size searches all objects directories for the tree.
		if !r.Owned(id) {
			if _, _, err := r.Size(id); err != nil {
				return err
			}
			continue
		}
		entries, err := r.Tree(id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Mode == object.ModeDir {
				stack = append(stack, e.ID)
			}
		}
	}
	return nil
}

// lockFiles returns the lock files in the repository dir. It leaves out the session's own lock file and hard links to
// it, because the next Update takes over such a link.
func lockFiles(dir string) ([]Lock, error) {
	var all []Lock
	ours := filepath.Join(dir, lockFile)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && file == filepath.Join(dir, "objects"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".lock") || file == ours || sameFile(file, ours):
			return nil
		}
		// The lock file may have been removed since it was listed.
		info, err := os.Lstat(file)
		if err == nil {
			all = append(all, Lock{file, info.ModTime()})
		}
		return nil
	})
	return all, err
}
