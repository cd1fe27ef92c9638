// Package cache keeps what can be had again: verified contents on disk, sizes, and parsed trees in memory.
package cache

import (
	"errors"
	"os"

	"github.com/artifactfs/artifactfs/object"
)

// Blobs keeps verified contents on disk within a quota. Several processes may share its directory.
type Blobs struct{ quota int64 }

// Usage is what a cache holds.
type Usage struct {
	Blobs int   // contents that can be read
	Bytes int64 // on disk, with framing
	Quota int64 // bytes
}

// Content is one blob's content. It stays readable until Release, even if it is evicted meanwhile.
type Content struct {
	file *os.File
	off  int64
	size int64
}

// OpenBlobs opens or makes the cache in dir. Quota is in bytes.
func OpenBlobs(dir string, quota int64) (*Blobs, error) { return nil, errors.New("open blobs") }

// Get finds a content.
func (b *Blobs) Get(id object.ID) (*Content, bool) { return nil, false }

// Size is the size of a content in bytes if it is here.
func (b *Blobs) Size(id object.ID) (int64, bool) { return 0, false }

// Put keeps a content that the caller has verified.
func (b *Blobs) Put(id object.ID, data []byte) error { return nil }

// Spool makes a temporary file on the cache's file system for a content of about size bytes. It vanishes when
// it is closed without PutFile.
func (b *Blobs) Spool(size int64) (*os.File, error) { return nil, errors.New("spool") }

// PutFile keeps the first size bytes of a file from Spool, verified by the caller. It closes f in any case.
func (b *Blobs) PutFile(id object.ID, f *os.File, size int64) error { return f.Close() }

// Usage is cheap.
func (b *Blobs) Usage() Usage { return Usage{} }

// SetQuota changes the quota in bytes; it takes effect with the next Put or Collect.
func (b *Blobs) SetQuota(quota int64) {}

// Collect evicts until at most keep bytes are left and says how many bytes it freed.
func (b *Blobs) Collect(keep int64) (freed int64, err error) { return 0, nil }

// Close ends the use of the cache; contents still held stay readable.
func (b *Blobs) Close() error { return nil }

// ReadAt reads from the content.
func (c *Content) ReadAt(p []byte, off int64) (int, error) { return c.file.ReadAt(p, off+c.off) }

// Size is the content's size in bytes.
func (c *Content) Size() int64 { return c.size }

// File gives the descriptor and the offset at which the content starts, for splicing. Read no further than Size.
func (c *Content) File() (fd uintptr, off int64) { return c.file.Fd(), c.off }

// Release ends the use of the content.
func (c *Content) Release() {}
