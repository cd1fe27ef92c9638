package cache

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Content provides the contents of one blob. They can be read until Release is called, even if the cache evicts the
// blob.
type Content struct {
	file *os.File
	// The field segment is the segment that contains the blob. The Content holds the segment until Release, so that its
	// file stays open.
	segment  *segment // nil if the blob is stored in a big file
	off      int64    // offset of the contents in file, in bytes
	size     int64    // size of the contents in bytes
	released atomic.Bool
}

var _ io.ReaderAt = (*Content)(nil)

// ReadAt reads contents from the offset off, as io.ReaderAt requires. It returns io.ErrUnexpectedEOF if another program
// has truncated the file.
func (c *Content) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read cached contents: negative offset %d", off)
	}
	if off >= c.size {
		return 0, io.EOF
	}
	// io.ReaderAt requires an error if ReadAt returns fewer than len(p) bytes.
	short := int64(len(p)) > c.size-off
	if short {
		p = p[:c.size-off]
	}
	n, err := c.file.ReadAt(p, c.off+off)
	switch {
	case err == io.EOF: // another program has truncated the file
		err = io.ErrUnexpectedEOF
	case err == nil && short:
		return n, io.EOF
	}
	if err != nil {
		return n, fmt.Errorf("read cached contents: %w", err)
	}
	return n, nil
}

// Size returns the size of the contents in bytes.
func (c *Content) Size() int64 { return c.size }

// Release ends the use of the Content, which must not be read after this call. Further calls of Release do nothing.
func (c *Content) Release() {
	// Release the segment only once: a second release could close the file while other goroutines still read the segment.
	if !c.released.CompareAndSwap(false, true) {
		return
	}
	if c.segment != nil {
		c.segment.release()
		return
	}
	c.file.Close()
}
