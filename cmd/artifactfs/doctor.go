package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
)

func (a *app) doctorCommand() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong, and mend it",
		Long: `Doctor looks for what keeps mounts from working on this host, for dead mounts, for what killed processes left in the
state directory, and checks the work of every session that is not mounted. It tells each finding on a line, and fails if
something is wrong.

With --repair it mends what can be mended. What was changed in a mount is never deleted: what does not fit anywhere any
more goes to the lost+found directory of its session.`,
		Example: `  artifactfs doctor
  artifactfs doctor --repair
  artifactfs doctor --json | jq '.findings[] | select(.wrong and (.mended | not))'`,
		Args: arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.doctor(cmd.Context(), repair) },
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "mend what can be mended")
	return cmd
}

func (a *app) doctor(ctx context.Context, repair bool) error {
	findings, err := daemon.Examine(ctx, a.state, repair)
	if err != nil {
		return failure("doctor", a.state, err)
	}
	if _, asked := a.mounts(ctx); asked != nil {
		e := control.AsError(asked)
		findings = append(findings, daemon.Finding{Object: a.state, What: "not every daemon answers: " + e.Error(), Wrong: true, Hint: e.Hint})
	}
	wrong := 0
	for _, f := range findings {
		if f.Wrong && !f.Mended {
			wrong++
		}
	}
	if a.json {
		if findings == nil {
			findings = []daemon.Finding{}
		}
		err = printJSON(a.stdout, map[string]any{"findings": findings, "wrong": wrong})
	} else {
		err = a.printFindings(findings)
	}
	if err == nil && wrong > 0 {
		err = &control.Error{Code: control.ExitFailed, Verb: "doctor", Object: a.state, Cause: plural(int64(wrong), "finding") + " to be looked after"}
	}
	return err
}

func (a *app) printFindings(findings []daemon.Finding) error {
	if len(findings) == 0 {
		_, err := fmt.Fprintln(a.stdout, "all is well")
		return err
	}
	for _, f := range findings {
		sign := "  "
		switch {
		case f.Mended:
			sign = "ok"
		case f.Wrong:
			sign = "!!"
		}
		text := (&control.Error{Cause: f.Object + ": " + f.What}).Error()
		if f.Mended {
			text += ": mended"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s %s\n", sign, text); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		if f.Hint != "" {
			fmt.Fprintf(a.stdout, "   hint: %s\n", (&control.Error{Cause: f.Hint}).Error())
		}
	}
	return nil
}
