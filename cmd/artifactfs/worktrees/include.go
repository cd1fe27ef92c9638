package worktrees

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// includeFile names the ignored files that a new tree gets, too. It has the syntax of .gitignore, and other programs
// that make worktrees read it as well.
const includeFile = ".worktreeinclude"

// Limits of what is copied. Whoever waits for a new tree does not wait for the copy of a whole build.
const (
	mostIncluded = 256 << 20 // bytes
	includeTime  = 2 * time.Second
)

// included is what was copied into a new tree.
type included struct {
	Files   int64     `json:"files"`
	Bytes   int64     `json:"bytes"`
	LeftOut []leftOut `json:"left_out"` // at most mostLeftOut paths that were not copied
	Others  int64     `json:"others"`   // number of further paths that were not copied
}

// leftOut is a path that was not copied.
type leftOut struct {
	Path string `json:"path"`
	// "exists" (in the new tree), "size" (all together are too large), "time" (it took too long), "type" (no file or
	// link), "repository" (of git) or "link" (it leads out of the tree)
	Why string `json:"why"`
}

// causes has the texts of the values of leftOut.Why.
var causes = map[string]string{"exists": "the new tree has such a file", "size": "more than " + cli.BytesOf(mostIncluded),
	"time": "it took more than " + includeTime.String(), "type": "not a file", "repository": "a git repository",
	"link": "a link out of the tree"}

// mostLeftOut is the maximum number of paths that were not copied that are named.
const mostLeftOut = 100

// print prints the result on stderr.
func (n *included) print(a *cli.App) {
	if n.Files > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: copied %s of %s that %s names\n", cli.Plural(n.Files, "ignored file"),
			cli.BytesOf(n.Bytes), includeFile)
	}
	if left := int64(len(n.LeftOut)) + n.Others; left > 0 {
		first := n.LeftOut[0]
		fmt.Fprintf(a.Stderr, "artifactfs: not copied: %s (%s)", cli.OneLine(first.Path), causes[first.Why])
		if left > 1 {
			fmt.Fprintf(a.Stderr, " and %s more", cli.Count(left-1))
		}
		fmt.Fprintln(a.Stderr)
	}
}

// leave notes that a path was not copied.
func (n *included) leave(name, why string) {
	if len(n.LeftOut) == mostLeftOut {
		n.Others++
		return
	}
	n.LeftOut = append(n.LeftOut, leftOut{name, why})
}

// include copies the files that the file .worktreeinclude of the tree at from names to the tree at to. It copies only
// what git ignores in the new tree, so that the copies are in no commit and no checkpoint, and stay on this host. It
// returns nil if the tree has no such file.
func include(ctx context.Context, from, to string) (*included, error) {
	if info, err := os.Lstat(filepath.Join(from, includeFile)); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, includeTime)
	defer cancel()
	n := &included{LeftOut: []leftOut{}}
	names, err := named(limited, from, to)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("git has not listed the files within %s", includeTime)
	}
	if err != nil || len(names) == 0 {
		return n, err
	}
	c := copier{n: n, made: map[string]bool{}}
	if c.from, err = os.OpenRoot(from); err != nil {
		return n, err
	}
	defer c.from.Close()
	if c.to, err = os.OpenRoot(to); err != nil {
		return n, err
	}
	defer c.to.Close()
	for _, name := range names {
		if limited.Err() != nil {
			if ctx.Err() != nil {
				return n, ctx.Err()
			}
			n.leave(name, "time")
			continue
		}
		if err := c.copy(name); err != nil {
			return n, fmt.Errorf("copy %s: %w", name, err)
		}
	}
	c.setTimes()
	return n, nil
}

// named returns the paths of the files that .worktreeinclude names, that git does not track in the tree at from, and
// that it ignores in the tree at to.
func named(ctx context.Context, from, to string) ([]string, error) {
	listed, err := gitcmd.Output(gitcmd.New(ctx, "-C", from, "ls-files", "--others", "--ignored",
		"--exclude-from="+includeFile, "-z"))
	if err != nil || len(listed) == 0 {
		return nil, err
	}
	check := gitcmd.New(ctx, "-C", to, "check-ignore", "-z", "--stdin")
	check.Stdin = strings.NewReader(string(listed))
	ignored, err := gitcmd.Output(check)
	if gitcmd.Exited(err, 1) { // no path is ignored
		return nil, nil
	}
	names := strings.FieldsFunc(string(ignored), func(r rune) bool { return r == 0 })
	return names, err
}

// copier copies files from one tree to another. Names that lead out of a tree through links are errors.
type copier struct {
	from, to *os.Root
	n        *included
	dirs     []string        // directories that were made, each after its parent
	made     map[string]bool // the same as a set
}

// copy copies a regular file or a link, unless the new tree has something of this name already.
func (c *copier) copy(name string) error {
	if strings.HasSuffix(name, "/") {
		c.n.leave(name, "repository")
		return nil
	}
	info, err := c.from.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed since it was listed
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return c.link(name)
	case !info.Mode().IsRegular():
		c.n.leave(name, "type")
		return nil
	case c.n.Bytes+info.Size() > mostIncluded:
		c.n.leave(name, "size")
		return nil
	}
	if err := c.mkdir(path.Dir(name)); err != nil {
		return err
	}
	size, err := copyFile(c.from, c.to, name, info)
	if errors.Is(err, fs.ErrExist) {
		c.n.leave(name, "exists")
		return nil
	}
	if err != nil {
		return err
	}
	c.n.Files, c.n.Bytes = c.n.Files+1, c.n.Bytes+size
	return nil
}

// link copies a link whose target is in the tree.
func (c *copier) link(name string) error {
	target, err := c.from.Readlink(name)
	if err != nil {
		return err
	}
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		c.n.leave(name, "link")
		return nil
	}
	if err := c.mkdir(path.Dir(name)); err != nil {
		return err
	}
	switch err := c.to.Symlink(target, name); {
	case errors.Is(err, fs.ErrExist):
		c.n.leave(name, "exists")
	case err != nil:
		return err
	default:
		c.n.Files++
	}
	return nil
}

// mkdir makes a directory and those above it, with the permissions that they have in the other tree.
func (c *copier) mkdir(dir string) error {
	if dir == "." || c.made[dir] {
		return nil
	}
	if _, err := c.to.Stat(dir); err == nil {
		return nil
	}
	if err := c.mkdir(path.Dir(dir)); err != nil {
		return err
	}
	info, err := c.from.Stat(dir)
	if err == nil {
		err = c.to.Mkdir(dir, info.Mode().Perm()|0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	c.dirs, c.made[dir] = append(c.dirs, dir), true
	return nil
}

// setTimes gives the new directories the times and permissions that they have in the other tree.
func (c *copier) setTimes() {
	for i := len(c.dirs) - 1; i >= 0; i-- {
		if info, err := c.from.Stat(c.dirs[i]); err == nil {
			// A directory with another time or another mode is no reason to fail.
			_ = c.to.Chtimes(c.dirs[i], time.Time{}, info.ModTime())
			_ = c.to.Chmod(c.dirs[i], info.Mode().Perm())
		}
	}
}
