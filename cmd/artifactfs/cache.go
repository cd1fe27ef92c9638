package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/statedir/space"
)

// cacheCommand returns the command "cache" with its subcommands. It needs no daemon: the subcommands work on the state
// directory.
func cacheCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache stat|gc",
		Short: "Show what the state directory contains, and free space",
		Long: `Cache shows the size of everything in the state directory, and removes data that can be fetched again: file contents,
which all mounts share, and the objects of remotes that no mount and no session uses. It never removes changes or
commits that were made in a mount.`,
		Example: `  artifactfs cache stat
  artifactfs cache gc --quota 2G`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("subcommand is missing: want stat or gc")
			}
			return fmt.Errorf("unknown subcommand %q: want stat or gc", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(cacheStatCommand(a), cacheGCCommand(a))
	return cmd
}

// cacheStatCommand returns the command "cache stat", which changes nothing.
func cacheStatCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "stat",
		Short: "Show what the state directory contains, by remote and by mount",
		Long: `Stat prints four parts. The first is the number and size of the fetched file contents, which can be evicted at any
time. The second has a line for each remote: the objects in its store (commits, trees, and blobs that git has read), and
the number and size of the file contents that were fetched from it. The third has a line for each mount and each
unmounted session: the size of its changes and of its git directory, which exist only on this host. The fourth has a
line for each directory with changed contents that a session and its forks have in common.`,
		Example: `  artifactfs cache stat
  artifactfs cache stat --json | jq '.remotes[] | select(.needed | not)'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cacheStat(cmd.Context(), a) },
	}
}

// cacheGCCommand returns the command "cache gc".
func cacheGCCommand(a *cli.App) *cobra.Command {
	var quota cli.Size
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Evict file contents, and remove unused stores",
		Long: `Gc evicts file contents, least recently used first, until at most --quota bytes are left. It also removes the objects
of remotes that no mount and no unmounted session uses, and contents that were shared at a fork and that no session uses
any more, not even a deleted one that can be restored. It can run while the daemon runs, and skips files that the daemon
is writing. It never removes data that exists only on this host.`,
		Example: `  artifactfs cache gc --dry-run
  artifactfs cache gc --quota 500M`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cacheGC(cmd.Context(), a, int64(quota), dryRun) },
	}
	cmd.Flags().Var(&quota, "quota", "maximum `SIZE` of the contents that remain, such as 2G (default: the quota of\n"+
		"the running daemon, else "+cli.SizeText(daemon.DefaultCacheSize)+")")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	return cmd
}

// cacheStat prints the sizes of the state directory. If the state directory does not exist, it prints an empty report.
// The quota of contents in the report is the largest quota of the running daemons.
func cacheStat(ctx context.Context, a *cli.App) error {
	st, err := space.Examine(ctx, a.State)
	if errors.Is(err, fs.ErrNotExist) {
		st, err = space.Report{Remotes: []space.Remote{}, Mounts: []space.Home{}, Shares: []space.Share{}}, nil
	}
	if err != nil {
		return cli.Failure("cache stat", a.State, err)
	}
	found, asked := a.Survey(ctx)
	for _, d := range found.Daemons {
		st.Blobs.Quota = max(st.Blobs.Quota, d.Cache.Quota)
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, st)
	} else {
		err = printCache(a, st, found)
	}
	return errors.Join(err, asked)
}

// printCache prints a table of the remotes, and a table of the mounts and sessions.
func printCache(a *cli.App, st space.Report, found cli.Survey) error {
	fmt.Fprintf(a.Stdout, "contents: %s, %s, evictable", cli.Plural(st.Blobs.Blobs, "blob"), cli.BytesOf(st.Blobs.Bytes))
	if st.Blobs.Quota > 0 {
		fmt.Fprintf(a.Stdout, " (quota %s)", cli.BytesOf(st.Blobs.Quota))
	}
	fmt.Fprintln(a.Stdout)
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	if len(st.Remotes) > 0 {
		fmt.Fprintln(w, "\nREMOTE\tOBJECTS\tPACKS\tSIZE\tCONTENTS\tSIZE\tNEEDED")
	}
	for _, r := range st.Remotes {
		needed := "yes"
		switch {
		case r.Open:
			needed = "mounted"
		case !r.Needed:
			needed = "no"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", cli.OrDash(r.Remote), cli.Count(r.Objects), r.Packs,
			cli.BytesOf(r.Bytes),
			cli.Count(r.Blobs), cli.BytesOf(r.BlobBytes), needed)
	}
	w.Flush()
	// The daemons count the changes in the mounts; "?" is printed if a daemon could not count them.
	changed := map[string]string{}
	for _, m := range found.Mounts {
		changed[m.ID] = cli.Count(m.Overlay.Changed)
		if m.Overlay.Changed < 0 {
			changed[m.ID] = "?"
		}
	}
	if len(st.Mounts) > 0 {
		fmt.Fprintln(w, "\nMOUNT OR SESSION\tSTATE\tCHANGED\tSIZE\tOBJECTS\tGIT\tREMOTE")
	}
	for _, m := range st.Mounts {
		state, dir := "kept", m.Dir
		if m.Mounted {
			state = "mounted"
		}
		if dir == "" {
			dir = m.ID
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.OneLine(dir), state, cli.OrDash(changed[m.ID]),
			cli.BytesOf(m.Overlay),
			cli.Count(m.Objects), cli.BytesOf(m.Git), cli.OrDash(m.Remote))
	}
	if len(st.Shares) > 0 {
		fmt.Fprintln(w, "\nSHARED CONTENTS\tSIZE\tUSED BY")
	}
	for _, s := range st.Shares {
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.ID, cli.BytesOf(s.Bytes), cli.OrDash(cli.OneLine(strings.Join(s.Users, ", "))))
	}
	return cli.Printed(w.Flush())
}

// cacheGC evicts contents and removes unused stores. If the command line states no quota, cacheGC uses the largest
// quota of the running daemons, or the default quota if no daemon runs.
func cacheGC(ctx context.Context, a *cli.App, quota int64, dryRun bool) error {
	if quota == 0 {
		// Ignore the error: the command "artifactfs status" reports daemons that do not answer.
		found, _ := a.Survey(ctx)
		for _, d := range found.Daemons {
			quota = max(quota, d.Cache.Quota)
		}
		if quota == 0 {
			quota = daemon.DefaultCacheSize
		}
	}
	freed, err := space.Collect(ctx, a.State, space.Goal{Quota: quota, DryRun: dryRun})
	if errors.Is(err, fs.ErrNotExist) {
		freed, err = space.Freed{Removed: []space.Remote{}, Shares: []space.Share{}, DryRun: dryRun}, nil
	}
	if err != nil {
		return cli.Failure("cache gc", a.State, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, freed)
	}
	verb := [2]string{"evicted", "removed"}
	if dryRun {
		verb = [2]string{"would evict", "would remove"}
	}
	for _, r := range freed.Removed {
		name := r.Remote
		if name == "" {
			name = r.Dir
		}
		fmt.Fprintf(a.Stdout, "%s the store of %s, %s\n", verb[1], cli.OrDash(name), cli.BytesOf(r.Bytes))
	}
	for _, s := range freed.Shares {
		fmt.Fprintf(a.Stdout, "%s the shared contents %s, %s\n", verb[1], s.ID, cli.BytesOf(s.Bytes))
	}
	if freed.SharedFiles > 0 {
		fmt.Fprintf(a.Stdout, "%s %s of shared contents, %s\n", verb[1], cli.Plural(freed.SharedFiles, "unused file"),
			cli.BytesOf(freed.SharedBytes))
	}
	_, err = fmt.Fprintf(a.Stdout, "%s %s, %s; %s of contents are left\n", verb[0], cli.Plural(freed.Blobs, "blob"),
		cli.BytesOf(freed.Bytes), cli.BytesOf(freed.Left))
	for _, note := range freed.Notes {
		fmt.Fprintf(a.Stderr, "artifactfs: %s\n", cli.OneLine(note))
	}
	if err != nil {
		return cli.Printed(err)
	}
	return nil
}
