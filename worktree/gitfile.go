package worktree

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// gitFile is the name of the file in the root that contains the path of git's directory, or of the directory on which
// git's directory is mounted. It is stored in the overlay but does not count as a change: the change journal does not
// contain it, and it does not change the times of the root.
const gitFile = ".git"

// putGitFile creates ".git" in the root: a file with the contents o.GitFile, or an empty directory if o.GitDir is true.
// A regular file ".git" that programs have written gets these contents again, or is replaced by the directory. If
// programs have created anything else as ".git", such as a directory with entries, putGitFile keeps it.
func putGitFile(layer *overlay.Layer, o Options) error {
	mode := o.Modes.Of(inode.KindFile)
	if o.GitDir {
		mode = o.Modes.Of(inode.KindDir)
	}
	n, presence := layer.Entry(Root, gitFile)
	if presence != overlay.Present || isOtherGit(layer, n, mode) {
		var err error
		if n, err = replaceGit(layer, o, n, presence, mode); err != nil {
			return fmt.Errorf("put %s: %w", gitFile, err)
		}
	}
	if in, ok := layer.Inode(n); !ok || in.Mode&syscall.S_IFMT != syscall.S_IFREG || !n.Own() {
		return nil
	}
	content := o.GitFile
	f := layer.File(n)
	defer f.Done()
	have := make([]byte, len(content)+1)
	k, err := f.ReadAt(have, 0)
	if err == nil && string(have[:k]) == content {
		return nil
	}
	err = f.Truncate(0)
	for err == nil {
		if _, err = f.WriteAt([]byte(content), 0); !errors.Is(err, overlay.ErrSealed) {
			break
		}
		err = f.Separate(0, func(change func() error) error { return change() })
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return fmt.Errorf("write %s: %w", gitFile, err)
	}
	return nil
}

// GitRemoved reports whether the root has no name ".git" any more, because a program has removed or renamed the file
// that Open has created. It returns false for a Tree without such a file.
func GitRemoved(t *Tree) bool {
	if t.putGit == nil || !t.gate.enter() {
		return false
	}
	defer t.gate.exit()
	_, presence := t.view.layer.Entry(Root, gitFile)
	return presence != overlay.Present
}

// RestoreGit creates the file ".git" in the root again if GitRemoved returns true. The kernel must then forget that it
// has found no such name: it must get the result stale. The result has no places if nothing was created.
func RestoreGit(t *Tree) (stale Stale, err error) {
	if !GitRemoved(t) {
		return stale, nil
	}
	if !t.gate.enter() {
		return stale, ErrClosed
	}
	defer t.gate.exit()
	if err := t.putGit(); err != nil {
		return stale, err
	}
	return Stale{Places: []Place{{Root, gitFile}}, Nodes: []Node{Root}, Dirs: map[Node]bool{Root: true}}, nil
}

// isOtherGit reports whether putGitFile has created the node n as ".git" with another type than that in mode: a file
// although mode is that of a directory, or the reverse.
func isOtherGit(layer *overlay.Layer, n Node, mode uint32) (other bool) {
	layer.View(func(r overlay.Reader) {
		in, ok := r.Inode(n)
		if !ok || !n.Own() || in.Mode&syscall.S_IFMT == mode&syscall.S_IFMT {
			return
		}
		switch in.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			other = true
		case syscall.S_IFDIR:
			present, _ := r.Entries(n)
			other = present == 0 && overlay.Uncounted(r) == n
		}
	})
	return other
}

// replaceGit replaces the node old of ".git" in the root by a new node, and returns the new node.
func replaceGit(layer *overlay.Layer, o Options, old Node, presence overlay.Presence, mode uint32) (n Node, err error) {
	err = layer.Update(func(tx *overlay.Tx) (err error) {
		// a program has created the name in the meantime
		if now, p := tx.Entry(Root, gitFile); p == overlay.Present && now != old {
			return fs.ErrExist
		}
		if n, err = tx.NewNode(); err != nil {
			return err
		}
		links := uint32(1)
		if mode&syscall.S_IFMT == syscall.S_IFDIR {
			links = 2
		}
		at := o.Time.UnixNano()
		tx.PutInode(overlay.Inode{
			Node: n, Mode: mode, Nlink: links, UID: o.UID, GID: o.GID,
			Atime: at, Mtime: at, Ctime: at, Parent: Root,
		})
		if presence == overlay.Present {
			if in, ok := tx.Inode(old); ok {
				in.Nlink = 0
				tx.PutInode(in)
			}
		}
		tx.SetEntry(Root, gitFile, n)
		tx.Uncount(n)
		return nil
	})
	if err == nil && presence == overlay.Present {
		layer.Release(old)
	}
	return n, err
}

// IsGitFile reports whether the node n is the file ".git" that contains the path of git's directory, or had this name
// before it was renamed.
func IsGitFile(t *Tree, n Node) (is bool) {
	t.view.layer.View(func(r overlay.Reader) {
		in, ok := r.Inode(n)
		is = ok && overlay.Uncounted(r) == n && in.Mode&syscall.S_IFMT == syscall.S_IFREG
	})
	return is
}
