package origin

import (
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// Reply returns b in the form of a reply, after the files were added to the fork. It returns nil if there were no files
// to carry.
func (b Besides) Reply() *control.Carried {
	switch {
	case b.Taken == nil && b.Failed == "":
		return nil
	case b.Taken == nil:
		return &control.Carried{Failed: b.Failed}
	case b.Taken.Files.Files+b.Taken.Dirs == 0:
		return nil
	}
	c := &control.Carried{Files: b.Taken.Files.Files, Dirs: b.Taken.Dirs, Bytes: b.Taken.Bytes}
	c.SetSecrets(b.Taken.Secrets)
	return c
}

// Lacks returns the paths that were to be carried, but that the fork does not have, after the files were added to it.
func (b Besides) Lacks() (paths []control.LeftOut) {
	if b.Taken == nil {
		return nil
	}
	for _, l := range b.Taken.Left {
		why := string(l.Why)
		if l.Why == carry.NoSocket {
			why = "type" // as for a socket that a checkpoint leaves out
		}
		paths = append(paths, control.LeftOut{Path: l.Path, Why: why})
	}
	return paths
}
