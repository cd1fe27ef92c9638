package receive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// Maximum sizes of new objects in bytes. Readers of the repository, such as git log and the list of sessions, read
// whole commits and trees into memory. A pack of a few KiB can contain a commit of many MiB.
const (
	maxCommit = 1 << 20 // maximum size of a commit or tag
	maxTree   = 16 << 20
)

// Large is the error of an object that is too large.
type Large struct {
	Type object.Type
	ID   object.ID
	Size int64
}

func (l Large) Error() string {
	limit := maxCommit
	if l.Type == object.Tree {
		limit = maxTree
	}
	return fmt.Sprintf("%s %s has %d bytes, and can have %d", l.Type, l.ID, l.Size, limit)
}

// tooLarge returns an error if the pushed pack contains a commit, tag or tree that is too large.
func (p *Push) tooLarge(ctx context.Context) error {
	added, err := p.copy.Added()
	if err == nil {
		err = CheckSizes(ctx, filepath.Join(p.copy.Dir, "objects"), p.copy.Repo.ObjectFormat, added)
	}
	if large := (Large{}); errors.As(err, &large) {
		return large
	}
	return p.failIf(err)
}

// CheckSizes returns an error of type Large if one of the packs with the given hashes in a directory of objects
// contains a commit, tag or tree that is too large.
func CheckSizes(ctx context.Context, objects, format string, hashes []string) error {
	if len(hashes) == 0 {
		return nil
	}
	f, err := object.ParseFormat(format)
	if err != nil {
		return err
	}
	packs, err := odb.Open(objects, f)
	if err != nil {
		return err
	}
	defer packs.Close()
	for _, hash := range hashes {
		text, err := os.ReadFile(filepath.Join(objects, "pack", "pack-"+hash+".idx"))
		if err != nil {
			return err
		}
		index, err := odb.ParseIndex(text, f)
		if err != nil {
			return err
		}
		for i := range index.Len() {
			if err := ctx.Err(); err != nil {
				return err
			}
			id, err := index.ID(i)
			if err != nil {
				return err
			}
			switch t, size, err := packs.Size(id); {
			case err != nil:
				return err
			case (t == object.Commit || t == object.Tag) && size > maxCommit, t == object.Tree && size > maxTree:
				return Large{t, id, size}
			}
		}
	}
	return nil
}

// failIf records err as an error of the server, unless it is nil.
func (p *Push) failIf(err error) error {
	if err == nil {
		return nil
	}
	return p.fail(err)
}
