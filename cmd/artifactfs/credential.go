package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/credential"
)

func (a *app) credentialCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "credential",
		Short:  "Tokens of mounts",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.credentialHelperCommand())
	return cmd
}

// credentialHelperCommand is what git runs, as a credential helper of a mount's git directory, for a login.
func (a *app) credentialHelperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "helper GITDIR OPERATION",
		Short:  "Answer git's questions for logins",
		Hidden: true,
		Args:   arguments(2, 2, "a git directory and what git wants done"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := keepMemory(); err != nil {
				return fmt.Errorf("credential helper: %w", err)
			}
			if err := credential.Ask(cmd.Context(), args[0], args[1], os.Stdin, a.stdout); err != nil {
				return fmt.Errorf("credential helper: %w", err)
			}
			return nil
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { a.began = true; return nil }, // it needs no state directory
	}
}
