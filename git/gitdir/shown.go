package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Names of the directory that LinkWorkTree creates in a git directory, and of the link in it.
const (
	linkDir  = "artifactfs-tree"
	LinkName = "tree"
)

// LinkWorkTree makes git find the working tree at tree, of the git directory at path, through a symbolic link, and
// returns the directory that contains the link, which has the name LinkName. A mount namespace can show another link
// there, so that git uses the same tree under another path. Git resolves the link, so commands outside of the namespace
// see no difference. The name is "", and nothing changes, if the configuration names no working tree or another one.
// Without such a setting, git uses the directory that contains .git, which is right in all namespaces.
func LinkWorkTree(ctx context.Context, path, tree string) (dir string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("link the working tree of %s: %w", path, err)
		}
	}()
	name := filepath.Join(path, "config")
	text, err := disk.ReadRegular(name, disk.SmallFile)
	if err != nil {
		return "", err
	}
	c := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	setting := c.Section("core").Option("worktree")
	dir = filepath.Join(path, linkDir)
	link := filepath.Join(dir, LinkName)
	if setting == link && sameFile(link, tree) {
		return dir, nil
	}
	if setting != tree {
		return "", nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// Another process may have created the same link meanwhile.
	if err := os.Symlink(tree, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	_, err = gitcmd.Repo{Dir: path}.Output(ctx, "", "config", "--file", name, "core.worktree", link)
	return dir, err
}

// sameFile reports whether two paths lead to the same file. In a mount namespace, the link may have another target.
func sameFile(x, y string) bool {
	a, err1 := os.Stat(x)
	b, err2 := os.Stat(y)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// isLinked reports whether the setting core.worktree of the git directory at path is the link that LinkWorkTree has
// created, and the link refers to tree.
func isLinked(setting, path, tree string) bool {
	link := filepath.Join(path, linkDir, LinkName)
	if setting != link {
		return false
	}
	to, err := os.Readlink(link)
	return err == nil && to == tree
}
