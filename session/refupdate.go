package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
)

// RefChange moves a ref.
type RefChange struct {
	Name  string
	Old   object.ID // that it has now; zero: it is not there
	New   object.ID // zero: it goes
	Force bool      // whatever it is now
}

const (
	// lockWait is how long a lock file of git's is waited for, and lockLook how long between two looks at it.
	lockWait = 5 * time.Second
	lockLook = 5 * time.Millisecond
)

// Update makes all changes, each of another ref, durably, or none: ErrRefMoved. A process that dies meanwhile may leave some of
// them made.
func (r *Repo) Update(ctx context.Context, changes []RefChange) error {
	return r.updateAfter(ctx, changes, func() error { return nil })
}

// updateAfter is Update that changes nothing before ready has returned, and only if that gives no error.
func (r *Repo) updateAfter(ctx context.Context, changes []RefChange, ready func() error) error {
	if r.readOnly {
		return fmt.Errorf("move refs: %w", ErrReadOnly)
	}
	if len(changes) == 0 {
		return nil
	}
	named := map[string]bool{}
	for _, c := range changes {
		if !refname.Valid(c.Name) || c.Name == "HEAD" || named[c.Name] {
			return fmt.Errorf("move refs: %.80q is no name of a ref, or was given twice", c.Name)
		}
		named[c.Name] = true
	}
	r.updating.Lock()
	defer r.updating.Unlock()
	unlock, err := disk.Lock(filepath.Join(r.dir, lockFile))
	if err != nil {
		return fmt.Errorf("move refs: %w", err)
	}
	defer unlock()
	if err := r.update(ctx, changes, ready); err != nil {
		return fmt.Errorf("move refs: %w", err)
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
	return nil
}

// update makes changes under the lock. A ref that stands where another is to have a directory goes first, in a step of
// its own, as does one below the name of another.
func (r *Repo) update(ctx context.Context, changes []RefChange, ready func() error) error {
	var first, then []RefChange
	for _, c := range changes {
		if err := r.expect(c); err != nil {
			return err
		}
		if now, err := r.Ref(c.Name); err == nil && now == c.New { // nor is there a directory to lock in, of what is not there
			continue
		}
		if c.New.IsZero() && slices.ContainsFunc(changes, func(o RefChange) bool { return !o.New.IsZero() && inWay(c.Name, o.Name) }) {
			first = append(first, c)
		} else {
			then = append(then, c)
		}
	}
	if err := r.apply(ctx, first, ready); err != nil {
		return err
	}
	return r.apply(ctx, then, ready)
}

// inWay says whether two refs cannot be there at the same time.
func inWay(a, b string) bool { return strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") }

// expect looks whether a ref is what a change wants it to be.
func (r *Repo) expect(c RefChange) error {
	if c.Force {
		return nil
	}
	now, err := r.Ref(c.Name)
	if err != nil {
		return err
	}
	if now != c.Old {
		return fmt.Errorf("%w: %s is %s, not %s", ErrRefMoved, c.Name, shown(now), shown(c.Old))
	}
	return nil
}

func shown(id object.ID) string {
	if id.IsZero() {
		return "not there"
	}
	return id.String()
}

// apply is one transaction: all locks, a last look, then the files.
func (r *Repo) apply(ctx context.Context, changes []RefChange, ready func() error) (err error) {
	var locks []string
	defer func() {
		for _, name := range locks {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	lock := func(name string) error {
		lock, err := r.lock(ctx, name)
		if err == nil {
			locks = append(locks, lock)
		}
		return err
	}
	gone := map[string]bool{}
	for _, c := range changes {
		if err := r.free(c); err != nil {
			return err
		}
		if err := lock(c.Name); err != nil {
			return err
		}
		if err := r.expect(c); err != nil {
			return err
		}
		gone[c.Name] = c.New.IsZero()
	}
	if slices.ContainsFunc(changes, func(c RefChange) bool { return c.New.IsZero() }) {
		if err := ready(); err != nil {
			return err
		}
	}
	if err := r.dropPacked(ctx, gone, lock); err != nil {
		return err
	}
	for _, c := range changes {
		file := filepath.Join(r.dir, filepath.FromSlash(c.Name))
		if c.New.IsZero() {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		} else if err := r.writeRef(file, c.New, ready); err != nil {
			return err
		}
	}
	dirs := map[string]bool{}
	for _, c := range changes {
		dirs[filepath.Dir(filepath.Join(r.dir, filepath.FromSlash(c.Name)))] = true
	}
	for dir := range dirs {
		if err := disk.OS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeRef puts an id into the file of a ref, once ready has returned. What is not finished is outside of refs, where git would
// take it for one.
func (r *Repo) writeRef(file string, id object.ID, ready func() error) error {
	temp := filepath.Join(r.dir, "artifactfs.ref")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(id.String() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close(), ready()); err != nil {
		return err
	}
	return os.Rename(temp, file)
}

// free makes room for a ref: empty directories of its name go, those above it come. Packed refs that are in its way are
// an error here, as files are one to the system.
func (r *Repo) free(c RefChange) error {
	file := filepath.Join(r.dir, filepath.FromSlash(c.Name))
	if !c.New.IsZero() {
		packed, err := r.packedRefs()
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(packed, func(p packedrefs.Ref) bool { return inWay(p.Name, c.Name) }); i >= 0 {
			return fmt.Errorf("%s: %w: %s is there", c.Name, syscall.ENOTDIR, packed[i].Name)
		}
		if err := removeEmpty(file); err != nil {
			return err
		}
	}
	return makeDirs(filepath.Dir(file))
}

// removeEmpty removes a directory in which there is nothing but directories; what is none stays, and no error.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeEmpty(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// makeDirs makes a directory and those above it so that they survive a power cut.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		st, err := os.Stat(dir)
		if err == nil && !st.IsDir() {
			err = &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return err
	}
	if err != nil {
		return err
	}
	return disk.OS.SyncDir(filepath.Dir(dir))
}

// lock makes the lock file that git makes before it touches a file. Ours is a link to the file that keeps out other
// processes of ours: what such a link locks while we have that is left from one that was killed.
func (r *Repo) lock(ctx context.Context, name string) (string, error) {
	lock := filepath.Join(r.dir, filepath.FromSlash(name)) + ".lock"
	ours := filepath.Join(r.dir, lockFile)
	for began := time.Now(); ; {
		err := os.Link(ours, lock)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if sameFile(ours, lock) {
			return lock, nil
		}
		if time.Since(began) > lockWait {
			return "", fmt.Errorf("lock %s: %w by git", name, disk.ErrLocked)
		}
		select {
		case <-time.After(lockLook):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// dropPacked takes refs out of packed-refs.
func (r *Repo) dropPacked(ctx context.Context, gone map[string]bool, lock func(name string) error) error {
	packed, err := r.packedRefs()
	if err != nil || !slices.ContainsFunc(packed, func(p packedrefs.Ref) bool { return gone[p.Name] }) {
		return err
	}
	if err := lock("packed-refs"); err != nil {
		return err
	}
	if packed, err = r.packedRefs(); err != nil {
		return err
	}
	name := filepath.Join(r.dir, "packed-refs")
	before, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(packed), func(p packedrefs.Ref) bool { return gone[p.Name] })
	if err := disk.WriteFile(name, packedrefs.Encode(before, kept), 0o644); err != nil {
		return err
	}
	return disk.OS.SyncDir(r.dir)
}
