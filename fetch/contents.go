package fetch

import (
	"io"
)

// Content is the verified contents of one blob. It stays readable until Release, even if the cache
// evicts the blob.
type Content interface {
	io.ReaderAt
	// Size returns the length of the contents in bytes.
	Size() int64
	// Release allows the cache to remove the file below. ReadAt must not be called after it.
	Release()
}

// memoryContent is small contents in memory.
type memoryContent []byte

// ReadAt copies from off. Like every io.ReaderAt, it returns io.EOF for a read beyond the end.
func (c memoryContent) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(c)) {
		return 0, io.EOF
	}
	n := copy(p, c[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (c memoryContent) Size() int64 { return int64(len(c)) }

// Release does nothing: the garbage collector owns the memory.
func (c memoryContent) Release() {}

var _ Content = memoryContent(nil)

// contentReader reads contents from the start and releases them on Close.
type contentReader struct {
	io.Reader
	c Content
}

func (r contentReader) Close() error {
	r.c.Release()
	return nil
}
