package replica

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// snapshots is the maximum number of times that an update reads the records, because a pack may be removed from the
// object store after they were read.
const snapshots = 5

// update updates a replica to the present state of its repository. The caller holds entry.turn.
func (s *Set) update(ctx context.Context, e *entry) (err error) {
	for range snapshots {
		read := s.db.Repos.Snapshot
		if e.made {
			read = func(ctx context.Context, id string) (records.Snapshot, error) {
				return s.db.Repos.SnapshotSince(ctx, id, e.repo.Version)
			}
		}
		snap, err := read(ctx, e.id)
		if err != nil {
			return err
		}
		if e.made && snap.Repo.Version == e.repo.Version {
			e.repo = snap.Repo
			return nil
		}
		if err = s.apply(ctx, e, snap); !errors.Is(err, objects.ErrNotFound) {
			return err
		}
	}
	return err
}

// apply changes a replica to the state in a snapshot. If it fails, the replica is still complete at the old generation,
// but may have new packs.
func (s *Set) apply(ctx context.Context, e *entry, snap records.Snapshot) error {
	format, err := object.ParseFormat(snap.Repo.ObjectFormat)
	if err != nil {
		return err
	}
	if !e.made {
		if err := s.skeleton(e.dir, format); err != nil {
			return objects.Classify(err)
		}
	}
	present, err := scan(packDir(e.dir))
	if err != nil {
		return err
	}
	if err := s.addPacks(ctx, e, format, snap.Packs, present); err != nil {
		return err
	}
	if err := s.placeShallow(e.dir, snap.Repo.Shallow); err != nil {
		return objects.Classify(err)
	}
	if err := s.place(filepath.Join(e.dir, "HEAD"), "ref: refs/heads/"+snap.Repo.DefaultBranch+"\n"); err != nil {
		return objects.Classify(err)
	}
	text, err := s.refs(ctx, e.dir, format, snap)
	if err != nil {
		return err
	}
	if err := disk.WriteFileUnsynced(filepath.Join(e.dir, "packed-refs"), text, 0o600); err != nil {
		return objects.Classify(err)
	}
	e.made, e.repo = true, snap.Repo
	e.epoch++
	listed := map[string]bool{}
	for _, p := range snap.Packs {
		listed[p.Hash] = true
	}
	for hash, id := range e.packs {
		if !listed[hash] {
			e.stale[hash] = stale{e.epoch, id}
			delete(e.packs, hash)
		}
	}
	for hash := range present {
		if _, known := e.stale[hash]; !known && !listed[hash] {
			e.stale[hash] = stale{e.epoch, ""}
		}
	}
	s.tidy(e)
	return nil
}

// skeleton creates a git directory without refs and packs. A part of it may exist because of an update that failed.
func (s *Set) skeleton(dir string, format object.Format) error {
	for _, d := range []string{packDir(dir), filepath.Join(dir, "refs")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return s.place(filepath.Join(dir, "config"), gitcmd.BareConfig(format))
}

// placeShallow writes or removes the file shallow, which lists the commits whose parents the repository does not have.
// It must be called before the refs are written, because without this file git searches for the parents.
func (s *Set) placeShallow(dir, contents string) error {
	path := filepath.Join(dir, "shallow")
	if contents != "" {
		return s.place(path, contents)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// place replaces the file at path by one with the given contents. If possible, the new file is a hard link to a file in
// the directory shared, because each small file needs a block of the disk.
func (s *Set) place(path, contents string) error {
	sum := sha256.Sum256([]byte(contents))
	from := filepath.Join(s.dir, "shared", hex.EncodeToString(sum[:16]))
	want, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		if err = disk.WriteFileUnsynced(from, []byte(contents), 0o400); err == nil {
			want, err = os.Lstat(from)
		}
	}
	if err != nil {
		return err
	}
	if have, err := os.Lstat(path); err == nil && os.SameFile(have, want) {
		return nil
	}
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// write a separate file if the link fails, for example because the other file has too many links
	if os.Link(from, temp) != nil {
		return disk.WriteFileUnsynced(path, []byte(contents), 0o600)
	}
	return os.Rename(temp, path)
}

// addPacks adds the packs that a replica does not have. A pack of a push through this replica is in its directory
// already.
func (s *Set) addPacks(ctx context.Context, e *entry, format object.Format, packs []records.Pack,
	present map[string][]string) error {
	if e.packs == nil {
		e.packs, e.stale = map[string]string{}, map[string]stale{}
	}
	var missing []records.Pack
	added := map[string]bool{}
	for _, p := range packs {
		// A replica does not need the file with the times of garbage.
		p.Extensions = slices.DeleteFunc(slices.Clone(p.Extensions),
			func(x string) bool { return x == records.GarbageExtension })
		if err := checkPack(format, p); err != nil {
			return err
		}
		complete := has(present[p.Hash], p)
		if old, ok := e.stale[p.Hash]; ok { // the pack was not listed for some time, and is listed again
			delete(e.stale, p.Hash)
			if old.id != "" {
				e.packs[p.Hash] = old.id
			}
		}
		if _, ok := e.packs[p.Hash]; !added[p.Hash] && (!ok || !complete) {
			added[p.Hash] = true
			missing = append(missing, p)
		}
	}
	done := make([]bool, len(missing))
	err := parallel(len(missing), func(i int) error {
		p := missing[i]
		err := s.addPack(ctx, format, p, packDir(e.dir), has(present[p.Hash], p))
		done[i] = err == nil
		return err
	})
	for i, p := range missing {
		if done[i] {
			if old, ok := e.packs[p.Hash]; ok && s.cache != nil {
				s.cache.release(old)
			}
			e.packs[p.Hash] = p.ID
		}
	}
	return err
}

// has reports whether present, the extensions of a pack's files in a directory, contains the extensions of all its
// files.
func has(present []string, p records.Pack) bool {
	return !slices.ContainsFunc(p.Extensions, func(x string) bool { return !slices.Contains(present, x) })
}

// checkPack returns an error if the fields of a pack are not valid. The fields become parts of paths.
func checkPack(format object.Format, p records.Pack) error {
	if id, err := object.ParseIDOf(format, p.Hash); err != nil || id.String() != p.Hash {
		return fmt.Errorf("add pack %s: invalid hash %q", p.ID, p.Hash)
	}
	if !slices.Contains(p.Extensions, ".pack") || !slices.Contains(p.Extensions, ".idx") {
		return fmt.Errorf("add pack %s: pack or index is missing in the record", p.ID)
	}
	for _, x := range p.Extensions {
		if !slices.Contains(extensions, x) {
			return fmt.Errorf("add pack %s: unknown file %q", p.ID, x)
		}
	}
	return nil
}

// addPack adds one pack to the directory dir. If complete is true, git has put its files there already.
func (s *Set) addPack(ctx context.Context, format object.Format, p records.Pack, dir string, complete bool) error {
	if s.cache != nil {
		return s.cache.link(ctx, format, p, dir, complete)
	}
	if complete {
		return nil
	}
	base := filepath.Join(dir, "pack-"+p.Hash)
	for _, x := range p.Extensions {
		to := base + x
		if x == ".idx" {
			to += ".tmp" // the index gets its final name last, because git finds a pack by its index
		}
		if err := s.store.Get(ctx, p.Key(x), to); err != nil {
			return fmt.Errorf("add pack %s: %w", p.ID, err)
		}
	}
	if err := checkIndex(format, base+".pack", base+".idx.tmp", p.Hash); err != nil {
		return fmt.Errorf("add pack %s: %w", p.ID, err)
	}
	return objects.Classify(os.Rename(base+".idx.tmp", base+".idx"))
}

// packDir returns the directory of the packs of a git directory.
func packDir(dir string) string { return filepath.Join(dir, "objects", "pack") }

// scan returns the extensions of the files of each pack in a directory, by the hash of the pack. Other files are
// ignored.
func scan(dir string) (map[string][]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	present := map[string][]string{}
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), "pack-"); ok {
			if hash, x, ok := strings.Cut(rest, "."); ok && !strings.HasSuffix(x, ".tmp") {
				present[hash] = append(present[hash], "."+x)
			}
		}
	}
	return present, nil
}

// removePack removes the files of a pack, the index first, because git finds a pack by its index.
func removePack(dir, hash string) error {
	present, err := scan(dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, x := range append([]string{".idx"}, present[hash]...) {
		if err := os.Remove(filepath.Join(dir, "pack-"+hash+x)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// clean removes files of killed processes and of refused pushes from a replica, unless it has a user other than the
// caller.
func (s *Set) clean(e *entry) {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	default:
		return
	}
	s.mu.Lock()
	idle := e.users == 1
	s.mu.Unlock()
	if !idle || !e.made {
		return
	}
	copies, _ := disk.Glob(e.dir, "push-*") // directories of Replica.Copy
	for _, dir := range copies {
		_ = os.RemoveAll(dir)
	}
	objectDir := filepath.Join(e.dir, "objects")
	top, _ := os.ReadDir(objectDir)
	for _, f := range top {
		// directories objects/incoming-* of git processes that were killed
		if f.Name() != "pack" && f.Name() != "info" {
			_ = os.RemoveAll(filepath.Join(objectDir, f.Name()))
		}
	}
	present, err := scan(packDir(e.dir))
	if err != nil {
		return
	}
	for hash := range maps.Keys(present) {
		if _, listed := e.packs[hash]; !listed {
			if _, known := e.stale[hash]; !known {
				e.stale[hash] = stale{e.epoch, ""}
			}
		}
	}
	s.tidy(e)
}
