// Package guard lets the daemon use a git directory that programs in a container can change. Such programs may put
// symbolic links there, which lead to files of the host, and settings, which make git start programs or read files of
// the host. Two things protect the host:
//
//   - Mount mounts the git directory over itself, so that the kernel follows no symbolic links in it for the daemon and
//     for the git commands that the daemon starts. The container uses another mount of the same directory, in which
//     links work.
//   - Open returns a second git directory, the guarded directory, in which the daemon runs its git commands. Its
//     configuration contains only settings with plain values (see allowed), so git starts no programs that the
//     configuration names, and requests no missing objects. It has no hooks. It shares refs, objects, index and reflogs
//     with the git directory through symbolic links.
//
// The guarded directory is beside the git directory, where no container can change it. If Create has made it, the git
// directory is one that a container can change, so functions that have only its path need no other mark. Alone returns
// a guarded directory of any git directory, for git commands that must neither start programs of the user nor request
// objects.
package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
)

const (
	suffix       = "-guarded"         // the guarded directory of DIR is DIR-guarded
	updateSuffix = "-guarded-update"  // the directory in which Update runs git
	aloneSuffix  = "-guarded-alone"   // the directory that Alone returns
	objectsName  = "artifactfs-store" // file in the guarded directory that lists further objects directories

	maxHead   = 4 << 10 // maximum size of HEAD in bytes
	maxConfig = 1 << 20 // maximum size of the configuration in bytes

	lockTime = 5 * time.Second      // maximum time for which Update waits for HEAD.lock and config.lock
	lockLook = 5 * time.Millisecond // interval between two attempts
)

// shared are the files and directories that the guarded directory shares with the git directory. The files whose names
// end in HEAD are names of commits for git, such as FETCH_HEAD. Some of them exist only at times.
var shared = []string{
	"objects", "refs", "packed-refs", "reftable", "logs", "index", "info", "shallow", "worktrees",
	"FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "BISECT_HEAD", "AUTO_MERGE",
}

// sharedIndex matches the names of the larger part of a split index (git-update-index(1), --split-index).
var sharedIndex = lazy.Regexp(`^sharedindex\.[0-9a-f]{40,64}$`)

// Create makes the guarded directory of the git directory at path, so that the other functions recognize path. The
// slice objects lists the objects directories outside of the container from which the git directory borrows.
func Create(path string, objects []string) error {
	dir := path + suffix
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("guard git directory: %w", err)
	}
	if err := disk.WriteFile(filepath.Join(dir, objectsName), []byte(strings.Join(objects, "\n")+"\n"),
		0o600); err != nil {
		return fmt.Errorf("guard git directory: %w", err)
	}
	return nil
}

// Exists reports whether the git directory at path is one that a container can change.
func Exists(path string) bool {
	_, err := os.Lstat(path + suffix)
	return err == nil
}

// Open returns the git directory in which the daemon runs commands that do not change HEAD or the configuration: the
// guarded directory with the present HEAD and settings, or the git directory at path itself if no container can change
// it.
func Open(ctx context.Context, path string) (gitcmd.Repo, error) {
	if !Exists(path) {
		return gitcmd.Repo{Dir: path}, nil
	}
	return openGuarded(ctx, path, path+suffix)
}

// Alone returns a guarded directory of the git directory at path, whether or not a container can change that. The slice
// objects lists the objects directories from which the git directory borrows.
func Alone(ctx context.Context, path string, objects []string) (gitcmd.Repo, error) {
	dir := path + aloneSuffix
	if err := fill(ctx, path, dir); err != nil {
		return gitcmd.Repo{}, fmt.Errorf("guard git directory: %w", err)
	}
	return gitcmd.Repo{Dir: dir, Objects: objects}, nil
}

// openGuarded brings the directory dir, which guards the git directory at path, up to date, and returns it with the
// objects that Create has recorded.
func openGuarded(ctx context.Context, path, dir string) (gitcmd.Repo, error) {
	if err := fill(ctx, path, dir); err != nil {
		return gitcmd.Repo{}, fmt.Errorf("guard git directory: %w", err)
	}
	objects, err := os.ReadFile(filepath.Join(path+suffix, objectsName))
	if err != nil {
		return gitcmd.Repo{}, fmt.Errorf("guard git directory: %w", err)
	}
	return gitcmd.Repo{Dir: dir, Objects: strings.Split(strings.TrimSuffix(string(objects), "\n"), "\n")}, nil
}

// Update calls f with a git directory in which a command may change HEAD. For a guarded directory, Update holds
// HEAD.lock of the git directory at path, as git does, and copies the new HEAD there.
func Update(ctx context.Context, path string, f func(gitcmd.Repo) error) (err error) {
	if !Exists(path) {
		return f(gitcmd.Repo{Dir: path})
	}
	lock, err := takeLock(ctx, filepath.Join(path, "HEAD"))
	if err != nil {
		return fmt.Errorf("change HEAD: %w", err)
	}
	defer lock.release()
	dir := path + updateSuffix
	// This process holds the lock, so a HEAD.lock in dir was left by a git command that was killed. Remove it.
	if err := os.Remove(filepath.Join(dir, "HEAD.lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("change HEAD: %w", err)
	}
	r, err := openGuarded(ctx, path, dir)
	if err != nil {
		return err
	}
	before, err := readPlain(filepath.Join(dir, "HEAD"), maxHead)
	if err != nil {
		return fmt.Errorf("change HEAD: %w", err)
	}
	err = f(r)
	after, readErr := readPlain(filepath.Join(dir, "HEAD"), maxHead)
	if readErr == nil && !bytes.Equal(before, after) {
		readErr = lock.commit(after)
	}
	return errors.Join(err, readErr)
}

// Configure adds settings, in the form KEY, VALUE, to the configuration of the git directory at path, which has a
// guarded directory. git edits a copy, because it would follow symbolic links itself.
func Configure(ctx context.Context, path string, settings ...[2]string) error {
	name := filepath.Join(path, "config")
	lock, err := takeLock(ctx, name)
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	defer lock.release()
	text, err := readPlain(name, maxConfig)
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	copied, remove, err := disk.TempFile(path+suffix, "config")
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	defer remove()
	_, err = copied.Write(text)
	for _, s := range settings {
		err = errors.Join(err, gitcmd.Run(gitcmd.New(ctx, "config", "--file", copied.Name(), s[0], s[1])))
	}
	if err == nil {
		text, err = os.ReadFile(copied.Name())
	}
	if err == nil {
		err = lock.commit(text)
	}
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	return nil
}

// fill updates dir, the guarded directory of the git directory at path.
func fill(ctx context.Context, path, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := link(path, dir); err != nil {
		return err
	}
	// The git directory may be incomplete. git does not recognize a directory without HEAD as a git directory.
	head, err := readPlain(filepath.Join(path, "HEAD"), maxHead)
	switch {
	case err == nil:
		err = replace(filepath.Join(dir, "HEAD"), head)
	case errors.Is(err, fs.ErrNotExist):
		if err = os.Remove(filepath.Join(dir, "HEAD")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return configure(ctx, path, dir)
}

// link makes the symbolic links from dir to the files of the git directory at path.
func link(path, dir string) error {
	names := shared
	// A split index has a second part, whose name is not known.
	entries, err := disk.Glob(path, "sharedindex.*")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := filepath.Base(entry); sharedIndex().MatchString(name) {
			names = append(names[:len(names):len(names)], name)
		}
	}
	for _, name := range names {
		if err := os.Symlink(filepath.Join(path, name), filepath.Join(dir, name)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// replace writes a file unless it has these contents already.
func replace(name string, text []byte) error {
	if now, err := os.ReadFile(name); err == nil && bytes.Equal(now, text) {
		return nil
	}
	return disk.WriteFileUnsynced(name, text, 0o600)
}

// readPlain reads a file that a container can replace by anything. It refuses symbolic links, pipes and devices, and
// files with more than limit bytes.
func readPlain(name string, limit int64) ([]byte, error) {
	f, err := disk.OpenRegular(name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return disk.ReadLimited(f, limit)
}

// fileLock is a lock file of git: NAME.lock is created, and becomes NAME when the change is complete.
type fileLock struct {
	name string   // path of the locked file
	file *os.File // the lock file; nil after commit
}

// takeLock creates the lock file of a file. It waits for up to lockTime while another process holds the lock.
func takeLock(ctx context.Context, name string) (*fileLock, error) {
	for until := time.Now().Add(lockTime); ; {
		f, err := os.OpenFile(name+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			return &fileLock{name, f}, nil
		}
		if !errors.Is(err, fs.ErrExist) || time.Now().After(until) {
			return nil, err
		}
		if !clock.Wait(ctx, lockLook) {
			return nil, ctx.Err()
		}
	}
}

// commit replaces the locked file and releases the lock.
func (l *fileLock) commit(text []byte) error {
	_, err := l.file.Write(text)
	err = errors.Join(err, l.file.Sync(), l.file.Close())
	l.file = nil
	if err == nil {
		err = os.Rename(l.name+".lock", l.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(l.name+".lock"))
	}
	return nil
}

// release removes the lock file unless commit was called.
func (l *fileLock) release() {
	if l.file == nil {
		return
	}
	l.file.Close()
	os.Remove(l.name + ".lock")
}
