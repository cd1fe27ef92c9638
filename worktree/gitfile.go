package worktree

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/artifactfs/artifactfs/overlay"
)

// gitFile is the name of the file that tells git where its directory is. It is in the overlay and yet no change: not
// counted, not in the journal, and the root looks untouched.
const gitFile = ".git"

// putGitFile makes the file say what it is to say. What somebody put there that is no file stays.
func (t *Tree) putGitFile(content string) error {
	n, presence := t.layer.Entry(Root, gitFile)
	if presence != overlay.Present {
		err := t.layer.Update(func(tx *overlay.Tx) (err error) {
			if n, err = tx.NewNode(); err != nil {
				return err
			}
			at := t.options.Time.UnixNano()
			tx.PutInode(overlay.Inode{
				Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, UID: t.options.UID, GID: t.options.GID,
				Atime: at, Mtime: at, Ctime: at, Parent: Root,
			})
			tx.SetEntry(Root, gitFile, n)
			tx.Uncount(n)
			return nil
		})
		if err != nil {
			return fmt.Errorf("put %s: %w", gitFile, err)
		}
	}
	if in, ok := t.layer.Inode(n); !ok || in.Mode&syscall.S_IFMT != syscall.S_IFREG || !n.Own() {
		return nil
	}
	f := t.layer.File(n)
	defer f.Done()
	have := make([]byte, len(content)+1)
	k, err := f.ReadAt(have, 0)
	if err == nil && string(have[:k]) == content {
		return nil
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(content), 0)
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return fmt.Errorf("write %s: %w", gitFile, err)
	}
	return nil
}
