package daemon

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
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/statedir"
)

// What lies in a state directory is of three kinds: contents in blobs/, which may go at any moment; stores, which may go
// once nothing is made of them; and homes, which hold work that is nowhere else and are none of the cache's business. All
// of it can be looked at, and the first two be removed, by a process beside those that serve: files and locks say who
// uses what.

// CacheStat is what `cache stat --json` prints.
type CacheStat struct {
	Blobs   control.CacheStatus `json:"blobs"` // shared by all remotes, evictable; the quota is that of a running daemon, or 0
	Remotes []RemoteStat        `json:"remotes"`
	Mounts  []HomeStat          `json:"mounts"`
}

// RemoteStat is the store of one remote.
type RemoteStat struct {
	Remote    string `json:"remote"` // URL without secrets
	Dir       string `json:"dir"`
	Objects   int64  `json:"objects"`
	Packs     int    `json:"packs"`
	Bytes     int64  `json:"bytes"`      // of the store
	Blobs     int64  `json:"blobs"`      // contents of this remote in the cache; what several have counts for each
	BlobBytes int64  `json:"blob_bytes"` // of them
	Needed    bool   `json:"needed"`     // by a mount or a session
	Open      bool   `json:"open"`       // in a process
}

// HomeStat is what one mount or session has for itself, which is nowhere else.
type HomeStat struct {
	ID      string `json:"id"`
	Dir     string `json:"dir"` // where it is mounted, or was last
	Remote  string `json:"remote"`
	Mounted bool   `json:"mounted"`
	Objects int64  `json:"objects"` // in its git directory
	Packs   int    `json:"packs"`
	Git     int64  `json:"git_bytes"`     // of the git directory
	Overlay int64  `json:"overlay_bytes"` // of what was changed
	Other   int64  `json:"other_bytes"`   // of the table of inodes and the journal
}

// StatCache looks at all of a state directory.
func StatCache(ctx context.Context, state string) (CacheStat, error) {
	st := CacheStat{Remotes: []RemoteStat{}, Mounts: []HomeStat{}}
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
	slices.SortFunc(st.Remotes, func(a, b RemoteStat) int { return strings.Compare(a.Remote, b.Remote) })
	slices.SortFunc(st.Mounts, func(a, b HomeStat) int { return strings.Compare(a.Dir, b.Dir) })
	return st, nil
}

// openBlobs opens the cache of contents beside whoever serves, without evicting anything.
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

func statStore(dir string, blobs *cache.Blobs) (RemoteStat, error) {
	r := RemoteStat{Dir: dir, Bytes: diskUse(dir)}
	if f, err := statedir.LockStore(dir); errors.Is(err, statedir.ErrStoreUsed) {
		r.Open = true
	} else if err == nil {
		f.Close()
	}
	info, ok := fetch.Peek(dir)
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

func statHome(h statedir.Homes, id string) HomeStat {
	dir := filepath.Join(h.Dir(), id)
	s := HomeStat{ID: id, Git: diskUse(filepath.Join(dir, "git")), Overlay: diskUse(filepath.Join(dir, "overlay"))}
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

// diskUse adds up the lengths of files; what vanishes meanwhile does not count.
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

// CacheGC is what is to go.
type CacheGC struct {
	Quota  int64 // bytes of contents that may stay
	DryRun bool
}

// CacheFreed is what `cache gc --json` prints.
type CacheFreed struct {
	Blobs   int64        `json:"blobs"` // contents evicted
	Bytes   int64        `json:"bytes"` // of them
	Left    int64        `json:"left"`  // bytes of contents that stay
	Removed []RemoteStat `json:"removed"`
	Notes   []string     `json:"notes,omitempty"` // why something stays
	DryRun  bool         `json:"dry_run"`
}

// CollectCache evicts contents, the longest unused first, until the quota is met, and removes stores that nothing is
// made of.
func CollectCache(ctx context.Context, state string, c CacheGC) (CacheFreed, error) {
	freed := CacheFreed{Removed: []RemoteStat{}, DryRun: c.DryRun}
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
		freed.Notes = append(freed.Notes, "all stores stay, because not every session can be read: "+err.Error())
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
		freed.Notes = append(freed.Notes, "more stays than the quota allows: a process that serves still appends to it")
	}
	return freed, nil
}
