package overlay

import (
	"bytes"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Kept records a removed or overwritten file or symbolic link that no checkpoint contains yet. The update that removes
// the file also writes the record, so after a kill or a power cut either both changes have been made or neither. The
// contents file is not removed while this process holds the Pin, and Open pins the contents of every record that it
// finds.
type Kept = state.Kept

// MaxKeptPath is the maximum length in bytes of Kept.Path.
const MaxKeptPath = state.MaxKeptPath

// KeptFile is a Kept record that Open found, with a pin of its contents.
type KeptFile struct {
	Kept
	Pin *Pin // pin of the contents; nil for a symbolic link
}

// PinKept pins the contents of an inode for the Kept record with this ID.
func (l *Layer) PinKept(in Inode, id uint64) *Pin {
	p := l.Pin(in)
	p.kept.Store(id)
	return p
}

// unkeepChanged removes the pin's Kept record from the log if a change at the offset off affects the pinned contents.
// Such a change is possible if the file has another name or is open. This process can still read the old bytes through
// the pin, but after its death no process could read them.
func (l *Layer) unkeepChanged(p *Pin, off int64) {
	if off >= p.size {
		return
	}
	if id := p.kept.Swap(0); id != 0 {
		if err := l.tryUpdate(func(tx *Tx) error { tx.Unkeep(id, id); return nil }); err != nil {
			l.log.Warn("update record of removed files", zap.Error(err))
		}
	}
}

// Keep adds a Kept record, or replaces the record with the same ID. The caller must pin the contents.
func (tx *Tx) Keep(k Kept) { tx.batch.Keep(k) }

// Unkeep removes all Kept records with IDs from first to last, inclusive. Their contents files are removed once they
// are dead and have no pins.
func (tx *Tx) Unkeep(first, last uint64) { tx.batch.Unkeep(first, last) }

// Keeps reports whether there are Kept records.
func (l *Layer) Keeps() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Totals().Kept > 0
}

// keptNow returns the Kept records whose contents can be read, and removes all other Kept records from the log.
func (s *opening) keptNow(start Start) (found []KeptFile, err error) {
	var gone []uint64
	for _, k := range s.l.state.Kept() {
		if k.Content == 0 {
			found = append(found, KeptFile{Kept: k})
			continue
		}
		info, ok, err := s.l.contents.stat(k.Content)
		if err != nil {
			return nil, err
		}
		if ok && start == PowerLoss {
			k.Size = info.Size() // the size recorded in the log may differ if the file was not synced
		}
		if !ok || k.Size == 0 || info.Size() < k.Size || start == PowerLoss && k.Copied {
			gone = append(gone, k.ID)
			continue
		}
		found = append(found, KeptFile{k, s.l.PinKept(Inode{Content: k.Content, Size: k.Size}, k.ID)})
	}
	if len(gone) == 0 {
		return found, nil
	}
	s.l.log.Warn("drop removed files that are in no checkpoint", zap.Int("files", len(gone)))
	return found, s.l.update(func(tx *Tx) error {
		for _, id := range gone {
			tx.Unkeep(id, id)
		}
		return nil
	})
}

// Overwrites reports whether a write of p at the offset off would change bytes that were written before. A write into a
// hole does not count, because the kernel may write back the end of a new file before the file's beginning.
func (f *File) Overwrites(p []byte, off int64) bool {
	if err := f.rlock(); err != nil {
		return false
	}
	defer f.mu.RUnlock()
	size := f.size.Load()
	if f.place != inContent || off >= size {
		return false
	}
	old := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(old)
	for p = p[:min(int64(len(p)), size-off)]; len(p) > 0; {
		n, err := f.data.ReadAt(old[:min(len(p), len(old))], off)
		if n == 0 || err != nil && err != io.EOF {
			return true
		}
		if !bytes.Equal(old[:n], p[:n]) && !f.onlyHoles(old[:n], p[:n], off) {
			return true
		}
		p, off = p[n:], off+int64(n)
	}
	return false
}

// onlyHoles reports whether p differs from the old bytes at the offset off only where the file has holes. The caller
// holds f.mu.
func (f *File) onlyHoles(old, p []byte, off int64) bool {
	end := off + int64(len(old))
	for at := off; at < end; {
		data, err := f.data.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
			return true
		}
		if err != nil {
			return false
		}
		hole, err := f.data.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return false
		}
		at = min(hole, end)
		if !bytes.Equal(old[data-off:at-off], p[data-off:at-off]) {
			return false
		}
	}
	return true
}

// CopiedWithin reports whether the time since the last copy by KeepCopy is shorter than the duration in the parameter
// within.
func (f *File) CopiedWithin(within time.Duration) bool {
	at := f.copied.Load()
	return at != 0 && f.l.clock()-at < int64(within)
}

// SetAside prepares a file for a truncation to size zero: it gives the file a new, empty contents file, and leaves the
// old contents file unchanged. It does nothing if the contents are empty or longer than the number of bytes in the
// parameter most. In the same update it calls the function keep with the number and the size of the old contents file.
// The function keep either pins the old contents file, calls Tx.Keep and returns true, or it returns false, and the
// file stays unchanged.
func (f *File) SetAside(most int64, keep func(tx *Tx, number uint64, size int64) bool) error {
	l := f.l
	l.cut.RLock()
	defer l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		return err
	}
	size := f.size.Load()
	if f.place != inContent || size == 0 || size > most {
		return nil
	}
	// without room, because on a full disk pinned contents would be given up to make space
	number, data, err := l.create(false)
	if err != nil {
		return err
	}
	wanted := false
	err = l.tryUpdate(func(tx *Tx) error {
		if wanted = keep(tx, f.number, size); !wanted {
			return nil
		}
		tx.dead = append(tx.dead, f.number)
		return f.adopted(tx, number, 0, f.fresh()|state.FlagDirty)
	})
	if err != nil || !wanted {
		_ = data.Close()
		l.discard(number)
		return err
	}
	f.install(number, data, 0, true)
	f.writes.Store(l.clock())
	return nil
}

// KeepCopy copies the contents before they are changed. It does nothing if the time since the last copy is shorter than
// the duration in the parameter within, or if the contents are empty or longer than the number of bytes in the
// parameter most. In the update that records the copy, it calls the function keep with the number and the size of the
// copy. The function keep either pins the copy, calls Tx.Keep and returns true, or it returns false, and the copy is
// discarded.
func (f *File) KeepCopy(within time.Duration, most int64, keep func(tx *Tx, number uint64, size int64) bool) error {
	l := f.l
	if f.CopiedWithin(within) {
		return nil
	}
	f.mu.Lock() // lock the file, so that no write changes the contents during the copy
	defer f.mu.Unlock()
	if f.CopiedWithin(within) {
		return nil
	}
	if err := f.load(); err != nil {
		return err
	}
	size := f.size.Load()
	if f.place != inContent || size == 0 || size > most {
		return nil
	}
	// set the time even if the copy fails, so that on a full disk not every write tries to copy the file
	f.copied.Store(l.clock())
	for {
		if err := f.keepCopy(size, keep); !errors.Is(err, ErrSealed) {
			return err
		}
	}
}

// keepCopy does the work of KeepCopy, and returns ErrSealed if the copy was sealed before the log names it: Reclaim may
// then have removed the copy. The caller holds f.mu exclusively.
func (f *File) keepCopy(size int64, keep func(tx *Tx, number uint64, size int64) bool) error {
	l := f.l
	// without room, because on a full disk pinned contents would be given up to make space
	number, to, err := l.create(false)
	if err != nil {
		return err
	}
	n, err := to.CopyFrom(0, f.data.Own(), 0, size)
	_ = to.Close()
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	wanted := false
	if err == nil {
		err = l.tryUpdate(func(tx *Tx) error {
			if l.contents.isSealed(number) {
				return ErrSealed
			}
			if wanted = keep(tx, number, size); wanted {
				tx.dead = append(tx.dead, number)
			}
			return nil
		})
	}
	if err != nil || !wanted {
		l.discard(number)
	}
	return err
}
