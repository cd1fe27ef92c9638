package capture

import (
	"context"
	"errors"
)

// errUnpinned says that a file is larger than those whose contents were asked for.
var errUnpinned = errors.New("content was not kept")

func (c *Capturer) converts(path string) bool { return c.o.Converts != nil && c.o.Converts(path) }

func (c *Capturer) clean(ctx context.Context, e *edit, list []source) error {
	return errors.ErrUnsupported
}
