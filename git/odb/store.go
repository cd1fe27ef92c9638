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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// baseCache bounds the size in bytes of the delta bases that a Store caches.
const baseCache = 4 << 20

// Store is one `objects` directory. It is safe for concurrent use.
type Store struct {
	dir     string // the directory objects/pack
	foreign bool   // whether other programs can change the files: see OpenForeign
	format  object.Format
	bases   *lru[place] // cache of delta bases
	// serial is the serial number of the last source that was created; see source.serial.
	serial atomic.Uint64

	unsettled atomic.Int64 // number of packs whose directory entries may not be on disk yet

	refreshing sync.Mutex // held by the goroutine that reads the directory; other goroutines wait for its result
	scanned    Scan       // state of the directory at the last Refresh; protected by refreshing

	// mu protects the fields below. No goroutine holds mu during disk operations.
	mu         sync.Mutex
	view       *view          // the current view, which new operations use
	users      map[source]int // number of views that contain a source
	closed     bool
	unjoinable map[string]bool // paths of packs that Join found damaged
}

// view is a set of packs that stay open while an operation reads them. The set is never modified.
type view struct {
	packs []source // the newest pack is the first
	// number of operations that use the view, plus one while the view is the current one; protected by Store.mu
	refs int
}

// Scan describes the state of the pack directory when it was last read.
type Scan struct {
	Modified time.Time // the mtime of the directory, taken before it was read
	// At is the time at which the scan began. The method Settled compares it with Modified.
	At time.Time
}

// Open opens the objects directory dir, and creates it if it does not exist. It removes the temporary files of
// processes that were killed during Ingest.
func Open(dir string, f object.Format) (*Store, error) { return OpenForeign(dir, f, false) }

// OpenForeign opens an objects directory like Open. If foreign is true, programs that this process does not trust can
// change the files at any time. An index is then copied into memory, and packs whose index has more than 64 MiB are
// ignored.
func OpenForeign(dir string, f object.Format, foreign bool) (*Store, error) {
	packs := filepath.Join(dir, "pack")
	if err := os.MkdirAll(packs, 0o755); err != nil {
		return nil, fmt.Errorf("open object directory %s: %w", dir, err)
	}
	s, err := openPacks(packs, f, foreign)
	if err != nil {
		return nil, fmt.Errorf("open object directory %s: %w", dir, err)
	}
	sweep(packs)
	return s, nil
}

// OpenPacks opens a directory of packs for reading. It changes nothing and takes no lock, so the directory may be
// read-only and belong to another host, which adds, joins and removes packs. The methods that write or join packs must
// not be called.
func OpenPacks(packs string, f object.Format) (*Store, error) { return openPacks(packs, f, false) }

func openPacks(packs string, f object.Format, foreign bool) (*Store, error) {
	s := &Store{dir: packs, foreign: foreign, format: f, bases: newLRU[place](baseCache), view: &view{refs: 1},
		users: map[source]int{}}
	return s, s.Refresh()
}

// Format returns the hash format of the objects.
func (s *Store) Format() object.Format { return s.format }

// Close closes all packs; a pack in use is closed when its readers have finished. After Close, no object is found.
func (s *Store) Close() error {
	s.replace(func([]source) []source { s.closed = true; return nil })
	return nil
}

// replace sets the current view to the packs that the function in the parameter change returns. This function is called
// with the packs of the current view, which it must not modify, and with s.mu held. replace returns false if the Store
// is closed.
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

// acquire returns the current view for one operation. The caller must pass the view to release.
func (s *Store) acquire() *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.refs++
	return s.view
}

// release ends an operation on the view v. It closes the packs that are no longer in any view.
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
	// Files are closed after mu was released, because closing a file may block.
	for _, p := range unused {
		p.close()
	}
}

// Refresh updates the list of packs: it adds the packs that other processes have created, and removes the packs that
// other processes have removed. It reads the directory only if the directory has changed since the last call.
func (s *Store) Refresh() error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	now := time.Now()
	st, err := os.Stat(s.dir)
	if err != nil {
		return fmt.Errorf("refresh packs: %w", err)
	}
	// The directory is read again if its mtime is so recent that a later change could have the same mtime.
	if st.ModTime().Equal(s.scanned.Modified) && s.scanned.Settled() {
		return nil
	}
	s.mu.Lock()
	before := s.view.packs
	s.mu.Unlock()
	paths, err := ListPacks(s.dir)
	if err != nil {
		return fmt.Errorf("refresh packs: %w", err)
	}
	// packs that other processes have removed; packs that an Ingest adds during the scan are not in this map
	gone := map[source]bool{}
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
			// Packs that other processes have created precede the known packs, so they are searched first.
			next = append(next, &pack{path: path, format: s.format, number: s.serial.Add(1), foreign: s.foreign})
		}
		for _, p := range packs {
			if !gone[p] {
				next = append(next, p)
			}
		}
		return next
	})
	s.scanned = Scan{st.ModTime(), now}
	return nil
}

// Settled reports whether every later change of the directory will result in another mtime than the one in the field
// Modified. File systems take the mtime from a clock of the kernel that advances every 4 to 10 ms, and some old file
// systems store only seconds.
func (c Scan) Settled() bool {
	tick := 20 * time.Millisecond
	if c.Modified.Nanosecond() == 0 {
		tick = 2 * time.Second
	}
	return c.At.Sub(c.Modified) > tick
}

// ListPacks returns the paths, without suffix, of all packs in dir that have an index.
func ListPacks(dir string) (map[string]bool, error) {
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

// tempPrefix is the start of the names of unfinished files. `git prune` removes old files that begin with "tmp_". The
// rest of the prefix distinguishes the files from git's, which sweep must not remove.
const tempPrefix = "tmp_afs_"

// sweep removes the temporary files of killed processes, which are the files that no process has locked. Errors are
// ignored.
func sweep(dir string) {
	left, err := disk.Glob(dir, tempPrefix+"*")
	if err != nil {
		return
	}
	for _, path := range left {
		f, err := disk.OpenRegular(path, 0)
		if err != nil {
			continue
		}
		// Ingest holds the lock until it ends, and the kernel releases the lock of a process that was killed. So a file
		// that can be locked was left by such a process.
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.Remove(path)
		}
		f.Close()
	}
}

// Has reports whether a pack contains the object. It misses packs that other processes have created since the last
// Refresh, unless another process has also removed a pack.
func (s *Store) Has(id object.ID) bool {
	found, gone := s.inView(id)
	if !found && gone && s.Refresh() == nil {
		found, _ = s.inView(id)
	}
	return found
}

// inView searches the packs of the current view. The result gone is true if one of the packs could not be opened
// because another process has removed it.
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

// read finds an object and calls the function use with an entry of the object. If use returns an error, read calls use
// with the entry of the same object in the next pack, unless use also returns true as the result final; read then
// returns the error at once. Another process may replace packs at any time, so if no entry could be read, read calls
// Refresh and searches once more.
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

// readView does the work of read for the packs of the current view. The result found is true if a call of use has
// succeeded or has returned true as the result final. If every entry was damaged, readView returns the last error.
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
		// Try the next pack, because it may contain an undamaged copy of the object.
		damage = err
	}
	switch {
	case damage != nil:
		return false, damage
	// If a pack cannot be opened, the object may be in this pack. Report the object as missing, so that it can be fetched
	// again.
	case unread != nil:
		return false, fmt.Errorf("%w; %w", ErrNotFound, unread)
	}
	return false, ErrNotFound
}

// Get returns the type and the verified contents of an object. The caller owns the slice. If the object is larger than
// limit bytes, Get returns ErrTooLarge. Get may allocate up to three times limit.
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

// verify returns ErrCorrupt if the hash of an object with the type t and these contents is not id.
func verify(f object.Format, id object.ID, t object.Type, content []byte) error {
	got, err := object.Hash(f, t, content)
	return verifyHash(id, got, err)
}

// verifyHash returns ErrCorrupt if the hash got of an object is not id. The parameter err is the error of hashing.
func verifyHash(id, got object.ID, err error) error {
	if err != nil {
		return corrupt("%w", err)
	}
	if got != id {
		return corrupt("object has hash %s", got)
	}
	return nil
}

// content returns the type and contents of the entry at the offset off, like load. If a base is too large for memory,
// content decodes the entry in temporary files.
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

// Size returns the type of an object and its size in bytes, as the pack states them. It does not read the contents.
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

// WriteTo writes the contents of an object to w. It needs little memory, whatever the size of the contents is. If it
// returns an error, it may have written bytes already, which are not valid.
func (s *Store) WriteTo(id object.ID, w io.Writer) error {
	return s.read(id, func(p source, off int64) (bool, error) {
		c := &countingWriter{w: w}
		err := s.copyTo(c, p, off, id)
		// After the first byte was written, no other copy of the object can be tried, because w may have passed the byte on.
		return c.n > 0 || errors.As(err, new(elsewhere)), err
	})
}

// copyTo writes the contents of the entry at the offset off to w. It returns ErrCorrupt if the hash of these contents
// is not id. Contents of up to copyBuffer bytes are verified before they are written; longer contents are verified
// while they are written.
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
	return verifyHash(id, got, err)
}

// stream writes the contents of the entry at the offset off to w. It does not verify the hash of the contents.
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
	// A delta cannot be streamed, because its instructions refer to any part of the base, so spill writes the contents to
	// a file first.
	if k.typ != 0 {
		return nil
	}
	b, err := s.spill(p, off)
	if err != nil {
		return err
	}
	defer b.free()
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(b.at, 0, b.size),
		make([]byte, copyBuffer)); err != nil {
		return elsewhere{err}
	}
	return nil
}

// countingWriter passes writes on to w, and counts the written bytes in n.
type countingWriter struct {
	w io.Writer
	n int64
}

// Write writes p to w and adds the number of written bytes to n.
func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
