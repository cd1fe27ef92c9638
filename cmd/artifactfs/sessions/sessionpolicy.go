package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/approval"
)

// policyCommand returns the command "session policy".
func policyCommand(a *cli.App) *cobra.Command {
	var of, remote, set string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "policy [--set FILE] [--remote URL]",
		Short: "Show or set the policy of a repository, which states what needs approvals",
		Long: `Policy prints the policy of a repository, and checks it. The repository is the session remote of a session, or that of
--remote. The policy is a file of JSON in the ref refs/afs/policy. A server of this program enforces it for all pushes;
other servers only store it. On such a server, only tokens of owners and administrators may change it.

  {"version": 1,
   "branches": [{"match": "main", "quorum": 1},
                {"match": "main", "paths": ["/deploy/**"], "quorum": 2, "reviewers": ["alice", "bob", "carol"]}],
   "sessions": [{"match": "release-*", "quorum": 1, "self": true, "ttl": "8h"}]}

A push to a branch must satisfy each rule that matches the branch and one of the changed paths. "quorum" is the number
of users who must approve, "reviewers" are those who may (default: all), "self" allows the user who requested the
approval to approve, and "ttl" is the maximum age of a request (default: 168h). The rules below "sessions" protect
sessions from deletion. A policy without rules protects nothing.`,
		Example: `  artifactfs session policy
  artifactfs session policy --set policy.json --remote https://git.example.org/app.git
  artifactfs session policy --set policy.json --dry-run`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case of != "" && remote != "":
				return cli.Usage(cmd, errors.New("-C and --remote exclude each other: both name the repository"))
			case dryRun && set == "":
				return cli.Usage(cmd, errors.New("--dry-run needs --set FILE"))
			}
			r := control.SessionPolicyRequest{}
			if set != "" {
				text, err := readPolicy(set)
				if err != nil {
					return err
				}
				r.Policy = &text
			}
			if dryRun {
				return nil
			}
			return policy(cmd.Context(), a, of, remote, r)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&set, "set", "", "replace the policy by that in `FILE` (-: standard input)")
	f.StringVar(&remote, "remote", "", "the repository `URL` (default: the session remote)")
	f.BoolVar(&dryRun, "dry-run", false, "only check FILE")
	ofFlag(a, cmd, &of)
	return cmd
}

// policyAt returns the URL of a repository as it is sent in a request. If the parameter change is set, the URL has the
// token for the REST API, because artifactfs serve accepts a policy only from the owner of the repository.
func policyAt(ctx context.Context, a *cli.App, remote string, change bool) (string, error) {
	if !change {
		return loginAt(ctx, a, "policy", remote)
	}
	remote, err := cli.FarRemote("policy", remote)
	if err != nil {
		return "", err
	}
	return hosting.WithControlToken(ctx, a, remote)
}

// readPolicy reads and checks the policy in a file.
func readPolicy(name string) (string, error) {
	read := func() ([]byte, error) { return os.ReadFile(name) }
	if name == "-" {
		read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
	}
	text, err := read()
	if err == nil {
		_, err = approval.ParsePolicy(text)
	}
	if err != nil {
		return "", &control.Error{Code: control.ExitUsage, Verb: "read policy", Object: name, Cause: cli.Reason(err),
			Hint: "artifactfs session policy --help shows an example"}
	}
	return string(text), nil
}

// policy prints the policy of a repository. If the request contains a policy, policy first stores it in the repository.
// It returns an error if the policy of the repository is not valid.
func policy(ctx context.Context, a *cli.App, of, remote string, r control.SessionPolicyRequest) error {
	name := "repository"
	var client *control.Client
	if remote == "" {
		w, err := SessionOf(ctx, a, "policy", of)
		if err != nil {
			return err
		}
		client, r.Of, name = w.client, w.of, w.name()
		if w.mount != nil {
			remote = w.mount.Session.SessionRemote
		}
	} else {
		var err error
		if client, err = a.EnsureDaemon(ctx); err != nil {
			return err
		}
	}
	at, err := policyAt(ctx, a, remote, r.Policy != nil)
	if err != nil {
		return err
	}
	if r.Of == "" || r.Policy != nil && at != remote { // the request needs more than the credentials of a mount
		r.Remote = at
	}
	reply, err := client.SessionPolicy(ctx, r)
	if err != nil {
		return cli.Failure("policy of", name, err)
	}
	switch {
	case a.JSON:
		err = cli.PrintJSON(a.Stdout, reply)
	case reply.Policy == "":
		if !a.Quiet {
			fmt.Fprintf(a.Stderr, "artifactfs: %s has no policy\n", reply.Repository)
		}
	default:
		_, err = fmt.Fprintln(a.Stdout, strings.TrimSpace(reply.Policy))
	}
	if err == nil && reply.Problem != "" {
		err = &control.Error{Code: control.ExitFailed, Verb: "read policy of", Object: reply.Repository, Cause: reply.Problem,
			Hint: "run artifactfs session policy --set FILE to replace it"}
	}
	return err
}
