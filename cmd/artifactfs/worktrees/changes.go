package worktrees

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// changes are the uncommitted changes of a working tree of a clone.
type changes struct {
	paths        []change
	repositories []string // untracked git repositories in the tree, which are not copied
}

// change is a path at which a working tree differs from HEAD, or from the index.
type change struct {
	path   string
	gone   bool   // whether the tree has no file of this name
	staged string // "MODE ID" of the entry in the index; the mode "" and an ID of zeros: the index has no entry
	differ bool   // whether the index differs from HEAD
}

// changes returns the uncommitted changes of the working tree c.at, without those in submodules. It is an error if the
// tree with the plan p does not begin at HEAD, because the changes are those of HEAD, and if a path has conflicts,
// because the operation in progress is not in the new tree.
func (c clone) changes(ctx context.Context, p plan) (changes, error) {
	commit := p.commit
	if commit == "" {
		commit, _ = resolve(ctx, c.dir, "refs/heads/"+p.branch)
	}
	isHead := func() error {
		head, ok := resolve(ctx, c.at, "HEAD")
		if !ok || head != commit {
			return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict,
				Cause: fmt.Sprintf("--changes takes the changes of HEAD, %.10s, along, and the new tree begins at %.10s",
					head, commit),
				Hint: "add -b NAME to start a branch at HEAD"}
		}
		return nil
	}
	if err := isHead(); err != nil {
		return changes{}, err
	}
	text, err := git(ctx, c.at, "status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=all",
		"--ignore-submodules=all")
	if err != nil {
		return changes{}, err
	}
	all, err := parseChanges(text)
	return all, errors.Join(err, isHead())
}

// parseChanges parses the output of git status --porcelain=v2 -z.
func parseChanges(text string) (all changes, err error) {
	for record := range strings.SplitSeq(text, "\x00") {
		kind, rest, _ := strings.Cut(record, " ")
		switch kind {
		case "?":
			if name, ok := strings.CutSuffix(rest, "/"); ok {
				all.repositories = append(all.repositories, name)
				continue
			}
			all.paths = append(all.paths, change{path: rest})
		case "1": // XY sub mH mI mW hH hI path
			fields := strings.SplitN(rest, " ", 8)
			if len(fields) != 8 {
				return all, fmt.Errorf("git status printed %q", record)
			}
			all.paths = append(all.paths, change{path: fields[7], gone: fields[4] == "000000",
				staged: strings.TrimLeft(fields[3], "0") + " " + fields[6], differ: fields[0][0] != '.'})
		case "u":
			return all, errors.New("the clone has conflicts, so its changes cannot be copied")
		}
	}
	// Removed files come first, because a directory of them may have become a file.
	slices.SortStableFunc(all.paths, func(x, y change) int {
		switch {
		case x.gone == y.gone:
			return 0
		case x.gone:
			return -1
		}
		return 1
	})
	return all, nil
}

// copyTo makes the changes of the working tree at from in the tree at to: changed, new and removed files, with modes
// and times, and the differences between index and HEAD. It writes only below to, also if links lead out of it.
func (all changes) copyTo(ctx context.Context, from, to string) error {
	if err := all.copyIndex(ctx, from, to); err != nil {
		return err
	}
	in, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, x := range all.paths {
		if err := x.copy(in, out); err != nil {
			return fmt.Errorf("copy uncommitted change: %w", err)
		}
	}
	return nil
}

// copyIndex makes the entries of the index of the tree at to equal to those of the tree at from where these differ from
// HEAD.
func (all changes) copyIndex(ctx context.Context, from, to string) error {
	var ids, entries strings.Builder
	for _, x := range all.paths {
		if !x.differ {
			continue
		}
		mode, id, _ := strings.Cut(x.staged, " ")
		if mode != "" {
			fmt.Fprintln(&ids, id)
		}
		fmt.Fprintf(&entries, "%s %s\t%s\x00", cmp.Or(mode, "0"), id, x.path)
	}
	if entries.Len() == 0 {
		return nil
	}
	if ids.Len() > 0 {
		pack := gitcmd.New(ctx, "-C", from, "pack-objects", "-q", "--stdout")
		pack.Stdin = strings.NewReader(ids.String())
		out, err := gitcmd.Output(pack)
		if err != nil {
			return err
		}
		unpack := gitcmd.New(ctx, "-C", to, "unpack-objects", "-q")
		unpack.Stdin = bytes.NewReader(out)
		if err := gitcmd.Run(unpack); err != nil {
			return err
		}
	}
	update := gitcmd.New(ctx, "-C", to, "update-index", "-z", "--index-info")
	update.Stdin = strings.NewReader(entries.String())
	return gitcmd.Run(update)
}

// copy makes the path in the tree to equal to that in the tree from. Files that are neither regular nor symbolic links
// are left out, as git ignores them.
func (x change) copy(from, to *os.Root) error {
	if x.gone {
		if err := removeIn(to, x.path); err != nil {
			return err
		}
		// git does not keep empty directories
		for dir := path.Dir(x.path); dir != "." && to.Remove(dir) == nil; dir = path.Dir(dir) {
		}
		return nil
	}
	info, err := from.Lstat(x.path)
	if errors.Is(err, fs.ErrNotExist) { // removed since it was listed
		return nil
	}
	if err != nil || info.Mode()&fs.ModeSymlink == 0 && !info.Mode().IsRegular() {
		return err
	}
	if err := removeIn(to, x.path); err != nil {
		return err
	}
	if err := to.MkdirAll(path.Dir(x.path), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := from.Readlink(x.path)
		if err != nil {
			return err
		}
		return to.Symlink(target, x.path)
	}
	_, err = copyFile(from, to, x.path, info)
	return err
}

// copyFile copies a regular file, which info describes, with mode and time to another tree, and returns its size. If
// both are on one file system that can do that, the copy shares the contents. If it fails, no file of this name is left
// that was not there before.
func copyFile(from, to *os.Root, name string, info fs.FileInfo) (size int64, err error) {
	in, err := from.Open(name)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	size = info.Size()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		size, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Chmod(info.Mode().Perm())
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = to.Chtimes(name, time.Time{}, info.ModTime())
	}
	if err != nil {
		return 0, errors.Join(err, to.Remove(name))
	}
	return size, nil
}

// removeIn removes a file or an empty directory of a tree, if there is one.
func removeIn(tree *os.Root, name string) error {
	if err := tree.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
