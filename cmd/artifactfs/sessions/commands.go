package sessions

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/locking"
)

// addCommands adds all commands to "session", in groups by their purpose.
func addCommands(session *cobra.Command, a *cli.App) {
	cli.AddGroups(session,
		cli.Group{Title: "See the work", Commands: []*cobra.Command{
			sessionListCommand(a), sessionLogCommand(a), sessionShowCommand(a), sessionDiffCommand(a), sessionCompareCommand(a),
			sessionTranscriptCommand(a), sessionSummaryCommand(a)}},
		cli.Group{Title: "Go back, or go on", Commands: slices.Concat(
			[]*cobra.Command{sessionRestoreCommand(a)}, undoCommands(a), []*cobra.Command{
				sessionPinCommand(a), sessionUnpinCommand(a), sessionResumeCommand(a), sessionForkCommand(a),
				sessionMergeCommand(a)})},
		cli.Group{Title: "Tell others, and publish", Commands: []*cobra.Command{
			sessionLinkCommand(a), sessionAnnotateCommand(a), sessionAnnotationsCommand(a), reviewCommand(a), policyCommand(a),
			sessionPromoteCommand(a)}},
		cli.Group{Title: "Write down for the next user", Commands: []*cobra.Command{
			sessionNoteCommand(a), sessionRecordCommand(a), sessionFactCommand(a), sessionHandoffCommand(a)}},
		cli.Group{Title: "Work beside other sessions", Commands: append(locking.Commands(a), sessionCacheCommand(a))},
		cli.Group{Title: "State of a session", Commands: append(
			[]*cobra.Command{sessionSetCommand(a)}, sessionStateCommands(a)...)},
		cli.Group{Title: "Clean up", Commands: []*cobra.Command{
			sessionDeleteCommand(a), sessionUndeleteCommand(a), sessionGCCommand(a), sessionEraseCommand(a)}},
	)
	session.AddCommand(oldReviewCommands(a)...) // these commands are hidden
}
