package contents

import (
	"cmp"
	"context"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/host/mount/profiles"
)

// DefaultBudget is the number of bytes of contents that the prefetch policy "auto" fetches for one mount, unless the
// mount request contains another number.
const DefaultBudget = 256 << 20

// beginProfiles starts to record which files programs read, or continues the recording of a predecessor. It returns nil
// if the mount has no read profile.
func (c *Contents) beginProfiles(f Filtering) *profiles.Profiles {
	name := cmp.Or(c.of.Request.Profile, readprofile.Auto)
	if name == readprofile.None {
		return nil
	}
	o := profiles.Options{
		Name: name, Dir: readprofile.DirOf(filepath.Dir(c.Store.GitDir())), Home: f.Home.Dir, View: c.View.RawView,
		CountFiles: c.View.Foreseen.CountFiles, Temp: c.of.State, Since: c.of.Since, Log: c.of.Log,
	}
	if c.of.Request.ShareProfile && c.Objects.SessionRemote != nil {
		o.Remote = c.Objects.SessionRemote.Remote
	}
	return profiles.Begin(o, f.TakenOver)
}

// Prefetch prefetches the contents of the tree that the mount shows: first those of the read profile, then the others
// that the request selects.
func (c *Contents) Prefetch(ctx context.Context, profile readprofile.Profile) error {
	budget := cmp.Or(c.of.Request.PrefetchBudget, DefaultBudget)
	switch c.of.Request.Prefetch {
	case control.PrefetchNone:
		return nil
	case control.PrefetchAll:
		budget = 0 // no limit
	}
	left, err := c.View.Foreseen.Run(ctx, profile, budget)
	if err != nil || budget > 0 && left <= 0 {
		return err
	}
	return c.View.Prefetch(ctx, fetch.PrefetchPolicy(c.of.Request.Prefetch), left)
}
