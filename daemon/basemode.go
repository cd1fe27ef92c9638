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

// thinDir is where a session's repository keeps what is known of its container on the session remote (thin.Remote.Keep).
// It goes with the objects that the container holds.
func thinDir(repo string) string { return filepath.Join(repo, "artifactfs.thin") }

// readableURL returns the URL of a mounted remote if other machines can be expected to read it there: those of network
// schemes, whatever host they name. A path means something else on another machine.
func readableURL(remote string) string {
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		switch u.Scheme {
		case "http", "https", "ssh", "git":
			return remote
		}
		return ""
	}
	host, path, ok := strings.Cut(remote, ":") // scp-like: HOST:PATH, where a path would have a slash first
	if ok && host != "" && path != "" && !strings.Contains(host, "/") {
		return remote
	}
	return ""
}

// rewrite has the next push leave out of the session's container what is about to be dropped, if the session has one. If
// nothing is, neverMind takes that back.
func (o *opened) rewrite(dryRun bool) (neverMind func(), err error) {
	dir := thinDir(o.repo.Dir())
	if _, err := os.Lstat(dir); dryRun || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return thin.Rewrite(dir)
}
