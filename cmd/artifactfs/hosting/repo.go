package hosting

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/server/client"
)

// RepoCommand returns the command "repo".
func RepoCommand(a *cli.App) *cobra.Command {
	var o Connection
	return o.group(&cobra.Command{
		Use:   "repo",
		Short: "Create, list, fork, import and delete repositories of a server",
		Long: `Repo manages the repositories of artifactfs serve, or of another server with the Artifacts API. A repository is named
NAMESPACE/NAME.

--server or $ARTIFACTFS_SERVER selects the server; by default, it is the server that this user runs on this host. Its
token is read from --server-token-file or $ARTIFACTFS_SERVER_TOKEN; the token of the server on this host is found
automatically.`,
		Example: `  artifactfs repo create team/app
  artifactfs repo list team
  artifactfs repo fork team/app team/trial`,
	}, repoCreateCommand(a, &o), repoListCommand(a, &o), repoShowCommand(a, &o), repoForkCommand(a, &o),
		repoImportCommand(a, &o), repoRefreshCommand(a, &o), repoArchiveCommand(a, &o), repoReopenCommand(a, &o),
		repoDeleteCommand(a, &o))
}

// newRepo is the JSON output of a command that creates a repository.
type newRepo struct {
	Namespace string `json:"namespace"`
	client.Created
}

// printCreated prints a new repository. It prints the token that the server has made for it only to a terminal or with
// --json: a file or the log of a build would keep the token for other readers.
func printCreated(a *cli.App, verb, namespace string, c client.Created) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, newRepo{namespace, c})
	}
	_, err := fmt.Fprintf(a.Stdout, "%s %s/%s\n", verb, namespace, c.Name)
	cli.PrintLine(a.Stdout, "remote", "%s", c.Remote)
	switch {
	case c.Token != "" && cli.IsTerminal(a.Stdout):
		cli.PrintLine(a.Stdout, "token", "%s", c.Token)
	case c.Token != "":
		cli.PrintLine(a.Stdout, "token", "not shown, because the output is no terminal; --json shows it, and "+
			"artifactfs token create %s/%s makes another one", namespace, c.Name)
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
git, and a token that may read and write it for 24 hours. Like serve, the commands repo create, fork and import print a
token only to a terminal or with --json.

artifactfs mount --create creates a repository too, and makes and renews the tokens itself.`,
		Example: `  artifactfs repo create team/app
  artifactfs repo create team/app --description 'the application' --default-branch trunk
  artifactfs repo create team/app --json | jq -r .remote`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			if (base.URL == "") != (base.Commit == "") {
				return cli.Usage(cmd, errors.New("--base-url and --base-commit must be given together"))
			}
			if r.Name = n.repo; base.URL != "" {
				r.Base = &base
			}
			created, err := c.CreateRepo(cmd.Context(), n.namespace, r)
			if mayExist && errors.Is(err, client.ErrExists) {
				return showRepo(cmd.Context(), a, c, n)
			}
			if err != nil {
				return err
			}
			return printCreated(a, "created", n.namespace, created)
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&r.Description, "description", "", "describe the repository by `TEXT`")
	f.StringVar(&r.DefaultBranch, "default-branch", "", "`NAME` of the branch that HEAD names (default main)")
	f.BoolVar(&r.ReadOnly, "read-only", false, "refuse every push")
	f.StringVar(&r.ObjectFormat, "object-format", "", "`FORMAT` of object ids: sha1 or sha256 (default sha1)")
	f.StringVar(&base.URL, "base-url", "",
		"for a thin session, `URL` of the repository that has the objects of the base\ncommit")
	f.StringVar(&base.Commit, "base-commit", "", "`ID` of the base commit")
	f.BoolVar(&mayExist, "exist-ok", false, "if the repository exists, show it, without a new token, and succeed")
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
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			l.Limit = 200
			return printList(a, "repos", limit, reposOf(cmd.Context(), c, args[0], l),
				"NAME\tBRANCH\tSTATUS\tPUSHED\tSOURCE\tREMOTE",
				func(r client.Repo) string {
					return columns(r.Name, r.DefaultBranch, cli.OrDash(r.Status), pushed(r), cli.OrDash(r.Source), r.Remote)
				})
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&l.Search, "search", "", "only repositories whose names contain `TEXT`")
	ChoiceFlag(cmd, &l.Sort, "created_at", "sort", "order of the list", "created_at", "updated_at", "last_push_at", "name")
	f.BoolVar(&l.Ascending, "ascending", false, "the smallest or oldest first")
	f.IntVar(&limit, "limit", 0, "print at most `N` repositories (default: all)")
	return cmd
}

// reposOf returns the repositories of a namespace. If the namespace does not exist, it returns an error; the REST API
// returns an empty list.
func reposOf(ctx context.Context, c *Access, namespace string, l client.ListRepos) iter.Seq2[client.Repo, error] {
	return func(yield func(client.Repo, error) bool) {
		empty := true
		for r, err := range c.Repos(ctx, namespace, l) {
			empty = false
			if !yield(r, err) {
				return
			}
		}
		if !empty {
			return
		}
		if _, err := c.Namespace(ctx, namespace); err != nil {
			yield(client.Repo{}, err)
		}
	}
}

// pushed returns as text how long ago the last push was.
func pushed(r client.Repo) string {
	if r.LastPush == nil {
		return "never"
	}
	return cli.Ago(*r.LastPush, time.Now())
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
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			return showRepo(cmd.Context(), a, c, n)
		}),
	}
}

// showRepo prints the properties of a repository.
func showRepo(ctx context.Context, a *cli.App, c *Access, n name) error {
	r, err := c.Repo(ctx, n.namespace, n.repo)
	if err != nil {
		return err
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
	line("created", localTime(r.Created))
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

The sessions of the fork are closed copies, without transcripts, that name the original. artifactfs session reopen
URL#session=NAME opens a copy, so that it can be resumed from the fork.

--checkpoint and --commit set the default branch of the fork to that commit. Servers other than artifactfs serve may not
support these two flags, --refs, --transcripts, and forks in another namespace.`,
		Example: `  artifactfs repo fork team/app trial
  artifactfs repo fork team/app people/trial --read-only
  artifactfs repo fork team/work retry --checkpoint 5f2c1d7e`,
		Args: cli.Arguments(2, 2, "NAMESPACE/NAME [NAMESPACE/]NEW"),
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, parent name, args []string) error {
			fork, err := parseName(args[0])
			if err != nil { // The text is a name without a namespace. If it is invalid, the server refuses it.
				fork = name{parent.namespace, args[0]}
			}
			if f.Name = fork.repo; fork.namespace != parent.namespace {
				f.Namespace = fork.namespace
			}
			created, err := c.Fork(cmd.Context(), parent.namespace, parent.repo, f)
			if err != nil {
				return err
			}
			return printCreated(a, "forked "+parent.String()+" to", fork.namespace, created)
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.Description, "description", "", "describe the fork by `TEXT`")
	flags.BoolVar(&f.ReadOnly, "read-only", false, "refuse every push to the fork")
	flags.BoolVar(&f.DefaultBranchOnly, "default-branch-only", false, "leave out all refs except the default branch")
	flags.StringVar(&f.Checkpoint, "checkpoint", "", "set the default branch to the checkpoint `ID` of a session")
	flags.StringVar(&f.Commit, "commit", "", "set the default branch to the commit `ID`")
	flags.StringSliceVar(&f.Refs, "refs", nil, "copy only refs that match one of these `GLOB`s")
	flags.BoolVar(&f.Transcripts, "transcripts", false, "also copy the transcripts of sessions")
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
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			if err := c.confirm(a, "repository "+n.String(), yes); err != nil {
				return err
			}
			if err := c.DeleteRepo(cmd.Context(), n.namespace, n.repo); err != nil {
				return err
			}
			return PrintDone(a, "deleted", n.String())
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
