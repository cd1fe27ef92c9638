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

// Refs are changed by stock git, which knows how they are stored. If it is killed, which it is together with us, the
// files stay that it locks with, and whoever wants to change the same ref fails until somebody removes them. So there is
// a note of what git may lock for as long as it works. The note is a file that git holds locked: whoever comes behind us
// knows that this git is dead, and whose locks those are.

const (
	updatePrefix = "artifactfs-update-" // nobody's work (sumOf)

	updateTime = 10 * time.Second // for a git to end that a dead process started
	lockTime   = time.Second      // for a lock of somebody who lives to go
	lockLook   = 5 * time.Millisecond
)

// patient are the settings of a git that waits for others who change refs.
var patient = []string{"-c", "core.filesRefLockTimeout=5000", "-c", "core.packedRefsTimeout=5000"}

// update runs git for a change of some files of the git directory; "refs/heads/x" stands for that ref. What was begun is
// finished, even if ctx ends.
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
	if state := cmd.ProcessState; state != nil && !state.Exited() {
		return errors.Join(err, d.breakUpdate(ctx, note.Name()))
	}
	return errors.Join(err, os.Remove(note.Name()))
}

// breakUpdates removes the locks that gits of a dead process have left.
func (d *Dir) breakUpdates(ctx context.Context) error {
	notes, err := filepath.Glob(filepath.Join(quoteGlob.Replace(d.path), updatePrefix+"*"))
	for _, note := range notes {
		err = errors.Join(err, d.breakUpdate(ctx, note))
	}
	return err
}

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
		if !whole || !filepath.IsLocal(file) { // it died before it could start git
			continue
		}
		if err := breakStale(ctx, filepath.Join(d.path, file+".lock"), st.ModTime()); err != nil {
			return err
		}
	}
	return os.Remove(name)
}

// breakStale removes a lock that was made after some time, unless somebody seems to have it still: others change the same
// refs, though hardly in the same moment.
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
			break // its owner lives
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
