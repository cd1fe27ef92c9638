package journal

import (
	"errors"
	"os"
	"unsafe"
)

const (
	// slice is the maximum number of records that a rewrite reads or writes each time it holds Journal.mu. The number is
	// limited because changes wait for this lock.
	slice = 1 << 10
	// reserve determines how much of the file is kept free for changes in progress while a rewrite runs: the maximum
	// length divided by reserve. After a failed rewrite, the next rewrite starts when as many further bytes are used.
	reserve = 16
)

// errRestarted means that a rewrite was given up, because the journal was closed or has begun a new epoch.
var errRestarted = errors.New("change journal has begun a new epoch or was closed")

// MakeRoom rewrites the file if it is nearly full. It must be called before each change, by a goroutine that holds no
// locks, because a rewrite reads every record and creates a file. Note must not do this, because the callers of Note
// hold locks. MakeRoom returns at once if there is enough room, or if another goroutine is rewriting the file and there
// is enough room until it has finished.
func (j *Journal) MakeRoom() {
	if j == nil || j.used.Load() < j.rewriteAt.Load() {
		return
	}
	if !j.rewriting.TryLock() {
		if j.used.Load() < int64(j.room-j.room/reserve) {
			return
		}
		j.rewriting.Lock()
	}
	defer j.rewriting.Unlock()
	used := j.used.Load()
	if used < j.rewriteAt.Load() {
		return
	}
	if err := j.rewrite(); err != nil {
		// The disk may be full. As long as the old file has room, records are appended. When it is full, append begins a new
		// epoch.
		j.rewriteAt.Store(used + int64(j.room/reserve))
		return
	}
	j.rewriteAt.Store(j.threshold())
}

// threshold returns the length, in bytes, at which the file is rewritten. A rewrite keeps at most half of the maximum
// length, so each rewrite reads at most three times as many bytes as were written since the previous rewrite.
func (j *Journal) threshold() int64 { return int64(j.room / 4 * 3) }

// rewrite writes some of the records to a new file, which replaces the old file. It keeps the last record of each path.
// If these records are longer than half of the maximum length, it drops the oldest of them. rewrite holds j.mu for one
// slice of records at a time. The old file is complete until the new file is renamed over it, so no record is lost if
// the process dies during the rewrite.
func (j *Journal) rewrite() error {
	r := rewriting{j: j}
	j.mu.Lock()
	r.epoch, r.killed = j.epoch, j.killed
	j.mu.Unlock()
	r.off = headerSize
	if err := errors.Join(r.each(r.index), r.each(r.choose)); err != nil {
		return err
	}
	name := j.path + ".new"
	f, err := j.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := r.next.open(f, j.room, false); err != nil {
		return errors.Join(err, f.Close(), j.fs.Remove(name))
	}
	if err := r.write(name); err != nil {
		return errors.Join(err, r.next.unmap(), j.fs.Remove(name))
	}
	_ = r.old.unmap() // an error has no effect, because the records of the old file are no longer needed
	return nil
}

// rewriting is a rewrite in progress. The strings and offsets in a rewriting refer to the mapped old file, whose
// records do not change within an epoch.
type rewriting struct {
	j             *Journal
	epoch, killed uint64 // values that the journal had when the rewrite began

	offsets []int               // offsets of the records that were found in the old file
	off     int                 // offset after the last of these records
	seen    map[string]struct{} // paths for which a younger record was found
	kept    []int               // offsets of the records that are kept, the youngest first
	size    int                 // length of the kept records and the header, in bytes
	dropped uint64              // number of the last record that the new file does not contain

	next log // log of the new file
	old  log // log of the old file, after the new file has replaced it
}

// each calls the function step until step returns false. It holds j.mu during each call, and releases j.mu between the
// calls. If the journal was closed or has begun a new epoch between two calls, each returns errRestarted.
func (r *rewriting) each(step func() (more bool)) error {
	one := func() (bool, error) {
		r.j.mu.Lock()
		defer r.j.mu.Unlock()
		if r.j.epoch != r.epoch || r.j.closed {
			return false, errRestarted
		}
		return step(), nil
	}
	for {
		if more, err := one(); err != nil || !more {
			return err
		}
	}
}

// index collects the offsets of the next slice of records. It returns false after the last slice.
func (r *rewriting) index() (more bool) {
	for range slice {
		if r.off >= r.j.log.end {
			return false
		}
		r.offsets = append(r.offsets, r.off)
		r.off += recordSize(len(r.j.log.at(r.off).path))
	}
	return true
}

// choose selects the records to keep, from the youngest to the oldest, one slice per call. It returns false when the
// selection is complete.
func (r *rewriting) choose() (more bool) {
	if r.seen == nil {
		r.seen, r.size, r.dropped = make(map[string]struct{}), headerSize, r.j.dropped
	}
	for range slice {
		k := len(r.offsets) - 1
		if k < 0 {
			return false
		}
		rec := r.j.log.at(r.offsets[k])
		path := unsafe.String(&rec.path[0], len(rec.path))
		if _, ok := r.seen[path]; !ok {
			if r.size+recordSize(len(path)) > r.j.room/2 {
				r.dropped = max(r.dropped, rec.number)
				return false
			}
			r.size += recordSize(len(path))
			r.seen[path] = struct{}{}
			r.kept = append(r.kept, r.offsets[k])
		}
		r.offsets = r.offsets[:k]
	}
	return true
}

// write writes the new file: first the selected records, then the records that were appended since the selection. It
// holds j.mu from the copy of the last record until the new file is renamed over the old file. Otherwise a record could
// be appended to the old file and be missing in the new file.
func (r *rewriting) write(name string) error {
	j, next := r.j, &r.next
	if err := next.grow(min(r.size+8, j.room)); err != nil {
		return err
	}
	*next.header() = header{magic: magic, version: version, epoch: r.epoch, dropped: r.dropped,
		killed: r.killed, boot: j.boot}
	next.end = headerSize
	err := r.each(func() bool {
		for range slice {
			k := len(r.kept) - 1
			if k < 0 {
				return false
			}
			next.copy(j.log.at(r.kept[k]))
			r.kept = r.kept[:k]
		}
		return true
	})
	if err != nil {
		return err
	}
	var failed error
	err = r.each(func() bool {
		for range slice {
			if r.off >= j.log.end {
				if failed = j.fs.Rename(name, j.path); failed == nil {
					r.old, j.log, j.dropped = j.log, *next, r.dropped
					j.used.Store(int64(j.log.end))
				}
				return false
			}
			rec := j.log.at(r.off)
			size := recordSize(len(rec.path))
			if next.end+size+8 > j.room {
				failed = errors.New("records that were appended during the rewrite do not fit")
				return false
			}
			if failed = next.grow(next.end + size + 8); failed != nil {
				return false
			}
			next.copy(rec)
			r.off += size
		}
		return true
	})
	return errors.Join(err, failed)
}
