package fetch

import (
	"io"
)

// Content is the verified contents of one blob. It can be read until Release is called, even if the cache evicts the blob.
type Content interface {
	io.ReaderAt
	// Size returns the length of the contents in bytes.
	Size() int64
	// Release allows the cache to remove the file that stores the contents. ReadAt must not be called afterwards.
	Release()
}

// memoryContent is a Content whose bytes are in memory. It is used for small files.
type memoryContent []byte

// ReadAt copies the bytes from the offset off on into p. Like every io.ReaderAt, it returns io.EOF if fewer than len(p) bytes are left.
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

// Release does nothing, because the garbage collector frees the memory.
func (c memoryContent) Release() {}

var _ Content = memoryContent(nil)

// contentReader reads a Content from its start and releases it on Close.
type contentReader struct {
	io.Reader
	c Content
}

func (r contentReader) Close() error {
	r.c.Release()
	return nil
}
