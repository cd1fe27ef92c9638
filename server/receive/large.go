package receive

import (
	"context"
	"errors"
	"fmt"
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

// maxDepth is the maximum number of deltas from which an object is made. It is the longest chain that git writes
// (pack-objects.c). Each read of an object follows its chain, so many objects at the end of a longer one would keep a
// processor busy for hours.
const maxDepth = 4095

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

// Deep is the error of an object that is made from too many deltas.
type Deep struct {
	ID    object.ID
	Depth int
}

func (d Deep) Error() string {
	return fmt.Sprintf("object %s is made from %d deltas, and can be made from %d: repack with a lower depth", d.ID,
		d.Depth, maxDepth)
}

// tooLarge returns an error if the pushed pack contains an object that is too large, or made from too many deltas.
func (p *Push) tooLarge(ctx context.Context) error {
	added, err := p.copy.Added()
	if err == nil {
		err = CheckSizes(ctx, filepath.Join(p.copy.Dir, "objects"), p.copy.Repo.ObjectFormat, added)
	}
	if large := (Large{}); errors.As(err, &large) {
		return large
	}
	if deep := (Deep{}); errors.As(err, &deep) {
		return deep
	}
	return p.failIf(err)
}

// CheckSizes returns an error of type Large or Deep if one of the packs with the given hashes in a directory of objects
// contains a commit, tag or tree that is too large, or an object that is made from too many deltas.
func CheckSizes(ctx context.Context, objects, format string, hashes []string) error {
	f, err := object.ParseFormat(format)
	if err != nil {
		return err
	}
	for _, hash := range hashes {
		var refused error
		err := odb.StatPack(ctx, filepath.Join(objects, "pack", "pack-"+hash), f, func(o odb.ObjectStat) error {
			refused = checkSize(o)
			return refused
		})
		if refused != nil {
			return refused
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkSize(o odb.ObjectStat) error {
	commit := o.Type == object.Commit || o.Type == object.Tag
	switch {
	case commit && o.Size > maxCommit, o.Type == object.Tree && o.Size > maxTree:
		return Large{o.Type, o.ID, o.Size}
	case o.Depth > maxDepth:
		return Deep{o.ID, o.Depth}
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
