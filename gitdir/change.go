package gitdir

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
)

// ErrLocked says that another git process is changing the index, or was killed while it did.
var ErrLocked = errors.New("index.lock exists: another git process runs here, or one was killed")

// lockWait is how long LockIndex waits for a lock that somebody has. A `git status` that an editor runs holds it for
// milliseconds, and FillIndex for less; one that lasts is of a command with an editor open, or of one that was killed.
const lockWait = time.Second

// LockedIndex is the index while nobody else may change it.
type LockedIndex struct {
	dir   *Dir
	path  string
	given bool // up: a lock that is there now is somebody else's
}

// lockMark is what a lock of ours holds as long as it is there, and lockPrefix what files are called that are to be the lock
// or the index: by them a successor knows what a process of ours left that was killed. Git writes the new index into its
// lock; ours is written beside it, so that no lock that is broken can be git's.
const (
	lockMark   = "artifactfs switch\n"
	lockPrefix = "index.artifactfs-"
)

// LockIndex takes the lock that git commands take; ErrLocked if others have it for longer than a second.
func (d *Dir) LockIndex(ctx context.Context) (*LockedIndex, error) {
	l := &LockedIndex{dir: d, path: filepath.Join(d.path, "index")}
	for until := time.Now().Add(lockWait); ; {
		ok, err := l.take()
		if ok || err != nil {
			return l, err
		}
		if time.Now().After(until) {
			return nil, ErrLocked
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take is false if somebody else has the lock.
func (l *LockedIndex) take() (bool, error) {
	f, err := os.CreateTemp(l.dir.path, lockPrefix)
	if err != nil {
		return false, fmt.Errorf("lock index: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(lockMark)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Link(f.Name(), l.path+".lock") // it is there with its mark, or not at all
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock index: %w", err)
	}
	return true, nil
}

// BreakLocks removes the locks that a dead process of ours left, and the gits that it ran.
func (d *Dir) BreakLocks(ctx context.Context) error {
	return errors.Join(d.breakIndex(), d.breakUpdates(ctx))
}

func (d *Dir) breakIndex() error {
	lock := filepath.Join(d.path, "index.lock")
	leftovers, err := filepath.Glob(filepath.Join(quoteGlob.Replace(d.path), lockPrefix+"*"))
	if text, readErr := os.ReadFile(lock); readErr == nil && string(text) == lockMark {
		leftovers = append(leftovers, lock)
	}
	for _, name := range leftovers {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// Read reads the index; an empty one if there is none.
func (l *LockedIndex) Read() (*index.Index, error) {
	text, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return &index.Index{Format: l.dir.format, Version: index.Version}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return index.Read(l.dir.format, text)
}

// Replace puts another index in the place of the one there was, with the time at which it is to be read as written. It
// gives up the lock.
func (l *LockedIndex) Replace(x *index.Index, written time.Time) error {
	name, err := l.dir.writeBeside(x, written)
	if err == nil {
		defer os.Remove(name)
		err = os.Rename(name, l.path)
	}
	if err != nil {
		err = fmt.Errorf("write index: %w", err)
	}
	return errors.Join(err, l.Release())
}

// writeBeside writes an index into a file that is to be renamed to it.
func (d *Dir) writeBeside(x *index.Index, written time.Time) (name string, err error) {
	f, err := os.CreateTemp(d.path, lockPrefix)
	if err != nil {
		return "", err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	_, err = x.WriteTo(out)
	err = errors.Join(err, out.Flush(), f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Chtimes(f.Name(), written, written)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// Release gives the lock up and leaves the index as it is; it does nothing if the lock is given up already.
func (l *LockedIndex) Release() error {
	if l.given {
		return nil
	}
	l.given = true
	err := os.Remove(l.path + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Difference is a path that two trees do not have alike. A mode of zero: that tree has nothing there.
type Difference struct {
	Path             string
	OldMode, NewMode object.Mode
	Old, New         object.ID
}

// Differences compares two trees, in the order of paths; the zero ID is an empty tree.
func (d *Dir) Differences(ctx context.Context, from, to object.ID) ([]Difference, error) {
	empty, err := object.Hash(d.format, object.Tree, nil)
	if err != nil {
		return nil, err
	}
	for _, id := range []*object.ID{&from, &to} {
		if id.IsZero() {
			*id = empty
		}
	}
	// To say which changes of submodules count spares git to read .gitmodules.
	out, err := d.git(ctx, nil, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", "--ignore-submodules=none", from.String(), to.String())
	if err != nil {
		return nil, err
	}
	var list []Difference
	fields := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		p := Difference{Path: fields[i+1]}
		parts := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		if len(parts) != 5 {
			return nil, fmt.Errorf("read git diff-tree: %q", fields[i])
		}
		oldMode, err1 := strconv.ParseUint(parts[0], 8, 32)
		newMode, err2 := strconv.ParseUint(parts[1], 8, 32)
		p.OldMode, p.NewMode = object.Mode(oldMode), object.Mode(newMode)
		var err3, err4 error
		if p.OldMode != 0 {
			p.Old, err3 = object.ParseID(parts[2])
		}
		if p.NewMode != 0 {
			p.New, err4 = object.ParseID(parts[3])
		}
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("read git diff-tree: %w", err)
		}
		list = append(list, p)
	}
	return list, nil
}

// atOnceArgs is how many bytes of paths one command is given; Linux allows 128 KiB and more.
const atOnceArgs = 64 << 10

// Modified gives those of the paths whose files are not as the index has them.
func (d *Dir) Modified(ctx context.Context, paths []string) ([]string, error) {
	var modified []string
	for len(paths) > 0 {
		n, bytes := 0, 0
		for n < len(paths) && (n == 0 || bytes < atOnceArgs) {
			bytes += len(paths[n]) + 1
			n++
		}
		args := []string{"diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all", "--"}
		for _, path := range paths[:n] {
			args = append(args, ":(top,literal)"+path)
		}
		out, err := d.git(ctx, nil, args...)
		if err != nil {
			return nil, err
		}
		modified = append(modified, split(out)...)
		paths = paths[n:]
	}
	return modified, nil
}

// Ignored gives those of the paths that git ignores.
func (d *Dir) Ignored(ctx context.Context, paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	out, err := d.git(ctx, []byte(strings.Join(paths, "\x00")+"\x00"), "check-ignore", "-z", "--stdin", "--no-index")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // none is
		return nil, nil
	}
	return split(out), err
}

func split(out []byte) []string {
	out = bytes.TrimSuffix(out, []byte{0})
	if len(out) == 0 {
		return nil
	}
	list := strings.Split(string(out), "\x00")
	return slices.Clip(list)
}

// Staged lists the paths in which the index differs from a tree.
func (d *Dir) Staged(ctx context.Context, tree object.ID) ([]string, error) {
	out, err := d.git(ctx, nil, "diff-index", "--cached", "--name-only", "-z", "--no-renames", "--ignore-submodules=none", tree.String())
	return split(out), err
}
