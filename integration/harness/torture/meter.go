package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// minGap is the minimum duration of an operation that the meter reports.
const minGap = time.Millisecond

// meter does operations that only the server can answer, one after the other, each kind of operation in a separate
// thread. It reports all operations that take at least minGap.
func (j *job) meter() error {
	files, err := j.files()
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(j.mount, files[len(files)/2]))
	if err != nil {
		return err
	}
	kinds := map[string]func(i int) error{
		"look-up": func(i int) error {
			var st unix.Stat_t
			err := again(func() error { return unix.Lstat(filepath.Join(j.dir, fmt.Sprint("nothing", i)), &st) })
			if err == unix.ENOENT {
				return nil
			}
			return fmt.Errorf("stat missing name: got %v", err)
		},
		"read": func(int) error {
			if err := again(func() error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }); err != nil {
				return err
			}
			_, err := f.ReadAt(make([]byte, 1), 0)
			return err
		},
		"create": func(i int) error {
			dir := filepath.Join(j.dir, fmt.Sprint("made", i))
			if err := again(func() error { return unix.Mkdir(dir, 0o700) }); err != nil {
				return fmt.Errorf("mkdir: %w", err)
			}
			if err := again(func() error { return unix.Rmdir(dir) }); err != nil {
				return fmt.Errorf("rmdir: %w", err)
			}
			return nil
		},
	}
	over := make(chan error)
	for kind, f := range kinds {
		go func() {
			for i := 0; !j.over(1); i++ {
				start := Now()
				if err := f(i); err != nil {
					over <- fmt.Errorf("%s: %w", kind, err)
					return
				}
				if end := Now(); end-start >= minGap {
					j.printf("gap %s %d %d", kind, start, end)
				}
				time.Sleep(100 * time.Microsecond)
			}
			over <- nil
		}()
	}
	for range kinds {
		if err2 := <-over; err == nil {
			err = err2
		}
	}
	return err
}

// Stalls returns, for each moment, the longest time that a program had to wait because of an event at this moment. This
// is the longest part of a gap after the moment, among the gaps that began before the next moment. moments must be
// sorted.
func Stalls(gaps []Gap, moments []time.Duration) []time.Duration {
	stalls := make([]time.Duration, len(moments))
	for i, at := range moments {
		next := Now()
		if i+1 < len(moments) {
			next = moments[i+1]
		}
		for _, g := range gaps {
			if g.End > at && g.Start < next {
				stalls[i] = max(stalls[i], g.End-max(g.Start, at))
			}
		}
	}
	return stalls
}
