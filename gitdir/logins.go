package gitdir

import (
	"bytes"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Login is a remote that git commands in the mount log in to with what the daemon has for it.
type Login struct {
	URL   string // http or https, without secrets
	First bool   // what the daemon has counts before what the user's credential helpers know
}

// insideLogin is the credential helper where the git directory is seen inside the mount; git appends what it wants done.
const insideLogin = `!d=$(git rev-parse --git-common-dir) && "$d/` + InsideHelper + `" credential helper "$d"`

// SetLogins writes the settings that have git ask the daemon for logins (gitcredentials(7)). They hold no secret. For all of
// a remote's host our helper is the last in the list, so that other repositories there (forks, git-lfs) work as well; where
// the daemon's login is to be the first, the list begins anew for the remote itself.
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
