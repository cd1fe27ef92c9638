package worktrees

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
)

// clone is a git repository on this host that is not a mount. Its trees are mounts of which it is the remote and the
// session remote, so that their branches appear in it.
type clone struct {
	dir string // root of its main working tree, or its git directory if it is bare; the remote of its trees
	at  string // root of the working tree in which the command runs, possibly a linked one; "": none
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
	c := clone{dir: trees[0].Path}
	if top, err := git(ctx, dir, "rev-parse", "--path-format=absolute", "--show-toplevel"); err == nil {
		c.at = top
	}
	return c, true
}

// usedBy returns the directory of the tree of the clone, the clone itself included, that has checked out a branch; ""
// if there is none.
func (c clone) usedBy(ctx context.Context, a *cli.App, branch string) (string, error) {
	text, err := git(ctx, c.dir, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return "", err
	}
	for _, t := range parseTrees(text) {
		if t.Branch == "refs/heads/"+branch {
			return t.Path, nil
		}
	}
	members, err := c.members(ctx, a, false)
	for _, m := range members {
		if m.mount != nil && m.mount.Head == branch {
			return m.Dir, nil
		}
	}
	return "", err
}

// members returns the sessions whose remote is the clone, by their directories. If counted is set, their mounts have
// the numbers of changed paths.
func (c clone) members(ctx context.Context, a *cli.App, counted bool) ([]member, error) {
	known, all, err := sessionsAndMounts(ctx, a, counted)
	if err != nil {
		return nil, err
	}
	var members []member
	for i, m := range all {
		at := slices.IndexFunc(known, func(s control.SessionInfo) bool { return s.Name == m.Session.Name })
		if m.Remote != c.dir || m.ReadOnly || at < 0 {
			continue
		}
		o := member{SessionInfo: known[at]}
		if o.Dir = m.Dir; m.Mounted() {
			o.mount = &all[i]
		}
		members = append(members, o)
	}
	slices.SortFunc(members, func(x, y member) int { return cmp.Compare(x.Dir, y.Dir) })
	return members, nil
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
		g.members = []member{{control.SessionInfo{Dir: m.Dir}, &m}}
		return g, err
	}
	g.members, err = family(ctx, a, w.Session(), counted)
	return g, err
}
