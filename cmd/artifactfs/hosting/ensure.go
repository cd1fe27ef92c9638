package hosting

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/credential"
	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/server/running"
	"github.com/artifactfs/artifactfs/session"
)

// tokenTime is the lifetime of the tokens of mounts, as a value of the flag --ttl of "token create". A mount makes a
// new token before the last token expires.
const tokenTime = "1h"

// mountTime is the maximum time for which a command waits for the token of a mount.
const mountTime = 15 * time.Second

// commandTime is the lifetime in seconds of the token of a command that is not a mount.
const commandTime = 600

// Use states what a mount does with a repository. The tokens of the mount allow nothing else.
type Use struct {
	ReadOnly bool
	Session  string // name of the only session that the mount pushes to the repository; "": the mount may push any refs
}

// Login contains the URL and the credentials with which a mount accesses a repository of a server.
type Login struct {
	Remote string // URL of the repository for git
	// TokenFile is the path of a program that prints a new token whenever it runs. It contains no secret.
	TokenFile string
	// Environment contains the variables that the program needs. They include the token for the REST API, unless that
	// token is in a file.
	Environment control.Environment
	Made        bool // whether Ensure has created the repository, because it did not exist
	Empty       bool // whether the repository has no refs
}

// Ensure creates a repository if it does not exist, and returns the login for it. The argument where is NAMESPACE/NAME,
// the URL of the server followed by NAMESPACE/NAME, or the URL of the repository for git.
func Ensure(ctx context.Context, a *cli.App, o Connection, where string, u Use) (Login, error) {
	at, n, err := parseWhere(where)
	if err != nil {
		return Login{}, &control.Error{Code: control.ExitUsage, Verb: "create", Object: where, Cause: err.Error(),
			Hint: "examples are team/app and http://127.0.0.1:8790/team/app"}
	}
	if at != "" {
		o.URL = at
	}
	c, err := Connect(a, o)
	if err != nil {
		return Login{}, err
	}
	var l Login
	repo, err := c.Repo(ctx, n.namespace, n.repo)
	l.Remote, l.Empty = repo.Remote, err == nil && repo.LastPush == nil && repo.Source == ""
	if errors.Is(err, client.ErrNotFound) {
		var made client.Created
		made, err = c.CreateRepo(ctx, n.namespace, client.CreateRepo{Name: n.repo})
		l.Remote, l.Made, l.Empty = made.Remote, err == nil, err == nil
		if err == nil {
			err = c.revokeFirst(ctx, n)
		}
		if errors.Is(err, client.ErrExists) { // another process has created the repository in the meantime
			repo, err = c.Repo(ctx, n.namespace, n.repo)
			l.Remote = repo.Remote
		}
	}
	if err != nil {
		return Login{}, explain(c, err)
	}
	return c.login(a, l, n, u)
}

// revokeFirst revokes the token that a server makes when it creates a repository. This token would be valid for a day
// and allow everything, and the mount makes its own tokens. It is the first in the list, because the list of tokens
// begins with the newest one.
func (c *Access) revokeFirst(ctx context.Context, n name) error {
	first := ""
	for t, err := range c.Tokens(ctx, n.namespace, n.repo, "active") {
		if err != nil {
			return err
		}
		first = t.ID
	}
	if first == "" {
		return nil
	}
	return c.RevokeToken(ctx, n.namespace, first)
}

// Known returns the login for a repository, given its URL for git. It returns false unless a token is known for the
// server of the repository, and this server is the one that the environment names or the one that this user runs on
// this host. Known sends no request.
func Known(a *cli.App, remote string, u Use) (Login, bool, error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return Login{}, false, err
	}
	l, err := c.login(a, Login{Remote: remote}, n, u)
	return l, err == nil, err
}

// known returns a client of the server of a repository, and the name of the repository. The client is nil if no token
// for the server is known (see Known).
func known(a *cli.App, remote string) (*Access, name, error) {
	if !strings.Contains(remote, "://") {
		return nil, name{}, nil
	}
	at, n, err := parseWhere(remote)
	if err != nil || !strings.HasPrefix(remote, at+"/git/") {
		return nil, n, nil
	}
	here, err := running.Read(Dir(a))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, n, fmt.Errorf("find server: %w", err)
	}
	if !sameServer(at, a.Server.URL) && !sameServer(at, here.URL) && !sameServer(at, here.Public) {
		return nil, n, nil
	}
	c, err := Connect(a, Connection{URL: at})
	if err != nil || c.Token == "" && c.TokenFile == "" {
		return nil, n, err
	}
	return c, n, nil
}

// MountedBy returns the URL of the repository that a session mounts; the parameter remote is the session remote. It
// returns "" if Known knows no login for the session remote, or if the server does not have the session.
func MountedBy(ctx context.Context, a *cli.App, remote, session string) (string, error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return "", err
	}
	s, err := c.Extensions().Repository(n.namespace, n.repo).Session(ctx, session)
	if errors.Is(err, client.ErrNotFound) {
		return "", nil
	}
	return s.Remote, explain(c, err)
}

// WithToken returns the URL of a repository with the token for one command that does not mount. All such commands use
// this rule (doc/security.md): the first that exists is used, of (1) the credentials in the URL, (2) the token of
// --token-file, $ARTIFACTFS_SESSION_TOKEN or $ARTIFACTFS_TOKEN, (3) a new token that the server makes, if Known returns
// a login, (4) the token with which a mount uses the repository. If there is none of these, WithToken returns the URL
// unchanged, and git asks its credential helpers. A new token allows changes if the token for the REST API allows them.
func WithToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	if at := a.Logins[remote]; at != "" {
		return at, nil
	}
	u, err := url.Parse(remote)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return remote, nil
	}
	secret, err := givenToken(a, u.Scheme+"://"+strings.ToLower(u.Host))
	if err != nil {
		return "", err
	}
	if secret != "" {
		return withSecret(remote, secret)
	}
	return OwnToken(ctx, a, remote)
}

// GivenToken returns the URL of a repository with the token that the user has given for it. It returns "" if the user
// has given no token, or if a mount on this host uses the same token for the repository.
func GivenToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	u, err := url.Parse(remote)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return "", nil
	}
	secret, err := givenToken(a, u.Scheme+"://"+strings.ToLower(u.Host))
	if err != nil || secret == "" || secret == mountToken(ctx, a, u) {
		return "", err
	}
	return withSecret(remote, secret)
}

// OwnToken is like WithToken, but does not use the tokens that the user has given.
func OwnToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	at, err := newToken(ctx, a, remote)
	if err != nil || at != remote {
		return at, err
	}
	u, err := url.Parse(remote)
	if err != nil || u.User != nil {
		return remote, nil
	}
	if secret := mountToken(ctx, a, u); secret != "" {
		return withSecret(remote, secret)
	}
	return remote, nil
}

// givenToken returns the token that the user has given for a repository at place, or "" if there is none. The parameter
// place is a scheme and a host. If the user has given one token, it is only for the place that the command uses first.
// If the user has given two, $ARTIFACTFS_TOKEN is for all other places.
func givenToken(a *cli.App, place string) (string, error) {
	first := string(cmp.Or(a.SessionToken, a.Token))
	if a.TokenFile != "" {
		token, err := tokenfile.New(a.TokenFile).Token(os.Environ())
		if err != nil {
			return "", &control.Error{Code: control.ExitUsage, Verb: "read", Object: a.TokenFile, Cause: cli.Reason(err),
				Hint: "name a file whose only line is the token"}
		}
		first = token
	}
	a.TokenPlace = cmp.Or(a.TokenPlace, place)
	switch {
	case place != a.TokenPlace && a.TokenFile == "" && a.SessionToken != "":
		first = string(a.Token)
	case place != a.TokenPlace:
		return "", nil
	}
	first, _, _ = strings.Cut(first, "?") // Remove the time of expiry, which follows the question mark.
	return first, nil
}

// mountToken returns the token with which a mount on this host uses a repository, or "" if there is none.
func mountToken(ctx context.Context, a *cli.App, u *url.URL) string {
	all, _ := a.Mounts(ctx)
	for _, m := range all {
		if !m.Mounted() || m.Remote != u.String() && m.Session.SessionRemote != u.String() {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, mountTime)
		question := fmt.Sprintf("protocol=%s\nhost=%s\npath=%s\n\n", u.Scheme, u.Host, strings.TrimPrefix(u.Path, "/"))
		var out bytes.Buffer
		dir := filepath.Join(statedir.Homes{State: a.State}.Dir(), m.ID, "git")
		err := credential.Ask(limited, dir, "get", strings.NewReader(question), &out)
		cancel()
		if password := credential.PasswordIn(out.Bytes()); err == nil && password != "" {
			return password
		}
	}
	return ""
}

// newToken returns the URL of a repository with a new token that the server makes. If Known knows no login for the
// repository, newToken returns the URL unchanged.
func newToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return remote, err
	}
	t := client.CreateToken{Repo: n.repo, Scope: client.Write, TTL: commandTime, Label: labelOf("command"),
		Actor: session.Actor()}
	made, err := c.CreateToken(ctx, n.namespace, t)
	if errors.Is(err, client.ErrDenied) {
		t.Scope = client.Read
		made, err = c.CreateToken(ctx, n.namespace, t)
	}
	if err != nil {
		return "", explain(c, err)
	}
	secret, _, _ := strings.Cut(made.Plaintext, "?") // Remove the time of expiry, which follows the question mark.
	at, err := withSecret(remote, secret)
	if err != nil {
		return "", err
	}
	if a.Logins == nil {
		a.Logins = map[string]string{}
	}
	a.Logins[remote] = at
	return at, nil
}

// WithControlToken returns the URL of a repository with the token for the REST API. A change that needs more rights
// than a token for a repository has uses this token. If Known knows no login, WithControlToken does the same as
// WithToken.
func WithControlToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	c, _, err := known(a, remote)
	if err != nil {
		return remote, err
	}
	if c == nil {
		return WithToken(ctx, a, remote)
	}
	secret := c.Token
	if secret == "" {
		if secret, err = running.ReadToken(c.TokenFile); err != nil {
			return "", fmt.Errorf("read token: %w", err)
		}
	}
	return withSecret(remote, string(secret))
}

// withSecret returns a URL with a token as the password.
func withSecret(remote, secret string) (string, error) {
	u, err := url.Parse(remote)
	if err != nil {
		return "", fmt.Errorf("parse URL of repository: %w", err)
	}
	u.User = url.UserPassword("x", secret)
	return u.String(), nil
}

// labelOf returns the label for a token that this host makes for a purpose.
func labelOf(purpose string) string {
	if host, err := os.Hostname(); err == nil {
		purpose += " on " + host
	}
	return purpose
}

// login returns l completed with the program that makes tokens, and with the program's environment.
func (c *Access) login(a *cli.App, l Login, n name, u Use) (_ Login, err error) {
	if c.Token != "" {
		l.Environment = control.Environment{cli.ServerTokenVariable + "=" + string(c.Token)}
	}
	l.TokenFile, err = writeProgram(a, c, n, u)
	return l, err
}

// parseWhere parses the name of a repository, with or without a server. It returns the URL of the server in at, or ""
// if the parameter where names no server.
func parseWhere(where string) (at string, n name, err error) {
	if !strings.Contains(where, "://") {
		n, err = parseName(where)
		return "", n, err
	}
	u, err := url.Parse(where)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", n, errors.New("invalid URL of a repository: want a URL that starts with http:// or https://")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", n,
			errors.New("invalid URL of a repository: it must end in NAMESPACE/NAME and must not contain credentials")
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if len(parts) < 2 {
		return "", n, errors.New("invalid URL of a repository: it must end in NAMESPACE/NAME")
	}
	end := len(parts) - 2
	if n, err = parseName(parts[end] + "/" + parts[end+1]); err != nil {
		return "", n, err
	}
	if end > 0 && parts[end-1] == "git" { // the URL for git has the component "git" before the namespace
		end--
	}
	u.Path, u.RawPath = "/"+strings.Join(parts[:end], "/"), ""
	return strings.TrimRight(u.String(), "/"), n, nil
}

// writeProgram writes the program that makes tokens for a repository to a file in the state directory, so that a daemon
// finds the program after a restart. The name of the file is derived from its contents. Therefore all mounts of one
// repository share the program and its tokens.
func writeProgram(a *cli.App, c *Access, n name, u Use) (string, error) {
	executable, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("write the program that makes tokens for %s: %w", n, err)
	}
	scope := client.Write
	if u.ReadOnly {
		scope = client.Read
	}
	args := []string{executable, "token", "create", n.String(), "--state", a.State, "--server", c.URL(), "--scope", scope,
		"--ttl", tokenTime, "--label", labelOf("mount"), "--actor", session.Actor()}
	if u.Session != "" && !u.ReadOnly {
		args = append(args, "--for-session", u.Session)
	}
	if c.TokenFile != "" {
		args = append(args, "--server-token-file", c.TokenFile)
	}
	for i := range args {
		args[i] = cli.ShellWord(args[i])
	}
	text := []byte("#!/bin/sh\n# Prints a new token for a repository that artifactfs mount --create has mounted.\nexec " +
		strings.Join(args, " ") + "\n")
	sum := sha256.Sum256(text)
	dir := filepath.Join(a.State, "server-tokens")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", a.OfState(err)
	}
	path := filepath.Join(dir, hex.EncodeToString(sum[:16]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, a.OfState(disk.WriteFileUnsynced(path, text, 0o700))
}
