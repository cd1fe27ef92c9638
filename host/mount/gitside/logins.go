package gitside

import (
	"context"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Logins answers requests of git commands in a mount for a user name and a secret. It implements credential.Source.
type Logins struct {
	Dir     string              // root of the mount, for the log
	Remotes []*transport.Remote // remotes to which git commands may log in: the mounted remote and the session remote
	Log     *zap.Logger
}

// Credential returns the credential of the first remote that is on the server which q names. If no remote has a
// credential for that server, it returns false and the first error.
func (l Logins) Credential(ctx context.Context, q transport.Question) (transport.Credential, bool, error) {
	var first error
	for _, r := range l.Remotes {
		c, ok, err := r.Credential(ctx, q)
		if ok {
			return c, true, nil
		}
		if first == nil {
			first = err
		}
	}
	return transport.Credential{}, false, first
}

// Refused records that a server refused a secret which Credential had returned.
func (l Logins) Refused(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.Remotes {
		r.Refused(ctx, q, secret)
	}
}

// Accepted records that a server accepted a secret which Credential had returned.
func (l Logins) Accepted(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.Remotes {
		r.Accepted(ctx, q, secret)
	}
}

// helperURLs returns the URLs for which git commands in the mount request credentials from this daemon, for the
// configuration of the git directory. Errors are logged.
func (l Logins) helperURLs(ctx context.Context) []gitdir.Login {
	var list []gitdir.Login
	for _, r := range l.Remotes {
		urls, first, err := r.Logins(ctx)
		if err != nil {
			l.Log.Warn("read git's settings for logins", zap.String("dir", l.Dir), zap.Error(err))
		}
		for _, u := range urls {
			list = append(list, gitdir.Login{URL: u, First: first})
		}
	}
	return list
}

// WriteLogins rewrites the part of git's configuration that lists the URLs for which git commands request credentials
// from this daemon. It does nothing if the git directory does not exist yet, or if s is nil.
func (s *Side) WriteLogins(ctx context.Context) error {
	if s.Dir() == nil {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return gitdir.Options{Helper: program, Inside: s.Inside.Wanted(),
		Logins: s.Logins.helperURLs(ctx)}.SetLogins(s.Mount.GitDir)
}
