package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
)

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List mounts, one a line",
		Long: `List prints a table of all mounts of the state directory. With --json it prints what status --json does:
{"mounts":[...]}.`,
		Example: `  artifactfs list
  artifactfs list --json | jq -r '.mounts[].dir'`,
		Args: arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.list(cmd.Context()) },
	}
}

func (a *app) list(ctx context.Context) error {
	all, asked := a.mounts(ctx)
	if a.json {
		if err := printAll(a.stdout, all); err != nil {
			return err
		}
		return asked
	}
	if len(all) == 0 {
		return asked // an empty table is the one thing a script can read
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DIR\tREF\tSTATE\tFILES\tHYDRATED\tREMOTE")
	for _, m := range all {
		ref := refName(m.Ref, m.Commit)
		if m.State == control.StatePreparing {
			ref = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s of %s\t%s\n", (&control.Error{Cause: m.Dir}).Error(), ref, m.State,
			count(m.Tree.Files), count(m.Blobs.Hydrated), count(m.Blobs.Total), m.Remote)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return asked
}
