package main

import (
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/spf13/cobra"
)

// completionCommand returns the command "completion", which prints the scripts that cobra generates. It replaces
// cobra's own command of this name.
func completionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long: `Completion prints a shell script that completes commands, flags, values of flags, directories of mounts, names of
sessions and ids of checkpoints.`,
		Example: `  source <(artifactfs completion bash)
  artifactfs completion zsh > "${fpath[1]}/_artifactfs"
  artifactfs completion fish > ~/.config/fish/completions/artifactfs.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cli.Arguments(1, 1, "bash, zsh or fish")(cmd, args); err != nil {
				return err
			}
			if !slices.Contains(cmd.ValidArgs, args[0]) {
				return fmt.Errorf("unknown shell %q: want bash, zsh or fish", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			switch root := cmd.Root(); args[0] {
			case "bash":
				err = root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				err = root.GenZshCompletion(a.Stdout)
			case "fish":
				err = root.GenFishCompletion(a.Stdout, true)
			}
			if err != nil {
				return fmt.Errorf("print completion: %w", err)
			}
			return nil
		},
	}
}
