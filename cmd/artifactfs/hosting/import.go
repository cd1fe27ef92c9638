package hosting

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// repoImportCommand returns the command "repo import".
func repoImportCommand(a *cli.App, o *Connection) *cobra.Command {
	var i client.Import
	var wait bool
	cmd := &cobra.Command{
		Use:   "import URL NAMESPACE/NAME",
		Short: "Create a repository with the contents of another one",
		Long: `Import makes the server copy the repository at URL, which must be an https URL, to a new repository. The server copies
it in the background; --wait waits until it has finished.`,
		Example: `  artifactfs repo import https://github.com/git/git mirrors/git --wait
  artifactfs repo import https://github.com/git/git mirrors/git --branch maint --depth 1`,
		Args: cli.Arguments(2, 2, "URL NAMESPACE/NAME"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			n, err := parseName(args[1])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			i.URL = args[0]
			created, err := c.Import(cmd.Context(), n.namespace, n.repo, i)
			if err == nil && wait {
				err = awaitImport(cmd.Context(), c, n)
			}
			if err != nil {
				return err
			}
			verb := "importing"
			if wait {
				verb = "imported"
			}
			return printCreated(a, verb, n.namespace, created)
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&i.Branch, "branch", "", "import only the branch `NAME`")
	f.IntVar(&i.Depth, "depth", 0, "import only `N` commits of each branch")
	f.BoolVar(&i.ReadOnly, "read-only", false, "refuse pushes after the import")
	f.StringVar(&i.Secret, "secret", "", "`NAME` of the credentials for URL on the server (artifactfs serve --secrets)")
	f.BoolVar(&wait, "wait", false, "wait until the import has finished")
	return cmd
}

// repoRefreshCommand returns the command "repo refresh".
func repoRefreshCommand(a *cli.App, o *Connection) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "refresh NAMESPACE/NAME",
		Short: "Bring an imported repository up to date",
		Long: `Refresh makes the server import a repository again, from the same URL and with the same options. Refs that were pushed
to on this server since the last import stay as they are; all others are copied again.`,
		Example: `  artifactfs repo refresh mirrors/git --wait`,
		Args:    cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			err := c.Extensions().RefreshImport(cmd.Context(), n.namespace, n.repo)
			if err == nil && wait {
				err = awaitImport(cmd.Context(), c, n)
			}
			if err != nil {
				return err
			}
			if wait {
				return PrintDone(a, "refreshed", n.String())
			}
			return PrintDone(a, "refreshing", n.String())
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the import has finished")
	return cmd
}

// importPoll is the interval at which awaitImport asks for the state of an import.
const importPoll = 250 * time.Millisecond

// awaitImport waits until the import of a repository has succeeded or failed. It returns an error if the import has
// failed.
func awaitImport(ctx context.Context, c *Access, n name) error {
	for {
		s, err := c.Extensions().ImportStatus(ctx, n.namespace, n.repo)
		if errors.Is(err, client.ErrNotFound) { // the server has no request for the state of imports
			s.State, err = listedState(ctx, c, n)
		}
		switch {
		case err != nil:
			return err
		case s.State == "failed":
			return &control.Error{Code: control.ExitRemote, Verb: "import", Object: n.String(), Cause: s.Error}
		case s.State == "succeeded":
			return nil
		}
		select {
		case <-time.After(importPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// listedState returns the state of an import from the list of repositories, for a server that does not support
// ImportStatus. Such a server does not report that an import has failed.
func listedState(ctx context.Context, c *Access, n name) (string, error) {
	// Some servers return the status of a repository only in lists.
	for r, err := range c.Repos(ctx, n.namespace, client.ListRepos{Search: n.repo}) {
		if err != nil {
			return "", err
		}
		if r.Name == n.repo && r.Status == "importing" {
			return "running", nil
		}
	}
	return "succeeded", nil
}
