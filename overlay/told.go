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
	"github.com/artifactfs/artifactfs/overlay/state"
)

// told is the file in which the kernel's look-ups of own nodes are counted, in the order of their slots (package state).
// It is mapped, so that it is right whenever the process dies; who takes the mount over goes on with it, and who serves
// another begins it anew. The host's death ends it too: no kernel knows anything then.
type told struct {
	file  disk.File
	taken int64 // bytes of the file that have their disk space
	maps  [][]byte
}

// toldHeader is at the start of the file, in the byte order of the host.
type toldHeader struct {
	magic   [8]byte
	version uint32
	_       uint32
	boot    [40]byte // which run of the host's kernel wrote to it
}

const (
	toldVersion = 1
	toldStart   = 4096 // where the counts begin: they are mapped
)

var toldMagic = [8]byte{'A', 'F', 'S', 'l', 'o', 'o', 'k', 's'}

func toldHeaderOf(boot string) *toldHeader {
	h := &toldHeader{magic: toldMagic, version: toldVersion}
	copy(h.boot[:], boot)
	return h
}

// beginTold makes a file in which nothing is counted yet.
func beginTold(on disk.FS, path, boot string) (*told, error) {
	if err := on.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := on.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(toldHeaderOf(boot).bytes(), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &told{file: f}, nil
}

// resumeTold opens the counts of a process before; ok is false if there are none of this run of the host's kernel.
func resumeTold(on disk.FS, path, boot string) (t *told, ok bool, err error) {
	f, err := on.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var h toldHeader
	_, err = f.ReadAt(h.bytes(), 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, errors.Join(err, f.Close())
	}
	if h != *toldHeaderOf(boot) {
		return nil, false, f.Close()
	}
	st, err := f.Stat()
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return &told{file: f, taken: st.Size()}, true, nil
}

func (h *toldHeader) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Sizeof(*h))
}

// memory is a state.Memory. The disk space is taken here: to count a look-up cannot fail.
func (t *told) memory(off int64) ([]byte, error) {
	off += toldStart
	if off+state.CountChunk > t.taken { // to take a mount over must not fail on a full disk
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

func (t *told) close() {
	if t == nil || t.file == nil {
		return
	}
	for _, m := range t.maps {
		_ = t.file.Unmap(m) // it is the kernel's memory, and nobody reads it any more
	}
	_ = t.file.Close()
	*t = told{}
}

// lockWait is how long a dead process may take to give its locks free: until the last of its threads has ended.
const lockWait = 5 * time.Second

// takeLock takes the overlay's lock.
func (l *Layer) takeLock() error {
	path := filepath.Join(l.dir, "lock")
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		unlock, err := disk.TryLock(path)
		switch {
		case err == nil:
			l.lock = unlock
			return nil
		case !errors.Is(err, disk.ErrLocked):
			return err
		case !l.o.TakeOver || time.Since(start) > lockWait:
			return fmt.Errorf("%w", ErrInUse)
		}
	}
}
