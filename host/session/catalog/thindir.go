package catalog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/session/thin"
)

// ThinDir returns the directory, in the repository of a session, in which thin.Remote.Keep stores the data about the
// session's container on its session remote. A container is a commit that holds the objects of a session. The directory
// is valid together with the objects of that repository.
func ThinDir(repo string) string { return filepath.Join(repo, "artifactfs.thin") }

// rewrite makes the next push write a new container without the objects that the caller is about to drop. If the caller then drops
// no object, it calls the returned function neverMind, which withdraws the request. If dryRun is set, or if the session has no
// container, rewrite changes nothing.
func (o *opened) rewrite(dryRun bool) (neverMind func(), err error) {
	dir := ThinDir(o.Repo.Dir())
	if _, err := os.Lstat(dir); dryRun || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return thin.Rewrite(dir)
}
