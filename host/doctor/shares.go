package doctor

import (
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// shares examines the shares of the state directory. A share without a user is no damage, because the next start of a
// daemon removes it. The examination of a home reports the shares that are missing.
func (d *doctor) shares() {
	shares, removed, err := d.homes.Shares()
	if err != nil {
		d.warn(statedir.SharesDir(d.homes.State), "", "some session cannot be read, so no share can be removed: %v", err)
		return
	}
	for _, dir := range removed {
		d.repairProblem(dir, "leftover of a process that was killed while it removed this directory",
			"removes the directory", func() error { return os.RemoveAll(dir) })
	}
	unused := 0
	for _, s := range shares {
		if len(s.Users) == 0 {
			unused++
			continue
		}
		d.ok(filepath.Join("shares", s.ID), "contents are used by %d sessions", len(s.Users))
	}
	if unused > 0 {
		d.ok(statedir.SharesDir(d.homes.State), "%d shares are not used; run artifactfs cache gc to remove them", unused)
	}
}

// changedFiles returns a hint that names the directories with the changed files of the overlay in the directory dir.
func (d *doctor) changedFiles(dir string) string {
	hint := "the changed files are in " + filepath.Join(dir, "contents")
	ids, err := overlay.ListedShares(dir)
	if err != nil {
		return hint + "* and in " + statedir.SharesDir(d.homes.State)
	}
	for _, id := range ids {
		hint += ", " + filepath.Join(dir, "contents-"+id) + " and " + filepath.Join(statedir.SharesDir(d.homes.State), id)
	}
	return hint
}
