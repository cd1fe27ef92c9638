package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// bigFile is the index entry of a big file, which contains only one blob.
type bigFile struct {
	size     int64        // size of the contents in bytes
	used     atomic.Int64 // time of last use, Unix nanoseconds
	stamped  atomic.Int64 // time of last use that was last written to the file's mtime, Unix nanoseconds
	verified uint64       // number of the inode whose contents this process has verified; protected by catalog.mu
}

// readBigHeader reads the header at the end of a big file, and the file's attributes. It returns false if the header
// is invalid, or does not match the id or the size of the file.
func readBigHeader(f *os.File, id object.ID) (header, unix.Stat_t, bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size < headerSize || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return header{}, st, false
	}
	var buf [headerSize]byte
	if _, err := f.ReadAt(buf[:], st.Size-headerSize); err != nil {
		return header{}, st, false
	}
	h, ok := parseHeader(buf[:])
	return h, st, ok && h.id == id && h.size == st.Size-headerSize
}

// openBig opens the big file of a blob, which another process may have stored. It returns nil if there is no such file.
// When this process opens the file for the first time, openBig reads all of the contents and verifies them.
func (b *Blobs) openBig(id object.ID) *Content {
	b.catalog.mu.RLock()
	closed := b.catalog.closed
	b.catalog.mu.RUnlock()
	if closed || id.IsZero() {
		return nil
	}
	// Look for the file even if the index does not contain the blob, because another process may have stored the file.
	f, err := os.Open(b.folder.bigPath(id))
	if err != nil {
		b.catalog.forgetBig(id)
		return nil
	}
	h, st, good := readBigHeader(f, id)
	b.catalog.mu.RLock()
	known := b.catalog.big[id]
	verified := known != nil && known.verified == st.Ino
	b.catalog.mu.RUnlock()
	if good && !verified {
		buf := checkBuffers.Get().(*[64 << 10]byte)
		crc, err := checksum(f, 0, h.size, 0, buf[:])
		good = err == nil && crc == h.crc
		if good && b.folder.foreign {
			good, err = hasHash(f, 0, id, h.size, buf[:])
			good = good && err == nil
		}
		checkBuffers.Put(buf)
	}
	// The contents are damaged, or are incomplete after a crash. Remove the file, so that the blob will be fetched again.
	if !good {
		f.Close()
		b.folder.removeBroken(id)
		b.catalog.forgetBig(id)
		b.catalog.damaged.Add(1)
		return nil
	}
	known = b.catalog.enterBig(id, h.size, time.Unix(st.Mtim.Unix()), st.Ino)
	b.touch(&known.used, &known.stamped, f)
	return &Content{file: f, size: h.size}
}

// evictBig deletes a big file and returns the number of bytes freed. If a Content has the file open, the contents can
// still be read through this Content.
func (b *Blobs) evictBig(id object.ID) int64 {
	if err := os.Remove(b.folder.bigPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	return b.catalog.forgetBig(id)
}

// putBig stores contents that are too large for a segment and are in memory. It writes them to a big file.
func (b *Blobs) putBig(id object.ID, data []byte) error {
	f, err := b.Spool(int64(len(data)))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	// The disk may be full although Spool found enough space, because other programs also write to it.
	if isFull(err) && b.makeRoom(int64(len(data))) {
		_, err = f.WriteAt(data, 0)
	}
	if err != nil {
		b.folder.discard(f)
		return err
	}
	return b.PutFile(id, f, int64(len(data)))
}

// Spool creates a temporary file, on the file system of the cache, for contents of about size bytes. The caller writes
// the contents to the file and then calls PutFile. If the caller closes the file without calling PutFile, the file is
// deleted: at once if the file system supports unnamed files, otherwise by the next OpenBlobs or Collect. If the disk
// has too little space, Spool first evicts other contents; if that does not free enough space, the error wraps
// unix.ENOSPC.
func (b *Blobs) Spool(size int64) (*os.File, error) {
	f, err := b.folder.temp()
	if errors.Is(err, fs.ErrNotExist) { // create the directories again, because another process has deleted them
		if err = b.folder.makeDirs(); err == nil {
			f, err = b.folder.temp()
		}
	}
	if err == nil {
		if err = b.ensureFree(f, size+headerSize); err != nil {
			b.folder.discard(f)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write blob to a temporary file: %w", err)
	}
	return f, nil
}

// ensureFree evicts contents until the disk has size bytes free. If evicting all contents would not free enough space,
// it evicts nothing and returns unix.ENOSPC, because the remote has stated the size and may be wrong.
func (b *Blobs) ensureFree(f *os.File, size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("read free space: %w", err)
	}
	free := int64(st.Bavail) * st.Bsize
	if st.Blocks == 0 || size <= free { // a file system that reports 0 blocks does not report its size
		return nil
	}
	b.catalog.mu.RLock()
	used := b.catalog.bytes
	b.catalog.mu.RUnlock()
	if size-free > used || !b.makeRoom(size-free) {
		return fmt.Errorf("reserve %d bytes on the disk: only %d are free: %w", size, free, unix.ENOSPC)
	}
	return nil
}

// link links an unnamed file to a path. It returns EEXIST if the path exists.
func link(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, proc.FDPath(f), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("link cache file %s: %w", filepath.Base(path), err)
	}
	return nil
}

// PutFile stores the first size bytes of f, a file that Spool returned, as the contents of blob id. The caller has
// verified the contents. PutFile closes f, even if it returns an error.
func (b *Blobs) PutFile(id object.ID, f *os.File, size int64) error {
	defer b.folder.discard(f)
	if _, ok := b.catalog.knownSize(id); ok {
		return nil
	}
	if err := b.adopt(id, f, size); err != nil {
		return fmt.Errorf("put blob %s: %w", id, err)
	}
	b.evictOver(id)
	return nil
}

// adopt truncates a temporary file to size bytes, appends the header, links the file to its final path and adds it to
// the index.
func (b *Blobs) adopt(id object.ID, f *os.File, size int64) error {
	b.catalog.mu.RLock()
	closed := b.catalog.closed
	b.catalog.mu.RUnlock()
	switch {
	case closed:
		return ErrClosed
	case id.IsZero():
		return errNoID
	}
	// If the file were shorter than the size in its header, a later reader would treat the contents as damaged.
	if have, _ := linked(f); have < size {
		return fmt.Errorf("spooled file has only %d bytes, but must have at least %d", have, size)
	}
	buf := checkBuffers.Get().(*[64 << 10]byte)
	defer checkBuffers.Put(buf)
	crc, err := checksum(f, 0, size, 0, buf[:])
	if err != nil {
		return err
	}
	head := header{id, size, crc}.encode()
	// The file may have more than size bytes.
	if err := f.Truncate(size); err != nil {
		return err
	}
	_, err = f.WriteAt(head, size)
	if isFull(err) && b.makeRoom(headerSize) {
		_, err = f.WriteAt(head, size)
	}
	if err != nil {
		return err
	}
	if err := b.folder.name(f, b.folder.bigPath(id)); err != nil {
		return err
	}
	b.catalog.enterBig(id, size, time.Now(), 0)
	return nil
}
