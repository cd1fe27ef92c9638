package gitdir

import (
	"context"
	"fmt"
	"os/exec"
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

// InstalledGit asks the git on PATH for its version.
func InstalledGit(ctx context.Context) (Version, error) {
	cmd := exec.CommandContext(ctx, "git", "version")
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %w", err)
	}
	var v Version
	if _, err := fmt.Sscanf(string(out), "git version %d.%d", &v.Major, &v.Minor); err != nil {
		return Version{}, fmt.Errorf("ask git for its version: %.80q: %w", out, err)
	}
	return v, nil
}
