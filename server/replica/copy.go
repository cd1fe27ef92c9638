package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// Copy is a git directory for one push. It has only the refs and the packs that the repository listed at one moment;
// the packs are hard links. The replica itself may also have packs that are not listed any more, or not yet. If git
// found objects in such a pack, it would accept refs to objects that the repository does not have.
type Copy struct {
	Dir  string
	Repo records.Repo // the repository at the moment of the copy

	set    *Set
	packs  string          // directory of the packs of the replica
	listed map[string]bool // hashes of the packs that the copy had at first
}

// Copy creates a Copy of the current state of the replica, which may be newer than r.Repo. The caller must remove the
// copy before it releases r.
func (r *Replica) Copy(ctx context.Context) (_ *Copy, err error) {
	e := r.entry
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("copy replica: %w", ctx.Err())
	}
	dir, err := os.MkdirTemp(e.dir, "push-")
	if err != nil {
		return nil, fmt.Errorf("copy replica: %w", objects.Classify(err))
	}
	c := &Copy{Dir: dir, Repo: e.repo, set: r.set, packs: packDir(e.dir), listed: map[string]bool{}}
	defer func() {
		if err != nil {
			c.Remove()
			err = fmt.Errorf("copy replica: %w", objects.Classify(err))
		}
	}()
	for _, d := range []string{"store/pack", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	// The directory of objects is reached through a link: if its own name were "objects", git would start another
	// process to read the refs next to it, as it does for alternates.
	if err := os.Symlink("store", filepath.Join(dir, "objects")); err != nil {
		return nil, err
	}
	for _, name := range []string{"config", "HEAD", "packed-refs", "shallow"} {
		err := linkOrCopy(filepath.Join(e.dir, name), filepath.Join(dir, name))
		if err != nil && (name != "shallow" || !errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	for hash := range e.packs {
		c.listed[hash] = true
		for _, x := range []string{".pack", ".idx"} {
			name := "pack-" + hash + x
			if err := linkOrCopy(filepath.Join(c.packs, name), filepath.Join(packDir(dir), name)); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// Added returns the hashes of the packs that git has added to the copy.
func (c *Copy) Added() ([]string, error) {
	present, err := scan(packDir(c.Dir))
	if err != nil {
		return nil, fmt.Errorf("read copy of replica: %w", objects.Classify(err))
	}
	var hashes []string
	for hash, x := range present {
		if !c.listed[hash] && slices.Contains(x, ".idx") {
			hashes = append(hashes, hash)
		}
	}
	return hashes, nil
}

// LinkAdded links the packs that git has added to this copy into another copy.
func (c *Copy) LinkAdded(to *Copy) error {
	added, err := c.Added()
	if err != nil {
		return err
	}
	for _, hash := range added {
		for _, x := range []string{".pack", ".idx"} {
			name := "pack-" + hash + x
			if err := linkOrCopy(filepath.Join(c.Packs(), name), filepath.Join(to.Packs(), name)); err != nil {
				return fmt.Errorf("link pushed pack: %w", objects.Classify(err))
			}
		}
	}
	return nil
}

// Packs returns the directory of the packs of the copy.
func (c *Copy) Packs() string { return packDir(c.Dir) }

// Adopt moves a pack, which the repository lists now, from the copy into the replica, so that it need not be fetched
// from the object store.
func (c *Copy) Adopt(pack records.Pack) error {
	files := slices.DeleteFunc(slices.Clone(pack.Extensions), func(x string) bool { return x == ".idx" })
	for _, x := range append(files, ".idx") { // the index is moved last, because git finds a pack by its index
		name := "pack-" + pack.Hash + x
		if err := linkOrCopy(filepath.Join(packDir(c.Dir), name), filepath.Join(c.packs, name)); err != nil {
			return fmt.Errorf("add pack %s: %w", pack.ID, err)
		}
	}
	return nil
}

// Remove removes the directory of the copy in the background.
func (c *Copy) Remove() {
	if c.set.discard(c.Dir) != nil {
		_ = os.RemoveAll(c.Dir)
	}
}
