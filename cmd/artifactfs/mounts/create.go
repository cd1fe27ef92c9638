package mounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// creation is the value of the flag --create. It names the repositories that a mount creates on a server.
type creation string

const (
	createNothing creation = ""
	createRemote  creation = "remote"
	createSession creation = "session-remote"
	createBoth    creation = "both"
)

// String implements pflag.Value.
func (c *creation) String() string { return string(*c) }

// Type implements pflag.Value.
func (c *creation) Type() string { return "WHAT" }

// Set implements pflag.Value.
func (c *creation) Set(text string) error {
	switch creation(text) {
	case createRemote, createSession, createBoth:
		*c = creation(text)
		return nil
	}
	return fmt.Errorf("must be one of %s|%s|%s", createRemote, createSession, createBoth)
}

// addCreateFlags adds --create and the flags that select the server.
func (o *MountOptions) addCreateFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&o.create, "create", "create REMOTE (remote), the repository of --session-remote (session-remote), or\n"+
		"both, on a server of artifactfs serve if missing, and log in to it (no value:\nremote)")
	f.Lookup("create").NoOptDefVal = string(createRemote)
	f.StringVar(&o.server.URL, "server", "", "server of --create at `URL` (default: that of the argument, else\n"+
		"$ARTIFACTFS_SERVER, else the server of this user on this host)")
	f.StringVar(&o.server.TokenFile, "server-token-file", "",
		"read the token for the server of --create from `FILE` (default:\n"+
			"$ARTIFACTFS_SERVER_TOKEN, else that of the server on this host)")
	cli.CompleteFlag(cmd, "create", string(createRemote), string(createSession), string(createBoth))
}

// createRepos creates the repositories that --create names, and adds their login to the request. For other
// repositories, logIn adds the login. createRepos returns the arguments, in which REMOTE is replaced by the URL of the
// created repository.
func (o *MountOptions) createRepos(ctx context.Context, cmd *cobra.Command, args []string,
	a *cli.App) ([]string, error) {
	r := &o.Request
	if o.create == createNothing {
		return args, nil
	}
	if o.create != createSession {
		switch {
		case r.TokenFile != "" || r.Token != "":
			return nil,
				cli.Usage(cmd,
					errors.New("--create makes the token for REMOTE itself: remove --token-file and unset $ARTIFACTFS_TOKEN"))
		case args[0] == "":
			return nil, cli.Usage(cmd, errors.New("--create needs REMOTE, as SERVER/NAMESPACE/NAME or NAMESPACE/NAME"))
		}
		l, err := o.ensure(ctx, a, args[0], hosting.Use{ReadOnly: r.ReadOnly})
		if err != nil {
			return nil, err
		}
		args = append([]string{l.Remote}, args[1:]...)
		r.TokenFile = l.TokenFile
		if !r.ReadOnly && r.SessionOptions.Remote == "" {
			// The server stores the session and also has the history of REMOTE, even while REMOTE is empty.
			r.SessionOptions.Remote = control.RemoteOrigin
			r.SessionOptions.Base = cmp.Or(r.SessionOptions.Base, control.BaseShared)
			if l.Empty { // In an empty repository, no other user has a branch that the session could overwrite.
				r.SessionOptions.Branches = cmp.Or(r.SessionOptions.Branches, session.BranchesAsIs)
			}
		}
	}
	if o.create == createRemote {
		return args, nil
	}
	switch r.SessionOptions.Remote {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		return nil,
			cli.Usage(cmd, fmt.Errorf("--create=%s needs --session-remote, as SERVER/NAMESPACE/NAME or NAMESPACE/NAME",
				o.create))
	}
	if r.SessionTokenFile != "" || r.SessionToken != "" {
		return nil, cli.Usage(cmd, fmt.Errorf("--create=%s makes the token for the session remote itself: "+
			"unset --session-token-file and $ARTIFACTFS_SESSION_TOKEN", o.create))
	}
	l, err := o.ensure(ctx, a, r.SessionOptions.Remote, hosting.Use{ReadOnly: r.ReadOnly, Session: r.Session})
	if err != nil {
		return nil, err
	}
	r.SessionOptions.Remote, r.SessionTokenFile = l.Remote, l.TokenFile
	return args, nil
}

// logIn adds to the request the login for existing repositories, if they are on a server for which the user has a
// token. If the parameter remote is "", the repository to mount is the one of the mounted session.
func (o *MountOptions) logIn(ctx context.Context, a *cli.App, remote string) (err error) {
	r := &o.Request
	if remote == "" && r.Token == "" && r.TokenFile == "" {
		if remote, err = hosting.MountedBy(ctx, a, r.SessionOptions.Remote, r.Session); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		remote string
		given  bool // whether the user has named a token
		use    hosting.Use
		file   *string
	}{
		{remote, r.Token != "" || r.TokenFile != "" || o.create == createRemote || o.create == createBoth,
			hosting.Use{ReadOnly: r.ReadOnly}, &r.TokenFile},
		{r.SessionOptions.Remote, r.SessionToken != "" || r.SessionTokenFile != "" || o.create == createSession ||
			o.create == createBoth,
			hosting.Use{ReadOnly: r.ReadOnly, Session: r.Session}, &r.SessionTokenFile},
	} {
		if part.given {
			continue
		}
		l, ok, err := hosting.Known(a, part.remote, part.use)
		if err != nil {
			return err
		}
		if ok {
			*part.file = l.TokenFile
			o.passOn(l)
		}
	}
	return nil
}

// passOn adds the variables that the program for tokens needs to the environment in the request.
func (o *MountOptions) passOn(l hosting.Login) {
	if len(l.Environment) == 0 || slices.Contains(o.Request.Environment, l.Environment[0]) {
		return
	}
	// The environment in the request replaces that of the daemon, so it must be complete.
	if o.Request.Environment == nil {
		o.Request.Environment = control.CallerEnvironment()
	}
	o.Request.Environment = append(o.Request.Environment, l.Environment...)
}

// ensure creates a repository if it does not exist, and returns the login for it.
func (o *MountOptions) ensure(ctx context.Context, a *cli.App, where string, u hosting.Use) (hosting.Login, error) {
	l, err := hosting.Ensure(ctx, a, o.server, where, u)
	if err != nil {
		return l, err
	}
	o.passOn(l)
	if l.Made && !a.Quiet {
		fmt.Fprintf(a.Stderr, "artifactfs: created repository %s\n", l.Remote)
	}
	return l, nil
}
