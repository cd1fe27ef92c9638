// Package shelf keeps the files of a relay in two places: on the local disk, from which the least recently used files
// are evicted when the limit is exceeded, and in an object store that several relays share, from which nothing is
// removed.
//
// Every file can be fetched again, so a failure of the object store or the loss of a file counts as a miss. After a
// failure, the object store is not used for a while. This pause doubles with each further failure.
package shelf

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/server/objects"
)

const (
	tempSuffix = ".tmp"
	// loadTime is the maximum time for which Load waits for the object store. After that time, a request to the git
	// server is faster.
	loadTime   = 3 * time.Second
	rangeTime  = time.Second
	uploadTime = 2 * time.Minute
	uploads    = 4 // maximum number of files that are uploaded at the same time
	// maxWaiting is the maximum number of files in the queue of uploads. If the queue is full, a file is not uploaded.
	maxWaiting = 256
	firstPause = time.Second
	maxPause   = 30 * time.Second
	touchAfter = time.Minute // age after which a use of a file updates the file's time on disk
)

// errPaused means that the object store is not used for a while, because it has failed.
var errPaused = errors.New("object store is not used for a while, because it has failed")

// Options configures a Shelf.
type Options struct {
	Dir   string        // directory of the files; created if it does not exist
	Limit int64         // maximum size of all files in Dir, in bytes
	Store objects.Cache // object store; nil: none
	Log   *zap.Logger
}

// Stats counts events since Open.
type Stats struct {
	Loaded, LoadedBytes atomic.Int64 // number and total size of the files that were read from the object store
	Ranges              atomic.Int64 // number of reads of parts of files in the object store
	Missing             atomic.Int64 // number of look-ups of files that the object store does not have
	Stored, StoredBytes atomic.Int64 // number and total size of the files that were written to the object store
	StoreFailures       atomic.Int64 // number of operations of the object store that failed or took too long
	Evicted             atomic.Int64 // number of files that were removed from the local disk because of the limit
	Damaged             atomic.Int64 // number of files whose contents were damaged
}

// Shelf keeps files under keys, which are paths. Its methods may be called from any goroutine.
//
// Locks: no goroutine waits for the disk or the network while it holds mu, except for the removal of evicted files.
type Shelf struct {
	o     Options
	Stats Stats

	ctx  context.Context // ends when Close is called
	stop context.CancelFunc
	work sync.WaitGroup
	slot chan struct{} // contains one element for each upload in progress

	mu      sync.Mutex
	byKey   map[string]*list.Element
	used    *list.List // local files as *entry, the most recently used first
	bytes   int64
	waiting int       // number of uploads in the queue
	until   time.Time // time before which the object store is not used
	full    time.Time // time before which nothing is written to the object store, because it is full
	filled  time.Time // time before which no file is created on the local disk, because the disk was full
	pause   time.Duration
}

// entry is a file on the local disk.
type entry struct {
	key     string
	size    int64
	checked bool // true if this process has compared the contents with their hash
	touched time.Time
}

// Open opens a Shelf with the files in the directory o.Dir. The caller must call Close.
func Open(o Options) (*Shelf, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	s := &Shelf{o: o, byKey: map[string]*list.Element{}, used: list.New(), slot: make(chan struct{}, uploads)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evict()
	return s, nil
}

// scan adds the files on disk to the list, and removes temporary files of a process that was killed.
func (s *Shelf) scan() error {
	var all []*entry
	err := filepath.WalkDir(s.o.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(path, tempSuffix) {
			return os.Remove(path)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		key, err := filepath.Rel(s.o.Dir, path)
		all = append(all, &entry{key: key, size: info.Size(), touched: info.ModTime()})
		return err
	})
	slices.SortFunc(all, func(a, b *entry) int { return b.touched.Compare(a.touched) })
	for _, e := range all {
		s.byKey[e.key] = s.used.PushBack(e)
		s.bytes += e.size
	}
	return err
}

// Close waits for the uploads in progress until ctx ends, and cancels all others.
func (s *Shelf) Close(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.work.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.stop()
	<-done
}

// Usage returns the number of local files, and their total size in bytes.
func (s *Shelf) Usage() (files int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey), s.bytes
}

// Dir returns the directory of the local files.
func (s *Shelf) Dir() string { return s.o.Dir }

// path returns the path of a local file.
func (s *Shelf) path(key string) string { return filepath.Join(s.o.Dir, filepath.FromSlash(key)) }

// Failed records that a file could not be written because of err. If the local disk is full, Temp fails for some time,
// so that requests are passed to the git server at once, instead of after their objects were fetched.
func (s *Shelf) Failed(err error) {
	if !errors.Is(objects.Classify(err), objects.ErrFull) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filled = time.Now().Add(maxPause)
}

// errFilled is the error that Temp returns for some time after Failed.
var errFilled = errors.New("no file is created, because the local disk was full shortly before")

// Temp creates a temporary file, which the caller must pass to Keep or to Drop.
func (s *Shelf) Temp() (*os.File, error) {
	s.mu.Lock()
	filled := time.Now().Before(s.filled)
	s.mu.Unlock()
	if filled {
		return nil, fmt.Errorf("create file in cache: %w", errFilled)
	}
	f, err := os.CreateTemp(s.o.Dir, "new-*"+tempSuffix)
	if err != nil {
		return nil, fmt.Errorf("create file in cache: %w", objects.Classify(err))
	}
	return f, nil
}

// Drop closes and removes a temporary file.
func (s *Shelf) Drop(f *os.File) {
	f.Close()
	os.Remove(f.Name())
}

// Local opens a file on the local disk. ok is false if there is no such file. A damaged file is removed. The caller
// must close the File.
func (s *Shelf) Local(key string) (*packs.File, bool) {
	s.mu.Lock()
	at, ok := s.byKey[key]
	if !ok {
		s.mu.Unlock()
		return nil, false
	}
	e := at.Value.(*entry)
	s.used.MoveToFront(at)
	now := time.Now()
	checked, touch := e.checked, now.Sub(e.touched) > touchAfter
	if touch {
		e.touched = now
	}
	s.mu.Unlock()
	if touch { // update the file's time, from which a later process determines the order of the last uses
		_ = os.Chtimes(s.path(key), now, now)
	}
	f, err := packs.Open(s.path(key), !checked)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.damaged(key, err)
		}
		s.Remove(key)
		return nil, false
	}
	s.mu.Lock()
	e.checked = true
	s.mu.Unlock()
	return f, true
}

// Touch marks a file as the most recently used one, if it is on the local disk.
func (s *Shelf) Touch(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.byKey[key]; ok {
		s.used.MoveToFront(at)
	}
}

// damaged counts and logs a damaged file.
func (s *Shelf) damaged(key string, err error) {
	s.Stats.Damaged.Add(1)
	s.o.Log.Warn("stored file is damaged", zap.String("key", key), zap.Error(err))
}

// Remove removes a file from the local disk.
func (s *Shelf) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.byKey[key]; ok {
		s.forget(at)
	}
}

// forget removes a file from the local disk and from the list. The caller holds s.mu.
func (s *Shelf) forget(at *list.Element) {
	e := at.Value.(*entry)
	s.used.Remove(at)
	delete(s.byKey, e.key)
	s.bytes -= e.size
	os.Remove(s.path(e.key)) // goroutines that have the file open can still read it
}

// evict removes the least recently used files until their total size is within the limit. The caller holds s.mu.
func (s *Shelf) evict() {
	for s.bytes > s.o.Limit && s.used.Len() > 0 {
		s.forget(s.used.Back())
		s.Stats.Evicted.Add(1)
	}
}

// List returns the keys of local files that begin with prefix, the most recently used file first.
func (s *Shelf) List(prefix string) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.used.Front(); at != nil; at = at.Next() {
		if key := at.Value.(*entry).key; strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Keep stores a temporary file under a key, and closes it. If upload is true, the file is also written to the object
// store, in the background. The caller must have verified the contents. Keep does not sync the file: if a power cut
// leaves an incomplete file, its hash shows this.
func (s *Shelf) Keep(f *os.File, key string, upload bool) error {
	info, err := f.Stat()
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.path(key)), 0o700)
	}
	if err == nil {
		err = os.Rename(f.Name(), s.path(key))
	}
	if err != nil {
		s.Drop(f)
		return fmt.Errorf("store file %s: %w", key, objects.Classify(err))
	}
	if upload {
		s.upload(key)
	}
	s.add(key, info.Size())
	return nil
}

// add adds a file on disk, which this process has written or verified, to the list.
func (s *Shelf) add(key string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.byKey[key]; ok { // the file replaces an older one with the same key
		s.bytes -= at.Value.(*entry).size
		s.used.Remove(at)
	}
	s.byKey[key] = s.used.PushFront(&entry{key: key, size: size, checked: true, touched: time.Now()})
	s.bytes += size
	s.evict()
}

// upload writes a local file to the object store in the background. It creates a second link to the file, so that
// eviction does not remove its contents.
func (s *Shelf) upload(key string) {
	if s.o.Store == nil {
		return
	}
	s.mu.Lock()
	full := s.waiting >= maxWaiting || s.ctx.Err() != nil || time.Now().Before(s.full)
	if !full {
		s.waiting++
		s.work.Add(1)
	}
	s.mu.Unlock()
	if full {
		s.Stats.StoreFailures.Add(1)
		return
	}
	name := filepath.Join(s.o.Dir, fmt.Sprintf("upload-%s%s", strings.ReplaceAll(key, "/", "-"), tempSuffix))
	err := os.Link(s.path(key), name)
	go func() {
		defer func() {
			os.Remove(name)
			s.mu.Lock()
			s.waiting--
			s.mu.Unlock()
			s.work.Done()
		}()
		if err != nil && !errors.Is(err, fs.ErrExist) {
			s.o.Log.Warn("cannot upload a file", zap.String("key", key), zap.Error(err))
			return
		}
		select {
		case s.slot <- struct{}{}:
			defer func() { <-s.slot }()
		case <-s.ctx.Done():
			return
		}
		s.put(key, name)
	}()
}

// put writes the file at path to the object store.
func (s *Shelf) put(key, path string) {
	var size int64
	if info, err := os.Stat(path); err == nil {
		size = info.Size()
	}
	stored := false
	err := s.try(s.ctx, uploadTime, func(ctx context.Context) (err error) {
		stored, err = s.o.Store.PutNew(ctx, key, path)
		return err
	})
	if err == nil && stored {
		s.Stats.Stored.Add(1)
		s.Stats.StoredBytes.Add(size)
	}
}

// Load copies a file from the object store to the local disk, verifies it and opens it. The error wraps
// objects.ErrNotFound if the object store does not have the file, or if there is no object store. The caller must close
// the File.
func (s *Shelf) Load(ctx context.Context, key string) (*packs.File, error) {
	if s.o.Store == nil {
		return nil, objects.ErrNotFound
	}
	path := s.path(key)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, objects.Classify(err)
	}
	err := s.try(ctx, loadTime, func(ctx context.Context) error { return s.o.Store.Get(ctx, key, path) })
	if err != nil {
		return nil, err
	}
	f, err := packs.Open(path, true)
	if err != nil {
		os.Remove(path)
		s.Forget(ctx, key, err)
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	s.add(key, info.Size())
	s.Stats.Loaded.Add(1)
	s.Stats.LoadedBytes.Add(info.Size())
	return f, nil
}

// Range reads a part of a file in the object store. It returns the bytes and the size of the whole file; see
// objects.Cache.
func (s *Shelf) Range(ctx context.Context, key string, offset, length int64) (data []byte, size int64, err error) {
	if s.o.Store == nil {
		return nil, 0, objects.ErrNotFound
	}
	err = s.try(ctx, rangeTime, func(ctx context.Context) (err error) {
		data, size, err = s.o.Store.Range(ctx, key, offset, length)
		return err
	})
	if err == nil {
		s.Stats.Ranges.Add(1)
	}
	return data, size, err
}

// Forget removes a file from the object store because it is damaged, so that a relay can store it again. cause is
// logged.
func (s *Shelf) Forget(ctx context.Context, key string, cause error) {
	s.damaged(key, cause)
	s.Remove(key)
	if s.o.Store != nil {
		_ = s.try(ctx, rangeTime, func(ctx context.Context) error { return s.o.Store.Delete(ctx, key) })
	}
}

// try calls an operation of the object store, unless the object store has failed shortly before. If the operation
// fails, or takes longer than limit, the object store is not used for a while.
func (s *Shelf) try(ctx context.Context, limit time.Duration, operation func(context.Context) error) error {
	s.mu.Lock()
	paused := time.Now().Before(s.until)
	s.mu.Unlock()
	if paused {
		return errPaused
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := operation(limited)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, objects.ErrNotFound):
		s.Stats.Missing.Add(1)
		s.pause = 0
	case err == nil:
		s.pause = 0
	case errors.Is(err, objects.ErrFull): // only writing has failed, so files can still be read
		s.full = time.Now().Add(maxPause)
		s.Stats.StoreFailures.Add(1)
		s.o.Log.Warn("object store is full", zap.Duration("pause", maxPause), zap.Error(err))
	case ctx.Err() == nil:
		s.pause = min(max(2*s.pause, firstPause), maxPause)
		s.until = time.Now().Add(s.pause)
		s.Stats.StoreFailures.Add(1)
		s.o.Log.Warn("object store failed", zap.Duration("pause", s.pause), zap.Error(err))
	}
	return err
}

// Available reports whether the object store is used at present.
func (s *Shelf) Available() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.Store != nil && !time.Now().Before(s.until)
}

// Lock locks a directory, so that only one process uses it. The caller must call unlock at the end.
func Lock(dir string) (unlock func(), err error) {
	if err := disk.MkdirAll(disk.OS, dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory %s: %w", dir, err)
	}
	return disk.TryLock(filepath.Join(dir, "lock"))
}
