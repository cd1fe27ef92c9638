package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// Store stores a pack that git has written to a quarantine directory: it records the pack, stores its files in the
// object store and returns it, so that a push can add it to a repository. dir contains pack-HASH.pack and
// pack-HASH.idx. If the process dies before the end, the files that were stored can be found by the record.
func (s *Set) Store(ctx context.Context, dir, hash string) (records.Pack, error) {
	base := filepath.Join(dir, "pack-"+hash)
	pack := records.Pack{ID: records.NewID(), Hash: hash}
	for _, x := range append(slices.Clone(extensions), records.GarbageExtension) {
		info, err := os.Stat(base + x)
		if os.IsNotExist(err) && x != ".pack" && x != ".idx" {
			continue
		}
		if err != nil {
			return records.Pack{}, fmt.Errorf("store pack: %w", err)
		}
		pack.Extensions = append(pack.Extensions, x)
		pack.Bytes += info.Size()
	}
	var err error
	if pack.Objects, err = countObjects(base + ".pack"); err != nil {
		return records.Pack{}, fmt.Errorf("store pack: %w", err)
	}
	if err := s.begin(ctx, pack, base); err != nil {
		return records.Pack{}, fmt.Errorf("store pack: %w", err)
	}
	err = parallel(len(pack.Extensions), func(i int) error {
		x := pack.Extensions[i]
		return s.store.Put(ctx, pack.Key(x), base+x)
	})
	if err != nil {
		return records.Pack{}, fmt.Errorf("store pack: %w", objects.Classify(err))
	}
	return pack, nil
}

// begin records a pack. If the object store is a directory on disk, which will sync the files, begin syncs them at the
// same time, because both operations wait for the disk.
func (s *Set) begin(ctx context.Context, pack records.Pack, base string) error {
	if s.store.Shared() {
		return s.db.Packs.Begin(ctx, pack)
	}
	synced := make(chan error, 1)
	go func() {
		synced <- parallel(len(pack.Extensions), func(i int) error { return syncFile(base + pack.Extensions[i]) })
	}()
	err := s.db.Packs.Begin(ctx, pack)
	// return errors of this sync, because Linux reports an error of the disk only to the first sync after it
	return errors.Join(err, objects.Classify(<-synced))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Scratch returns a new empty directory on the file system of the replicas, for packs that will be passed to Store. The
// caller must remove the directory. Directories of a process that was killed are removed by the next Open.
func (s *Set) Scratch() (string, error) {
	dir := filepath.Join(s.dir, "scratch")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create scratch directory: %w", objects.Classify(err))
	}
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		return "", fmt.Errorf("create scratch directory: %w", objects.Classify(err))
	}
	return dir, nil
}
