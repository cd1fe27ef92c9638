package worktrees

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// maxNumber is the largest number that is appended to the name of a tree because the name is in use.
const maxNumber = 99

// AddForAgent makes the tree that an agent asks for: a fork of the mount that contains t.From, or a tree of the clone.
// It returns the directory of the tree, and prints messages on stderr only.
//
// The tree is at t.Path or, if this is "" or inside of the mount or clone, beside the mount or clone at DIR, in
// DIR-worktrees. If its directory or its branch exists already, a number is appended to both, so that no two agents get
// the same tree.
func AddForAgent(ctx context.Context, a *cli.App, t agenthook.Tree) (dir string, err error) {
	silent := *a
	silent.Stdout, silent.JSON = a.Stderr, false
	all, asked := a.Mounts(ctx)
	top, of, err := topOf(ctx, all, asked, t.From)
	if err != nil {
		return "", err
	}
	place, name, err := placeOf(Outermost(all, top), t)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(place, 0o777); err != nil {
		return "", err
	}
	defer os.Remove(place) // fails, as intended, if the directory is not empty
	for n := 1; n <= maxNumber; n++ {
		x := addition{of: of, path: filepath.Join(place, name), commit: t.Base,
			head: &control.NewHead{Branch: "worktree-" + name}}
		if n > 1 {
			x.path, x.head.Branch = fmt.Sprintf("%s-%d", x.path, n), fmt.Sprintf("%s-%d", x.head.Branch, n)
		}
		// A session that was unmounted there would be resumed.
		if _, kept := cli.FindUnmounted(all, x.path); kept || blocked(ctx, of, x.head.Branch) {
			continue
		}
		// Of two agents that ask for the same name at once, only one can create the directory.
		err = os.Mkdir(x.path, 0o777)
		if errors.Is(err, fs.ErrNotExist) && os.MkdirAll(place, 0o777) == nil { // a hook that failed has removed it
			err = os.Mkdir(x.path, 0o777)
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if dir, err = x.run(ctx, &silent); dir != "" { // the tree is there, also if a message could not be printed
			return dir, nil
		}
		_ = os.Remove(x.path)
		// Another number helps only if a tree elsewhere has the branch, or the branch was made meanwhile.
		if !errors.As(err, new(branchError)) && !blocked(ctx, of, x.head.Branch) {
			return "", err
		}
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "add worktree",
			Object: filepath.Join(place, name), Cause: fmt.Sprintf("path is in use, also with the numbers up to %d", maxNumber),
			Hint: "run artifactfs worktree list -C " + cli.ShellWord(top) + " to see the trees"}
	}
	return "", err
}

// blocked reports whether the repository at dir has a branch, or one in its place whose name continues with a slash.
func blocked(ctx context.Context, dir, branch string) bool {
	out, err := git(ctx, dir, "for-each-ref", "--count=1", "refs/heads/"+branch)
	return err == nil && out != ""
}

// topOf returns the root of the mount that contains the directory from or, if it is in no mount, of the clone, and the
// working tree from which a new one is made, which is another one in a linked worktree of the clone. It is an error if
// nothing can be mounted from there.
func topOf(ctx context.Context, all []cli.Served, asked error, from string) (top, of string, err error) {
	const verb = "add worktree"
	from, err = filepath.Abs(from)
	if err != nil {
		return "", "", err
	}
	m, err := cli.Find(all, asked, verb, from)
	if err == nil && !m.Guest() {
		return m.Dir, m.Dir, nil
	}
	if e := control.AsError(err); e != nil && e.Code != control.ExitNotMounted {
		return "", "", err
	}
	// The daemon of a mount that is seen, but not listed, cannot be asked to mount anything.
	if root, ok := control.GuestDir(from); ok || err == nil {
		return "", "", &control.Error{Code: control.ExitFailed, Kind: control.CodeUnsupported, Verb: verb, Object: root,
			Cause: "nothing can be mounted from inside of a container, or without the state directory of the mount",
			Hint:  "run artifactfs worktree add outside of the container, and start the agent in the new tree"}
	}
	if c, ok := findClone(ctx, from); ok {
		return c.dir, cmp.Or(c.at, c.dir), nil
	}
	return "", "", err
}

// placeOf returns the directory in which the tree of an agent is made, and the name of the tree. The parameter around
// is the directory of the outermost mount, in which nothing can be mounted.
func placeOf(around string, t agenthook.Tree) (place, name string, err error) {
	name = strings.ReplaceAll(t.Name, "/", "+") // as claude does
	place = around + "-worktrees"
	if path := filepath.Clean(t.Path); filepath.IsAbs(path) && !mountinfo.Within(around, path) {
		place, name = filepath.Dir(path), filepath.Base(path)
	} else if name == "" {
		name = filepath.Base(path)
	}
	if name == "" || name == "." || name == ".." || name == "/" || strings.ContainsFunc(name, func(r rune) bool {
		return r < ' ' || r == 0x7f
	}) {
		return "", "", &control.Error{Code: control.ExitUsage, Verb: "add worktree", Object: t.Name,
			Cause: "agent has sent no valid name of a tree"}
	}
	return place, name, nil
}

// Outermost returns the directory of the outermost mount that contains the directory dir, or dir if there is none.
func Outermost(all []cli.Served, dir string) string {
	for _, m := range all {
		if m.Mounted() && mountinfo.Within(m.Dir, dir) {
			dir = m.Dir
		}
	}
	return dir
}

// RemoveForAgent removes the tree at path, with its changes, and prints on stderr how it can be brought back. Processes
// that still use the tree do not prevent it. A session on hold is unmounted and kept. It is an error if another
// directory is at path, such as a worktree of git, whose changes would be lost.
func RemoveForAgent(ctx context.Context, a *cli.App, path string) error {
	silent := *a
	silent.Stdout, silent.JSON = a.Stderr, false
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "remove worktree", path)
	if e := control.AsError(err); e != nil && e.Code != control.ExitNotMounted {
		return err
	}
	if err != nil || !slices.Contains(cli.Spellings(path), m.Dir) {
		if s, ok := cli.FindUnmounted(all, path); ok {
			return removeUnmounted(ctx, &silent, s, path, true)
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return refusal(path, "", "'%s' is not a working tree that artifactfs has made", path)
	}
	if _, err := membersOf(ctx, a, m, path); err != nil {
		return err
	}
	r := control.UnmountRequest{Dir: m.Dir, Discard: true, Trash: true, Timeout: -1}
	for range 3 {
		var reply control.UnmountReply
		if reply, err = m.Client.Unmount(ctx, r); err == nil {
			return afterRemoval(&silent, m, reply)
		}
		switch e := control.AsError(err); {
		case e.Kind == control.CodeBusy && !r.Detach:
			r.Detach = true
		case e.Kind == control.CodeConflict && r.Discard:
			fmt.Fprintf(a.Stderr, "artifactfs: session %s is kept: %s\n", m.Session.Name, cli.OneLine(e.Cause))
			r.Discard, r.Trash, r.Timeout = false, false, 0
		default:
			return cli.Failure("remove worktree", path, err)
		}
	}
	return cli.Failure("remove worktree", path, err)
}
