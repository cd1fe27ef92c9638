package torture

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// locks holds flock and record locks while another process tries to get them. It also counts under locks together with
// two other processes: no increment may be lost. The kernel implements the locks; the test checks that they survive a
// takeover.
func (j *job) locks() error {
	if role := os.Getenv(lockRole); role != "" {
		return j.lockOthers(role)
	}
	counter, held := filepath.Join(j.dir, "counter"), filepath.Join(j.dir, "held")
	if err := os.WriteFile(counter, make([]byte, 8), 0o644); err != nil {
		return err
	}
	file, err := os.OpenFile(held, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err := again(func() error { return unix.Flock(int(file.Fd()), unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	if err := recordLock(file, unix.F_SETLK); err != nil {
		return fmt.Errorf("lock record: %w", err)
	}
	var others []*child
	for _, role := range []string{"try", "count flock", "count record"} {
		c, err := j.fork(lockRole + "=" + role)
		if err != nil {
			return err
		}
		others = append(others, c)
	}
	steps, err := j.countUnderLock(counter, "count flock")
	if err != nil {
		return err
	}
	for i, c := range others {
		text, err := c.end()
		if err != nil {
			return err
		}
		if i > 0 {
			n, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("count under locks: child process reported %q", text)
			}
			steps += n
		}
	}
	b, err := os.ReadFile(counter)
	if err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint64(b); got != uint64(steps) {
		return fmt.Errorf("count under locks: counted %d steps, want %d", got, steps)
	}
	return file.Close()
}

// lockRole is the environment variable that contains the role of a process of this job.
const lockRole = "ARTIFACTFS_TORTURE_LOCKS"

func (j *job) lockOthers(role string) error {
	if role == "try" {
		return j.tryHeld(filepath.Join(j.dir, "held"))
	}
	n, err := j.countUnderLock(filepath.Join(j.dir, "counter"), role)
	if err == nil {
		j.printf("%d", n)
	}
	return err
}

// tryHeld tries to get locks that another process holds, and reports an error if it gets one.
func (j *job) tryHeld(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for !j.ended.Load() {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK && err != unix.EINTR {
			return fmt.Errorf("flock held by another process: got %v", err)
		}
		if err := recordLock(f, unix.F_SETLK); err != unix.EAGAIN && err != unix.EACCES && err != unix.EINTR {
			return fmt.Errorf("record lock held by another process: got %v", err)
		}
		j.pace(4 * time.Millisecond)
	}
	return nil
}

func recordLock(f *os.File, how int) error {
	return unix.FcntlFlock(f.Fd(), how, &unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 8})
}

// countUnderLock repeatedly adds one to a number in a file while it holds a flock and a record lock. All processes
// acquire the two locks in the same order. With the role "count flock", it opens the file for each step; otherwise it
// keeps the file open.
func (j *job) countUnderLock(path, role string) (int, error) {
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	steps := 0
	for ; !j.over(1); steps++ {
		f := held
		if role == "count flock" {
			if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
				return 0, err
			}
		}
		if err := again(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
			return 0, fmt.Errorf("flock: %w", err)
		}
		if err := again(func() error { return recordLock(f, unix.F_SETLKW) }); err != nil {
			return 0, fmt.Errorf("lock record: %w", err)
		}
		b := make([]byte, 8)
		if _, err := f.ReadAt(b, 0); err != nil {
			return 0, err
		}
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)+1)
		if _, err := f.WriteAt(b, 0); err != nil {
			return 0, err
		}
		if f != held { // closing the file releases both locks
			if err := f.Close(); err != nil {
				return 0, err
			}
		} else {
			unlock := &unix.Flock_t{Type: unix.F_UNLCK, Start: 0, Len: 8}
			if err := again(func() error { return unix.FcntlFlock(f.Fd(), unix.F_SETLK, unlock) }); err != nil {
				return 0, fmt.Errorf("unlock record: %w", err)
			}
			if err := again(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }); err != nil {
				return 0, fmt.Errorf("unlock: %w", err)
			}
		}
		j.pace(6 * time.Millisecond)
	}
	return steps, nil
}
