package serving

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/git/promisor"
)

// PromisorCommand returns a hidden command. To fetch missing objects, git runs it as the upload-pack program of a
// remote of the mount's git directory.
func PromisorCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "upload-pack-helper GITDIR",
		Short:  "Answer git's requests for missing objects",
		Hidden: true,
		Args:   cli.Arguments(1, 1, "GITDIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Ignore the error, because git reports the failure.
			promisor.Ask(cmd.Context(), args[0], os.Getenv("GIT_PROTOCOL"), os.Stdin, a.Stdout)
			return nil
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // the command needs no state directory
	}
}
