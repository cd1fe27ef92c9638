package refname

import (
	"os"
	"path/filepath"
)

// DefaultRemote is the name that git clone gives to the remote, unless the user has set clone.defaultRemoteName.
const DefaultRemote = "origin"

// RemoteFile is the file in the git directory of a mount that contains the name of the mounted remote, if it is not
// DefaultRemote.
const RemoteFile = "artifactfs-remote"

// Remote returns the name that the mounted remote has in the git directory gitDir of a mount.
func Remote(gitDir string) string {
	text, err := os.ReadFile(filepath.Join(gitDir, RemoteFile))
	if name := string(text); err == nil && ValidRemote(name) {
		return name
	}
	return DefaultRemote
}

// ValidRemote reports whether git accepts name as the name of a remote.
func ValidRemote(name string) bool { return name != "" && Valid("refs/remotes/"+name+"/test") }

// Tracking returns the name of the remote-tracking ref of a branch. gitDir is the git directory of a mount, branch is a
// short name.
func Tracking(gitDir, branch string) string { return "refs/remotes/" + Remote(gitDir) + "/" + branch }
