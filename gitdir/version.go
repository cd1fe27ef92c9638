package gitdir

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Version is a version of git. The zero Version stands for no git.
type Version struct{ Major, Minor int }

var (
	rightDiff     = Version{2, 43} // the first without the fault of which query.CarefulName tells
	socketMonitor = Version{2, 55} // the first that asks a file system monitor's socket on Linux
)

// AtLeast says whether v is the same as another version or later.
func (v Version) AtLeast(other Version) bool {
	return v.Major > other.Major || v.Major == other.Major && v.Minor >= other.Minor
}

// lastAsked is what the git on PATH said last, for as long as it is the same file.
var lastAsked struct {
	sync.Mutex
	path    string
	file    os.FileInfo
	version Version
}

// InstalledGit asks the git on PATH for its version.
func InstalledGit(ctx context.Context) (Version, error) {
	path, err := gitcmd.LookPath()
	if err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %w", err)
	}
	file, err := os.Stat(path)
	if err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %w", err)
	}
	lastAsked.Lock()
	defer lastAsked.Unlock()
	if at := lastAsked.file; lastAsked.path == path && os.SameFile(at, file) && at.ModTime().Equal(file.ModTime()) && at.Size() == file.Size() {
		return lastAsked.version, nil
	}
	v, err := askVersion(ctx)
	if err == nil {
		lastAsked.path, lastAsked.file, lastAsked.version = path, file, v
	}
	return v, err
}

func askVersion(ctx context.Context) (Version, error) {
	out, err := gitcmd.Output(gitcmd.New(ctx, "version"))
	if err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %w", err)
	}
	var v Version
	if _, err := fmt.Sscanf(string(out), "git version %d.%d", &v.Major, &v.Minor); err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %.80q: %w", out, err)
	}
	return v, nil
}
