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
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// ErrLocked means that another git process is changing the index, or was killed while it changed the index.
var ErrLocked = errors.New("index.lock exists: another git process is running, or was killed")

// lockWait is how long LockIndex waits for index.lock. A `git status` that an editor runs holds this lock for
// milliseconds, and FillIndex holds it for an even shorter time. A lock that is held for longer than lockWait belongs
// to a command that waits for an editor, or was left by a process that was killed.
const lockWait = time.Second

// LockedIndex is the index of a git directory while this process holds index.lock.
type LockedIndex struct {
	dir   *Dir
	path  string // path of the index file
	old   string // path of the index file that Replace has replaced; "": the file did not exist, or Replace was not called
	given bool   // whether Release has removed the lock; an index.lock that exists after that belongs to another process
}

// lockMark is the contents of each index.lock and packed-refs.lock that this program creates. lockPrefix is the start
// of the names of temporary files that are later renamed to the lock or to the index. With both, BreakLocks recognizes
// the files that a killed process of this program has left. git writes the new index into its lock file, and nothing
// into packed-refs.lock, whereas this program writes the new contents to another file, so git never creates a lock file
// with the contents lockMark.
const (
	lockMark   = "artifactfs switch\n"
	lockPrefix = "index.artifactfs-"
)

// LockIndex creates index.lock, as git commands do, and so locks the index. It returns ErrLocked if another process
// holds the lock for longer than lockWait.
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

// take creates the lock file. It returns false if the file exists because another process holds the lock.
func (l *LockedIndex) take() (bool, error) { return takeLock(l.dir.path, "index") }

// takeLock creates the lock file of a file in the git directory at path, as git does. It returns false if the lock file
// exists.
func takeLock(path, name string) (bool, error) {
	f, err := os.CreateTemp(path, lockPrefix)
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", name, err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(lockMark)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		// use a hard link, because the lock file must never exist without its contents
		err = os.Link(f.Name(), filepath.Join(path, name+".lock"))
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", name, err)
	}
	return true, nil
}

// BreakLocks removes the lock files of processes that were killed: those of this program, and those of git commands
// that this program had started.
func (d *Dir) BreakLocks(ctx context.Context) error {
	return errors.Join(breakOwn(d.path), d.git.breakUpdates(ctx))
}

// breakOwn removes, in the git directory at path, the lock files that this program has created, and temporary files
// that this program would have renamed to a lock or to the index.
func breakOwn(path string) error {
	leftovers, err := disk.Glob(path, lockPrefix+"*")
	for _, name := range []string{"index.lock", "packed-refs.lock"} {
		lock := filepath.Join(path, name)
		if text, readErr := disk.ReadRegular(lock, disk.SmallFile); readErr == nil && string(text) == lockMark {
			leftovers = append(leftovers, lock)
		}
	}
	for _, name := range leftovers {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// Read reads the index. If the file does not exist, it returns an empty index.
func (l *LockedIndex) Read() (*index.Index, error) {
	text, err := disk.ReadRegular(l.path, disk.LargeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return &index.Index{Format: l.dir.format, Version: index.Version}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return index.Read(l.dir.format, text)
}

// Replace replaces the index with x, and sets the modification time of the index file to the time in the parameter
// written. git compares the contents of each file that is not older than the index, so this time determines which files
// git compares. The lock stays, so that Restore can undo the replacement.
func (l *LockedIndex) Replace(x *index.Index, written time.Time) error {
	name, err := l.dir.writeBeside(x, written)
	if err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	old := name + ".old"
	if err = os.Link(l.path, old); err == nil {
		l.old = old
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Rename(name, l.path)
	}
	if err != nil {
		return fmt.Errorf("write index: %w", errors.Join(err, os.Remove(name)))
	}
	return nil
}

// Restore undoes a successful Replace.
func (l *LockedIndex) Restore() error {
	err := os.Remove(l.path)
	if l.old != "" {
		err = os.Rename(l.old, l.path)
		l.old = ""
	}
	if err != nil {
		return fmt.Errorf("restore index: %w", err)
	}
	return nil
}

// writeBeside writes an index to a temporary file in the git directory, syncs the file and returns its path. The caller
// renames the file to the name of the index.
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

// Release releases the lock. It does nothing if the lock was already released.
func (l *LockedIndex) Release() error {
	if l.given {
		return nil
	}
	l.given = true
	if l.old != "" {
		_ = os.Remove(l.old) // Ignore the error: BreakLocks removes the file later.
	}
	err := os.Remove(l.path + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// atOnceArgs is the maximum total size in bytes of the paths in the arguments of one command. Linux allows at least 128
// KiB of arguments (execve(2)).
const atOnceArgs = 64 << 10

// Modified returns those elements of paths whose files in the working tree differ from the index. Like git switch, and
// unlike git diff, it hashes the files and reads no blobs, which may not be on this host.
func (d *Dir) Modified(ctx context.Context, paths []string) ([]string, error) {
	var modified []string
	for len(paths) > 0 {
		n, bytes := 0, 0
		for n < len(paths) && (n == 0 || bytes < atOnceArgs) {
			bytes += len(paths[n]) + 1
			n++
		}
		args := []string{"status", "--porcelain", "-z", "--no-renames", "--untracked-files=no",
			"--ignore-submodules=all", "--"}
		for _, path := range paths[:n] {
			// Without "literal", git would interpret * and some other characters of the path as wildcards.
			args = append(args, ":(top,literal)"+path)
		}
		out, err := d.git.output(ctx, nil, args...)
		if err != nil {
			return nil, err
		}
		for _, line := range split(out) {
			if len(line) > 3 && line[1] != ' ' { // the second letter is the state of the file against the index
				modified = append(modified, line[3:])
			}
		}
		paths = paths[n:]
	}
	return modified, nil
}

// Ignored returns those elements of paths that git ignores, according to .gitignore and similar files.
func (d *Dir) Ignored(ctx context.Context, paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	out, err := d.git.output(ctx, []byte(strings.Join(paths, "\x00")+"\x00"), "check-ignore", "-z",
		"--stdin", "--no-index")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // git ignores none of the paths
		return nil, nil
	}
	return split(out), err
}

// split splits the output of a git command with -z into its fields. It returns nil if the output is empty.
func split(out []byte) []string {
	out = bytes.TrimSuffix(out, []byte{0})
	if len(out) == 0 {
		return nil
	}
	list := strings.Split(string(out), "\x00")
	return slices.Clip(list)
}

// Staged returns the paths whose entries in the index differ from those in the tree with the id in the parameter tree.
func (d *Dir) Staged(ctx context.Context, tree object.ID) ([]string, error) {
	out, err := d.git.output(ctx, nil, "diff-index", "--cached", "--name-only", "-z", "--no-renames",
		"--ignore-submodules=none",
		tree.String())
	return split(out), err
}
