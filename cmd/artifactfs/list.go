package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/agents"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// listCommand returns the command "list", which prints the status of all mounts, one line for each mount.
func listCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List mounts and unmounted sessions, one per line",
		Long: `List prints a line for each mount of the state directory, and for each session that has changes but is not mounted. The
state of such a session is "unmounted"; artifactfs mount or session resume mounts it again. With --json, list prints the
same as status --json: {"mounts":[...]}.`,
		Example: `  artifactfs list
  artifactfs list --json | jq -r '.mounts[].dir'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error { return listMounts(cmd.Context(), a) },
	}
}

// listMounts prints a table of mounts and unmounted sessions.
func listMounts(ctx context.Context, a *cli.App) error {
	found, asked := a.Survey(ctx)
	all := found.Mounts
	if a.JSON {
		if err := printAll(a.Stdout, found, agents.Look(a, all)); err != nil {
			return err
		}
		return asked
	}
	if len(all) == 0 {
		return asked // print nothing, because scripts rely on empty output if there are no mounts
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DIR\tREF\tSTATE\tFILES\tFETCHED\tCHANGED\tSESSION\tPENDING\tREMOTE")
	for _, m := range all {
		ref, changed, session := cli.HeadName(m.Head, m.Ref, m.Commit), cli.Count(m.Overlay.Changed), m.Session.Name
		files, hydrated := cli.Count(m.Tree.Files), cli.Count(m.Blobs.Fetched)+" of "+cli.Count(m.Blobs.Total)
		if m.State == control.StatePreparing {
			ref = "-"
		}
		if m.Overlay.Changed < 0 {
			changed = "?"
		}
		pending := cli.Count(m.Session.Pending)
		if session == "" {
			session = "-"
		}
		if m.Session.SessionRemote == "" {
			pending = "-"
		}
		if !m.Mounted() {
			files, hydrated = "-", "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.OneLine(m.Dir), ref, m.State, files,
			hydrated, changed, session, pending, m.Remote)
	}
	if err := w.Flush(); err != nil {
		return cli.Printed(err)
	}
	return asked
}
