//go:build !noserver

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
)

// manCommand returns the hidden command that writes the manual pages; `make install` runs it.
func manCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Hidden: true,
		Short:  "Write the manual pages",
		Long: `Man writes a manual page for each command into DIR: artifactfs.1, artifactfs-mount.1, ... If SOURCE_DATE_EPOCH is set,
the pages have that date, so that the same program always writes the same bytes.`,
		Example: `  artifactfs man /usr/local/share/man/man1`,
		Args:    cli.Arguments(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "artifactfs " + versionText(), Manual: "artifactfs"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}
