// Package journal implements the change journal: the ordered record of the changed paths of a working tree. It answers
// git's fsmonitor queries: which paths may have changed since a journal position.
//
// # Promises
//   - A query with a journal position returns every path that changed since that position was returned, and possibly
//     paths that did not change; or it returns that everything may have changed.
//   - This holds across the death of the process by any signal, and across Close. After a power loss without Close no
//     older position is valid.
//   - Memory and file are bounded: after very many changes the oldest records are dropped, and a query from before them
//     returns that everything may have changed. Recording a change cannot fail.
//
// # Terms
//
// A record is a path with a number, which is one more than that of the previous record. A journal position (a token in
// the code) consists of an epoch and the number of a record. The caller of a query with this position has received all
// records up to this number from earlier queries. An epoch is a random number; a position of another epoch is not
// valid. A path that ends in a slash stands for all paths below it, "/" for all paths. A key identifies a file or
// directory independently of its path.
//
// # Why no change is missed
//
// A change is recorded before it is made, so that a process killed at any moment leaves no change without a record. But
// a query may arrive between the record and the change. The caller of this query would read the path before the change,
// and would not receive the path again. For this reason each change has a Flight, from the time before its record is
// appended until the change is made. No returned position includes a record of a flight, so that the next query returns
// the record again.
//
// The kernel caches the data that programs write. Other programs see the data at once, but the data is lost if the
// process that serves the mount dies before the kernel writes the data back. Therefore, after the process was killed, a
// query with an older position returns all records again, unless the next process takes over the mount and receives the
// data. When that process executes a request that the kernel repeats, the change is recorded again.
//
// As long as no returned position includes the record of a key, further changes of the key are not recorded. During
// this time the file may be renamed. A rename always records the new path. If a directory is renamed, the recorded path
// ends in a slash and stands for everything below the directory. The record of the rename has a higher number than the
// records of the moved files, so that a query that returns the records of the moved files also returns the record of
// the rename.
//
// The paths that one change records must be consistent: no directory may be renamed between the reading of a path and
// the call of Note for this path. The caller ensures this with its own lock, which is acquired before the journal's
// lock.
//
// # The file
//
// The file is mapped into memory: a store reaches the file even if the process dies immediately afterwards. Records
// follow the header. The first eight bytes of a record are stored last, and the eight bytes behind the last record are
// zero. When the file is nearly full, MakeRoom writes the records worth keeping to a new file, while changes continue,
// and renames the new file over the old one. If the disk has no room for the new file, the journal begins a new epoch
// in the old file; the epoch is stored first. Close syncs the file and the directory, and then marks the file as clean.
// After a restart of the host, a file is continued if it is marked as clean, and not otherwise.
//
// Lock order: rewriting, mu. Callers of Note hold locks for which requests wait. Therefore Note copies one record and
// does nothing whose cost grows with the length of the journal.
package journal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Options configure Open.
type Options struct {
	FS       disk.FS     // nil stands for disk.OS; tests use an FS that fails
	Boot     [16]byte    // boot ID that the host has now
	Unused   func() bool // returns true if the working tree has no changes yet; called when a new epoch begins
	ReadOnly bool        // if true, nothing is recorded and the file is not written
	Anew     bool        // if true, a new epoch begins, because the working tree may have returned to an earlier state
	TakeOver bool        // if true, writes in the kernel's cache have survived the death of the previous process

	limit int // maximum length of the file in bytes, set by tests; 0 stands for fileLimit
}

// Journal is an open change journal. Its methods may be called from any goroutine. A nil *Journal records nothing.
type Journal struct {
	fs   disk.FS
	path string
	boot [16]byte
	room int // maximum length of the file, in bytes

	// mu protects the fields from log to closed. Each record has the number of the previous record plus one.
	mu      sync.Mutex
	log     log    // the mapped file
	epoch   uint64 // random number of the present epoch
	dropped uint64 // number of the last record that was dropped
	// number of the last record when Open last found the file without the clean mark; 0 if this never happened
	killed  uint64
	last    uint64            // number of the last record; greater than killed
	given   uint64            // highest number of a record that a returned position includes
	noted   map[uint64]uint64 // number of the last record of each key
	flights map[uint64]int    // number of flights (changes in progress), by the lowest record on which they rely
	closed  bool              // set by Close

	// rewriting is held by the goroutine that rewrites the file, and by Close.
	rewriting sync.Mutex
	used      atomic.Int64 // length of the file up to the last record, in bytes
	rewriteAt atomic.Int64 // length at which MakeRoom rewrites the file, in bytes
}

// keys is the maximum number of keys in Journal.noted. When a further key has to be added, all keys are removed, so
// that the next change of each key is recorded again.
const keys = 1 << 16

// Flight is a change in progress, from before its first record until Land is called. A flight relies on the records of
// its paths, which may have been appended for this change or for an earlier one. The zero Flight relies on no record.
type Flight struct {
	first uint64 // lowest number of a record on which the change relies; 0 if it relies on no record
}

// Covers reports whether one of the keys has a record that no returned position includes. If so, a change of the file
// with this key needs no further record; if the key identifies a directory, this also applies to everything below the
// directory. In this case, the flight f relies on the existing record.
func (j *Journal) Covers(f *Flight, keys ...uint64) bool {
	if j == nil {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range keys {
		if n := j.noted[key]; n > j.given {
			j.rely(f, n)
			return true
		}
	}
	return false
}

// Note appends a record of path to the journal. From then on, the flight f relies on this record. A key other than 0
// identifies the file or directory, which must have no other path. Until Since returns a position that includes this
// record, changes of the key need no further record (see Covers).
func (j *Journal) Note(f *Flight, key uint64, path string) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.append(path)
	if key != 0 {
		if len(j.noted) >= keys {
			clear(j.noted)
		}
		j.noted[key] = j.last
	}
	j.rely(f, j.last)
}

// Hold begins the flight f for a change of a file that has no path but may get a path. All records that are appended
// between this call and Land are returned again by the next query after Land.
func (j *Journal) Hold(f *Flight) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rely(f, j.last+1)
}

// rely makes the flight f rely on a record, unless f already relies on a record with a lower number. The caller holds
// j.mu.
func (j *Journal) rely(f *Flight, record uint64) {
	switch {
	case f.first == 0:
	case f.first <= record:
		return
	default:
		j.releaseRecord(f.first)
	}
	f.first = record
	j.flights[record]++
}

// releaseRecord records that a flight no longer relies on a record. The caller holds j.mu.
func (j *Journal) releaseRecord(record uint64) {
	if j.flights[record]--; j.flights[record] == 0 {
		delete(j.flights, record)
	}
}

// Land ends the flight f, because the change was made or has failed.
func (j *Journal) Land(f *Flight) {
	if j == nil || f.first == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.releaseRecord(f.first)
	*f = Flight{}
}

// Since returns the paths that may have changed since the position token, each path once. known is false if every path
// may have changed, because the journal does not contain all changes since this position. next is the position to pass
// to the next call. It does not include the records of changes that are still in progress.
func (j *Journal) Since(token string) (next string, paths []string, known bool) {
	if j == nil {
		return "", nil, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	at := j.last
	for first := range j.flights {
		at = min(at, first-1)
	}
	j.given = max(j.given, at)
	next = formatToken(j.epoch, at)
	epoch, from, ok := parseToken(token)
	if ok && from <= j.killed {
		from = 0
	}
	if !ok || epoch != j.epoch || from < j.dropped || from > j.last || j.closed {
		return next, nil, false
	}
	known = true
	seen := make(map[string]struct{})
	j.log.each(from, func(r record) bool {
		if string(r.path) == "/" {
			known = false
			return false
		}
		if _, ok := seen[string(r.path)]; !ok {
			path := string(r.path)
			seen[path] = struct{}{}
			paths = append(paths, path)
		}
		return true
	})
	if !known {
		return next, nil, false
	}
	return next, paths, true
}

// Longer reports whether the journal has more than n records after the position token. It compares the numbers of the
// records and does not read the records. If the position is not valid, it returns false.
func (j *Journal) Longer(token string, n uint64) bool {
	if j == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	epoch, from, ok := parseToken(token)
	return ok && epoch == j.epoch && from+n < j.last
}

// Start returns the position before the first record of the epoch, at which the working tree had no changes.
func (j *Journal) Start() string {
	if j == nil {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return formatToken(j.epoch, 0)
}

// Close writes the journal to disk and marks it as clean, so that it can be continued after any restart of the host.
// Later calls of Note record nothing.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.rewriting.Lock() // a rewrite reads the mapped file, which must not be unmapped at the same time
	defer j.rewriting.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	err := j.log.close(func() error { return j.fs.SyncDir(filepath.Dir(j.path)) })
	if err != nil {
		return fmt.Errorf("close change journal: %w", err)
	}
	return nil
}

// formatToken returns a position as text: the epoch as 16 hexadecimal digits, a colon, and the number of the record.
func formatToken(epoch, record uint64) string {
	return fmt.Sprintf("%016x:%d", epoch, record)
}

// parseToken returns the epoch and the number in a position. ok is false if s is not a position. A plus sign and what
// follows it is a note of the package fsmonitor, which parseToken ignores.
func parseToken(s string) (epoch, record uint64, ok bool) {
	s, _, _ = strings.Cut(s, "+")
	e, r, ok := strings.Cut(s, ":")
	if !ok || len(e) != 16 {
		return 0, 0, false
	}
	epoch, err := strconv.ParseUint(e, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	record, err = strconv.ParseUint(r, 10, 64)
	return epoch, record, err == nil
}

// newEpoch returns a random number that identifies a new epoch.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // rand.Read of package crypto/rand never fails
	return binary.NativeEndian.Uint64(b[:])
}
