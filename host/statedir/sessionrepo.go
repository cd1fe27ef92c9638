package statedir

import (
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/session"
)

// OpenSessionRepo opens the session repository in the home at the path home, whose record is r. If write is false, the
// repository is opened read-only, and the session may be mounted. If write is true, the caller must hold the lock of
// the home.
func (h Homes) OpenSessionRepo(home string, r Record, write bool) (*session.Repo, error) {
	base, _ := r.Base()
	store := filepath.Join(h.State, "stores", StoreName(r.Remote), "git", "objects")
	return session.OpenRepo(filepath.Join(home, SessionRepoName), session.RepoOptions{
		Format: base.Format, Session: r.Session, Remote: r.Remote, Borrow: []string{store},
		Fresh: []string{filepath.Join(home, "git", "objects")}, ReadOnly: !write,
		Log: h.Log.With(zap.String("session", r.Session)),
	})
}

// SessionRemoteURL returns the URL of the session remote without secrets, or "" if the session has no session remote or
// only the embedded one below the state directory.
func (r Record) SessionRemoteURL() string {
	switch remote := r.Carried.Remote; remote {
	case "", control.RemoteEmbedded, control.RemoteNone:
		return ""
	default:
		return ShownRemote(remote, "", r)
	}
}

// ShownRemote returns the session remote that is selected by remote, the value of the option --session-remote, in the
// form that is shown to users: the URL without secrets, the path of the session repository in home for the embedded
// session remote, or "" if there is none.
func ShownRemote(remote, home string, r Record) string {
	switch remote {
	case control.RemoteEmbedded, "":
		return filepath.Join(home, SessionRepoName)
	case control.RemoteOrigin:
		return r.Remote
	case control.RemoteNone:
		return ""
	}
	return WithoutSecrets(remote)
}

// WithoutSecrets returns the URL of a remote without secrets, so that it may be printed and stored. It returns "the
// remote" if the URL is invalid.
func WithoutSecrets(remote string) string {
	url, err := endpoint.Parse(remote)
	if err != nil {
		return "the remote"
	}
	return url.Display
}
