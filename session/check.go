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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Health is the result of Check.
type Health struct {
	Points int
	Newest *Point // nil: there is none, or it cannot be read
	Broken []string
	Lost   []LostRef
	Locks  []Lock
	Packs  []odb.Problem
}

// LostRef is a ref that leads to an object which is missing or wrong.
type LostRef struct {
	Ref string
	Err error
}

// Lock is a lock file that git or another program has left, or is working under.
type Lock struct {
	Path  string
	Since time.Time
}

// Whole reports whether nothing is wrong. A lock file alone is not.
func (h Health) Whole() bool { return len(h.Broken)+len(h.Lost)+len(h.Packs) == 0 }

// Check looks whether refs can be read and lead to what is here, whether the newest checkpoint of each segment and all pins have
// their trees and what git was, and whether packs are whole; deep reads them. It changes nothing, and what others do
// meanwhile may look wrong to it.
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
			p, err := r.PointAt(ref.ID)
			if err == nil {
				err = r.wholeCheckpoint(p, seen)
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
	if err := r.EachPoint(func(Point) bool { h.Points++; return ctx.Err() == nil }); err != nil && len(h.Lost) == 0 {
		h.Lost = append(h.Lost, LostRef{LanePrefix(r.session), err})
	}
	if h.Locks, err = r.locks(); err != nil {
		return h, fmt.Errorf("check session: %w", err)
	}
	if h.Packs, err = odb.Check(r.own.dir, r.format, deep); err != nil {
		return h, fmt.Errorf("check session: %w", err)
	}
	return h, ctx.Err()
}

func isLane(ref, session string) bool { return strings.HasPrefix(ref, LanePrefix(session)) }

// wholeCheckpoint says what a checkpoint lacks. Contents that are not here the mounted remote has, or a pack of ours that is not
// whole; of trees only those that are owned are followed, since the others come and go together.
func (r *Repo) wholeCheckpoint(p Point, seen map[object.ID]bool) error {
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

// locks lists git's lock files. Those that are links to ours say nothing: whoever holds that lock goes over them.
func (r *Repo) locks() ([]Lock, error) {
	var all []Lock
	ours := filepath.Join(r.dir, lockFile)
	err := filepath.WalkDir(r.dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && file == filepath.Join(r.dir, "objects"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".lock") || file == ours || sameFile(file, ours):
			return nil
		}
		info, err := os.Lstat(file)
		if err == nil {
			all = append(all, Lock{file, info.ModTime()})
		}
		return nil
	})
	return all, err
}
