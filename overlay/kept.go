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

// Kept records a removed or overwritten file or symbolic link that is not in a checkpoint yet. The record is part of the
// update that removed the file, so after a kill or a power cut either both exist or neither does. The contents stay in
// contents/ while this process holds the Pin; Open pins the contents of every record that it finds.
type Kept = state.Kept

// MaxKeptPath is the maximum length in bytes of Kept.Path.
const MaxKeptPath = state.MaxKeptPath

// KeptFile is a Kept record that Open found, with a pin of its contents.
type KeptFile struct {
	Kept
	Pin *Pin // nil for a symbolic link
}

// PinKept pins an inode's contents for the Kept record with an ID.
func (l *Layer) PinKept(in Inode, id uint64) *Pin {
	p := l.Pin(in)
	p.kept.Store(id)
	return p
}

// unkeepChanged removes the pin's Kept record from the log if a change at offset off affects the pinned contents, which
// happens if the file has another name or is open. This process can still read the old bytes through the pin, another
// process cannot.
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

// Keep adds a Kept record, or replaces the one with the same ID. Its contents must be pinned.
func (tx *Tx) Keep(k Kept) { tx.batch.Keep(k) }

// Unkeep removes all Kept records with IDs from first to last, inclusively. Their contents are removed when they are
// dead and not pinned.
func (tx *Tx) Unkeep(first, last uint64) { tx.batch.Unkeep(first, last) }

// Keeps reports whether there are Kept records.
func (l *Layer) Keeps() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Totals().Kept > 0
}

// keptNow returns the Kept records whose contents can be read, and removes the others from the log.
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
			k.Size = info.Size() // the size of a file that was not synced is that on disk
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

// Overwrites reports whether writing p at off would change bytes that were written before. Writing into a hole does not
// count: the kernel may write back the end of a new file before its beginning.
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

// onlyHoles reports whether p differs from the old bytes at off only within holes. f.mu is held.
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

// CopiedWithin reports whether KeepCopy copied the contents less than within ago.
func (f *File) CopiedWithin(within time.Duration) bool {
	at := f.copied.Load()
	return at != 0 && f.l.clock()-at < int64(within)
}

// SetAside replaces the contents of a file that is about to be truncated to zero by a new empty contents file, and
// leaves the old one unchanged. It does nothing if the contents are empty or longer than the limit most, in bytes. It
// calls keep in the same update with the old contents file's number and size; keep pins it and calls Tx.Keep, or returns
// false, and then the file stays unchanged.
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
	data, err := l.contents.create(number) // not l.create: withRoom would drop pinned contents for it
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
	_ = f.data.Close() // fsync reports write errors; close makes no promise
	f.install(number, data, 0, true)
	f.writes.Store(l.clock())
	return nil
}

// KeepCopy copies the contents before they are changed, unless that was done less than within ago, or they are empty or
// longer than the limit most, in bytes. It calls keep in the update that records the copy, with the copy's number and
// size; keep pins it and calls Tx.Keep, or returns false to discard the copy.
func (f *File) KeepCopy(within time.Duration, most int64, keep func(tx *Tx, number uint64, size int64) bool) error {
	l := f.l
	if f.CopiedWithin(within) {
		return nil
	}
	f.mu.Lock() // excludes other writes during the copy
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
	f.copied.Store(l.clock()) // set even if the copy fails: a full disk must not be tried with every write
	number, err := l.newNumber()
	if err != nil {
		return err
	}
	to, err := l.contents.create(number) // not l.create: withRoom would drop pinned contents for a copy
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
