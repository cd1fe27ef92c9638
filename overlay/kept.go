package overlay

import (
	"bytes"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// Kept is a file or symbolic link that a checkpoint has yet to hold, though it was removed or overwritten. The record is
// part of the update that took it away, so after a kill or a power cut both are there or neither is. Its content stays in
// contents/ as long as this process has the Pin; what is on record without one when the layer is opened gets another.
type Kept = state.Kept

// MaxKeptPath is the length of the longest path of a Kept, in bytes.
const MaxKeptPath = state.MaxKeptPath

// KeptFile is a Kept that was found when the layer was opened.
type KeptFile struct {
	Kept
	Pin *Pin // nil of a symbolic link
}

// PinKept pins the content of an inode for the Kept with an id.
func (l *Layer) PinKept(in Inode, id uint64) *Pin {
	p := l.Pin(in)
	p.kept.Store(id)
	return p
}

// unkeepChanged takes a Kept off the record whose content is about to be changed at an offset, since the file has another
// name or is open: its pin can still be read, but not by another process.
func (l *Layer) unkeepChanged(p *Pin, off int64) {
	if off >= p.size {
		return
	}
	if id := p.kept.Swap(0); id != 0 {
		if err := l.tryUpdate(func(tx *Tx) error { tx.Unkeep(id, id); return nil }); err != nil {
			l.log.Warn("a removed file is on record that is being changed", zap.Error(err))
		}
	}
}

// Keep adds a Kept, or replaces the one with its ID. Its content must be pinned.
func (tx *Tx) Keep(k Kept) { tx.batch.Keep(k) }

// Unkeep removes all Kept whose IDs are from first to last. Their contents go when they are dead and without a pin.
func (tx *Tx) Unkeep(first, last uint64) { tx.batch.Unkeep(first, last) }

// Keeps reports whether there is a Kept on record.
func (l *Layer) Keeps() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Totals().Kept > 0
}

// keptNow returns what is kept and can be read. The rest is no longer on record.
func (l *Layer) keptNow(start Start) (found []KeptFile, err error) {
	var gone []uint64
	for _, k := range l.state.Kept() {
		if k.Content == 0 {
			found = append(found, KeptFile{Kept: k})
			continue
		}
		info, ok, err := l.contents.stat(k.Content)
		if err != nil {
			return nil, err
		}
		if ok && start == PowerLoss {
			k.Size = info.Size() // as of any file that was not synced
		}
		if !ok || k.Size == 0 || info.Size() < k.Size || start == PowerLoss && k.Copied {
			gone = append(gone, k.ID)
			continue
		}
		found = append(found, KeptFile{k, l.PinKept(Inode{Content: k.Content, Size: k.Size}, k.ID)})
	}
	if len(gone) == 0 {
		return found, nil
	}
	l.log.Warn("removed files that no checkpoint has are lost", zap.Int("files", len(gone)))
	return found, l.update(func(tx *Tx) error {
		for _, id := range gone {
			tx.Unkeep(id, id)
		}
		return nil
	})
}

// Overwrites returns whether bytes that were written before would not be the same after p is written at off. A hole has
// none of those: the kernel may write back the end of a new file before its beginning.
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

// onlyHoles returns whether p differs from the old bytes at off only where those are of holes. f.mu is held.
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

// CopiedWithin returns whether KeepCopy has copied the content within a time.
func (f *File) CopiedWithin(within time.Duration) bool {
	at := f.copied.Load()
	return at != 0 && f.l.clock()-at < int64(within)
}

// SetAside empties a file that is about to be cut to nothing, and leaves its content as it is: the file begins another one.
// keep is called in the update that does so, with the content's number and size; it pins it and calls Tx.Keep, or returns
// false if it does not want it, and the file stays as it is.
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
	number, err := l.newNumber()
	if err != nil {
		return err
	}
	data, err := l.contents.create(number) // not by withRoom: the room of what is kept must not be taken for it
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
	_ = f.data.Close() // nothing is promised of it that fsync has not been asked for
	f.install(number, data, 0, true)
	f.writes.Store(l.clock())
	return nil
}

// KeepCopy copies the content before it is changed, unless that was done within a time. keep is called in the update that
// makes the copy, with its number and size; it pins it and calls Tx.Keep, or returns false if it does not want it.
func (f *File) KeepCopy(within time.Duration, most int64, keep func(tx *Tx, number uint64, size int64) bool) error {
	l := f.l
	if f.CopiedWithin(within) {
		return nil
	}
	f.mu.Lock() // no other write comes between
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
	f.copied.Store(l.clock()) // also if it fails: a full disk is not asked with every write
	number, err := l.newNumber()
	if err != nil {
		return err
	}
	to, err := l.contents.create(number) // not by withRoom: there is no other room to be made for a copy
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
