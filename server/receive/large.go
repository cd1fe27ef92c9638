package receive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Limits of new objects in bytes. Readers of the repository, such as git log and the list of sessions, read commits and trees as a whole.
// A pack of a few KiB can contain a commit of many MiB.
const (
	maxCommit = 1 << 20 // of a commit or tag
	maxTree   = 16 << 20
)

// tooLarge returns an error if the pushed pack contains a commit, tag or tree that is too large.
func (p *Push) tooLarge(ctx context.Context) error {
	err := p.eachAdded(ctx, func(id object.ID, t object.Type, size int64) error {
		switch {
		case (t == object.Commit || t == object.Tag) && size > maxCommit:
			return fmt.Errorf("%s %s has %d bytes, and can have %d", t, id, size, maxCommit)
		case t == object.Tree && size > maxTree:
			return fmt.Errorf("tree %s has %d bytes, and can have %d", id, size, maxTree)
		}
		return nil
	})
	return err
}

// eachAdded calls a function with the objects of the pushed pack, until it returns an error.
func (p *Push) eachAdded(ctx context.Context, do func(id object.ID, t object.Type, size int64) error) error {
	added, err := p.copy.Added()
	if err != nil || len(added) == 0 {
		return p.failIf(err)
	}
	format, err := object.ParseFormat(p.copy.Repo.ObjectFormat)
	if err != nil {
		return p.failIf(err)
	}
	packs, err := odb.Open(filepath.Join(p.copy.Dir, "objects"), format)
	if err != nil {
		return p.failIf(err)
	}
	defer packs.Close()
	for _, hash := range added {
		text, err := os.ReadFile(filepath.Join(p.copy.Packs(), "pack-"+hash+".idx"))
		if err != nil {
			return p.failIf(err)
		}
		index, err := odb.ParseIndex(text, format)
		if err != nil {
			return p.failIf(err)
		}
		for i := range index.Len() {
			if err := ctx.Err(); err != nil {
				return p.failIf(err)
			}
			id, err := index.ID(i)
			if err != nil {
				return p.failIf(err)
			}
			t, size, err := packs.Size(id)
			if err != nil {
				return p.failIf(err)
			}
			if err := do(id, t, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// failIf records an error of the server, if there is one.
func (p *Push) failIf(err error) error {
	if err == nil {
		return nil
	}
	return p.fail(err)
}
