package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

func completionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a completion script for a shell",
		Long:  `Completion prints a shell script that completes commands, flags, their values and mounted directories.`,
		Example: `  source <(artifactfs completion bash)
  artifactfs completion zsh > "${fpath[1]}/_artifactfs"
  artifactfs completion fish > ~/.config/fish/completions/artifactfs.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(cmd *cobra.Command, args []string) error {
			if err := arguments(1, 1, "bash, zsh or fish")(cmd, args); err != nil {
				return err
			}
			if !slices.Contains(cmd.ValidArgs, args[0]) {
				return fmt.Errorf("takes bash, zsh or fish, not %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			switch root := cmd.Root(); args[0] {
			case "bash":
				err = root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				err = root.GenZshCompletion(a.stdout)
			case "fish":
				err = root.GenFishCompletion(a.stdout, true)
			}
			if err != nil {
				return fmt.Errorf("print completion: %w", err)
			}
			return nil
		},
	}
}

// arguments checks their number; most < 0 means any.
func arguments(least, most int, takes string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("takes %s, got %s", takes, plural(int64(len(args)), "argument"))
		}
		return nil
	}
}
