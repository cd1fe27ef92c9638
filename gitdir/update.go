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

	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// git itself changes refs, since it knows how they are stored (loose, packed, reftable). A killed git leaves its lock
// files, and then every later change of the same ref fails until the locks are removed. git is killed together with
// this process. Therefore update writes a note that lists the files that git may lock, for as long as git runs. git
// inherits the flock of the note: once a successor gets that lock, it knows that git is dead and that the lock files
// are stale.

const (
	updatePrefix = "artifactfs-update-" // prefix of the notes; sumOf ignores them

	updateTime = 10 * time.Second     // wait for a git that a dead process started to end
	lockTime   = time.Second          // wait for a lock of a running process to be released
	lockLook   = 5 * time.Millisecond // interval between two attempts
)

// patient are settings that make git wait, in milliseconds, for other processes that change refs.
var patient = []string{"-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"}

// update runs a git command that changes some files of the git directory; files lists them, with a ref such as
// refs/heads/x standing for itself. It does not stop git when ctx ends, because a half-finished change would leave
// locks.
func (d *Dir) update(ctx context.Context, files []string, args ...string) error {
	note, err := os.CreateTemp(d.path, updatePrefix)
	if err != nil {
		return fmt.Errorf("git %s: %w", args[0], err)
	}
	err = syscall.Flock(int(note.Fd()), syscall.LOCK_EX)
	if err == nil {
		_, err = note.WriteString(strings.Join(append(files, "reftable/tables.list"), "\n") + "\n")
	}
	if err != nil {
		return fmt.Errorf("git %s: note locks: %w", args[0], errors.Join(err, note.Close(), os.Remove(note.Name())))
	}
	ctx = context.WithoutCancel(ctx)
	cmd := d.command(ctx, append(patient, args...)...)
	cmd.ExtraFiles = []*os.File{note}
	err = gitcmd.Run(cmd)
	note.Close()
	// git was killed by a signal, so its locks are stale.
	if state := cmd.ProcessState; state != nil && !state.Exited() {
		return errors.Join(err, d.breakUpdate(ctx, note.Name()))
	}
	return errors.Join(err, os.Remove(note.Name()))
}

// breakUpdates removes the locks that git commands of a killed process have left.
func (d *Dir) breakUpdates(ctx context.Context) error {
	notes, err := filepath.Glob(filepath.Join(quoteGlob.Replace(d.path), updatePrefix+"*"))
	for _, note := range notes {
		err = errors.Join(err, d.breakUpdate(ctx, note))
	}
	return err
}

// breakUpdate waits for the git of one note to end, and removes the locks that it left and the note.
func (d *Dir) breakUpdate(ctx context.Context, name string) error {
	note, err := os.Open(name)
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
			return fmt.Errorf("wait for git: lock %s: %w", name, err)
		}
		if !clock.Wait(ctx, lockLook) {
			return ctx.Err()
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	st, err := note.Stat()
	if err != nil {
		return err
	}
	for file := range strings.Lines(string(text)) {
		file, whole := strings.CutSuffix(file, "\n")
		if !whole || !filepath.IsLocal(file) { // the process died before the note was complete, and so before it started git
			continue
		}
		if err := breakStale(ctx, filepath.Join(d.path, file+".lock"), st.ModTime()); err != nil {
			return err
		}
	}
	return os.Remove(name)
}

// breakStale removes a lock file that was created after a time, unless another process seems to hold it: one that is
// alive changes or removes the lock within lockTime.
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
			break // another process holds it
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
