package read

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Content is an object with its contents.
type Content struct {
	Object
	Bytes []byte // nil if the object is larger than the limit
}

// Contents reads objects, each of which is named by an id, or by the id of a commit or tree, a colon and a path. It
// calls do with each of them in the order of their names. An object that does not exist has the ID "". Contents that
// are larger than limit are not read.
func (r Repo) Contents(ctx context.Context, names []string, limit int64, do func(i int, c Content)) error {
	done := 0 // a process of the pool may have ended; then the rest is read by another one
	return r.use(ctx, func(b *batch) (bool, error) {
		for ; done < len(names); done++ {
			c, err := b.small(names[done], limit)
			if err != nil {
				return false, err
			}
			do(done, c)
		}
		return false, nil
	})
}

// small reads an object that is not larger than limit.
func (b *batch) small(name string, limit int64) (Content, error) {
	id, path, inTree := strings.Cut(name, ":")
	if !object.ValidID(id) || inTree && !validPath(path) {
		return Content{}, nil
	}
	o, err := b.info(name)
	switch {
	case errors.Is(err, ErrNotFound):
		return Content{}, nil
	case err != nil || o.Size > limit:
		return Content{Object: o}, err
	}
	if o, err = b.contents(o.ID); err != nil {
		return Content{}, err
	}
	c := Content{o, make([]byte, o.Size)}
	if _, err := io.ReadFull(b.out, c.Bytes); err != nil {
		return Content{}, b.failed(err)
	}
	return c, b.finish()
}

// Commit returns the header of a commit. The result ok is false if the object is missing or is not a commit.
func (c Content) Commit() (info object.CommitInfo, ok bool) {
	id, err := object.ParseID(c.ID)
	if err != nil || c.Type != "commit" {
		return object.CommitInfo{}, false
	}
	info, err = object.ParseCommit(id.Format(), c.Bytes)
	return info, err == nil
}
