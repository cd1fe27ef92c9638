package worktrees

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// tree is a working tree of a family.
type tree struct {
	Path     string `json:"path"`
	Head     string `json:"head"`     // id of the commit of HEAD; "": unknown
	Branch   string `json:"branch"`   // full name of the branch of HEAD; "": HEAD is detached
	Detached bool   `json:"detached"` // whether HEAD is detached
	// "mount" (the tree from which the others were forked, or a tree of a clone), "fork", "linked" (made by git worktree
	// add), or "clone" (a repository that is not a mount)
	Kind     string `json:"kind"`
	Session  string `json:"session"`            // session of the tree, or of the mount that has the linked worktree
	Parent   string `json:"parent,omitempty"`   // session from which the session was forked
	Mounted  bool   `json:"mounted"`            // whether the files are there
	Changed  int64  `json:"changed"`            // number of paths in the session that differ from its start; -1: unknown
	Locked   string `json:"locked,omitempty"`   // "locked", with the reason if there is one; only of linked worktrees
	Prunable string `json:"prunable,omitempty"` // why worktree prune removes the tree
}

// listCommand returns the command "worktree list".
func listCommand(a *cli.App) *cobra.Command {
	var of string
	var porcelain, zero bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the working trees of a family",
		Long: `List prints the tree from which the others were forked, then the forks and their forks, and after each tree the
worktrees that git worktree add has made in it. A line has the path, the commit of HEAD and the branch, as in git
worktree list. A tree is prunable if its daemon has died and left a dead mount.

-v and --json also list forks that are not mounted, and add the session and the number of its changed paths.`,
		Example: `  artifactfs worktree list
  artifactfs worktree list --porcelain
  artifactfs worktree list --json | jq -r '.worktrees[].path'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case zero && !porcelain:
				return cli.Usage(cmd, errors.New("-z requires --porcelain"))
			case porcelain && (a.Verbose || a.JSON):
				return cli.Usage(cmd, errors.New("--porcelain excludes --verbose and --json"))
			}
			trees, err := treesOf(cmd.Context(), a, of, a.JSON || a.Verbose)
			if err != nil {
				return err
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, map[string]any{"worktrees": trees})
			}
			return printTrees(a.Stdout, trees, porcelain, zero, a.Verbose)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&porcelain, "porcelain", false, "print the format for scripts of git worktree list --porcelain")
	f.BoolVarP(&zero, "null", "z", false, "end lines with NUL; requires --porcelain")
	ofFlag(a, cmd, &of)
	return cmd
}

// treesOf returns the trees of the family of a session. The parameter of is the value of -C. If counted is set, the
// trees have the numbers of changed paths.
func treesOf(ctx context.Context, a *cli.App, of string, counted bool) ([]tree, error) {
	g, err := groupOf(ctx, a, "list worktrees", of, counted)
	if err != nil {
		return nil, err
	}
	if g.clone != nil {
		return g.clone.trees(ctx, g.members)
	}
	members := g.members
	found := make([][]tree, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { found[i] = m.trees(ctx, map[bool]string{true: "mount", false: "fork"}[i == 0]) })
	}
	wg.Wait()
	all := []tree{}
	for _, trees := range found {
		all = append(all, trees...)
	}
	return all, nil
}

// trees returns the tree of the session, of the given kind, and the linked worktrees of its mount.
func (m member) trees(ctx context.Context, kind string) []tree {
	t := tree{Path: m.Dir, Kind: kind, Session: m.Name, Parent: parentOf(m.SessionInfo), Mounted: m.mount != nil,
		Changed: -1}
	if m.mount == nil {
		if t.Head = m.Base; m.Last != nil {
			t.Head = cmp.Or(m.Last.Head, t.Head)
			t.Detached = m.Last.Branch == ""
			if !t.Detached {
				t.Branch = "refs/heads/" + m.Last.Branch
			}
		}
		table, _ := mountinfo.Self()
		if cli.HasMount(table, m.Dir) && mountpoint.IsDead(m.Dir) {
			t.Prunable = "the daemon of the mount has died"
		}
		return []tree{t}
	}
	t.Changed = m.mount.Overlay.Changed
	text, answered := cli.Look(func() string {
		out, err := git(ctx, m.Dir, "worktree", "list", "--porcelain", "-z")
		if err != nil {
			return ""
		}
		return out
	})
	listed := parseTrees(text)
	if !answered || len(listed) == 0 { // git does not work in the mount yet
		if isID(m.mount.Head) {
			t.Head, t.Detached = m.mount.Head, true
		} else if m.mount.Head != "" {
			t.Branch = "refs/heads/" + m.mount.Head
		}
		return []tree{t}
	}
	// The path of the first is the git directory, which is not in the mount.
	t.Head, t.Branch, t.Detached = listed[0].Head, listed[0].Branch, listed[0].Detached
	all := []tree{t}
	for _, l := range listed[1:] {
		l.Kind, l.Session, l.Mounted, l.Changed = "linked", m.Name, true, -1
		all = append(all, l)
	}
	return all
}

// parseTrees parses the output of git worktree list --porcelain -z.
func parseTrees(text string) (all []tree) {
	for record := range strings.SplitSeq(text, "\x00\x00") {
		t := tree{}
		for line := range strings.SplitSeq(record, "\x00") {
			key, value, _ := strings.Cut(line, " ")
			switch key {
			case "worktree":
				t.Path = value
			case "HEAD":
				t.Head = value
			case "branch":
				t.Branch = value
			case "detached":
				t.Detached = true
			case "locked":
				t.Locked = strings.TrimSpace("locked " + value)
			case "prunable":
				t.Prunable = value
			}
		}
		if t.Path != "" {
			all = append(all, t)
		}
	}
	return all
}

// printTrees prints the trees as git worktree list does. Forks that are not mounted are printed only if verbose is set,
// or if they can be pruned.
func printTrees(out io.Writer, trees []tree, porcelain, zero, verbose bool) error {
	var shown []tree
	width := 0
	for i, t := range trees {
		if t.Mounted || i == 0 || t.Prunable != "" || verbose {
			shown, width = append(shown, t), max(width, len(cli.OneLine(t.Path)))
		}
	}
	var b strings.Builder
	for _, t := range shown {
		if porcelain {
			t.porcelain(&b, zero)
		} else {
			t.line(&b, width, verbose)
		}
	}
	_, err := io.WriteString(out, b.String())
	return cli.Printed(err)
}

// porcelain writes a tree in the format for scripts. Lines end with NUL if zero is set. Otherwise the reason of a lock
// is quoted if needed, as git does.
func (t tree) porcelain(b *strings.Builder, zero bool) {
	end := map[bool]string{true: "\x00", false: "\n"}[zero]
	line := func(words ...string) { b.WriteString(strings.Join(words, " ") + end) }
	line("worktree", t.Path)
	if t.Head != "" {
		line("HEAD", t.Head)
	}
	switch {
	case t.Branch != "":
		line("branch", t.Branch)
	case t.Detached:
		line("detached")
	}
	if word, reason, ok := strings.Cut(t.Locked, " "); ok && !zero {
		line(word, quoteName(reason))
	} else if t.Locked != "" {
		line(t.Locked)
	}
	if t.Prunable != "" {
		line("prunable", t.Prunable)
	}
	line()
}

// quoteName returns a name as git prints it in lines: as a C string if it has quotes, backslashes, control characters
// or bytes that are not ASCII, otherwise unchanged.
func quoteName(name string) string {
	const special, letters = "\a\b\t\n\v\f\r\"\\", `abtnvfr"\`
	var b strings.Builder
	for _, c := range []byte(name) {
		if i := strings.IndexByte(special, c); i >= 0 {
			b.WriteString(`\` + letters[i:i+1])
		} else if c < ' ' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	if b.Len() == len(name) {
		return name
	}
	return `"` + b.String() + `"`
}

// line writes a tree on a line. width is the width of the column with the paths.
func (t tree) line(b *strings.Builder, width int, verbose bool) {
	fmt.Fprintf(b, "%-*s  ", width, cli.OneLine(t.Path))
	switch {
	case t.Branch != "":
		fmt.Fprintf(b, "%.10s [%s]", cmp.Or(t.Head, "?"), cli.OneLine(strings.TrimPrefix(t.Branch, "refs/heads/")))
	case t.Detached:
		fmt.Fprintf(b, "%.10s (detached HEAD)", t.Head)
	default:
		b.WriteString("(error)")
	}
	if t.Locked != "" {
		b.WriteString(" locked")
	}
	if t.Prunable != "" {
		b.WriteString(" prunable")
	}
	if verbose {
		switch {
		case t.Kind == "linked":
			b.WriteString("  linked worktree of session " + t.Session)
		case !t.Mounted:
			b.WriteString("  session " + t.Session + ", not mounted")
		default:
			fmt.Fprintf(b, "  session %s, %s", t.Session, cli.Plural(t.Changed, "changed path"))
		}
	}
	b.WriteByte('\n')
}
