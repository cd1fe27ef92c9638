// Package hosting contains the commands "repo", "token" and "namespace", which use the REST API of any server.
// The command "mount --create" selects its server by the same flags (Connection).
package hosting

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/server/running"
)

// defaultURL is the address of a server that was started without --listen.
const defaultURL = "http://" + running.DefaultListen

// Connection holds the flags that select the server of a command.
type Connection struct {
	// URL of the server; "": the URL in the environment or, without it, that of the server on this host
	URL string
	// file with the token; "": the token in the environment or, without it, that of the server on this host
	TokenFile string
}

// AddFlags adds the flags that fill o to a command and its subcommands.
func (o *Connection) AddFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&o.URL, "server", "", "use the server at `URL` (default: $ARTIFACTFS_SERVER, else the server that this\n"+
		"user runs on this host)")
	f.StringVar(&o.TokenFile, "server-token-file", "",
		"read the token for the server from `FILE` (default: $ARTIFACTFS_SERVER_TOKEN,\n"+
			"else $ARTIFACTFS_SERVER_TOKEN_FILE, else the token of the server on this host)")
}

// Dir returns the default data directory of a server.
func Dir(a *cli.App) string { return filepath.Join(a.State, "server") }

// Access is a client of a server, together with the origin of its token.
type Access struct {
	*client.Client
	TokenFile string         // absolute path of the file with the token; "" if Token is used
	Token     control.Secret // token from the environment; "" if it is not set, or not meant for this server
}

// Connect returns a client of the server that the flags and the environment select.
func Connect(a *cli.App, o Connection) (*Access, error) {
	access, at, token, err := o.resolve(a)
	if err != nil {
		return nil, err
	}
	if access.Client, err = client.New(client.Options{URL: at, Token: string(token)}); err != nil {
		return nil, &control.Error{Code: control.ExitUsage, Cause: err.Error(),
			Hint: "an example is --server http://127.0.0.1:8790"}
	}
	return access, nil
}

// resolve returns an Access without its client, the URL of the server (at), and the token. A token is sent only to the
// server to which it belongs. The token in the environment belongs to the server that the environment names; if it
// names none, to any server. The token of the server on this host belongs only to that server.
func (o Connection) resolve(a *cli.App) (access *Access, at string, token control.Secret, err error) {
	here, runErr := running.Read(Dir(a))
	if runErr != nil && !errors.Is(runErr, os.ErrNotExist) {
		return nil, "", "", fmt.Errorf("find server: %w", runErr)
	}
	for _, at = range []string{o.URL, a.Server.URL, here.URL, defaultURL} {
		if at != "" {
			break
		}
	}
	at = strings.TrimRight(at, "/")
	ours := a.Server.URL == "" || sameServer(at, a.Server.URL)
	access = &Access{}
	switch {
	// If only the environment variable is set, mount sets the flag to the variable's value. Therefore a different value
	// comes from the command line.
	case o.TokenFile != "" && o.TokenFile != a.Server.TokenFile:
		access.TokenFile = o.TokenFile
	case ours && a.Server.Token != "":
		access.Token = a.Server.Token
		return access, at, access.Token, nil
	case ours && a.Server.TokenFile != "":
		access.TokenFile = a.Server.TokenFile
	case runErr == nil && (sameServer(at, here.URL) || sameServer(at, here.Public)):
		access.TokenFile = here.TokenFile
	}
	if access.TokenFile == "" {
		return access, at, "", nil
	}
	if access.TokenFile, err = filepath.Abs(access.TokenFile); err != nil {
		return nil, "", "", err
	}
	if token, err = running.ReadToken(access.TokenFile); err != nil {
		return nil, "", "", &control.Error{Code: control.ExitUsage, Verb: "read", Object: access.TokenFile,
			Cause: cli.Reason(err),
			Hint:  "name a file whose only line is the token"}
	}
	return access, at, token, nil
}

// sameServer reports whether two URLs have the same scheme, host and port.
func sameServer(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX == nil && errY == nil && x.Host != "" && x.Scheme == y.Scheme && strings.EqualFold(x.Host, y.Host)
}

// name is the full name of a repository.
type name struct{ namespace, repo string }

func (n name) String() string { return n.namespace + "/" + n.repo }

// parseName parses NAMESPACE/NAME. The server checks the two parts.
func parseName(text string) (name, error) {
	namespace, repo, ok := strings.Cut(strings.TrimSuffix(text, ".git"), "/")
	if !ok || namespace == "" || repo == "" || strings.Contains(repo, "/") {
		return name{}, fmt.Errorf("invalid name %q: want NAMESPACE/NAME", text)
	}
	return name{namespace, repo}, nil
}

// explain returns an error of the client as an error with an exit code, a kind and a hint. It returns nil and any other
// error unchanged.
func explain(c *Access, err error) error {
	if err == nil {
		return nil
	}
	var e *client.Error
	out := &control.Error{Code: control.ExitFailed, Cause: err.Error()}
	switch {
	case errors.Is(err, client.ErrUnreachable):
		out.Code, out.Kind = control.ExitRemote, control.CodeUnreachable
		out.Hint = "artifactfs serve starts a server; --server URL or $ARTIFACTFS_SERVER selects another server than " +
			c.URL()
		return out
	case !errors.As(err, &e):
		return err
	}
	out.Verb, out.Object, out.Cause = e.Verb, e.Object, e.Message
	switch {
	case errors.Is(err, client.ErrNotFound):
		out.Code, out.Kind = control.ExitRemote, control.CodeNotFound
	case errors.Is(err, client.ErrDenied):
		out.Code, out.Kind = control.ExitRemote, control.CodeAuth
		out.Hint = "set $ARTIFACTFS_SERVER_TOKEN or --server-token-file to a token for " + c.URL() +
			"; tokens of repositories are for git only"
	case errors.Is(err, client.ErrExists):
		out.Kind = control.CodeConflict
	case errors.Is(err, client.ErrInvalid):
		out.Code, out.Kind = control.ExitUsage, control.CodeUsage
	case errors.Is(err, client.ErrUnavailable):
		out.Code, out.Kind = control.ExitRemote, control.CodeUnreachable
	}
	return out
}
