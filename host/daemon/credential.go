package daemon

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
)

var _ control.CredentialHolder = (*Daemon)(nil)

// SetCredential replaces the credentials of the mount at r.Dir by a new token or token file. If the remote refuses the
// token, SetCredential changes nothing; if the remote cannot be reached, it uses the token without a check. Everything
// with the same login uses the new token at once: requests for contents and history, a session remote on the same host,
// submodules, git commands, and other mounts.
func (d *Daemon) SetCredential(ctx context.Context, r control.CredentialRequest) (control.CredentialReply, error) {
	var reply control.CredentialReply
	m, ok := d.find(r.Dir)
	if !ok {
		return reply, fault.NotMounted("credential", r.Dir)
	}
	if err := m.AwaitTakeover(ctx); err != nil || !m.Served() {
		return reply, &control.Error{Code: control.ExitFailed, Verb: "credential", Object: m.Dir,
			Cause: "mount is not ready yet", Hint: "try again in a moment"}
	}
	at, l := m.LoginOf(r.Session)
	reply.Dir = m.Dir
	// Only remotes with an http or https URL accept a token.
	if l == nil || !l.IsWeb() {
		return reply, &control.Error{Code: control.ExitUsage, Verb: "credential", Object: m.Dir,
			Cause: "mount has no remote that accepts a token; only http and https URLs do",
			Hint:  "ssh uses keys: see ssh-add(1)"}
	}
	reply.Remote = statedir.WithoutSecrets(at)
	env := remotes.Environment(m.Request.MountRequest)
	err := d.host.Remotes.TryToken(ctx, remotes.WithUser(at, l.User()), env, string(r.Token), r.TokenFile)
	// Only a definite refusal is an error, because the token may be valid if the remote cannot be reached.
	refused := errors.Is(err, transport.ErrAuth) || errors.Is(err, transport.ErrForbidden) ||
		errors.Is(err, transport.ErrNotFound)
	if refused || ctx.Err() != nil {
		e := fault.Explain("log in to", reply.Remote, err)
		e.Hint = "the mount continues to use the previous token"
		return reply, e
	}
	reply.Checked = err == nil
	reply.Mounts = d.renew(ctx, l, string(r.Token), r.TokenFile)
	d.host.Log.Info("replaced the token", zap.String("remote", reply.Remote), zap.Strings("mounts", reply.Mounts),
		zap.Bool("checked", reply.Checked))
	return reply, nil
}

// renew sets a new token or token file in the login l, and makes each mount with this login use the new credentials. It
// returns the sorted directories of these mounts.
func (d *Daemon) renew(ctx context.Context, l *remotes.Login, token, file string) []string {
	uses := d.host.Remotes.Renew(l, token, file)
	var dirs []string
	for _, m := range d.list() {
		if !uses(m.Request) {
			continue
		}
		m.UseNewLogin(ctx)
		dirs = append(dirs, m.Dir)
	}
	return dirs
}
