package sessions

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// sessionMergeCommand returns the command "session merge". The session that receives the changes must be mounted; the
// other session need not be mounted.
func sessionMergeCommand(a *cli.App) *cobra.Command {
	var of, remote string
	cmd := &cobra.Command{
		Use:   "merge SESSION[@ID]|LINK",
		Short: "Merge the changes of another session into this one",
		Long: `Merge merges the changes of another session into the mounted working tree. The merge base is the checkpoint from which
one session was forked, or the commit from which both were started. git merges the trees, with its usual result: merged
files are written and staged; a file in conflict has conflict markers, and the index has its three versions for git
status, git mergetool and git add. HEAD and branches do not move, as with git merge --squash.

Merge first makes a checkpoint, and prints the command that restores it. Only contents that both sessions have changed
are fetched. Without @ID, merge uses the newest checkpoint of SESSION. The exit code is 1 if there are conflicts.

` + addressHelp,
		Example: `  artifactfs session merge try-2
  artifactfs session merge fix-login@before-rename -C /srv/app
  artifactfs session merge https://git.example.org/work.git#session=fix-login`,
		Args: cli.Arguments(1, 1, "SESSION[@ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionMerge(cmd.Context(), a, of, remote, args[0])
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// sessionMerge merges another session into the mounted session and prints the result. After conflicts the exit code is
// 1. The hint on stderr names the checkpoint that was made before the merge, which can be restored to undo the merge.
func sessionMerge(ctx context.Context, a *cli.App, of, remote, word string) error {
	w, err := SessionOf(ctx, a, "merge", of)
	if err != nil {
		return err
	}
	m, err := w.Mounted("merge")
	if err != nil {
		return err
	}
	r := control.MergeRequest{Dir: m.Dir}
	if r.Of, r.SessionRemote, r.ID, err = otherCheckpoint(ctx, a, "merge", remote, word); err != nil {
		return err
	}
	if r.Of == "" {
		r.Of, r.ID = word, ""
	}
	if err := control.ValidSession(r.Of); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "merge", Object: r.Of, Cause: "invalid session name",
			Hint: "run artifactfs session list to see the sessions"}
	}
	p := a.NewProgress()
	reply, err := m.Client.Merge(ctx, r, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("merge", "session "+r.Of, err)
	}
	if a.JSON {
		if err := cli.PrintJSON(a.Stdout, reply); err != nil || len(reply.Conflicts) == 0 {
			return err
		}
		return cli.ExitCode(control.ExitFailed)
	}
	for _, text := range reply.Messages {
		fmt.Fprintln(a.Stdout, cli.OneLine(text))
	}
	for _, path := range reply.Kept {
		fmt.Fprintf(a.Stdout, "changed at the same time, so left unchanged: %s\n", cli.OneLine(path))
	}
	if reply.Before == nil {
		_, err := fmt.Fprintf(a.Stdout, "nothing to merge: this session contains %s@%s\n", r.Of, reply.Theirs.ID)
		return err
	}
	fmt.Fprintf(a.Stdout, "merged %s@%s: %s changed, %s in conflict\n", r.Of, reply.Theirs.ID,
		cli.Plural(int64(len(reply.Changes)), "path"), cli.Count(int64(len(reply.Conflicts))))
	fmt.Fprintf(a.Stderr,
		"artifactfs: saved the previous state (artifactfs session restore -C %s %s --staged undoes the merge)\n",
		cli.ShellWord(reply.Dir), reply.Before.ID)
	if len(reply.Conflicts) > 0 {
		return cli.ExitCode(control.ExitFailed)
	}
	return nil
}
