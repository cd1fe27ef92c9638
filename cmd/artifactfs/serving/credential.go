package serving

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/credential"
)

// CredentialCommand returns the command "credential".
func CredentialCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "Replace the token of a mount",
		Long:  `Credential changes the credentials of mounts while they are mounted.`,
		Example: `  get-token | artifactfs credential set /srv/app
  artifactfs credential set /srv/app --token-file /run/secrets/git-token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(credentialSetCommand(a), credentialHelperCommand(a))
	return cmd
}

// credentialSetCommand returns the command "credential set".
func credentialSetCommand(a *cli.App) *cobra.Command {
	var r control.CredentialRequest
	cmd := &cobra.Command{
		Use:   "set [DIR]",
		Short: "Replace the token of a mount",
		Long: `Set replaces the token or password of the mount at DIR (default: the mount that contains the current directory). The new
token is used at once: for reads and for the history, by git commands in the mount, by its submodules and its session
remote if they are on the same host, and by all other mounts that use the same login for that host. Nothing is
unmounted.

The token is taken from --token-file, else from $ARTIFACTFS_TOKEN, else from stdin. The file is read again whenever the
remote refuses the token. Set first tries the token on the remote. If the remote refuses it, set changes nothing.`,
		Example: `  get-token | artifactfs credential set /srv/app
  artifactfs credential set /srv/app --token-file /run/secrets/git-token
  get-token | artifactfs credential set /srv/app --for-session-remote`,
		Args: cli.Arguments(0, 1, "[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			var err error
			if r.TokenFile, r.Token, err = givenToken(a, cmd, r.TokenFile); err != nil {
				return err
			}
			return setCredential(cmd.Context(), a, dir, r)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.TokenFile, "token-file", "",
		"read the token from `FILE`, and again whenever the remote refuses it; -: read stdin once")
	f.BoolVar(&r.Session, "for-session-remote", false, "replace the token for the session remote")
	return cmd
}

// maxToken is the maximum length of a token in bytes.
const maxToken = 64 << 10

// givenToken returns the absolute path of the token file, or the token from the environment or stdin. The token must be
// one line.
func givenToken(a *cli.App, cmd *cobra.Command, file string) (string, control.Secret, error) {
	switch {
	case file != "" && file != "-":
		abs, err := filepath.Abs(file)
		return abs, "", err
	case file == "" && a.Token != "":
		return "", a.Token, nil
	// A token that is typed on a terminal would be visible.
	case cli.IsTerminal(os.Stdin):
		return "", "",
			cli.Usage(cmd, errors.New("token is missing: pass it on stdin, by --token-file or by $ARTIFACTFS_TOKEN"))
	}
	b, err := io.ReadAll(io.LimitReader(os.Stdin, maxToken+1))
	if err != nil {
		return "", "", fmt.Errorf("read stdin: %w", err)
	}
	b = bytes.TrimSpace(b)
	switch {
	case len(b) == 0:
		err = errors.New("token is missing: stdin was empty")
	case len(b) > maxToken || bytes.ContainsAny(b, "\r\n\x00"):
		err = errors.New("stdin contains more than one token")
	}
	if err != nil {
		return "", "", cli.Usage(cmd, err)
	}
	return "", control.Secret(b), nil
}

// setCredential sends the new token to the daemon of the mount at dir, and prints the reply.
func setCredential(ctx context.Context, a *cli.App, dir string, r control.CredentialRequest) error {
	m, err := a.Find(ctx, "credential", dir)
	if err != nil {
		return err
	}
	r.Dir = m.Dir
	reply, err := m.Client.SetCredential(ctx, r)
	if err != nil {
		return cli.Failure("credential", m.Dir, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	_, err = fmt.Fprintf(a.Stdout, "%s has a new token, for %s\n", reply.Remote,
		cli.Plural(int64(len(reply.Mounts)), "mount"))
	if !reply.Checked {
		fmt.Fprintln(a.Stderr, "artifactfs: the token was not checked, because the remote did not answer")
	}
	return err
}

// credentialHelperCommand returns the hidden command that git runs as the credential helper of a mount's git directory.
func credentialHelperCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "helper GITDIR OPERATION",
		Short:  "Answer git's requests for logins",
		Hidden: true,
		Args:   cli.Arguments(2, 2, "GITDIR OPERATION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := KeepMemory(); err != nil {
				return fmt.Errorf("run credential helper: %w", err)
			}
			if err := credential.Ask(cmd.Context(), args[0], args[1], os.Stdin, a.Stdout); err != nil {
				return fmt.Errorf("run credential helper: %w", err)
			}
			return nil
		},
		// the command needs no state directory
		PersistentPreRunE: func(*cobra.Command, []string) error { a.Running = true; return nil },
	}
}
