package daemon

import (
	"context"
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
)

var _ control.CredentialHolder = (*Daemon)(nil)

// SetCredential replaces the credentials of the mount at r.Dir by a new token or token file. It first tries the token on the
// remote. If the remote refuses the token, nothing is changed; if the remote cannot be reached, the token is used unchecked. All
// users of the same login use the new token at once: the fetching of contents and history, a session remote on the same host,
// submodules, git commands, and other mounts with this login.
func (d *Daemon) SetCredential(ctx context.Context, r control.CredentialRequest) (control.CredentialReply, error) {
	var reply control.CredentialReply
	m, ok := d.find(r.Dir)
	if !ok {
		return reply, fault.NotMounted("credential", r.Dir)
	}
	if err := m.awaitTakeover(ctx); err != nil || !m.served() {
		return reply, &control.Error{Code: control.ExitFailed, Verb: "credential", Object: m.dir,
			Cause: "it is not mounted yet", Hint: "try again in a moment"}
	}
	at, l := m.request.Remote, m.login
	if r.Session {
		m.mu.Lock()
		l = m.sessionLogin
		m.mu.Unlock()
	}
	reply.Dir = m.dir
	// ssh and local remotes take no token.
	if l == nil || r.Session && m.sessionRemote == nil || !l.IsWeb() {
		return reply, &control.Error{Code: control.ExitUsage, Verb: "credential", Object: m.dir,
			Cause: "there is no remote that takes a token: only http and https ones do", Hint: "ssh uses keys: see ssh-add(1)"}
	}
	if r.Session {
		at = m.sessionRemote.URL()
	}
	reply.Remote = statedir.WithoutSecrets(at)
	err := d.remotes.TryToken(ctx, remotes.WithUser(at, l.User()), remotes.Environment(m.request), string(r.Token), r.TokenFile)
	// Only a definite refusal is an error. If the remote cannot be reached, the token may still be valid.
	refused := errors.Is(err, transport.ErrAuth) || errors.Is(err, transport.ErrForbidden) || errors.Is(err, transport.ErrNotFound)
	if refused || ctx.Err() != nil {
		e := fault.Explain("log in to", reply.Remote, err)
		e.Hint = "the mount keeps the token that it had"
		return reply, e
	}
	reply.Checked = err == nil
	reply.Mounts = d.renew(ctx, l, string(r.Token), r.TokenFile)
	d.log.Info("took a new token", zap.String("remote", reply.Remote), zap.Strings("mounts", reply.Mounts), zap.Bool("checked", reply.Checked))
	return reply, nil
}

// renew sets a new token or token file in the login l. For each mount that uses l, it stores the credentials in the takeover
// state, updates the git directory and repeats failed work. It returns the sorted directories of these mounts.
func (d *Daemon) renew(ctx context.Context, l *remotes.Login, token, file string) []string {
	uses := d.remotes.Renew(l, token, file)
	var dirs []string
	for _, m := range d.list() {
		if !uses(m) {
			continue
		}
		now := m.requestNow()
		// A successor must start with the new credentials.
		m.handover.Update(func(h *takeover.State) {
			h.Request.Remote, h.Request.Token, h.Request.TokenFile = now.Remote, now.Token, now.TokenFile
			h.Request.SessionOptions.Remote, h.Request.SessionToken, h.Request.SessionTokenFile =
				now.SessionOptions.Remote, now.SessionToken, now.SessionTokenFile
		})
		if err := m.writeLogins(ctx); err != nil {
			d.log.Warn("set up logins of git", zap.String("dir", m.dir), zap.Error(err))
		}
		m.retry() // work that failed with the old token
		dirs = append(dirs, m.dir)
	}
	return dirs
}

// writeLogins rewrites the part of the git configuration that lists the URLs for which git commands request a login from this
// daemon. It does nothing if the git directory does not exist yet.
func (m *mount) writeLogins(ctx context.Context) error {
	m.mu.Lock()
	ready := m.gitReady
	m.mu.Unlock()
	if !ready {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return gitdir.Options{Helper: program, Inside: m.inside.Wanted(), Logins: logins{m}.helped(ctx)}.SetLogins(m.gitPath())
}

// retry repeats failed background work of the mount immediately, without waiting for the end of its pause.
func (m *mount) retry() {
	m.mu.Lock()
	close(m.retried)
	m.retried = make(chan struct{})
	m.mu.Unlock()
	m.agent.Retry()
}
