package journal

import (
	"errors"
	"os"
	"unsafe"
)

const (
	// slice is how many records a rewrite reads or writes before changes that wait for the journal go on.
	slice = 1 << 10
	// reserve is the part of the room that is left for changes under way while others wait for a rewrite, and that comes
	// to be used between two rewrites that fail.
	reserve = 16
)

// errRestarted is returned by a rewrite of what is no longer in the file.
var errRestarted = errors.New("the journal has begun anew or was closed")

// MakeRoom rewrites the file if it is nearly full. It must be called before each change, without any lock: a rewrite
// reads every record and makes a file, which Note, whose callers hold locks, must not do. It returns at once if there
// is room, or if another goroutine rewrites and there is room until that one has ended.
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
		// The disk may be full. What still fits is noted; after that Note begins a new epoch.
		j.rewriteAt.Store(used + int64(j.room/reserve))
		return
	}
	j.rewriteAt.Store(j.threshold())
}

// threshold is the length of the file from which it is rewritten. What a rewrite keeps takes half of the room at most,
// so that each reads at most three times what was written since the one before.
func (j *Journal) threshold() int64 { return int64(j.room / 4 * 3) }

// rewrite writes what is worth keeping to a new file, which takes the place of the old: of each path the last record,
// and of these the youngest that take no more than half of the room. It holds j.mu for a slice at a time. A process
// that dies meanwhile leaves the old file, which has every record until the new one, with every record, has its name.
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
	_ = r.old.unmap() // no record of it is needed any more
	return nil
}

// rewriting is a rewrite under way. Its strings and offsets are of the mapping of the old file, whose records do not
// change while the epoch does not.
type rewriting struct {
	j             *Journal
	epoch, killed uint64

	offsets []int               // of the records found
	off     int                 // behind them
	seen    map[string]struct{} // paths of younger records
	kept    []int               // offsets of what is kept, the youngest first
	size    int                 // of what is kept, with the header
	dropped uint64

	next log
	old  log
}

// each calls step, with j.mu held, until it returns false.
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

// index finds where records begin.
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

// choose takes records from the youngest on.
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

// write writes the new file: what was chosen, and behind it what has come since. It takes the place of the old one in
// the same slice as its last record, so that no record is in the old one alone.
func (r *rewriting) write(name string) error {
	j, next := r.j, &r.next
	if err := next.grow(min(r.size+8, j.room)); err != nil {
		return err
	}
	*next.header() = header{magic: magic, version: version, epoch: r.epoch, dropped: r.dropped, killed: r.killed, boot: j.boot}
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
				failed = errors.New("more has come meanwhile than there is room for")
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
