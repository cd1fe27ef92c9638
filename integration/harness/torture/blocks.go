package torture

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// blockFile is an open file with a model of the contents of its blocks. The file may have no name.
type blockFile struct {
	j    *job
	id   uint64
	f    *os.File
	mem  []byte   // shared mapping of the whole file; nil if the file is not mapped
	seqs []uint64 // sequence number of the last write of each block; 0 if the block is a hole
	next uint64
}

func (j *job) newBlockFile(f *os.File, blocks int, mapped bool) (*blockFile, error) {
	j.seed++
	b := &blockFile{j: j, id: j.seed, f: f, seqs: make([]uint64, blocks), next: 1}
	if err := f.Truncate(int64(blocks) * blockSize); err != nil {
		return nil, err
	}
	if mapped {
		var err error
		if b.mem, err = unix.Mmap(int(f.Fd()), 0, blocks*blockSize, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED); err != nil {
			return nil, fmt.Errorf("map %s: %w", f.Name(), err)
		}
	}
	return b, nil
}

func (b *blockFile) close() error {
	if b.mem != nil {
		if err := unix.Munmap(b.mem); err != nil {
			return err
		}
	}
	return b.f.Close()
}

// step does one random operation.
func (b *blockFile) step() error {
	rnd := b.j.rnd
	at := rnd.IntN(len(b.seqs))
	n := 1 + rnd.IntN(min(4, len(b.seqs)-at))
	buf := make([]byte, n*blockSize)
	off := int64(at) * blockSize
	switch op := rnd.IntN(20); {
	case op < 6: // write with a system call
		b.write(buf, at)
		if _, err := b.f.WriteAt(buf, off); err != nil {
			return err
		}
	case op < 9 && b.mem != nil: // write through the mapping
		b.write(buf, at)
		copy(b.mem[off:], buf)
		if rnd.IntN(4) == 0 {
			if err := unix.Msync(b.mem, unix.MS_SYNC); err != nil {
				return fmt.Errorf("msync %s: %w", b.f.Name(), err)
			}
		}
	case op < 12 && b.mem != nil: // read through the mapping
		copy(buf, b.mem[off:])
		b.check("mapped", buf, at)
	case op < 17: // read with a system call
		if _, err := b.f.ReadAt(buf, off); err != nil {
			return err
		}
		b.check("read", buf, at)
	case op == 17:
		if err := b.f.Sync(); err != nil {
			return err
		}
	case op == 18: // drop the page cache, so that the next reads become requests to the server
		if err := again(func() error { return unix.Fadvise(int(b.f.Fd()), 0, 0, unix.FADV_DONTNEED) }); err != nil {
			return fmt.Errorf("fadvise %s: %w", b.f.Name(), err)
		}
	default: // punch a hole
		if err := again(func() error {
			return unix.Fallocate(int(b.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(n)*blockSize)
		}); err != nil {
			return fmt.Errorf("punch hole in %s: %w", b.f.Name(), err)
		}
		for i := range n {
			b.seqs[at+i] = 0
		}
	}
	return nil
}

// write fills buf with the contents of new blocks, which the caller writes to the file at the block with the number at.
func (b *blockFile) write(buf []byte, at int) {
	for i := 0; i < len(buf); i += blockSize {
		b.seqs[at+i/blockSize] = b.next
		fill(buf[i:i+blockSize], b.id, uint64(at+i/blockSize), b.next)
		b.next++
	}
}

func (b *blockFile) check(how string, buf []byte, at int) {
	for i := 0; i < len(buf); i += blockSize {
		if d := differs(buf[i:i+blockSize], b.id, uint64(at+i/blockSize), b.seqs[at+i/blockSize]); d != "" {
			b.j.fault("%s, %s: %s", b.f.Name(), how, d)
		}
	}
}

// checkAll compares all blocks with the model: first their contents in the page cache, and then their contents on the
// server.
func (b *blockFile) checkAll() error {
	info, err := b.f.Stat()
	if err != nil {
		return err
	}
	if want := int64(len(b.seqs)) * blockSize; info.Size() != want {
		b.j.fault("%s: size %d, want %d", b.f.Name(), info.Size(), want)
	}
	buf := make([]byte, len(b.seqs)*blockSize)
	for _, how := range []string{"cached", "from the server"} {
		if _, err := b.f.ReadAt(buf, 0); err != nil {
			return err
		}
		b.check(how, buf, 0)
		if err := b.f.Sync(); err != nil {
			return err
		}
		if err := again(func() error { return unix.Fadvise(int(b.f.Fd()), 0, 0, unix.FADV_DONTNEED) }); err != nil {
			return err
		}
	}
	return nil
}

// blocks reads and writes files, some of them mapped, and compares every block with a model.
func (j *job) blocks() error {
	var files []*blockFile
	for i := range 4 {
		f, err := os.OpenFile(filepath.Join(j.dir, fmt.Sprintf("file%d", i)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		b, err := j.newBlockFile(f, 64<<i, i%2 == 0)
		if err != nil {
			return err
		}
		files = append(files, b)
	}
	for i := 0; !j.over(1); i++ {
		b := files[i%len(files)]
		if err := b.step(); err != nil {
			return err
		}
		if i%16 == 0 {
			j.pace(4e6)
		}
		if i%2000 == 1999 {
			if err := b.checkAll(); err != nil {
				return err
			}
		}
	}
	for _, b := range files {
		if err := b.checkAll(); err != nil {
			return err
		}
		if err := b.close(); err != nil {
			return err
		}
	}
	return nil
}

// deleted uses files whose names were removed, and files that never had a name.
func (j *job) deleted() error {
	files := make([]*blockFile, 8)
	for i := 0; !j.over(1); i++ {
		at := j.rnd.IntN(len(files))
		if b := files[at]; b != nil && j.rnd.IntN(40) > 0 {
			if err := b.step(); err != nil {
				return err
			}
			if i%16 == 0 {
				j.pace(4e6)
			}
			continue
		}
		if b := files[at]; b != nil {
			if err := b.checkAll(); err != nil {
				return err
			}
			if err := j.closeNameless(b, i); err != nil {
				return err
			}
		}
		var err error
		if files[at], err = j.nameless(i); err != nil {
			return err
		}
	}
	for i, b := range files {
		if b == nil {
			continue
		}
		if err := b.checkAll(); err != nil {
			return err
		}
		if err := j.closeNameless(b, -i); err != nil {
			return err
		}
	}
	left, err := os.ReadDir(j.dir)
	if err == nil && len(left) > 0 {
		j.fault("%d names are left, the first %s", len(left), left[0].Name())
	}
	return err
}

// nameless creates a file without a name, in one of three ways.
func (j *job) nameless(i int) (*blockFile, error) {
	path := filepath.Join(j.dir, fmt.Sprintf("gone%d", i))
	if i%3 == 0 {
		var fd int
		err := again(func() (err error) {
			fd, err = unix.Open(j.dir, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("open O_TMPFILE: %w", err)
		}
		return j.newBlockFile(os.NewFile(uintptr(fd), path), 16, false)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	b, err := j.newBlockFile(f, 16, i%3 == 1)
	if err != nil {
		return nil, err
	}
	for range 4 {
		if err := b.step(); err != nil {
			return nil, err
		}
	}
	return b, os.Remove(path)
}

// closeNameless closes a file without a name. It first tries to give the file a name. This is possible for a file of
// O_TMPFILE, whose contents must then exist under the new name.
func (j *job) closeNameless(b *blockFile, i int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(b.f.Fd()), &st); err != nil {
		return fmt.Errorf("fstat %s: %w", b.f.Name(), err)
	}
	if st.Nlink != 0 {
		j.fault("%s: %d links of a file without a name", b.f.Name(), st.Nlink)
	}
	path := filepath.Join(j.dir, fmt.Sprintf("named%d", i))
	err := again(func() error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", b.f.Fd()), unix.AT_FDCWD, path,
			unix.AT_SYMLINK_FOLLOW)
	})
	if err == unix.ENOENT { // a file whose name was removed cannot get a new name
		return b.close()
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", b.f.Name(), err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(got) != len(b.seqs)*blockSize {
		j.fault("%s: %d bytes, want %d", path, len(got), len(b.seqs)*blockSize)
	} else {
		b.check("under its name", got, 0)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return b.close()
}
