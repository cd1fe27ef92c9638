package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// errNoID is the error for the zero id, which never identifies a blob.
var errNoID = errors.New("object ID is empty")

// Put stores the contents of the blob id, which the caller has verified. If the disk is full, Put evicts other contents
// and tries once more. If the second attempt fails because the disk is still full, the error wraps unix.ENOSPC or
// unix.EDQUOT, and nothing is stored.
func (b *Blobs) Put(id object.ID, data []byte) error {
	if _, ok := b.catalog.knownSize(id); ok {
		return nil
	}
	var err error
	switch {
	case id.IsZero():
		err = errNoID
	case len(data) > maxSmall:
		err = b.putBig(id, data)
	default:
		err = b.putSmall(id, data)
	}
	if err != nil {
		return fmt.Errorf("put blob %s: %w", id, err)
	}
	b.evictOver(id)
	return nil
}

// putSmall appends contents of at most maxSmall bytes to the active segment. If the disk is full, putSmall evicts
// other contents and tries once more.
func (b *Blobs) putSmall(id object.ID, data []byte) error {
	b.append.Lock()
	defer b.append.Unlock()
	err := b.append.appendRecord(id, data)
	if isFull(err) && b.makeRoomLocked(headerSize+int64(len(data))) {
		err = b.append.appendRecord(id, data)
	}
	return err
}

// Blob is the id and the contents of a blob.
type Blob struct {
	ID   object.ID
	Data []byte
}

// PutAll stores the contents of blobs, which the caller has verified, with as few system calls as possible. After an
// error, which may mean that the disk is full, some of them may not be stored; Put would make room for these.
func (b *Blobs) PutAll(blobs []Blob) error {
	small := make([]Blob, 0, len(blobs))
	for _, blob := range blobs {
		if !blob.ID.IsZero() && len(blob.Data) <= maxSmall {
			small = append(small, blob)
		} else if err := b.Put(blob.ID, blob.Data); err != nil {
			return err
		}
	}
	if len(small) == 0 {
		return nil
	}
	b.append.Lock()
	err := b.append.appendRecords(small)
	b.append.Unlock()
	if err != nil {
		return fmt.Errorf("put %d blobs: %w", len(small), err)
	}
	b.evictOver(small[0].ID)
	return nil
}

// writeFull writes parts to f at the offset off, and returns the offset of the end of what was written. It uses one
// system call unless the kernel writes only some of the bytes. It changes parts.
func writeFull(f *os.File, off int64, parts [][]byte) (end int64, err error) {
	for {
		n, err := unix.Pwritev(int(f.Fd()), parts, off)
		// A signal may interrupt the call before it has written a byte; n is then -1.
		if err != nil && !errors.Is(err, unix.EINTR) {
			return off, fmt.Errorf("append to cache file %s: %w", filepath.Base(f.Name()), err)
		}
		off += int64(max(n, 0))
		for len(parts) > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if len(parts) == 0 {
			return off, nil
		}
		parts[0] = parts[0][max(n, 0):]
	}
}

// leastNoted is the minimum number of new records for which the sidecar is rewritten. A process that opens the segment
// reads the records that the sidecar does not list one by one, which takes about 3 us each.
const leastNoted = 256
