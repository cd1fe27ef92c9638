package sessions

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
)

// addressHelp is a part of several help texts. It explains how to name checkpoints of other sessions.
const addressHelp = `SESSION@ID names a checkpoint of another session, SESSION@ its newest one. With --session-remote URL, sessions are
looked up on that git repository, and no mount is needed on this host. A link, URL#session=SESSION@ID, names the session
remote, the session and the checkpoint.`

// farFlag adds two flags: --session-remote, which makes a command look up sessions on a session remote, and
// --token-file with the token for this remote.
func farFlag(a *cli.App, cmd *cobra.Command, remote *string) {
	cmd.Flags().StringVar(&a.TokenFile, "token-file", "", "read the token for the session remote from `FILE` (default:\n"+
		"$ARTIFACTFS_SESSION_TOKEN, else $ARTIFACTFS_TOKEN, else that of the server or\nof a mount)")
	cmd.Flags().StringVar(remote, "session-remote", "",
		"look up sessions on the git repository `URL` instead of on this host")
}

// workAt parses a word that names a checkpoint, and returns the session and the name of the checkpoint in that session.
// A word without a session means a checkpoint of the session that -C selects. If there is a session remote and no -C,
// such a word is the name of a session.
func workAt(ctx context.Context, a *cli.App, verb, of, remote, word string) (work, string, error) {
	twice := &control.Error{Code: control.ExitUsage, Verb: verb, Object: word,
		Cause: "session is named twice: here and by -C",
		Hint:  "artifactfs session " + verb + " --help"}
	l, isLink, err := cli.LinkIn(verb, word)
	if err != nil {
		return work{}, "", err
	}
	if isLink {
		if of != "" || remote != "" {
			twice.Object, twice.Cause = "link",
				"link already names the session and the session remote: omit -C and --session-remote"
			return work{}, "", twice
		}
		w, err := farWork(ctx, a, l.Remote, l.Session)
		return w, l.Checkpoint, err
	}
	name, checkpoint := sessionlink.Split(word)
	if name != "" && of != "" {
		return work{}, "", twice
	}
	if remote, err = cli.FarRemote(verb, remote); err != nil {
		return work{}, "", err
	}
	if remote == "" {
		w, err := SessionOf(ctx, a, verb, name+of)
		return w, checkpoint, err
	}
	if name += of; name == "" {
		name, checkpoint = word, ""
	}
	if err := control.ValidSession(name); err != nil {
		return work{}, "", &control.Error{Code: control.ExitUsage, Verb: verb, Object: name, Cause: "invalid session name",
			Hint: "run artifactfs session list --session-remote URL to see the sessions"}
	}
	w, err := farWork(ctx, a, remote, name)
	return w, checkpoint, err
}

// farWork returns a session on a session remote, which the shared daemon reads.
func farWork(ctx context.Context, a *cli.App, remote, name string) (work, error) {
	at, err := hosting.WithToken(ctx, a, remote)
	if err != nil {
		return work{}, err
	}
	client, err := a.EnsureDaemon(ctx)
	return work{client: client, of: name, remote: remote, at: at}, err
}

// otherCheckpoint parses a word that names a checkpoint, for an operation on a mount. It returns the session, the
// session remote on which the session is looked up, and the name of the checkpoint. An empty session means the session
// of the mount, and an empty session remote means this host.
func otherCheckpoint(ctx context.Context, a *cli.App,
	verb, remote, word string) (of, at, checkpoint string, err error) {
	l, link, err := cli.LinkIn(verb, word)
	if err != nil {
		return "", "", "", err
	}
	if link {
		at, err = hosting.WithToken(ctx, a, l.Remote)
		return l.Session, at, l.Checkpoint, err
	}
	if at, err = cli.FarRemote(verb, remote); err != nil {
		return "", "", "", err
	}
	if of, checkpoint = sessionlink.Split(word); of == "" && at != "" {
		of, checkpoint = word, ""
	}
	if of != "" {
		if err := control.ValidSession(of); err != nil {
			return "", "", "", &control.Error{Code: control.ExitUsage, Verb: verb, Object: of, Cause: "invalid session name",
				Hint: "run artifactfs session list to see the sessions"}
		}
	}
	at, err = hosting.WithToken(ctx, a, at)
	return of, at, checkpoint, err
}

// namesSession reports whether a word names a session, with or without a checkpoint.
func namesSession(word string) bool {
	if _, link, err := cli.LinkIn("", word); link || err != nil {
		return true
	}
	name, _ := sessionlink.Split(word)
	return name != ""
}

// sessionLinkCommand returns the command "session link". A link to a checkpoint that was not pushed yet is printed with
// a warning.
func sessionLinkCommand(a *cli.App) *cobra.Command {
	var of, remote string
	cmd := &cobra.Command{
		Use:   "link [ID]",
		Short: "Print a URL by which any machine can inspect, fork or resume a session",
		Long: `Link prints URL#session=NAME@CHECKPOINT: the session remote, the name of the session, and a checkpoint (default: the
newest; if the session is mounted and was changed since, link makes one first). artifactfs session show, session fork,
session resume and artifactfs mount accept the link on any machine that can read the session remote. The link contains
no secret.

` + addressHelp,
		Example: `  artifactfs session link
  artifactfs session link fix-login@before-rename
  artifactfs session fork "$(artifactfs session link)" /tmp/try`,
		Args: cli.Arguments(0, 1, "[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionLink(cmd.Context(), a, of, remote, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// sessionLink prints the link to a checkpoint.
func sessionLink(ctx context.Context, a *cli.App, of, remote, id string) error {
	w, id, err := workAt(ctx, a, "link", of, remote, id)
	if err != nil {
		return err
	}
	reply, err := w.client.SessionShow(ctx, control.SessionShowRequest{Of: w.of, SessionRemote: w.at, ID: id})
	if err != nil {
		return cli.Failure("link", w.name(), err)
	}
	if reply.Link == "" {
		return &control.Error{Code: control.ExitFailed, Verb: "link", Object: w.name(),
			Cause: "session has no session remote",
			Hint:  "run artifactfs mount --session-remote URL to choose a session remote"}
	}
	if !reply.Synced {
		fmt.Fprintf(a.Stderr,
			"artifactfs: checkpoint %s is not on the session remote yet (run artifactfs sync to wait for it)\n", reply.ID)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]string{"link": reply.Link, "session": reply.Session, "checkpoint": reply.ID,
			"session_remote": reply.SessionRemote})
	}
	_, err = fmt.Fprintln(a.Stdout, reply.Link)
	return err
}
