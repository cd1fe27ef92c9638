package hosting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/client"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// RepoCommand returns the command "repo".
func RepoCommand(a *cli.App) *cobra.Command {
	var o Connection
	cmd := &cobra.Command{
		Use:   "repo",
		Short: "Create, list, fork, import and delete repositories of a server",
		Long: `Repo manages the repositories of a server that artifactfs serve or another server with the Artifacts API runs. A
repository is named NAMESPACE/NAME.

The server is that of --server, of $ARTIFACTFS_SERVER, or the one that this user runs on this host. The token for it is
that of --server-token-file, of $ARTIFACTFS_SERVER_TOKEN, or of the server on this host.`,
		Example: `  artifactfs repo create team/app
  artifactfs repo list team
  artifactfs repo fork team/app team/trial`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.AddFlags(cmd)
	cmd.AddCommand(repoCreateCommand(a, &o), repoListCommand(a, &o), repoShowCommand(a, &o), repoForkCommand(a, &o),
		repoImportCommand(a, &o), repoRefreshCommand(a, &o), repoDeleteCommand(a, &o))
	return cmd
}

// newRepo is the output of a command that creates a repository, with --json.
type newRepo struct {
	Namespace string `json:"namespace"`
	client.Created
}

// printCreated prints a new repository and the token that the server has made for it.
func printCreated(a *cli.App, verb, namespace string, c client.Created) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, newRepo{namespace, c})
	}
	_, err := fmt.Fprintf(a.Stdout, "%s %s/%s\n", verb, namespace, c.Name)
	cli.PrintLine(a.Stdout, "remote", "%s", c.Remote)
	if c.Token != "" {
		cli.PrintLine(a.Stdout, "token", "%s", c.Token)
	}
	return err
}

// repoCreateCommand returns the command "repo create".
func repoCreateCommand(a *cli.App, o *Connection) *cobra.Command {
	var r client.CreateRepo
	var base client.Base
	var mayExist bool
	cmd := &cobra.Command{
		Use:   "create NAMESPACE/NAME",
		Short: "Create a repository",
		Long: `Create creates an empty repository, and its namespace if that does not exist. It prints the URL of the repository for
git, and a token that may read and write it for 24 hours.

artifactfs mount --create creates a repository too, and makes and renews the tokens itself.`,
		Example: `  artifactfs repo create team/app
  artifactfs repo create team/app --description 'the application' --default-branch trunk
  artifactfs repo create team/app --json | jq -r .remote`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := parseName(args[0])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			if (base.URL == "") != (base.Commit == "") {
				return cli.Usage(cmd, errors.New("--base-url and --base-commit need each other"))
			}
			if r.Name = n.repo; base.URL != "" {
				r.Base = &base
			}
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			created, err := c.CreateRepo(cmd.Context(), n.namespace, r)
			if mayExist && errors.Is(err, client.ErrExists) {
				return showRepo(cmd.Context(), a, c, n)
			}
			if err != nil {
				return explain(c, err)
			}
			return printCreated(a, "created", n.namespace, created)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&r.Description, "description", "", "describe the repository by `TEXT`")
	f.StringVar(&r.DefaultBranch, "default-branch", "", "`NAME` of the branch that HEAD names (default main)")
	f.BoolVar(&r.ReadOnly, "read-only", false, "refuse every push")
	f.StringVar(&r.ObjectFormat, "object-format", "", "`FORMAT` of object ids: sha1 or sha256 (default sha1)")
	f.StringVar(&base.URL, "base-url", "", "`URL` of the repository that has the objects that this one will lack, for a\nthin session")
	f.StringVar(&base.Commit, "base-commit", "", "`ID` of the commit there")
	f.BoolVar(&mayExist, "exist-ok", false, "succeed if the repository exists, and show it; no token is made then")
	return cmd
}

// repoListCommand returns the command "repo list".
func repoListCommand(a *cli.App, o *Connection) *cobra.Command {
	var l client.ListRepos
	var limit int
	cmd := &cobra.Command{
		Use:     "list NAMESPACE",
		Aliases: []string{"ls"},
		Short:   "List the repositories of a namespace",
		Long: `List prints a line for each repository of the namespace, the newest first. With --json it prints
{"repos":[...]}, with the fields of the REST API.`,
		Example: `  artifactfs repo list team
  artifactfs repo list team --search app --sort name --ascending
  artifactfs repo list team --json | jq -r '.repos[].remote'`,
		Args: cli.Arguments(1, 1, "NAMESPACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			l.Limit = 200
			all := []client.Repo{}
			for r, err := range c.Repos(cmd.Context(), args[0], l) {
				if err != nil {
					return explain(c, err)
				}
				if all = append(all, r); limit > 0 && len(all) == limit {
					break
				}
			}
			return printRepos(a, all)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&l.Search, "search", "", "only repositories whose names contain `TEXT`")
	f.Var(cli.NewChoice(&l.Sort, "created_at", "created_at", "updated_at", "last_push_at", "name"), "sort", "order of the list")
	f.BoolVar(&l.Ascending, "ascending", false, "the smallest or oldest first")
	f.IntVar(&limit, "limit", 0, "print at most `N` repositories (default: all)")
	cli.CompleteFlag(cmd, "sort", "created_at", "updated_at", "last_push_at", "name")
	return cmd
}

// printRepos prints a table of repositories.
func printRepos(a *cli.App, all []client.Repo) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string][]client.Repo{"repos": all})
	}
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tBRANCH\tSTATUS\tPUSHED\tSOURCE\tREMOTE")
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.DefaultBranch, orDash(r.Status), pushed(r), orDash(r.Source), r.Remote)
	}
	return flush(w)
}

// pushed returns the time of the last push as text.
func pushed(r client.Repo) string {
	if r.LastPush == nil {
		return "never"
	}
	return cli.Ago(*r.LastPush, time.Now())
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return (&control.Error{Cause: s}).Error() // one line, without control characters
}

func flush(w *tabwriter.Writer) error {
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// repoShowCommand returns the command "repo show".
func repoShowCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAMESPACE/NAME",
		Short: "Show a repository",
		Long:  `Show prints the properties of a repository. With --json it prints them as the REST API does.`,
		Example: `  artifactfs repo show team/app
  git clone "$(artifactfs repo show team/app --json | jq -r .remote)"`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := parseName(args[0])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			return showRepo(cmd.Context(), a, c, n)
		},
	}
}

// showRepo prints the properties of a repository.
func showRepo(ctx context.Context, a *cli.App, c *Access, n name) error {
	r, err := c.Repo(ctx, n.namespace, n.repo)
	if err != nil {
		return explain(c, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, struct {
			Namespace string `json:"namespace"`
			client.Repo
		}{n.namespace, r})
	}
	fmt.Fprintln(a.Stdout, n)
	line := func(label, value string) {
		if value != "" {
			cli.PrintLine(a.Stdout, label, "%s", value)
		}
	}
	line("remote", r.Remote)
	line("about", r.Description)
	line("branch", r.DefaultBranch)
	line("source", r.Source)
	line("status", r.Status)
	if r.ReadOnly {
		line("access", "read-only")
	}
	line("created", r.Created.Local().Format(time.DateTime))
	line("pushed", pushed(r))
	return nil
}

// repoForkCommand returns the command "repo fork".
func repoForkCommand(a *cli.App, o *Connection) *cobra.Command {
	var f client.Fork
	cmd := &cobra.Command{
		Use:   "fork NAMESPACE/NAME [NAMESPACE/]NEW",
		Short: "Fork a repository",
		Long: `Fork makes a new repository that has the branches, tags and sessions of another one. No object is copied, so a fork of
a large repository takes as long as one of a small repository. The fork stays complete if its parent is deleted.

--checkpoint and --commit make the default branch of the fork begin at that commit. Servers other than artifactfs serve
may not support these two flags, --refs, and another namespace.`,
		Example: `  artifactfs repo fork team/app trial
  artifactfs repo fork team/app people/trial --read-only
  artifactfs repo fork team/work retry --checkpoint 5f2c1d7e`,
		Args: cli.Arguments(2, 2, "NAMESPACE/NAME [NAMESPACE/]NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := parseName(args[0])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			to := name{from.namespace, args[1]}
			if n, err := parseName(args[1]); err == nil {
				to = n
			}
			if f.Name = to.repo; to.namespace != from.namespace {
				f.Namespace = to.namespace
			}
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			created, err := c.Fork(cmd.Context(), from.namespace, from.repo, f)
			if err != nil {
				return explain(c, err)
			}
			return printCreated(a, "forked "+from.String()+" to", to.namespace, created)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.Description, "description", "", "describe the fork by `TEXT`")
	flags.BoolVar(&f.ReadOnly, "read-only", false, "refuse every push to the fork")
	flags.BoolVar(&f.DefaultBranchOnly, "default-branch-only", false, "leave out all refs except the default branch")
	flags.StringVar(&f.Checkpoint, "checkpoint", "", "begin at the checkpoint `ID` of a session")
	flags.StringVar(&f.Commit, "commit", "", "begin at the commit `ID`")
	flags.StringSliceVar(&f.Refs, "refs", nil, "copy only refs that match one of these `GLOB`s")
	cmd.MarkFlagsMutuallyExclusive("checkpoint", "commit")
	return cmd
}

// repoDeleteCommand returns the command "repo delete".
func repoDeleteCommand(a *cli.App, o *Connection) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "delete NAMESPACE/NAME",
		Aliases: []string{"rm"},
		Short:   "Delete a repository",
		Long: `Delete deletes a repository with its refs and revokes its tokens. Forks of it stay complete. Delete asks before it
deletes, unless --yes is given.`,
		Example: `  artifactfs repo delete team/trial
  artifactfs repo delete team/trial --yes`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := parseName(args[0])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			if !yes {
				what := "repository " + n.String() + " of " + c.URL()
				if err := cli.Ask(a, "delete", what, "delete "+what+"?"); err != nil {
					return err
				}
			}
			if err := c.DeleteRepo(cmd.Context(), n.namespace, n.repo); err != nil {
				return explain(c, err)
			}
			return printDone(a, "deleted", n.String())
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// printDone prints what a command has done to an object.
func printDone(a *cli.App, verb, object string) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]string{verb: object})
	}
	return say(a.Stdout, verb+" "+object)
}

func say(w io.Writer, text string) error {
	if _, err := fmt.Fprintln(w, text); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}
