package cli

import (
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// Environment variables of a command that sees a mount at another path (artifactfs run --at).
const (
	ShownDirVariable = "ARTIFACTFS_SHOWN_DIR" // directory of the mount
	ShownAtVariable  = "ARTIFACTFS_SHOWN_AT"  // directory at which the command sees the mount, without symbolic links
)

// realPlace returns the path that other processes use for path, which is absolute: if this process sees a mount at
// another directory, and path is there, it is the same path below the directory of the mount. Otherwise another mount
// may be at this directory for other processes, and this process would send its requests to that mount.
func realPlace(path string) string {
	dir, at := os.Getenv(ShownDirVariable), os.Getenv(ShownAtVariable)
	if dir == "" || at == "" {
		return path
	}
	within := path
	if !mountinfo.Within(at, within) {
		parent, err := filepath.EvalSymlinks(filepath.Dir(path))
		if within = filepath.Join(parent, filepath.Base(path)); err != nil || !mountinfo.Within(at, within) {
			return path
		}
	}
	// The process may have inherited the variables, but not the namespace.
	shown, err := os.Stat(at)
	if err != nil {
		return path
	}
	if mounted, err := os.Stat(dir); err != nil || !os.SameFile(shown, mounted) {
		return path
	}
	rel, err := filepath.Rel(at, within)
	if err != nil {
		return path
	}
	return filepath.Join(dir, rel)
}
