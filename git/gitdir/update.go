package gitdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// To change refs, this package runs git, because git knows how they are stored (loose, packed, reftable). If git is
// killed, its lock files remain, and every later change of the same ref fails until they are removed. git is killed
// together with this process. Therefore update creates a file before it starts git, the note, which lists the files
// that git may lock. update locks the note (flock), and git inherits this lock. A successor that obtains the lock knows
// that git has ended, and that the lock files are stale.

const (
	updatePrefix = "artifactfs-update-" // start of the names of the notes; sumOf ignores these files

	// maximum run time of git, which may wait for a pipe that a container has made in the git directory
	gitTime    = 2 * time.Minute
	updateTime = 10 * time.Second     // maximum time to wait for a git process whose parent has died
	lockTime   = time.Second          // maximum time to wait for a running process to release a lock
	lockLook   = 5 * time.Millisecond // interval between two attempts to acquire a lock
)

// patient holds settings that make git wait, for this many milliseconds, for other processes that change refs.
var patient = []string{"-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"}

// update runs a git command that changes some files of the git directory. The slice files lists these files except
// HEAD; a ref such as refs/heads/x stands for its file. update does not stop git when ctx ends, because git would leave
// lock files.
func (c *commands) update(ctx context.Context, files []string, args ...string) error {
	return c.updateWithin(ctx, gitTime, files, args...)
}

// updateWithin does the work of update. It kills git after the time in the parameter limit.
func (c *commands) updateWithin(ctx context.Context, limit time.Duration, files []string, args ...string) error {
	note, err := os.CreateTemp(c.path, updatePrefix)
	if err != nil {
		return fmt.Errorf("run git %s: %w", args[0], err)
	}
	err = syscall.Flock(int(note.Fd()), syscall.LOCK_EX)
	if err == nil {
		_, err = note.WriteString(strings.Join(append(files, "HEAD", "reftable/tables.list"), "\n") + "\n")
	}
	if err != nil {
		return fmt.Errorf("run git %s: record lock files: %w", args[0],
			errors.Join(err, note.Close(), os.Remove(note.Name())))
	}
	ctx = context.WithoutCancel(ctx)
	var state *os.ProcessState
	err = guard.Update(ctx, c.path, func(r gitcmd.Repo) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		cmd := c.in(ctx, r, append(patient, args...)...)
		cmd.ExtraFiles = []*os.File{note}
		err := gitcmd.Run(cmd)
		state = cmd.ProcessState
		return err
	})
	note.Close()
	// If git was killed by a signal, its lock files are stale, so remove them.
	if state != nil && !state.Exited() {
		return errors.Join(err, c.breakUpdate(ctx, note.Name()))
	}
	return errors.Join(err, os.Remove(note.Name()))
}

// breakUpdates removes the lock files that git commands of a killed process have left.
func (c *commands) breakUpdates(ctx context.Context) error {
	notes, err := disk.Glob(c.path, updatePrefix+"*")
	for _, note := range notes {
		err = errors.Join(err, c.breakUpdate(ctx, note))
	}
	return err
}

// breakUpdate waits until the git process to which a note belongs has ended. It then removes the lock files that this
// process has left, and the note itself. The parameter name is the path of the note.
func (c *commands) breakUpdate(ctx context.Context, name string) error {
	note, err := disk.OpenRegular(name, 0)
	if err != nil {
		return err
	}
	defer note.Close()
	for start := time.Now(); ; {
		err := syscall.Flock(int(note.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Since(start) > updateTime {
			return fmt.Errorf("wait for git: lock file %s: %w", name, err)
		}
		if !clock.Wait(ctx, lockLook) {
			return ctx.Err()
		}
	}
	text, err := disk.ReadRegular(name, disk.SmallFile)
	if err != nil {
		return err
	}
	st, err := note.Stat()
	if err != nil {
		return err
	}
	for file := range strings.Lines(string(text)) {
		file, whole := strings.CutSuffix(file, "\n")
		// If a line is incomplete, the process died while it wrote the note, before it started git, so there is no lock file.
		if !whole || !filepath.IsLocal(file) {
			continue
		}
		if err := breakStale(ctx, filepath.Join(c.path, file+".lock"), st.ModTime()); err != nil {
			return err
		}
	}
	return os.Remove(name)
}

// breakStale removes a lock file that was created after the time in the parameter after. It keeps the file if another
// process seems to hold the lock: a running process changes or removes its lock file within lockTime.
func breakStale(ctx context.Context, lock string, after time.Time) error {
	first, err := os.Lstat(lock)
	for start := time.Now(); err == nil && !first.ModTime().Before(after); {
		if time.Since(start) > lockTime {
			err = os.Remove(lock)
			break
		}
		if !clock.Wait(ctx, lockLook) {
			return ctx.Err()
		}
		now, err := os.Lstat(lock)
		if err != nil || !os.SameFile(first, now) || now.ModTime() != first.ModTime() {
			break // Another process holds the lock now.
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
