// Package journal keeps the ordered record of changed paths of a working tree, the change journal. It answers git's
// fsmonitor queries: which paths may have changed since a journal position.
//
// # Promises
//   - A query with a journal position returns every path that changed since that position was returned, and perhaps some
//     that did not; or it returns that everything may have changed.
//   - That holds across the death of the process by any signal, and across Close. After a power loss without Close no older
//     position is known.
//   - Memory and file are bounded: of very many changes the oldest are dropped, and a query from before them returns that
//     everything may have changed. Recording a change cannot fail.
//
// # Terms
//
// A record is a path; its number is one more than that of the record before. A journal position, in the code a token, is an
// epoch and the number of a record: the caller knows of all records up to that. Epochs are random: a position of another
// one is unknown. A path that ends in a slash stands for all paths below it, "/" for all paths. A key identifies a file or
// directory independently of its path.
//
// # Why no change is missed
//
// A change is recorded before it is made, so that a process killed at any moment leaves no change without a record. But a
// query may come between the record and the change: its caller would look at the path too early, and never be told of it
// again. So a change is a Flight from before its record until it is made, and no position is returned that includes a
// record of a flight: the next query returns it once more.
//
// The kernel caches what programs write. For other programs that is a change already; it is lost if the process dies that
// the kernel would have written it to. So after a kill a query with an older position returns all records again, unless
// the next process takes the mount over and gets those writes. That process repeats the records of the flights, too.
//
// A key that has a record is not recorded again as long as no position was returned that includes the record. Meanwhile
// the file may get another path: a rename always records the new path, of a directory with all that is below it. That
// record is younger than any of the moved files, so that a query that returns theirs returns it as well.
//
// The paths that one change records must be consistent: no directory may be renamed between the reading of a path and its
// Note. The caller ensures that with a lock of its own, which is above the journal's.
//
// # The file
//
// It is mapped into memory: a store belongs to the file at once, even if the process dies. Records follow the header; the
// first eight bytes of a record are stored last, and those behind the last record are zero. When the file is nearly full
// MakeRoom writes the records worth keeping to a new file, while changes continue, and renames that over the old one. If
// the disk is too full for that, the journal begins a new epoch in the old file; the epoch is stored first. Close syncs
// file and directory and then marks the file clean: only a clean file is continued on another boot.
//
// Lock order: rewriting, mu. Callers of Note hold locks that requests wait for; so Note copies one record and does nothing
// that grows with the journal.
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

// Options of Open.
type Options struct {
	FS       disk.FS     // nil: disk.OS; tests pass one that fails
	Boot     [16]byte    // which run of the host's kernel this is
	Unused   func() bool // says whether nothing changed yet, if the journal has to begin
	ReadOnly bool        // nothing will be noted, and the file is not touched
	Anew     bool        // the tree may have gone back to an earlier state: begin a new epoch
	TakeOver bool        // what programs have written and the kernel has in its cache is not lost, although the process was killed

	limit int // bytes that the file may have, if tests say so
}

// Journal is an open journal. Its methods may be called from many goroutines. A nil one notes nothing.
type Journal struct {
	fs   disk.FS
	path string
	boot [16]byte
	room int // bytes that the file may have

	mu      sync.Mutex
	log     log
	epoch   uint64
	dropped uint64 // the number of the last record that is not kept
	killed  uint64 // the number of the last record when the journal was last found unclosed; 0: never
	last    uint64 // the number of the last record, and above killed
	given   uint64 // the highest number in a token
	noted   map[uint64]uint64
	flights map[uint64]int // how many have which lowest record
	closed  bool

	rewriting sync.Mutex   // of the file
	used      atomic.Int64 // length of the file up to the last record, in bytes
	rewriteAt atomic.Int64 // length from which the file is rewritten
}

// keys is how many keys are remembered. To forget them means that they are recorded again.
const keys = 1 << 16

// Flight is a change under way. The zero Flight has noted nothing yet.
type Flight struct {
	first uint64 // the lowest record that it relies on; 0: none
}

// Covers reports whether one of the keys is on record, so that a change of it, or below it if it is a directory, needs
// none of its own; the flight then relies on that.
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

// Note puts a path on record; key, if not 0, is what the path is of, and has no other.
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

// Hold is for a change of what has no path but may get one: what is noted from now on is told again after the flight.
func (j *Journal) Hold(f *Flight) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rely(f, j.last+1)
}

func (j *Journal) rely(f *Flight, record uint64) {
	switch {
	case f.first == 0:
	case f.first <= record:
		return
	default:
		j.leave(f.first)
	}
	f.first = record
	j.flights[record]++
}

func (j *Journal) leave(record uint64) {
	if j.flights[record]--; j.flights[record] == 0 {
		delete(j.flights, record)
	}
}

// Land ends a flight: the change was made, or will not be.
func (j *Journal) Land(f *Flight) {
	if j == nil || f.first == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leave(f.first)
	*f = Flight{}
}

// Since returns the paths that may have changed since a token, each once; known is false if that may be any. next is the
// token to ask with from now on.
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

// Longer reports whether more than n records came since a token, as far as that can be told without looking at them.
func (j *Journal) Longer(token string, n uint64) bool {
	if j == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	epoch, from, ok := parseToken(token)
	return ok && epoch == j.epoch && from+n < j.last
}

// Start is the token of the beginning, when nothing had changed.
func (j *Journal) Start() string {
	if j == nil {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return formatToken(j.epoch, 0)
}

// Close brings the journal to the disk, so that it can be continued after any restart of the host.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.rewriting.Lock() // the mapping is read by a rewrite
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

func formatToken(epoch, record uint64) string {
	return fmt.Sprintf("%016x:%d", epoch, record)
}

func parseToken(s string) (epoch, record uint64, ok bool) {
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

func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.NativeEndian.Uint64(b[:])
}
