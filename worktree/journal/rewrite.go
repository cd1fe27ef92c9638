package journal

import (
	"errors"
	"os"
	"unsafe"
)

const (
	// slice is the number of records that a rewrite reads or writes each time it holds Journal.mu. Changes wait for that lock.
	slice = 1 << 10
	// reserve determines the part of the file, 1/reserve of the maximum length, that stays free for the changes in progress
	// while later changes wait for a rewrite. After a failed rewrite, the next one starts when that many more bytes are used.
	reserve = 16
)

// errRestarted is returned by a rewrite if the old file no longer contains the records that it indexed.
var errRestarted = errors.New("the journal has begun anew or was closed")

// MakeRoom rewrites the file if it is nearly full. It must be called before each change, without any lock: a rewrite reads
// every record and creates a file, which Note must not do, because its callers hold locks. MakeRoom returns at once if
// there is room, or if another goroutine is rewriting the file and the room suffices until that has ended.
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
		// The disk may be full. Records that still fit are appended; after that Note begins a new epoch.
		j.rewriteAt.Store(used + int64(j.room/reserve))
		return
	}
	j.rewriteAt.Store(j.threshold())
}

// threshold returns the length at which the file is rewritten, in bytes. A rewrite keeps at most half of the maximum
// length, so that each rewrite reads at most three times as many bytes as were written since the previous one.
func (j *Journal) threshold() int64 { return int64(j.room / 4 * 3) }

// rewrite writes the records worth keeping to a new file, which replaces the old one: the last record of each path and, of
// these, the youngest that fit into half of the maximum length. It holds j.mu for one slice of records at a time. The old file
// stays complete until the new file is renamed over it, so that no record is lost if the process dies during the rewrite.
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
	_ = r.old.unmap() // no record of the old file is needed any more
	return nil
}

// rewriting is a rewrite in progress. Its strings and offsets refer to the mapping of the old file, whose records do not
// change within one epoch.
type rewriting struct {
	j             *Journal
	epoch, killed uint64 // values of the journal when the rewrite began

	offsets []int               // offsets of the records that were found in the old file
	off     int                 // offset behind the last of them
	seen    map[string]struct{} // paths that have a younger record
	kept    []int               // offsets of the records to keep, the youngest first
	size    int                 // length of the kept records and the header, in bytes
	dropped uint64              // number of the last record that the new file does not contain

	next log // the new file
	old  log // the old file, once the new one has replaced it
}

// each calls step until step returns false. It holds j.mu during each call and releases it between two calls. It returns
// errRestarted if the journal was closed or began a new epoch between two calls.
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

// index collects the offsets of the next slice of records, and reports whether there are more.
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

// choose selects records to keep, from the youngest to older ones, one slice per call, and reports whether there are more.
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

// write writes the new file: first the chosen records, then those that were appended meanwhile. It holds j.mu without
// interruption from the copy of the last record to the rename over the old file, so that no record is appended to the old file
// alone.
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
