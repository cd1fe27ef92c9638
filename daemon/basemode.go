package daemon

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/session/thin"
)

// thinDir returns the directory, in the repository of a session, that stores what is known of the session's container on its
// session remote (thin.Remote.Keep). It is only valid together with the objects of that repository.
func thinDir(repo string) string { return filepath.Join(repo, "artifactfs.thin") }

// readableURL returns remote if other machines can be expected to reach it by the same URL: the schemes http, https, ssh and
// git, and scp-like addresses. It returns "" otherwise, since a path names another directory on another machine.
func readableURL(remote string) string {
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		switch u.Scheme {
		case "http", "https", "ssh", "git":
			return remote
		}
		return ""
	}
	host, path, ok := strings.Cut(remote, ":") // scp-like HOST:PATH; a local path has a slash before the colon
	if ok && host != "" && path != "" && !strings.Contains(host, "/") {
		return remote
	}
	return ""
}

// rewrite makes the next push write the session's container on the session remote anew, so that it leaves out objects that the
// caller is about to drop. The caller calls neverMind if it drops nothing after all. With dryRun, or if the session has no
// container, rewrite changes nothing.
func (o *opened) rewrite(dryRun bool) (neverMind func(), err error) {
	dir := thinDir(o.repo.Dir())
	if _, err := os.Lstat(dir); dryRun || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return thin.Rewrite(dir)
}
