package torture

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files returns the paths of the regular files in the checkout that no job changes.
func (j *job) files() ([]string, error) {
	var all []string
	err := filepath.WalkDir(j.plain, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(j.plain, path)
		if rel == ".git" || rel == WorkDir {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			all = append(all, rel)
		}
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("list %s: no files", j.plain)
	}
	return all, err
}

// reader keeps files of the mount open, reads them at random offsets, and compares them with the checkout.
func (j *job) reader() error {
	names, err := j.files()
	if err != nil {
		return err
	}
	type both struct{ ours, plain *os.File }
	open := make([]both, 10)
	for !j.over(1) {
		at := j.rnd.IntN(len(open))
		if f := open[at]; f.ours == nil || j.rnd.IntN(20) == 0 {
			if f.ours != nil {
				f.ours.Close()
				f.plain.Close()
			}
			name := names[j.rnd.IntN(len(names))]
			ours, err := os.Open(filepath.Join(j.mount, name))
			if err != nil {
				return err
			}
			plain, err := os.Open(filepath.Join(j.plain, name))
			if err != nil {
				return err
			}
			open[at] = both{ours, plain}
		}
		if err := j.compare(open[at].ours, open[at].plain); err != nil {
			return err
		}
		j.pace(40 * time.Millisecond) // leave processor time for other jobs, because many readers run
	}
	return nil
}

// compare reads the same range of both files and compares the bytes. Half of the reads bypass the page cache.
func (j *job) compare(ours, plain *os.File) error {
	info, err := plain.Stat()
	if err != nil {
		return err
	}
	mine, err := ours.Stat()
	if err != nil {
		return err
	}
	if mine.Size() != info.Size() {
		return fmt.Errorf("compare %s: size is %d, want %d", ours.Name(), mine.Size(), info.Size())
	}
	if j.rnd.IntN(2) == 0 {
		if err := again(func() error { return unix.Fadvise(int(ours.Fd()), 0, 0, unix.FADV_DONTNEED) }); err != nil {
			return err
		}
	}
	off := j.rnd.Int64N(info.Size() + 1)
	want, got := make([]byte, min(8192, info.Size()-off)), make([]byte, min(8192, info.Size()-off))
	if _, err := plain.ReadAt(want, off); err != nil {
		return err
	}
	if _, err := ours.ReadAt(got, off); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("compare %s: %d bytes at offset %d differ", ours.Name(), len(got), off)
	}
	return nil
}

// listing slowly lists the directory with the most entries, in small pieces, while its working directory is in the
// mount.
func (j *job) listing() error {
	dir, want, err := j.widest()
	if err != nil {
		return err
	}
	if err := os.Chdir(filepath.Join(j.mount, dir)); err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	for !j.over(len(want)) {
		if err := j.list(want); err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for range 20 { // these calls use relative names
			name := want[j.rnd.IntN(len(want))]
			if _, err := os.Lstat(name); err != nil {
				return err
			}
			_, err := os.Lstat(fmt.Sprintf("%s-is-not-here-%d", name, j.rnd.Uint64()))
			if !os.IsNotExist(err) {
				return fmt.Errorf("stat missing name: %w", err)
			}
		}
		buf := make([]byte, unix.PathMax)
		n, err := unix.Getcwd(buf)
		if err != nil {
			return fmt.Errorf("getcwd: %w", err)
		}
		if got := string(buf[:n-1]); got != here {
			return fmt.Errorf("getcwd: got %s, want %s", got, here)
		}
	}
	return nil
}

// widest returns the directory of the checkout with the most entries, and the names of the entries.
func (j *job) widest() (string, []string, error) {
	files, err := j.files()
	if err != nil {
		return "", nil, err
	}
	count, best := map[string]int{}, ""
	for _, f := range files {
		dir := filepath.Dir(f)
		if count[dir]++; dir != "." && count[dir] > count[best] {
			best = dir
		}
	}
	entries, err := os.ReadDir(filepath.Join(j.plain, best))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return best, names, err
}

// list lists the working directory. Each name must appear once, even if the listing takes long and a takeover happens
// during it.
func (j *job) list(want []string) error {
	fd, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var got []string
	buf := make([]byte, 2048)
	for !j.ended.Load() {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("list directory: %d names, want %d: %s", len(got), len(want), firstDifference(got, want))
			}
			return nil
		}
		got = append(got, direntNames(buf[:n])...)
		j.pace(3 * time.Millisecond)
	}
	return nil
}

func direntNames(b []byte) []string {
	var names []string
	for len(b) > 0 {
		d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
		name, _, _ := strings.Cut(string(b[unsafe.Offsetof(d.Name):d.Reclen]), "\x00")
		if name != "." && name != ".." {
			names = append(names, name)
		}
		b = b[d.Reclen:]
	}
	return names
}

func firstDifference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		if i >= len(got) {
			return want[i] + " is missing"
		}
		if i >= len(want) || got[i] != want[i] {
			return fmt.Sprintf("name %d is %s", i, got[i])
		}
	}
	return "none"
}

// watch changes files in a directory and checks that inotify reports an event for each change, once and in order.
func (j *job) watch() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, j.dir,
		unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE); err != nil {
		return fmt.Errorf("watch %s: %w", j.dir, err)
	}
	for i := 0; !j.over(4); i++ {
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		if err := os.WriteFile(filepath.Join(j.dir, a), []byte(a), 0o644); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(j.dir, a), filepath.Join(j.dir, b)); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(j.dir, b)); err != nil {
			return err
		}
		want := []string{fmt.Sprint(unix.IN_CREATE, " ", a), fmt.Sprint(unix.IN_CLOSE_WRITE, " ", a),
			fmt.Sprint(unix.IN_MOVED_TO, " ", b), fmt.Sprint(unix.IN_DELETE, " ", b)}
		var got []string
		buf := make([]byte, 4096)
		for deadline := time.Now().Add(longWait); len(got) < len(want) && time.Now().Before(deadline); {
			n, err := unix.Read(fd, buf)
			if err == unix.EAGAIN || err == unix.EINTR {
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				return fmt.Errorf("read events: %w", err)
			}
			for at := 0; at < n; {
				e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
				name, _, _ := strings.Cut(string(buf[at+unix.SizeofInotifyEvent:at+unix.SizeofInotifyEvent+int(e.Len)]), "\x00")
				got = append(got, fmt.Sprint(e.Mask, " ", name))
				at += unix.SizeofInotifyEvent + int(e.Len)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("read events: got %q, want %q", got, want)
		}
		j.pace(5 * time.Millisecond)
	}
	return nil
}
