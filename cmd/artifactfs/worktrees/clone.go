package worktrees

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// clone is a git repository on this host that is not a mount. Its trees are mounts of which it is the remote and the
// session remote, so that their branches appear in it.
type clone struct {
	dir    string // root of its main working tree, or its git directory if it is bare; the remote of its trees
	common string // git directory that its main and its linked working trees share
	at     string // root of the working tree in which the command runs, possibly a linked one; "": none
}

// findClone returns the clone that contains a directory, or false if there is none.
func findClone(ctx context.Context, dir string) (clone, bool) {
	dir, err := filepath.Abs(dir) // git does not run in the current directory
	if err != nil {
		return clone{}, false
	}
	text, err := git(ctx, dir, "worktree", "list", "--porcelain", "-z")
	trees := parseTrees(text)
	if err != nil || len(trees) == 0 {
		return clone{}, false
	}
	// In a bare repository, git fails at the last question, after it has answered the others.
	text, err = git(ctx, dir, "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel")
	lines := strings.Split(text, "\n")
	switch {
	case err == nil && len(lines) == 2:
		return clone{dir: trees[0].Path, common: lines[0], at: lines[1]}, true
	case len(lines) == 1 && filepath.IsAbs(lines[0]):
		return clone{dir: trees[0].Path, common: lines[0]}, true
	}
	return clone{}, false
}

// lockTime is the longest time for which a tree waits until others of the same clone have been added.
const lockTime = 30 * time.Second

// lock waits until no other tree of the clone is being added, so that no two trees get the same branch. The lock is
// that of the git directory itself, which nothing else locks, and ends with this process. If the file system has no
// locks, lock returns at once.
func (c clone) lock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(c.common)
	if err != nil {
		return nil, err
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		busy := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		switch {
		case !busy:
			return func() { dir.Close() }, nil
		case ctx.Err() != nil:
			return nil, errors.Join(ctx.Err(), dir.Close())
		case time.Since(start) > lockTime:
			return nil, errors.Join(fmt.Errorf("another working tree of %s has been added for %s", c.dir, lockTime),
				dir.Close())
		}
	}
}

// createBranch creates the branch of the plan in the clone, or moves it there, as git worktree add does. git refuses a
// branch that another process has just created. The function undo reverses this, unless the branch has moved since.
func (c clone) createBranch(ctx context.Context, p plan) (undo func(context.Context) error, err error) {
	if !p.creates {
		return func(context.Context) error { return nil }, nil
	}
	ref, before, there := "refs/heads/"+p.branch, "", false
	create := []string{"branch", "-q", "--no-track"}
	if p.resets { // otherwise git branch fails if the branch is there
		before, there = resolve(ctx, c.dir, ref)
		create = append(create, "--force")
	}
	if _, err := git(ctx, c.dir, append(create, "--", p.branch, p.commit)...); err != nil {
		return nil, err
	}
	restore := c.upstream(ctx, p)
	undo = func(ctx context.Context) error {
		args := []string{"update-ref", "-d", ref, p.commit}
		if there {
			args = []string{"update-ref", "-m", "worktree: not added", ref, before, p.commit}
		}
		if _, err := git(ctx, c.dir, args...); err != nil {
			return err
		}
		return restore(ctx)
	}
	if p.upstream != "" {
		if _, err := git(ctx, c.dir, "branch", "-q", "--set-upstream-to="+p.upstream, "--", p.branch); err != nil {
			return nil, errors.Join(err, undo(context.WithoutCancel(ctx)))
		}
	}
	return undo, nil
}

// upstream returns a function that sets the upstream of the branch of the plan to what it is now, if the plan changes
// it. Other settings of the branch, such as its description, stay.
func (c clone) upstream(ctx context.Context, p plan) (restore func(context.Context) error) {
	before := map[string]string{}
	if p.upstream != "" {
		for _, key := range []string{"remote", "merge", "rebase"} { // those that git branch --set-upstream-to sets
			key = "branch." + p.branch + "." + key
			before[key], _ = git(ctx, c.dir, "config", "--local", "--get-all", key) // fails if there is none
		}
	}
	return func(ctx context.Context) (err error) {
		for key, values := range before {
			_, failed := git(ctx, c.dir, "config", "--local", "--unset-all", key)
			if failed != nil && !gitcmd.Exited(failed, 5) { // there is none
				err = errors.Join(err, failed)
				continue
			}
			for value := range strings.Lines(values) {
				_, failed := git(ctx, c.dir, "config", "--local", "--add", key, strings.TrimSuffix(value, "\n"))
				err = errors.Join(err, failed)
			}
		}
		return err
	}
}

// usedBy returns the directory of the tree of the clone, the clone itself included, that has checked out a branch; ""
// if there is none. members are the members of the clone, of which some may not be mounted.
func (c clone) usedBy(ctx context.Context, members []member, branch string) (string, error) {
	text, err := git(ctx, c.dir, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return "", err
	}
	for _, t := range parseTrees(text) {
		if t.Branch == "refs/heads/"+branch || t.Detached && returnsTo(ctx, t.Path, branch) {
			return t.Path, nil
		}
	}
	for _, m := range members {
		if m.uses(ctx, branch) {
			return m.Dir, nil
		}
	}
	return "", nil
}

// members returns the sessions whose remote is the clone, by their directories. If counted is set, their mounts have
// the numbers of changed paths.
func (c clone) members(ctx context.Context, a *cli.App, counted bool) ([]member, error) {
	known, all, err := sessionsAndMounts(ctx, a, counted)
	if err != nil {
		return nil, err
	}
	return c.among(known, all), nil
}

// among returns the members of the clone among the sessions and the mounts of this host.
func (c clone) among(known []control.SessionInfo, all []cli.Served) (members []member) {
	for i, m := range all {
		at := slices.IndexFunc(known, func(s control.SessionInfo) bool { return s.Name == m.Session.Name })
		if m.Remote != c.dir || m.ReadOnly || at < 0 {
			continue
		}
		o := member{SessionInfo: known[at], head: m.Head}
		if o.Dir = m.Dir; m.Mounted() {
			o.mount = &all[i]
		}
		members = append(members, o)
	}
	slices.SortFunc(members, func(x, y member) int { return cmp.Compare(x.Dir, y.Dir) })
	return members
}

// trees returns the trees of the clone: those that git lists, and the mounts.
func (c clone) trees(ctx context.Context, members []member) ([]tree, error) {
	text, err := git(ctx, c.dir, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return nil, err
	}
	all := parseTrees(text)
	for i := range all {
		all[i].Mounted, all[i].Changed = true, -1
		all[i].Kind = map[bool]string{true: "clone", false: "linked"}[i == 0]
	}
	for _, m := range members {
		all = append(all, m.trees(ctx, "mount")...)
	}
	return all, nil
}

// cloneOf returns the clone of which a mount is a tree, or false if its remote is no clone on this host.
func cloneOf(ctx context.Context, m control.MountStatus) (clone, bool) {
	if !filepath.IsAbs(m.Remote) || m.Session.SessionRemote != m.Remote {
		return clone{}, false
	}
	c, ok := findClone(ctx, m.Remote)
	return c, ok && c.dir == m.Remote
}

// group has the trees that belong together: those of a family of sessions, or those of a clone.
type group struct {
	members []member
	clone   *clone // nil: the trees are those of a family
}

// groupOf returns the group of the tree that -C, or the current directory, selects. A mount of a clone belongs to the
// group of the clone. If counted is set, the mounts have the numbers of changed paths.
func groupOf(ctx context.Context, a *cli.App, verb, of string, counted bool) (g group, err error) {
	w, err := sessions.SessionOf(ctx, a, verb, of)
	if e := control.AsError(err); e != nil && e.Code == control.ExitNotMounted {
		if c, ok := findClone(ctx, cmp.Or(of, ".")); ok {
			g.clone = &c
			g.members, err = c.members(ctx, a, counted)
			return g, err
		}
	}
	if err != nil {
		return g, err
	}
	m, err := w.Mounted(verb)
	if err == nil {
		// The mount that was found has only the parts of the status by which mounts are found.
		all, err := a.Mounts(ctx)
		if i := slices.IndexFunc(all, func(o cli.Served) bool { return o.Mounted() && o.Dir == m.Dir }); i < 0 {
			return g, cmp.Or(err, error(cli.NotMounted(verb, m.Dir)))
		} else {
			m = all[i]
		}
		if c, ok := cloneOf(ctx, m.MountStatus); ok {
			g.clone = &c
			g.members, err = c.members(ctx, a, counted)
			return g, err
		}
	}
	if w.Session() == "" {
		g.members = []member{{SessionInfo: control.SessionInfo{Dir: m.Dir}, mount: &m, head: m.Head}}
		return g, err
	}
	g.members, err = family(ctx, a, w.Session(), counted)
	return g, err
}
