package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/object"
)

// bigFile is the index entry of a blob that has a file of its own.
type bigFile struct {
	size     int64        // of the contents, in bytes
	used     atomic.Int64 // time of last use, Unix nanoseconds
	stamped  atomic.Int64 // time of use that was last written to the file's mtime
	verified uint64       // number of the inode whose contents this process has verified; guarded by Blobs.mu
}

// bigPath returns the path of the file for a large blob: big/ab/<hex>, where ab are the first two digits of the id.
func (b *Blobs) bigPath(id object.ID) string {
	hex := id.String()
	return filepath.Join(b.dir, "big", hex[:2], hex)
}

// readBigHeader reads the header at the end of a big file, and the file's attributes. It returns false if the header
// is invalid, or does not match the id or the size of the file.
func readBigHeader(f *os.File, id object.ID) (header, unix.Stat_t, bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size < headerSize || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return header{}, st, false
	}
	var buf [headerSize]byte
	if _, err := f.ReadAt(buf[:], st.Size-headerSize); err != nil {
		return header{}, st, false
	}
	h, ok := parseHeader(buf[:])
	return h, st, ok && h.id == id && h.size == st.Size-headerSize
}

// openBig opens the big file of a blob, which another process may have stored. It returns nil if there is none. The
// first time that this process opens the file, openBig reads all of the contents to verify them.
func (b *Blobs) openBig(id object.ID) *Content {
	b.mu.RLock()
	closed := b.closed
	b.mu.RUnlock()
	if closed || id.IsZero() {
		return nil
	}
	// The index need not be complete, since other processes store big files too. So the file system decides.
	f, err := os.Open(b.bigPath(id))
	if err != nil {
		b.forgetBig(id)
		return nil
	}
	h, st, good := readBigHeader(f, id)
	b.mu.RLock()
	known := b.big[id]
	verified := known != nil && known.verified == st.Ino
	b.mu.RUnlock()
	if good && !verified {
		buf := checkBuffers.Get().(*[64 << 10]byte)
		crc, err := checksum(f, 0, h.size, 0, buf[:])
		checkBuffers.Put(buf)
		good = err == nil && crc == h.crc
	}
	// The file is damaged, or incomplete after a crash. It is removed, so that the blob will be fetched again.
	if !good {
		f.Close()
		os.Remove(b.bigPath(id))
		b.forgetBig(id)
		b.damaged.Add(1)
		return nil
	}
	known = b.enterBig(id, h.size, time.Unix(st.Mtim.Unix()), st.Ino)
	touch(&known.used, &known.stamped, f)
	return &Content{file: f, size: h.size}
}

// enterBig adds a big file to the index, if the index does not have it, and returns its entry. verified is the inode
// number of the file if its contents were verified, otherwise 0.
func (b *Blobs) enterBig(id object.ID, size int64, used time.Time, verified uint64) *bigFile {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.big[id]
	if f == nil {
		f = &bigFile{size: size}
		f.used.Store(used.UnixNano())
		f.stamped.Store(used.UnixNano())
		if b.closed {
			return f
		}
		b.big[id] = f
		b.bytes += size + headerSize
	}
	if verified != 0 {
		f.verified = verified
	}
	return f
}

// forgetBig removes a big file from the index and returns its size on disk, in bytes; 0 if it was not in the index.
func (b *Blobs) forgetBig(id object.ID) (freed int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.big[id]
	if f == nil {
		return 0
	}
	delete(b.big, id)
	b.bytes -= f.size + headerSize
	return f.size + headerSize
}

// evictBig deletes a big file and returns the number of bytes freed. A Content that has the file open stays readable.
func (b *Blobs) evictBig(id object.ID) int64 {
	if err := os.Remove(b.bigPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	return b.forgetBig(id)
}

// listBig adds all big files on disk to the index, and deletes those that are incomplete or damaged, as after a
// crash. The caller holds b.look.
func (b *Blobs) listBig() error {
	root := filepath.Join(b.dir, "big")
	dirs, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range dirs {
		files, err := os.ReadDir(filepath.Join(root, d.Name()))
		if err != nil {
			continue // this is not a directory of the cache
		}
		for _, file := range files {
			id, err := object.ParseID(file.Name())
			// Leave files alone that do not belong to the cache.
			if err != nil || filepath.Join(root, d.Name(), file.Name()) != b.bigPath(id) {
				continue
			}
			f, err := os.Open(b.bigPath(id))
			if err != nil {
				continue
			}
			if h, st, ok := readBigHeader(f, id); ok {
				b.enterBig(id, h.size, time.Unix(st.Mtim.Unix()), 0)
			} else {
				os.Remove(f.Name())
			}
			f.Close()
		}
	}
	return nil
}

// putBig stores large contents that are in memory.
func (b *Blobs) putBig(id object.ID, data []byte) error {
	f, err := b.Spool(int64(len(data)))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	// The disk may be full although Spool found enough space, since other programs write to it too.
	if isFull(err) && b.makeRoom(int64(len(data))) {
		_, err = f.WriteAt(data, 0)
	}
	if err != nil {
		b.discard(f)
		return err
	}
	return b.PutFile(id, f, int64(len(data)))
}

// Spool creates a temporary file, on the file system of the cache, for contents of about size bytes. The caller
// writes to it and then calls PutFile. If the caller closes the file instead, it is deleted: at once where the file
// system supports unnamed files, otherwise by the next OpenBlobs or Collect. If the disk has too little space, Spool
// evicts other contents first; if that does not suffice, the error wraps unix.ENOSPC.
func (b *Blobs) Spool(size int64) (*os.File, error) {
	f, err := b.temp()
	if errors.Is(err, fs.ErrNotExist) { // another process has deleted the directory
		if err = b.makeDirs(); err == nil {
			f, err = b.temp()
		}
	}
	if err == nil {
		if err = b.ensureFree(f, size+headerSize); err != nil {
			b.discard(f)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write blob to a temporary file: %w", err)
	}
	return f, nil
}

// ensureFree evicts contents until the disk has size bytes free. If that is impossible it returns unix.ENOSPC and
// evicts nothing, because the size comes from the remote and may be wrong.
func (b *Blobs) ensureFree(f *os.File, size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("read free space: %w", err)
	}
	free := int64(st.Bavail) * st.Bsize
	if st.Blocks == 0 || size <= free { // 0 blocks: the file system does not report its size
		return nil
	}
	b.mu.RLock()
	used := b.bytes
	b.mu.RUnlock()
	if size-free > used || !b.makeRoom(size-free) {
		return fmt.Errorf("reserve %d bytes: only %d are free: %w", size, free, unix.ENOSPC)
	}
	return nil
}

// temp creates an empty temporary file. It is unnamed (O_TMPFILE) if the file system supports that. Otherwise it has
// a name and a flock, by which clearTemp recognizes that the file is in use.
func (b *Blobs) temp() (*os.File, error) {
	if b.unnamed {
		fd, err := unix.Open(b.tmpDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create temporary file: %w", err)
		}
		return os.NewFile(uintptr(fd), filepath.Join(b.tmpDir(), "unnamed")), nil
	}
	// Another process may remove the file (clearTemp) before it is locked. If so, try again.
	for {
		f, err := os.CreateTemp(b.tmpDir(), "spool-*")
		if err != nil {
			return nil, err
		}
		if _, err := lock(f); err != nil {
			b.discard(f)
			return nil, err
		}
		if _, ok := linked(f); ok {
			return f, nil
		}
		f.Close() // another process has removed it
	}
}

// discard closes a temporary file and removes its temporary name, if it has one.
func (b *Blobs) discard(f *os.File) {
	if !b.unnamed {
		os.Remove(f.Name())
	}
	f.Close()
}

// probeUnnamed reports whether the file system can create files without a name (O_TMPFILE) and link them to a name
// later.
func (b *Blobs) probeUnnamed() bool {
	b.unnamed = true
	f, err := b.temp()
	if err != nil {
		return false
	}
	defer f.Close()
	name := filepath.Join(b.tmpDir(), "probe-"+strconv.Itoa(os.Getpid()))
	if err := link(f, name); err != nil {
		return false
	}
	return os.Remove(name) == nil
}

// link links an unnamed file to a path. It fails with EEXIST if the path exists.
func link(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, proc.FDPath(f), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("link cache file %s: %w", filepath.Base(path), err)
	}
	return nil
}

// clearTemp removes the temporary files of processes that have ended. It recognizes these files because their flock
// is free.
func (b *Blobs) clearTemp() {
	names, err := os.ReadDir(b.tmpDir())
	if err != nil {
		return
	}
	for _, n := range names {
		f, err := os.Open(filepath.Join(b.tmpDir(), n.Name()))
		if err != nil {
			continue
		}
		if locked, err := lock(f); err == nil && locked {
			os.Remove(f.Name())
		}
		f.Close()
	}
}

// PutFile stores the first size bytes of f, a file that Spool returned, as the contents of blob id. The caller has
// verified the contents. PutFile closes f, even if it returns an error.
func (b *Blobs) PutFile(id object.ID, f *os.File, size int64) error {
	defer b.discard(f)
	if _, ok := b.knownSize(id); ok {
		return nil
	}
	if err := b.adopt(id, f, size); err != nil {
		return fmt.Errorf("put blob %s: %w", id, err)
	}
	b.evictOver(id)
	return nil
}

// adopt truncates a temporary file to size bytes, appends the header, links the file to its final path and adds it to
// the index.
func (b *Blobs) adopt(id object.ID, f *os.File, size int64) error {
	b.mu.RLock()
	closed := b.closed
	b.mu.RUnlock()
	switch {
	case closed:
		return ErrClosed
	case id.IsZero():
		return errNoID
	}
	// If the file were shorter than the size in the header, its contents would look damaged later.
	if have, _ := linked(f); have < size {
		return fmt.Errorf("file has %d bytes, want at least %d", have, size)
	}
	buf := checkBuffers.Get().(*[64 << 10]byte)
	defer checkBuffers.Put(buf)
	crc, err := checksum(f, 0, size, 0, buf[:])
	if err != nil {
		return err
	}
	head := header{id, size, crc}.encode()
	// The file may have more than size bytes.
	if err := f.Truncate(size); err != nil {
		return err
	}
	_, err = f.WriteAt(head, size)
	if isFull(err) && b.makeRoom(headerSize) {
		_, err = f.WriteAt(head, size)
	}
	if err != nil {
		return err
	}
	if err := b.name(f, b.bigPath(id)); err != nil {
		return err
	}
	b.enterBig(id, size, time.Now(), 0)
	return nil
}

// name moves a temporary file to its final path. It replaces a file that is there.
func (b *Blobs) name(f *os.File, path string) error {
	// Up to three more attempts: the directory may not exist, and another process may store the same file at the same
	// time.
	for try := 0; ; try++ {
		var err error
		if b.unnamed {
			err = link(f, path)
		} else {
			err = os.Rename(f.Name(), path)
		}
		switch {
		case err == nil || try == 3:
			return err
		case errors.Is(err, fs.ErrNotExist):
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		case errors.Is(err, fs.ErrExist):
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}
