package cache

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Content is the contents of one blob. They stay readable until Release, even if they are evicted.
type Content struct {
	file *os.File
	// segment is held until Release, so that its file stays open.
	segment  *segment // nil: the file is this content's own
	off      int64    // of the content in file
	size     int64
	released atomic.Bool
}

var _ io.ReaderAt = (*Content)(nil)

// ReadAt implements io.ReaderAt. It returns io.ErrUnexpectedEOF if another program has truncated
// the file.
func (c *Content) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read content: offset %d", off)
	}
	if off >= c.size {
		return 0, io.EOF
	}
	// io.ReaderAt requires an error if fewer bytes are returned than were asked for.
	short := int64(len(p)) > c.size-off
	if short {
		p = p[:c.size-off]
	}
	n, err := c.file.ReadAt(p, c.off+off)
	switch {
	case err == io.EOF: // another program truncated the file
		err = io.ErrUnexpectedEOF
	case err == nil && short:
		return n, io.EOF
	}
	if err != nil {
		return n, fmt.Errorf("read content: %w", err)
	}
	return n, nil
}

// Size returns the size of the contents in bytes.
func (c *Content) Size() int64 { return c.size }

// Release ends the use of the content. Further calls do nothing.
func (c *Content) Release() {
	// A second Release would close the segment's file below other readers.
	if !c.released.CompareAndSwap(false, true) {
		return
	}
	if c.segment != nil {
		c.segment.release()
		return
	}
	c.file.Close()
}
