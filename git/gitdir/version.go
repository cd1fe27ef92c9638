package gitdir

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// Version is a version of git. The zero Version means that git is not installed.
type Version struct{ Major, Minor int }

var (
	rightDiff     = Version{2, 43} // first version without the bug that is described at query.CarefulName
	socketMonitor = Version{2, 55} // first version that connects to the socket of a file system monitor on Linux
)

// AtLeast reports whether v is the version other or a later version.
func (v Version) AtLeast(other Version) bool {
	return v.Major > other.Major || v.Major == other.Major && v.Minor >= other.Minor
}

// lastAsked caches the version of the git program on PATH. The cached version is used as long as the program is the
// same file.
var lastAsked struct {
	sync.Mutex
	path    string
	file    os.FileInfo
	version Version
}

// InstalledGit returns the version of the git program on PATH. It runs git only if the program has changed since the
// last call.
func InstalledGit(ctx context.Context) (Version, error) {
	path, err := gitcmd.LookPath()
	if err != nil {
		return Version{}, fmt.Errorf("find version of git: %w", err)
	}
	file, err := os.Stat(path)
	if err != nil {
		return Version{}, fmt.Errorf("find version of git: %w", err)
	}
	lastAsked.Lock()
	defer lastAsked.Unlock()
	// Compare path and file, because a package manager may replace the file while the daemon runs.
	if at := lastAsked.file; lastAsked.path == path && os.SameFile(at, file) && at.ModTime().Equal(file.ModTime()) &&
		at.Size() == file.Size() {
		return lastAsked.version, nil
	}
	v, err := askVersion(ctx)
	if err == nil {
		lastAsked.path, lastAsked.file, lastAsked.version = path, file, v
	}
	return v, err
}

// askVersion runs git version and returns the version that it prints.
func askVersion(ctx context.Context) (Version, error) {
	out, err := gitcmd.Output(gitcmd.New(ctx, "version"))
	if err != nil {
		return Version{}, fmt.Errorf("find version of git: %w", err)
	}
	var v Version
	if _, err := fmt.Sscanf(string(out), "git version %d.%d", &v.Major, &v.Minor); err != nil {
		return Version{}, fmt.Errorf("find version of git: unexpected output %.80q: %w", out, err)
	}
	return v, nil
}
