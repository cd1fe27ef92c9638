package mount

import (
	"cmp"
	"context"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/host/mount/profiles"
)

// beginProfiles begins to record which files programs read, or continues the recording of a predecessor. It returns nil if the mount has
// no read profile.
func beginProfiles(m *Mount, takenOver bool) *profiles.Profiles {
	name := cmp.Or(m.Request.Profile, readprofile.Auto)
	if name == readprofile.None {
		return nil
	}
	o := profiles.Options{
		Name: name, Dir: readprofile.DirOf(filepath.Dir(m.store.GitDir())), Home: m.home.Dir, View: m.view.RawView,
		CountFiles: m.view.Foreseen.CountFiles, Temp: m.host.State, Since: m.since, Log: m.host.Log,
	}
	if m.Request.ShareProfile && m.objects.sessionRemote != nil {
		o.Remote = m.objects.sessionRemote.Remote
	}
	return profiles.Begin(o, takenOver)
}

// hydrate prefetches the contents of the tree that the mount shows: first those of the read profile, then the others that the request
// selects.
func hydrate(ctx context.Context, m *Mount, profile readprofile.Profile) error {
	budget := cmp.Or(m.Request.PrefetchBudget, DefaultBudget)
	switch m.Request.Prefetch {
	case control.PrefetchNone:
		return nil
	case control.PrefetchAll:
		budget = 0 // no limit
	}
	left, err := m.view.Foreseen.Run(ctx, profile, budget)
	if err != nil || budget > 0 && left <= 0 {
		return err
	}
	return m.view.Prefetch(ctx, fetch.PrefetchPolicy(m.Request.Prefetch), left)
}
