package hosting

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/client"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
)

// TokenCommand returns the command "token".
func TokenCommand(a *cli.App) *cobra.Command {
	var o Connection
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke tokens for repositories of a server",
		Long: `Token manages the tokens with which git reads and writes one repository of a server. git uses a token as the password,
with any user name.`,
		Example: `  artifactfs token create team/app --scope read --ttl 1h
  artifactfs token list team/app
  artifactfs token revoke team/app 01JD4X8ZQ8K2V6M3T0N5R7W9YB`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.AddFlags(cmd)
	cmd.AddCommand(tokenCreateCommand(a, &o), tokenListCommand(a, &o), tokenRevokeCommand(a, &o))
	return cmd
}

// denials are the ways to change a ref that a rule of a token can deny.
var denials = []string{"no-push", "no-force-push", "append-only", "no-delete"}

// parseRule parses GLOB or GLOB=DENIAL+DENIAL, the value of --refs.
func parseRule(text string) (client.RefRule, error) {
	glob, rest, _ := strings.Cut(text, "=")
	r := client.RefRule{Glob: glob}
	if rest != "" {
		r.Deny = strings.Split(rest, "+")
	}
	for _, d := range r.Deny {
		if !slices.Contains(denials, d) {
			return r, fmt.Errorf("--refs %s: want GLOB or GLOB=DENIAL, with a denial of %s", text, strings.Join(denials, ", "))
		}
	}
	if glob == "" {
		return r, errors.New("--refs: glob is empty")
	}
	return r, nil
}

// tokenCreateCommand returns the command "token create".
func tokenCreateCommand(a *cli.App, o *Connection) *cobra.Command {
	var t client.CreateToken
	var ttl cli.Days
	var rules []string
	cmd := &cobra.Command{
		Use:   "create NAMESPACE/NAME",
		Short: "Create a token for a repository",
		Long: `Create prints a new token for a repository. The server stores only a hash of it, so it cannot be shown again.

--refs GLOB restricts a token to the refs that match; it may be repeated. GLOB=DENIAL denies a way to change them:
no-push, no-force-push, append-only (no forced push and no removal) or no-delete; join several by +. Globs are those of
shells for full names of refs, where ** at the end matches any number of components.`,
		Example: `  artifactfs token create team/app --scope read --ttl 1h
  artifactfs token create team/app --label ci --ttl 30d
  artifactfs token create team/app --refs 'refs/heads/*=no-force-push+no-delete' --refs 'refs/notes/**'
  export ARTIFACTFS_TOKEN=$(artifactfs token create team/app)`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := parseName(args[0])
			if err != nil {
				return cli.Usage(cmd, err)
			}
			t.Repo, t.TTL, t.Refs = n.repo, int(time.Duration(ttl)/time.Second), nil
			for _, text := range rules {
				r, err := parseRule(text)
				if err != nil {
					return cli.Usage(cmd, err)
				}
				t.Refs = append(t.Refs, r)
			}
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			made, err := c.CreateToken(cmd.Context(), n.namespace, t)
			if err != nil {
				return explain(c, err)
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, made)
			}
			fmt.Fprintf(a.Stderr, "artifactfs: token %s (%s) expires %s\n", made.ID, made.Scope, made.Expires.Local().Format(time.DateTime))
			return say(a.Stdout, made.Plaintext)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(cli.NewChoice(&t.Scope, client.Write, client.Read, client.Write), "scope", "what the token allows")
	f.Var(&ttl, "ttl", "how long the token is valid, such as 1h or 30d, from 1m to 365d (default 1d)")
	f.StringVar(&t.Label, "label", "", "`TEXT` that lists and the audit log show")
	f.StringVar(&t.Actor, "actor", "", "`NAME` of who will use the token")
	f.StringVar(&t.Session, "for-session", "", "restrict the token to the refs that the session `NAME` writes; not with --refs")
	f.StringArrayVar(&rules, "refs", nil, "restrict the token to the refs that match `GLOB`, or GLOB=DENIAL+DENIAL")
	cli.CompleteFlag(cmd, "scope", client.Read, client.Write)
	return cmd
}

// tokenListCommand returns the command "token list".
func tokenListCommand(a *cli.App, o *Connection) *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "list NAMESPACE/NAME",
		Aliases: []string{"ls"},
		Short:   "List the tokens of a repository",
		Long:    `List prints a line for each token of a repository, the newest first. It prints no secrets.`,
		Example: `  artifactfs token list team/app
  artifactfs token list team/app --which all --json`,
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
			all := []client.Token{}
			for t, err := range c.Tokens(cmd.Context(), n.namespace, n.repo, state) {
				if err != nil {
					return explain(c, err)
				}
				all = append(all, t)
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, map[string][]client.Token{"tokens": all})
			}
			if len(all) == 0 {
				return nil
			}
			w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tSCOPE\tSTATE\tEXPIRES\tLABEL\tSESSION")
			for _, t := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Scope, t.State, t.Expires.Local().Format(time.DateTime), orDash(t.Label),
					orDash(t.Session))
			}
			return flush(w)
		},
	}
	cmd.Flags().Var(cli.NewChoice(&state, "active", "active", "expired", "revoked", "all"), "which", "tokens to list")
	cli.CompleteFlag(cmd, "which", "active", "expired", "revoked", "all")
	return cmd
}

// tokenRevokeCommand returns the command "token revoke".
func tokenRevokeCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAMESPACE[/NAME] ID...",
		Short: "Revoke tokens",
		Long: `Revoke makes tokens invalid at once, also for transfers that are under way. It succeeds for a token that was revoked
before.`,
		Example: `  artifactfs token revoke team/app 01JD4X8ZQ8K2V6M3T0N5R7W9YB
  artifactfs token list team/app --json | jq -r '.tokens[].id' | xargs artifactfs token revoke team/app`,
		Args: cli.Arguments(2, -1, "NAMESPACE[/NAME] ID..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, _, _ := strings.Cut(args[0], "/")
			c, err := Connect(a, *o)
			if err != nil {
				return err
			}
			for _, id := range args[1:] {
				if err := c.RevokeToken(cmd.Context(), namespace, id); err != nil {
					return explain(c, err)
				}
				if err := printDone(a, "revoked", id); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
