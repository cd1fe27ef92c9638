package overlay

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// lookupCounts is the file with the kernel's lookup counts of own nodes, in the order of their slots (see package
// state). The file is mapped into memory, so its counts are correct whenever the process dies. A takeover on the same
// boot continues the file. Every other Open creates a new file, because in that case no kernel holds a reference to a
// node.
type lookupCounts struct {
	file disk.File
	// taken is the length in bytes of the part of the file whose disk space is allocated.
	taken int64
	// maps holds the mapped chunks, so that close can unmap them.
	maps [][]byte
}

// lookupHeader is the start of the file. Its numbers are in the byte order of the host.
type lookupHeader struct {
	magic   [8]byte
	version uint32
	_       uint32
	boot    [40]byte // boot ID of the host that wrote the file
}

const (
	lookupVersion = 1
	countsStart   = 4096 // offset of the counts in bytes; a page boundary, because the counts are mapped
)

var lookupMagic = [8]byte{'A', 'F', 'S', 'l', 'o', 'o', 'k', 's'}

// lookupHeaderOf returns the header of a file that is written during a boot of the host.
func lookupHeaderOf(boot string) *lookupHeader {
	h := &lookupHeader{magic: lookupMagic, version: lookupVersion}
	copy(h.boot[:], boot)
	return h
}

// createLookupCounts replaces the file at path by a new one without counts.
func createLookupCounts(on disk.FS, path, boot string) (*lookupCounts, error) {
	if err := on.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := on.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(lookupHeaderOf(boot).bytes(), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lookupCounts{file: f}, nil
}

// openLookupCounts opens the counts file of the previous process. The result ok is false if the file is missing or was
// written in another boot.
func openLookupCounts(on disk.FS, path, boot string) (t *lookupCounts, ok bool, err error) {
	f, err := on.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var h lookupHeader
	_, err = f.ReadAt(h.bytes(), 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, errors.Join(err, f.Close())
	}
	if h != *lookupHeaderOf(boot) {
		return nil, false, f.Close()
	}
	st, err := f.Stat()
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return &lookupCounts{file: f, taken: st.Size()}, true, nil
}

// bytes returns the memory of the header as bytes.
func (h *lookupHeader) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Sizeof(*h))
}

// memory maps the chunk of counts at the offset off in bytes (see state.Memory). It allocates the disk space first,
// because a call that counts a lookup cannot return an error.
func (t *lookupCounts) memory(off int64) ([]byte, error) {
	off += countsStart
	// A takeover must not fail on a full disk, so space that was allocated before is not allocated again.
	if off+state.CountChunk > t.taken {
		if err := t.file.Allocate(0, off, state.CountChunk); err != nil {
			return nil, err
		}
		t.taken = off + state.CountChunk
	}
	m, err := t.file.Map(off, state.CountChunk, disk.MapPopulate)
	if err == nil {
		t.maps = append(t.maps, m)
	}
	return m, err
}

// close unmaps and closes the file. It does nothing on nil.
func (t *lookupCounts) close() {
	if t == nil || t.file == nil {
		return
	}
	for _, m := range t.maps {
		_ = t.file.Unmap(m) // the layer is closed, so nothing refers to this memory
	}
	_ = t.file.Close()
	*t = lookupCounts{}
}

// lockWait is the maximum time for which Open waits for the lock of a dead process. The kernel releases that lock when
// the last thread of the process has ended.
const lockWait = 5 * time.Second

// takeLock locks the overlay. It returns ErrInUse if another process holds the lock: at once, or with Options.TakeOver
// after lockWait.
func (s *opening) takeLock() error {
	path := filepath.Join(s.l.dir, "lock")
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		unlock, err := disk.TryLock(path)
		switch {
		case err == nil:
			s.l.lock = unlock
			return nil
		case !errors.Is(err, disk.ErrLocked):
			return err
		case !s.l.o.TakeOver || time.Since(start) > lockWait:
			return fmt.Errorf("lock overlay: %w", ErrInUse)
		}
	}
}
