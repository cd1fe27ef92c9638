package odb

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// baseCache bounds the delta bases that a Store caches, in bytes.
const baseCache = 4 << 20

// Store is one `objects` directory. Any number of goroutines may use it.
type Store struct {
	dir    string // objects/pack
	format object.Format
	bases  *lru[place]
	// serial is the number of the last source; it is part of the keys of bases.
	serial atomic.Uint64

	unsettled atomic.Int64 // packs whose names may not last yet

	refreshing sync.Mutex // held by the goroutine that reads the directory; the others wait for its result
	scanned    scan       // guarded by refreshing

	// mu guards the fields below. It is never held across disk operations.
	mu         sync.Mutex
	view       *view
	users      map[source]int // views that hold a source open
	closed     bool
	unjoinable map[string]bool // paths of packs that Join found damaged
}

// view is a set of packs that stays open while it is read. Its packs never change.
type view struct {
	packs []source // newest first
	refs  int      // guarded by Store.mu; the current view has one for being current
}

// scan is the state of the pack directory when it was last read.
type scan struct {
	modified time.Time // its mtime, as found before reading
	// at is the time of the scan, by which settled decides how far modified can be trusted.
	at time.Time
}

// Open opens the objects directory dir, creates it if it does not exist, and removes the temporary
// files of an Ingest that was killed.
func Open(dir string, f object.Format) (*Store, error) {
	s := &Store{
		dir: filepath.Join(dir, "pack"), format: f, bases: newLRU[place](baseCache),
		view: &view{refs: 1}, users: map[source]int{},
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("open objects %s: %w", dir, err)
	}
	if err := s.Refresh(); err != nil {
		return nil, fmt.Errorf("open objects %s: %w", dir, err)
	}
	sweep(s.dir)
	return s, nil
}

// Format is the hash format of the objects.
func (s *Store) Format() object.Format { return s.format }

// Close closes all packs once their readers are finished. Afterwards no object is found.
func (s *Store) Close() error {
	s.replace(func([]source) []source { s.closed = true; return nil })
	return nil
}

// replace sets the current view to the packs that change returns, which must not write to its
// argument. It calls change under s.mu. It returns false if the Store is closed.
func (s *Store) replace(change func(packs []source) []source) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	old, packs := s.view, change(s.view.packs)
	for _, p := range packs {
		s.users[p]++
	}
	s.view = &view{packs: packs, refs: 1}
	s.mu.Unlock()
	s.release(old)
	return true
}

// acquire returns the current view for one operation. The caller must call release.
func (s *Store) acquire() *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.refs++
	return s.view
}

// release closes the packs that no view holds any more.
func (s *Store) release(v *view) {
	var unused []source
	s.mu.Lock()
	if v.refs--; v.refs == 0 {
		for _, p := range v.packs {
			if s.users[p]--; s.users[p] == 0 {
				delete(s.users, p)
				unused = append(unused, p)
			}
		}
	}
	s.mu.Unlock()
	// Files are closed after mu was released, because closing may block.
	for _, p := range unused {
		p.close()
	}
}

// Refresh opens packs that other processes have added, and closes those they have removed. It reads
// the directory only if that has changed.
func (s *Store) Refresh() error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	now := time.Now()
	st, err := os.Stat(s.dir)
	if err != nil {
		return fmt.Errorf("refresh packs: %w", err)
	}
	// The directory is read again if its mtime is so recent that a later change could have got the same one.
	if st.ModTime().Equal(s.scanned.modified) && s.scanned.settled() {
		return nil
	}
	s.mu.Lock()
	before := s.view.packs
	s.mu.Unlock()
	paths, err := listPacks(s.dir)
	if err != nil {
		return fmt.Errorf("refresh packs: %w", err)
	}
	gone := map[source]bool{} // not those that an Ingest adds while we read
	for _, p := range before {
		if p, ok := p.(*pack); ok {
			gone[p] = !paths[p.path]
		}
	}
	s.replace(func(packs []source) []source {
		next := make([]source, 0, len(packs)+len(paths))
		for _, p := range packs {
			if p, ok := p.(*pack); ok {
				delete(paths, p.path)
			}
		}
		for path := range paths {
			// Packs that other processes have added are searched before the known ones.
			next = append(next, &pack{path: path, format: s.format, number: s.serial.Add(1)})
		}
		for _, p := range packs {
			if !gone[p] {
				next = append(next, p)
			}
		}
		return next
	})
	s.scanned = scan{st.ModTime(), now}
	return nil
}

// settled reports whether a change after the scan must have changed the mtime. File systems stamp
// with the kernel's coarse clock, which ticks every 4-10 ms, and some old ones in seconds.
func (c scan) settled() bool {
	tick := 20 * time.Millisecond
	if c.modified.Nanosecond() == 0 {
		tick = 2 * time.Second
	}
	return c.at.Sub(c.modified) > tick
}

// listPacks returns the paths of all packs that have an index, without suffix.
func listPacks(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".pack"); ok && strings.HasPrefix(name, "pack-") {
			has[name] = true
		}
	}
	paths := map[string]bool{}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".idx"); ok && has[name] {
			paths[filepath.Join(dir, name)] = true
		}
	}
	return paths, nil
}

// tempPrefix starts the names of files that are not finished. `git prune` knows "tmp_" and removes
// old ones; the rest returns them from git's own, which sweep must not touch.
const tempPrefix = "tmp_afs_"

// sweep removes the files of ingests that were killed: those that no process has locked. Errors are
// ignored.
func sweep(dir string) {
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range left {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		// An ingest holds its lock until the end, and the kernel releases the lock of a killed process: a file that
		// can be locked is left over.
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.Remove(path)
		}
		f.Close()
	}
}

// Has reports whether some pack has the object. It does not look for packs that others added (see
// Refresh), unless they replaced some.
func (s *Store) Has(id object.ID) bool {
	found, gone := s.inView(id)
	if !found && gone && s.Refresh() == nil {
		found, _ = s.inView(id)
	}
	return found
}

// inView looks for an object in the packs of the current view. gone says that one of them could not
// be read because it was removed.
func (s *Store) inView(id object.ID) (found, gone bool) {
	v := s.acquire()
	defer s.release(v)
	for _, p := range v.packs {
		if err := p.open(); err != nil {
			gone = gone || errors.Is(err, fs.ErrNotExist)
			continue
		}
		if _, ok := p.find(id); ok {
			return true, gone
		}
	}
	return false, gone
}

// read calls use with the entries of id until one is good; use reports whether to stop at its
// error. A repack may replace packs at any time, so an object that is not found is looked up once
// more after a Refresh.
func (s *Store) read(id object.ID, use func(p source, off int64) (final bool, err error)) error {
	for again := false; ; again = true {
		found, err := s.readView(id, use)
		if found || again {
			if err != nil {
				return fmt.Errorf("read object %s: %w", id, err)
			}
			return nil
		}
		if err := s.Refresh(); err != nil {
			return fmt.Errorf("read object %s: %w", id, err)
		}
	}
}

// readView is read for the packs of one view. found reports whether the search is over; the last damage is returned
// if no copy was good.
func (s *Store) readView(id object.ID, use func(p source, off int64) (bool, error)) (found bool, err error) {
	v := s.acquire()
	defer s.release(v)
	var damage, unread error
	for _, p := range v.packs {
		if err := p.open(); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				unread = err
			}
			continue
		}
		off, ok := p.find(id)
		if !ok {
			continue
		}
		final, err := use(p, off)
		if err == nil || final {
			return true, err
		}
		// Another pack may have a good copy of the object.
		damage = err
	}
	switch {
	case damage != nil:
		return false, damage
	case unread != nil: // the object may be elsewhere all the same: a miss, which can be healed, not a failure
		return false, fmt.Errorf("%w; %w", ErrNotFound, unread)
	}
	return false, ErrNotFound
}

// Get returns an object's content, verified, in a slice of the caller's own. One over limit bytes
// is refused with ErrTooLarge; the caller has to be able to afford three times limit.
func (s *Store) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	err = s.read(id, func(p source, off int64) (bool, error) {
		t, content, err = s.content(p, off, limit)
		if err == nil {
			err = verify(s.format, id, t, content)
		}
		return errors.Is(err, ErrTooLarge), err
	})
	if err != nil {
		return 0, nil, err
	}
	return t, content, nil
}

// verify returns ErrCorrupt if content does not have the hash id.
func verify(f object.Format, id object.ID, t object.Type, content []byte) error {
	got, err := object.Hash(f, t, content)
	if err != nil {
		return corrupt("%w", err)
	}
	if got != id {
		return corrupt("it hashes to %s", got)
	}
	return nil
}

// content is load for objects whose bases may be larger than memory allows.
func (s *Store) content(p source, off, limit int64) (object.Type, []byte, error) {
	t, content, err := s.load(p, off, limit)
	if err != errLargeBase {
		return t, content, err
	}
	b, err := s.spill(p, off)
	if err != nil {
		return 0, nil, err
	}
	defer b.free()
	if b.size > limit {
		return 0, nil, tooLarge(b.size, limit)
	}
	content = make([]byte, b.size)
	_, err = io.ReadFull(io.NewSectionReader(b.at, 0, b.size), content)
	return b.typ, content, err
}

// Size returns an object's type and size in bytes as its pack states them, without reading its
// content.
func (s *Store) Size(id object.ID) (t object.Type, size int64, err error) {
	err = s.read(id, func(p source, off int64) (bool, error) {
		t, size, err = s.stat(p, off)
		return false, err
	})
	if err != nil {
		return 0, 0, err
	}
	return t, size, nil
}

// WriteTo writes an object's contents to w, with little memory whatever their size. An error may
// follow after much was written: the bytes are valid only without an error.
func (s *Store) WriteTo(id object.ID, w io.Writer) error {
	return s.read(id, func(p source, off int64) (bool, error) {
		c := &countingWriter{w: w}
		err := s.copyTo(c, p, off, id)
		// After the first byte another copy cannot be tried: w may have passed the bytes on.
		return c.n > 0 || errors.As(err, new(elsewhere)), err
	})
}

// copyTo writes the contents of the entry at off to w and compares them with id. Small contents are verified before
// the first byte is written.
func (s *Store) copyTo(w io.Writer, p source, off int64, id object.ID) error {
	t, size, err := s.stat(p, off)
	if err != nil {
		return err
	}
	if size <= copyBuffer {
		_, content, err := s.content(p, off, copyBuffer)
		if err == nil {
			err = verify(s.format, id, t, content)
		}
		if err == nil {
			if _, err = w.Write(content); err != nil {
				err = elsewhere{err}
			}
		}
		return err
	}
	sum := object.NewHasher(s.format, t, size)
	if err := s.stream(io.MultiWriter(w, sum), p, off); err != nil {
		return err
	}
	got, err := sum.Sum()
	if err != nil {
		return corrupt("%w", err)
	}
	if got != id {
		return corrupt("it hashes to %s", got)
	}
	return nil
}

// stream writes the content of the entry at off to w.
func (s *Store) stream(w io.Writer, p source, off int64) error {
	l := getLoader()
	defer l.put()
	k, _, err := l.header(p, s.format, off)
	if err == nil && k.typ != 0 {
		if err = l.z.start(&l.r); err == nil {
			err = l.z.stream(w, k.size, make([]byte, copyBuffer))
		}
	}
	if err != nil {
		return l.fail(off, err)
	}
	// A delta cannot be streamed directly, because its instructions refer to any part of the base.
	if k.typ != 0 {
		return nil
	}
	b, err := s.spill(p, off)
	if err != nil {
		return err
	}
	defer b.free()
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(b.at, 0, b.size), make([]byte, copyBuffer)); err != nil {
		return elsewhere{err}
	}
	return nil
}

// countingWriter counts the bytes written to w.
type countingWriter struct {
	w io.Writer
	n int64
}

// Write writes to w.
func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
