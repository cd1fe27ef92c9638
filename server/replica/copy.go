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

// Copy is a git directory for one push. It has the refs and the packs that the repository listed at one moment, by hard links, and
// nothing else. In the replica itself there may be packs that are not listed any more, or not yet; if git found the objects of a push
// in one of these, the push would be accepted, and its refs would lead to objects that the repository does not have.
type Copy struct {
	Dir  string
	Repo records.Repo // as of that moment

	set    *Set
	packs  string          // directory of the packs of the replica
	listed map[string]bool // hashes of the packs with which the copy was made
}

// Copy makes a Copy of the replica as it is now, which may be newer than r.Repo. It must be removed before r is released.
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
	// The check of a push would start a process to read the refs beside the directory of objects, if that were called objects.
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

// LinkAdded gives another copy the packs that git has added to this one.
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

// Adopt moves a pack that has become part of the repository into the replica, so that it is not fetched from the object store.
func (c *Copy) Adopt(pack records.Pack) error {
	files := slices.DeleteFunc(slices.Clone(pack.Extensions), func(x string) bool { return x == ".idx" })
	for _, x := range append(files, ".idx") { // last, because git finds the pack by it
		name := "pack-" + pack.Hash + x
		if err := linkOrCopy(filepath.Join(packDir(c.Dir), name), filepath.Join(c.packs, name)); err != nil {
			return fmt.Errorf("add pack %s: %w", pack.ID, err)
		}
	}
	return nil
}

// Remove removes the directory, in the background.
func (c *Copy) Remove() {
	if c.set.discard(c.Dir) != nil {
		_ = os.RemoveAll(c.Dir)
	}
}
