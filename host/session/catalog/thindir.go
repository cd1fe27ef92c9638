package catalog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/session/thin"
)

// ThinDir returns the directory, in the session repository at the path repo, in which thin.Remote.Keep stores data
// about the container of the session on its session remote. A container is a commit that holds the objects of a
// session. The data are valid together with the objects of that repository.
func ThinDir(repo string) string { return filepath.Join(repo, "artifactfs.thin") }

// rewrite makes the next push write a new container without the objects that the caller is about to drop. If the caller
// then drops no object, it must call withdraw, which undoes this. If dryRun is set, or if the session has no container,
// rewrite changes nothing.
func (o *opened) rewrite(dryRun bool) (withdraw func(), err error) {
	dir := ThinDir(o.Repo.Dir())
	if _, err := os.Lstat(dir); dryRun || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return thin.Rewrite(dir)
}
