// Package space measures the disk space that a state directory uses, and frees the space of files that can be fetched
// again.
//
// There are four kinds of files. The contents in blobs/ may be removed at any time. Stores and shares may be removed
// while no mount and no session needs them. Homes, the directories of mounts, contain changes that exist nowhere else,
// so this package never removes them. The package may be used while daemons serve mounts, because files and locks show
// which stores and homes are in use.
package space

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Report is the disk usage of a state directory, in the JSON format of the command "artifactfs cache stat --json". All
// sizes are in bytes.
type Report struct {
	// Blobs describes the cache with the contents of all remotes. Its quota is the quota of a running daemon, or 0 if no
	// daemon is running.
	Blobs control.CacheStatus `json:"blobs"`
	// Remotes describes the store of each remote, sorted by the remote's URL.
	Remotes []Remote `json:"remotes"`
	// Mounts describes the home of each mount or session, sorted by directory.
	Mounts []Home `json:"mounts"`
	// Shares are the directories with contents that several homes may use, sorted by ID.
	Shares []Share `json:"shares"`
}

// Share is the disk usage of the changed contents that a session has in common with its forks.
type Share struct {
	ID    string   `json:"id"`
	Bytes int64    `json:"bytes"` // size of the contents
	Users []string `json:"users"` // names of the homes that use the share
}

// Remote is the disk usage of the store of one remote.
type Remote struct {
	Remote  string `json:"remote"`  // URL of the remote, without secrets
	Dir     string `json:"dir"`     // directory of the store
	Objects int64  `json:"objects"` // number of objects in the store
	Packs   int    `json:"packs"`   // number of packs in the store
	Bytes   int64  `json:"bytes"`   // size of all files of the store
	// Blobs is the number of contents in the cache that belong to this remote. Contents that belong to several remotes are
	// counted for each of them.
	Blobs     int64 `json:"blobs"`
	BlobBytes int64 `json:"blob_bytes"` // total size of these contents
	Needed    bool  `json:"needed"`     // whether a mount or a session needs the store
	Open      bool  `json:"open"`       // whether a process has the store open
}

// Home is the disk usage of one mount or session, without the files that it shares with other mounts.
type Home struct {
	ID      string `json:"id"`            // name of the home
	Dir     string `json:"dir"`           // directory where the mount or session is mounted, or was last mounted
	Remote  string `json:"remote"`        // URL of the mounted remote, without secrets
	Mounted bool   `json:"mounted"`       // whether a process has the home locked for a mount
	Objects int64  `json:"objects"`       // number of objects in the home's git directory
	Packs   int    `json:"packs"`         // number of packs in the home's git directory
	Git     int64  `json:"git_bytes"`     // size of the git directory
	Overlay int64  `json:"overlay_bytes"` // size of the overlay
	// Other is the size of all other files, such as the inode table, the change journal and the session repository.
	Other int64 `json:"other_bytes"`
}

// Examine measures the disk usage of a state directory. It returns an error if ctx ends or a part cannot be read.
func Examine(ctx context.Context, state string) (Report, error) {
	st := Report{Remotes: []Remote{}, Mounts: []Home{}, Shares: []Share{}}
	blobs, err := openBlobs(state)
	if err != nil {
		return st, err
	}
	defer blobs.Close()
	usage := blobs.Usage()
	st.Blobs.Blobs, st.Blobs.Bytes = int64(usage.Blobs), usage.Bytes
	stores, _, err := statedir.StoreDirs(state)
	if err != nil {
		return st, err
	}
	needed, neededErr := statedir.NeededStores(state)
	for _, dir := range stores {
		if ctx.Err() != nil {
			return st, ctx.Err()
		}
		r, err := statStore(dir, blobs)
		if err != nil {
			return st, err
		}
		r.Needed = neededErr != nil || needed[filepath.Base(dir)]
		st.Remotes = append(st.Remotes, r)
	}
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	ids, _, err := h.IDs()
	if err != nil {
		return st, err
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return st, ctx.Err()
		}
		st.Mounts = append(st.Mounts, statHome(h, id))
	}
	shares, _, err := h.Shares()
	if err != nil {
		return st, err
	}
	for _, s := range shares {
		st.Shares = append(st.Shares, statShare(s))
	}
	slices.SortFunc(st.Remotes, func(a, b Remote) int { return strings.Compare(a.Remote, b.Remote) })
	slices.SortFunc(st.Mounts, func(a, b Home) int { return strings.Compare(a.Dir, b.Dir) })
	return st, nil
}

// openBlobs opens the cache of contents, with a quota so large that the cache evicts nothing. Other processes may have
// the cache open.
func openBlobs(state string) (*cache.Blobs, error) {
	if _, err := os.Stat(state); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	b, err := cache.OpenBlobs(filepath.Join(state, "blobs"), math.MaxInt64/2)
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	return b, nil
}

// statStore returns the disk usage of the store in the directory dir. If no fetch into the store has completed yet,
// only Dir, Bytes and Open are set.
func statStore(dir string, blobs *cache.Blobs) (Remote, error) {
	r := Remote{Dir: dir, Bytes: diskUse(dir)}
	if f, err := statedir.LockStore(dir); errors.Is(err, statedir.ErrStoreUsed) {
		r.Open = true
	} else if err == nil {
		f.Close()
	}
	info, ok := bare.Peek(dir)
	if !ok {
		return r, nil
	}
	r.Remote = info.URL
	s, err := odb.Look(info.Objects, info.Format)
	if err != nil {
		return r, err
	}
	r.Objects, r.Packs = s.Objects+s.Loose, s.Packs
	if _, err := os.Stat(info.Sizes); err != nil {
		return r, nil
	}
	sizes, err := cache.OpenSizes(info.Sizes, info.Format)
	if err != nil {
		return r, err
	}
	defer sizes.Close()
	sizes.Each(func(id object.ID, _ int64) {
		if n, ok := blobs.Size(id); ok {
			r.Blobs++
			r.BlobBytes += n
		}
	})
	return r, nil
}

// statHome returns the disk usage of the home called id. It locks the home for a short time to find out whether it is
// mounted.
func statHome(h statedir.Homes, id string) Home {
	dir := filepath.Join(h.Dir(), id)
	s := Home{ID: id, Git: diskUse(filepath.Join(dir, "git")), Overlay: diskUse(filepath.Join(dir, "overlay"))}
	s.Other = diskUse(dir) - s.Git - s.Overlay
	f := object.SHA1
	if r, err := statedir.ReadRecord(dir); err == nil {
		s.Dir, s.Remote = r.Dir, r.Remote
		if base, err := r.Base(); err == nil {
			f = base.Format
		}
	}
	if t, err := h.LockExisting(id); errors.Is(err, disk.ErrLocked) {
		if holder, ok := h.Holder(id); ok {
			s.Mounted, s.Dir = true, holder.Dir
		}
	} else if err == nil {
		t.Unlock()
	}
	if o, err := odb.Look(filepath.Join(dir, "git", "objects"), f); err == nil {
		s.Objects, s.Packs = o.Objects+o.Loose, o.Packs
	}
	return s
}

// statShare returns the disk usage of a share.
func statShare(s statedir.Share) Share {
	share := Share{ID: s.ID, Bytes: diskUse(s.Dir), Users: []string{}}
	for _, home := range s.Users {
		share.Users = append(share.Users, filepath.Base(home))
	}
	return share
}

// diskUse returns the total length in bytes of the regular files below dir. It skips files that are removed while it
// runs.
func diskUse(dir string) (bytes int64) {
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}

// Goal states how much of a state directory Collect removes.
type Goal struct {
	Quota int64 // maximum size in bytes of the contents that stay in the cache
	// DryRun is whether Collect removes nothing, and only calculates what it would remove.
	DryRun bool
}

// Freed is the result of Collect, in the JSON format of the command "artifactfs cache gc --json".
type Freed struct {
	Blobs int64 `json:"blobs"` // number of evicted contents
	Bytes int64 `json:"bytes"` // size of evicted contents
	Left  int64 `json:"left"`  // size in bytes of the contents that stay
	// Removed are the removed stores.
	Removed []Remote `json:"removed"`
	// Shares are the removed shares, which no home used any more.
	Shares []Share `json:"shares"`
	// SharedFiles is the number of files that were removed from other shares, because no session uses them any more, and
	// SharedBytes is their disk space.
	SharedFiles int64 `json:"shared_files"`
	SharedBytes int64 `json:"shared_bytes"`
	// Notes are the reasons why contents, stores or shares were not removed, for the user.
	Notes []string `json:"notes,omitempty"`
	// DryRun states that nothing was removed, as Goal.DryRun requested.
	DryRun bool `json:"dry_run"`
}

// Collect removes contents from the cache, the least recently used first, until the quota is met, and removes stores
// and shares that no mount and no session needs, and files of other shares that only a session without a mount uses and
// that it does not need. If a session cannot be read, it removes no store and nothing of a share, and adds a note with
// the reason.
func Collect(ctx context.Context, state string, c Goal) (Freed, error) {
	freed := Freed{Removed: []Remote{}, Shares: []Share{}, DryRun: c.DryRun}
	blobs, err := openBlobs(state)
	if err != nil {
		return freed, err
	}
	defer blobs.Close()
	stores, removed, err := statedir.StoreDirs(state)
	if err != nil {
		return freed, err
	}
	needed, err := statedir.NeededStores(state)
	if err != nil {
		freed.Notes = append(freed.Notes, "kept all stores, because some session cannot be read: "+err.Error())
		stores = nil
	}
	for _, dir := range stores {
		if ctx.Err() != nil {
			return freed, ctx.Err()
		}
		if needed[filepath.Base(dir)] {
			continue
		}
		r, err := statStore(dir, blobs)
		if err == nil && !r.Open && !c.DryRun {
			err = statedir.RemoveStore(dir)
		}
		switch {
		case errors.Is(err, statedir.ErrStoreUsed) || err == nil && r.Open:
		case err != nil:
			freed.Notes = append(freed.Notes, err.Error())
		default:
			freed.Removed = append(freed.Removed, r)
		}
	}
	if !c.DryRun {
		for _, dir := range removed {
			os.RemoveAll(dir)
		}
	}
	if err = freed.collectShares(state); err == nil {
		err = freed.reclaim(state)
	}
	if err != nil {
		freed.Notes = append(freed.Notes, err.Error())
	}
	before := blobs.Usage()
	if c.DryRun {
		freed.Bytes, freed.Blobs = blobs.Excess(c.Quota)
		freed.Left = before.Bytes - freed.Bytes
	} else {
		if freed.Bytes, err = blobs.Collect(c.Quota); err != nil {
			return freed, err
		}
		after := blobs.Usage()
		freed.Blobs, freed.Left = int64(before.Blobs-after.Blobs), after.Bytes
	}
	if freed.Left > c.Quota {
		freed.Notes = append(freed.Notes, "cache is larger than the quota, because a daemon still writes to it")
	}
	return freed, nil
}

// collectShares removes the shares that no home uses, and adds them to f.
func (f *Freed) collectShares(state string) error {
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	unused, err := h.RemoveShares(true)
	sizes := map[string]Share{}
	for _, s := range unused {
		sizes[s.ID] = statShare(s)
	}
	if err == nil && !f.DryRun {
		unused, err = h.RemoveShares(false)
	}
	for _, s := range unused {
		share, ok := sizes[s.ID]
		if !ok { // the share became unused after its size was determined
			share = Share{ID: s.ID, Users: []string{}}
		}
		f.Shares = append(f.Shares, share)
	}
	return err
}

// reclaim removes the files of shares that only one session uses, which is not mounted, and that it does not need. It
// adds them to f. Mounted sessions do that themselves.
func (f *Freed) reclaim(state string) error {
	h := statedir.Homes{State: state, Log: zap.NewNop()}
	ids, _, err := h.IDs()
	for _, id := range ids {
		r, e := h.ReclaimShares(id, f.DryRun)
		f.SharedFiles, f.SharedBytes = f.SharedFiles+r.Files, f.SharedBytes+r.Bytes
		err = errors.Join(err, e)
	}
	return err
}
