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
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/signal"
)

// RefChange is a change of one ref, for Update.
type RefChange struct {
	Name  string    // full name of the ref
	Old   object.ID // object ID that the ref must have before the change; zero if the ref must not exist
	New   object.ID // new object ID; zero if the ref is to be deleted
	Force bool      // make the change whatever object ID the ref has now
}

const (
	// lockWait is the maximum time for which the method lock waits until git removes its lock file. lockInterval is the
	// interval at which it tries again.
	lockWait     = 5 * time.Second
	lockInterval = 5 * time.Millisecond
)

// refWriter changes the refs of a Repo. While it writes refs to disk, it holds the mutex updating, a flock(2) of
// lockFile, which excludes other processes of artifactfs, and git's own lock files, which exclude git commands.
type refWriter struct {
	*RefDir
	readOnly bool          // whether the Repo was opened for reading only
	updating sync.Mutex    // held while refs are changed
	changed  chan struct{} // receives a token after a change, see Repo.Changed; has room for one token
}

// updateAfter makes changes of refs as Repo.Update does, but calls the function ready before the first change becomes
// visible. If ready returns an error, updateAfter changes nothing and returns this error. It may call ready several
// times.
func (w *refWriter) updateAfter(ctx context.Context, changes []RefChange, ready func() error) error {
	if w.readOnly {
		return fmt.Errorf("update refs: %w", ErrReadOnly)
	}
	if len(changes) == 0 {
		return nil
	}
	named := map[string]bool{}
	for _, c := range changes {
		if !refname.Valid(c.Name) || c.Name == "HEAD" || named[c.Name] {
			return fmt.Errorf("update refs: ref name %.80q is invalid or given twice", c.Name)
		}
		named[c.Name] = true
	}
	w.updating.Lock()
	defer w.updating.Unlock()
	unlock, err := disk.Lock(filepath.Join(w.dir, lockFile))
	if err != nil {
		return fmt.Errorf("update refs: %w", err)
	}
	defer unlock()
	if err := w.update(ctx, changes, ready); err != nil {
		return fmt.Errorf("update refs: %w", err)
	}
	if slices.ContainsFunc(changes, func(c RefChange) bool { return !strings.HasPrefix(c.Name, restoredPrefix) }) {
		// The channel has room for one token. If it holds a token already, the receiver of that token will also see this
		// update.
		signal.Send(w.changed)
	}
	return nil
}

// update makes the changes, after calling ready. The caller holds the mutex and the flock. If the changes create the
// ref a/b and delete the ref a, the deletion must come first, because git stores the ref a as a file where the ref a/b
// needs a directory. So update makes such deletions in a separate transaction before the other changes.
func (w *refWriter) update(ctx context.Context, changes []RefChange, ready func() error) error {
	var first, then []RefChange
	for _, c := range changes {
		if err := w.expect(c); err != nil {
			return err
		}
		// Skip a change if the ref has the new value already, so that apply does not create directories just to lock a ref
		// that does not exist.
		if now, err := w.Ref(c.Name); err == nil && now == c.New {
			continue
		}
		if c.New.IsZero() && slices.ContainsFunc(changes,
			func(o RefChange) bool { return !o.New.IsZero() && InWay(c.Name, o.Name) }) {
			first = append(first, c)
		} else {
			then = append(then, c)
		}
	}
	if err := w.apply(ctx, first, ready); err != nil {
		return err
	}
	return w.apply(ctx, then, ready)
}

// InWay reports whether two refs cannot exist at the same time, because one name is a directory in the other.
func InWay(a, b string) bool { return strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") }

// expect returns an error that wraps ErrRefMoved if the present object ID of the ref is not c.Old, unless c.Force is
// set.
func (w *refWriter) expect(c RefChange) error {
	if c.Force {
		return nil
	}
	now, err := w.Ref(c.Name)
	if err != nil {
		return err
	}
	if now != c.Old {
		return fmt.Errorf("%w: ref %s is %s, want %s", ErrRefMoved, c.Name, idText(now), idText(c.Old))
	}
	return nil
}

// idText returns the text for an object ID in error messages: "missing" for the zero ID.
func idText(id object.ID) string {
	if id.IsZero() {
		return "missing"
	}
	return id.String()
}

// apply makes the changes in one transaction: it takes git's locks of all refs, checks their object IDs again, calls
// ready, and changes packed-refs and the files of the refs. It releases the locks at the end, even after an error.
func (w *refWriter) apply(ctx context.Context, changes []RefChange, ready func() error) (err error) {
	var locks []string
	defer func() {
		for _, name := range locks {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	lock := func(name string) error {
		lock, err := w.lock(ctx, name)
		if err == nil {
			locks = append(locks, lock)
		}
		return err
	}
	gone := map[string]bool{}
	for _, c := range changes {
		// git's lock file of a ref is in the directory of the ref, which must exist.
		if err := w.makeRoom(c); err != nil {
			return err
		}
		if err := lock(c.Name); err != nil {
			return err
		}
		// Check the value again, because git may have changed the ref before the lock was taken.
		if err := w.expect(c); err != nil {
			return err
		}
		gone[c.Name] = c.New.IsZero()
	}
	// writeRef calls ready before it writes a ref. A deletion does not call writeRef, so ready is called here.
	if slices.ContainsFunc(changes, func(c RefChange) bool { return c.New.IsZero() }) {
		if err := ready(); err != nil {
			return err
		}
	}
	// The packed value is removed before the file of the ref. In the other order, a crash between the two steps would make
	// the packed value the value of the ref.
	if err := w.dropPacked(ctx, gone, lock); err != nil {
		return err
	}
	for _, c := range changes {
		file := filepath.Join(w.dir, filepath.FromSlash(c.Name))
		if c.New.IsZero() {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		} else if err := w.writeRef(file, c.New, ready); err != nil {
			return err
		}
	}
	dirs := map[string]bool{}
	for _, c := range changes {
		dirs[filepath.Dir(filepath.Join(w.dir, filepath.FromSlash(c.Name)))] = true
	}
	// A rename or removal is durable only after a sync of its directory.
	for dir := range dirs {
		if err := disk.OS.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// writeRef calls ready, and then writes id to the file of a ref. It writes to a temporary file first, and renames this
// file. The temporary file is outside of refs/, because git would list a file there as a ref.
func (w *refWriter) writeRef(file string, id object.ID, ready func() error) error {
	temp := filepath.Join(w.dir, "artifactfs.ref")
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

// makeRoom prepares the creation of the file of a ref: it removes empty directories with the name of the file, and
// creates the missing directories above it. It returns ENOTDIR if a packed ref has a name with which the new ref cannot
// exist, as the kernel does for a loose ref.
func (w *refWriter) makeRoom(c RefChange) error {
	file := filepath.Join(w.dir, filepath.FromSlash(c.Name))
	if !c.New.IsZero() {
		packed, err := w.packedRefs()
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(packed, func(p packedrefs.Ref) bool { return InWay(p.Name, c.Name) }); i >= 0 {
			return fmt.Errorf("create ref %s: %w: ref %s exists", c.Name, syscall.ENOTDIR, packed[i].Name)
		}
		if err := removeEmpty(file); err != nil {
			return err
		}
	}
	return makeDirs(filepath.Dir(file))
}

// removeEmpty removes a directory that contains nothing but empty directories, at any depth. It ignores a path that
// does not exist or is not a directory.
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

// makeDirs creates a directory and its missing parents, and syncs each parent directory, so that they survive a power
// failure.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		// If there is a file at this path, it is a ref whose name is a directory in the name of the new ref.
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

// lock creates the lock file NAME.lock, which keeps git from changing the file NAME, and returns the path of the lock
// file. If git holds the lock, it waits up to lockWait and then returns disk.ErrLocked. The lock file is a hard link to
// lockFile, whose flock the caller holds. So an existing hard link to lockFile was left by a killed process of
// artifactfs, and is used.
func (w *refWriter) lock(ctx context.Context, name string) (string, error) {
	lock := filepath.Join(w.dir, filepath.FromSlash(name)) + ".lock"
	ours := filepath.Join(w.dir, lockFile)
	for began := time.Now(); ; {
		err := os.Link(ours, lock)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		// A killed process has left the link. That process no longer holds the flock, because this process holds it.
		if sameFile(ours, lock) {
			return lock, nil
		}
		if time.Since(began) > lockWait {
			return "", fmt.Errorf("lock ref %s: %w: git holds the lock", name, disk.ErrLocked)
		}
		select {
		case <-time.After(lockInterval):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// BreakLocks removes the lock files of refs and of packed-refs that killed processes of artifactfs have left in the
// session repository dir. Git cannot distinguish them from the locks of a living process, so it would refuse each push
// to these refs. BreakLocks does nothing if a process is changing refs now, or if dir is not a session repository.
func BreakLocks(dir string) error {
	ours := filepath.Join(dir, lockFile)
	// Each lock is a hard link to ours, so without further links there are no locks.
	if st, err := os.Lstat(ours); err != nil || st.Sys().(*syscall.Stat_t).Nlink == 1 {
		return nil
	}
	unlock, err := disk.TryLock(ours)
	if errors.Is(err, disk.ErrLocked) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove locks of killed processes: %w", err)
	}
	defer unlock()
	remove := func(file string) {
		if strings.HasSuffix(file, ".lock") && sameFile(ours, file) {
			err = errors.Join(err, os.Remove(file))
		}
	}
	remove(filepath.Join(dir, "packed-refs.lock"))
	err = errors.Join(err, filepath.WalkDir(filepath.Join(dir, "refs"), func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			remove(file)
		}
		return nil // git itself reports files that cannot be read
	}))
	if err != nil {
		return fmt.Errorf("remove locks of killed processes: %w", err)
	}
	return nil
}

// sameFile reports whether both paths exist and lead to the same inode.
func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// dropPacked deletes the refs in the set gone from the file packed-refs. It calls the function lock to take git's lock
// of this file.
func (w *refWriter) dropPacked(ctx context.Context, gone map[string]bool, lock func(name string) error) error {
	packed, err := w.packedRefs()
	if err != nil || !slices.ContainsFunc(packed, func(p packedrefs.Ref) bool { return gone[p.Name] }) {
		return err
	}
	if err := lock("packed-refs"); err != nil {
		return err
	}
	// Read packed-refs again, because git may have changed the file before the lock was taken.
	if packed, err = w.packedRefs(); err != nil {
		return err
	}
	name := filepath.Join(w.dir, "packed-refs")
	before, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(packed), func(p packedrefs.Ref) bool { return gone[p.Name] })
	if err := disk.WriteFile(name, packedrefs.Encode(before, kept), 0o644); err != nil {
		return err
	}
	return disk.OS.SyncDir(w.dir)
}
