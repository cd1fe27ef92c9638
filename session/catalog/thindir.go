package catalog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/session/thin"
)

// ThinDir returns the directory, in the repository of a session, that stores what is known of the session's container on its
// session remote (thin.Remote.Keep). It is only valid together with the objects of that repository.
func ThinDir(repo string) string { return filepath.Join(repo, "artifactfs.thin") }

// rewrite makes the next push write the session's container on the session remote anew, so that it leaves out objects that the
// caller is about to drop. The caller calls neverMind if it drops nothing after all. With dryRun, or if the session has no
// container, rewrite changes nothing.
func (o *opened) rewrite(dryRun bool) (neverMind func(), err error) {
	dir := ThinDir(o.Repo.Dir())
	if _, err := os.Lstat(dir); dryRun || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return thin.Rewrite(dir)
}
