package gitdir

import (
	"bytes"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Login is a remote for which git commands in the mount get their login from the daemon.
type Login struct {
	URL   string // http or https, without secrets
	First bool   // whether the daemon's login takes precedence over logins from the user's credential helpers
}

// insideLogin is the credential helper for a git directory that is visible inside the mount. git appends the operation
// (get, store or erase) to the command.
const insideLogin = `!d=$(git rev-parse --git-common-dir) && "$d/` + InsideHelper + `" credential helper "$d"`

// SetLogins writes the settings that make git request logins from the daemon (gitcredentials(7)). The settings contain
// no secrets. The helper is configured for the whole host of a remote, so that it also works for other repositories on
// that host, such as forks, and for git-lfs. git calls the helper after the user's own helpers. If the daemon's login
// takes precedence (Login.First), the helper is also configured for the remote's URL, after an empty helper, which
// removes the other helpers from git's list.
func (o Options) SetLogins(path string) error {
	c := config.New()
	helper := fmt.Sprintf("!%s credential helper %s", shellQuote(o.Helper), shellQuote(realPath(path)))
	if o.Inside {
		helper = insideLogin
	}
	hosts := map[string]bool{}
	for _, l := range o.Logins {
		u, err := url.Parse(l.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || o.Helper == "" {
			continue
		}
		host := u.Scheme + "://" + u.Host
		if !hosts[host] {
			c.AddOption("credential", host, "helper", helper)
			hosts[host] = true
		}
	}
	for _, l := range o.Logins {
		if u, err := url.Parse(l.URL); err == nil && l.First && hosts[u.Scheme+"://"+u.Host] {
			c.AddOption("credential", l.URL, "helper", "").AddOption("credential", l.URL, "helper", helper)
		}
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(path, loginsConfig), b.Bytes(), 0o644)
}
