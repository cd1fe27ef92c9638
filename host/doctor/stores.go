package doctor

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// unfinishedAge is the age above which an unfinished git directory in a store is assumed to belong to a process that
// has died.
const unfinishedAge = time.Hour

// ExamineStores examines the stores of a state directory. A store has the objects that the mounts of one remote share.
// If deep is set, ExamineStores hashes the packs. If repair is set, it removes damaged stores that no session needs. It
// returns an error if ctx ends or the stores cannot be listed.
func ExamineStores(ctx context.Context, state string, repair, deep bool) ([]Finding, error) {
	d := &doctor{homes: statedir.Homes{State: state, Log: zap.NewNop()}, repair: repair}
	stores, removed, err := statedir.StoreDirs(state)
	if err != nil {
		return nil, err
	}
	for _, dir := range removed {
		d.repairProblem(dir, "leftover of a process that was killed while it removed this directory", "removes the directory",
			func() error { return os.RemoveAll(dir) })
	}
	// If a session cannot be read, the session might need any of the stores, so remove no store.
	needed, err := statedir.NeededStores(state)
	if err != nil {
		d.warn("stores", "", "some session cannot be read, so no store can be removed: %v", err)
	}
	for _, dir := range stores {
		if ctx.Err() != nil {
			return d.findings, ctx.Err()
		}
		d.store(dir, deep, err == nil && !needed[filepath.Base(dir)])
	}
	return d.findings, nil
}

// store examines the store in the directory dir. unneeded states that no mount and no session needs the store, so that
// a repair may remove it.
func (d *doctor) store(dir string, deep, unneeded bool) {
	info, ok := bare.Peek(dir)
	if !ok {
		return // the store is still empty, or another process is creating it
	}
	name := info.URL
	if name == "" {
		name = dir
	}
	// Until the git directory of a store is complete, its name matches this pattern.
	left, _ := disk.Glob(dir, "git-*.tmp")
	for _, path := range left {
		if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > unfinishedAge {
			d.repairProblem(path, "leftover of a process that was killed while it created this directory",
				"removes the directory",
				func() error { return os.RemoveAll(path) })
		}
	}
	problems, err := odb.Check(info.Objects, info.Format, deep)
	if err != nil {
		d.wrong(name, "", "objects cannot be read: %v", err)
		return
	}
	bad := 0
	for _, p := range problems {
		switch {
		case p.Junk:
			d.repairProblem(p.Path, p.What, "removes the file", func() error { return os.Remove(p.Path) })
		// The store is damaged and not needed. The code below reports it and removes it as a whole.
		case unneeded:
			bad++
		default:
			bad++
			d.wrong(p.Path, "unmount all mounts of "+name+
				" and delete its sessions; then run artifactfs doctor --fix to remove the store, "+
				"which the next mount fetches again", "%s", p.What)
		}
	}
	switch {
	case bad > 0 && unneeded:
		d.repairProblem(dir, problems[0].What+"; no session needs this store",
			"removes the store, which the next mount fetches again",
			func() error { return statedir.RemoveStore(dir) })
	case bad == 0:
		if s, err := odb.Look(info.Objects, info.Format); err == nil {
			d.ok(name, "store is complete: objects %d, packs %d, %d KiB", s.Objects+s.Loose, s.Packs, s.Bytes>>10)
		}
	}
}
