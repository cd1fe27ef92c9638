package fetch

import (
	"bytes"
	"io"
)

// Content is the verified contents of one blob. It can be read until Release is called, even if the cache evicts the
// blob.
type Content interface {
	io.ReaderAt
	// Size returns the length of the contents in bytes.
	Size() int64
	// Release allows the cache to remove the file that stores the contents. ReadAt must not be called afterwards.
	Release()
}

// memoryContent is a Content whose bytes are in memory. It is used for small files.
type memoryContent struct{ *bytes.Reader }

func inMemory(data []byte) Content { return memoryContent{bytes.NewReader(data)} }

// Release does nothing, because the garbage collector frees the memory.
func (c memoryContent) Release() {}

// contentReader reads a Content from its start and releases it on Close.
type contentReader struct {
	io.Reader
	c Content
}

func (r contentReader) Close() error {
	r.c.Release()
	return nil
}
