package sessions

import (
	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// reviewCommand returns the command "session review" with its subcommands.
func reviewCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "review COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Ask for approvals of a session, and grant, deny, withdraw or list them",
		Long: `Review asks reviewers to approve the merge, the promotion or the deletion of a session, and answers such requests. An
approval is for exactly the files that the reviewers have seen: a later change makes the request void. session policy
states what needs approvals, and of whom. A server of this program enforces it; other git servers only store approvals.

` + approvalHelp,
		Example: `  artifactfs session review request --for merge --reviewers alice,bob -m 'fixes the login'
  artifactfs session review list
  artifactfs session review grant https://git.example.org/work.git#session=fix-login@01M80Q4ZJ3
  artifactfs session review deny 01M80Q4Z -C fix-login -m 'tests are missing'`,
		Args:                       commandOf("session review"),
		RunE:                       func(cmd *cobra.Command, args []string) error { return cmd.Help() },
		SuggestFor:                 []string{"withdraw"},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(reviewRequestCommand(a), reviewListCommand(a), reviewGrantCommand(a), reviewDenyCommand(a),
		reviewWithdrawCommand(a))
	return cmd
}

// oldReviewCommands returns hidden commands with the former names of the commands of "session review", because scripts
// use these names.
func oldReviewCommands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		cli.Renamed(reviewRequestCommand(a), "request-approval", "artifactfs session review request"),
		cli.Renamed(reviewGrantCommand(a), "grant", "artifactfs session review grant"),
		cli.Renamed(reviewDenyCommand(a), "deny", "artifactfs session review deny"),
		cli.Renamed(reviewListCommand(a), "approvals", "artifactfs session review list"),
	}
}

// reviewGrantCommand returns the command "session review grant".
func reviewGrantCommand(a *cli.App) *cobra.Command {
	return answerCommand(a, control.ApproveGrant, "grant", "Approve a request of a session",
		`Grant approves a request, and prints what was approved: the files and lines that the branch gets. It fails if the
request was withdrawn, denied, has expired, or is not for the present state: the session was changed since, or the
branch has moved. On a server of this program, the policy of the repository (artifactfs session policy) decides who may
approve, and the branch can be pushed when enough users have approved; other servers only store the approvals.`,
		"  artifactfs session review grant https://git.example.org/work.git#session=fix-login@01M80Q4ZJ3\n"+
			"  artifactfs session review grant 01M80Q4Z -C fix-login -m 'read all of it'")
}

// reviewDenyCommand returns the command "session review deny".
func reviewDenyCommand(a *cli.App) *cobra.Command {
	return answerCommand(a, control.ApproveDeny, "deny", "Refuse to approve a request of a session",
		`Deny refuses a request. The request stays refused until the same user grants it, or withdraws the denial.`,
		"  artifactfs session review deny https://git.example.org/work.git#session=fix-login@01M80Q4ZJ3 -m 'tests are missing'")
}

// reviewWithdrawCommand returns the command "session review withdraw".
func reviewWithdrawCommand(a *cli.App) *cobra.Command {
	return answerCommand(a, control.ApproveWithdraw, "withdraw", "Take back a request, a grant or a denial",
		`Withdraw takes back a request of the user who runs it, or the grant or denial that this user has given to the request.`,
		"  artifactfs session review withdraw 01M80Q4Z -m 'found a mistake'")
}
