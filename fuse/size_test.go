package fuse

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// oddSizes are sizes close to multiples of the page size.
var oddSizes = []int{0, 1, 5, 4095, 4096, 4097, 8192, 8193, 100_000}

// pageSize is the unit of the kernel's page cache, in bytes.
var pageSize = os.Getpagesize()

func pattern(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + i/7%26)
	}
	return string(b)
}

// If the size was unknown at the lookup, the first call that needs the size returns the right one, whichever call it
// is.
func TestUnknownSizes(t *testing.T) {
	ways := map[string]func(path string) (got, want string, err error){}
	size := 0
	content := func(n int) string { return pattern(n) }
	ways["stat"] = func(path string) (string, string, error) {
		st, err := os.Lstat(path)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprint(st.Size()), fmt.Sprint(size), nil
	}
	ways["read"] = func(path string) (string, string, error) {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			return "", "", err
		}
		defer unix.Close(fd)
		buf := make([]byte, size+100)
		n, err := unix.Read(fd, buf)
		return string(buf[:max(n, 0)]), content(size), err
	}
	ways["seek to the end"] = func(path string) (string, string, error) {
		fd, err := unix.Open(path, unix.O_WRONLY, 0)
		if err != nil {
			return "", "", err
		}
		defer unix.Close(fd)
		end, err := unix.Seek(fd, 0, unix.SEEK_END)
		return fmt.Sprint(end), fmt.Sprint(size), err
	}
	ways["append"] = func(path string) (string, string, error) {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND, 0)
		if err != nil {
			return "", "", err
		}
		_, err = unix.Write(fd, []byte("more"))
		unix.Close(fd)
		if err != nil {
			return "", "", err
		}
		b, err := os.ReadFile(path)
		return string(b), content(size) + "more", err
	}
	ways["write at the start"] = func(path string) (string, string, error) {
		fd, err := unix.Open(path, unix.O_WRONLY, 0)
		if err != nil {
			return "", "", err
		}
		_, err = unix.Pwrite(fd, []byte("#"), 0)
		unix.Close(fd)
		if err != nil {
			return "", "", err
		}
		b, err := os.ReadFile(path)
		return string(b), "#" + content(size)[min(size, 1):], err
	}
	ways["truncate"] = func(path string) (string, string, error) {
		if err := os.Truncate(path, 4097); err != nil {
			return "", "", err
		}
		b, err := os.ReadFile(path)
		return string(b), (content(size) + strings.Repeat("\x00", 4097))[:4097], err
	}
	ways["allocate"] = func(path string) (string, string, error) {
		fd, err := unix.Open(path, unix.O_WRONLY, 0)
		if err != nil {
			return "", "", err
		}
		err = unix.Fallocate(fd, 0, 0, 10)
		unix.Close(fd)
		if err != nil {
			return "", "", err
		}
		b, err := os.ReadFile(path)
		return string(b), content(size) + strings.Repeat("\x00", max(0, 10-size)), err
	}
	ways["sendfile"] = func(path string) (string, string, error) {
		out, err := os.Create(t.TempDir() + "/out")
		if err != nil {
			return "", "", err
		}
		defer out.Close()
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			return "", "", err
		}
		defer unix.Close(fd)
		for n := 1; n > 0 && err == nil; {
			n, err = unix.Sendfile(int(out.Fd()), fd, nil, 1<<20)
		}
		b, readErr := os.ReadFile(out.Name())
		if err == nil {
			err = readErr
		}
		return string(b), content(size), err
	}
	for name, f := range ways {
		t.Run(name, func(t *testing.T) {
			files := make(map[string]worktreetest.File)
			for _, size = range oddSizes {
				files[fmt.Sprint(size)] = worktreetest.File{Data: pattern(size)}
			}
			m := edit(t, files)
			for _, size = range oddSizes {
				if got, want, err := f(m.path(fmt.Sprint(size))); err != nil || got != want {
					t.Errorf("file of %d bytes: got %d bytes %.20q, want %d bytes %.20q, %v", size, len(got), got,
						len(want), want, err)
				}
				st, err := os.Stat(m.path(fmt.Sprint(size)))
				b, readErr := os.ReadFile(m.path(fmt.Sprint(size)))
				if err != nil || readErr != nil || st.Size() != int64(len(b)) {
					t.Errorf("file of %d bytes: then stat returned size %d, and a read %d bytes; errors %v, %v", size, st.Size(),
						len(b), err, readErr)
				}
			}
		})
	}
}

// Operations that need no size do not wait for one, neither as system calls nor in the common programs for them.
func TestNoSizeNeeded(t *testing.T) {
	commands := []string{
		"rm f", "rm -f f", "unlink f", "mv f g", "mv -f other f", "chmod 700 f", "chmod -R go= .", "touch f", "touch -d @5 f",
		"ln f g", "chown 0 f",
		": > f", "cp /dev/null f", "printf new > f", "rm link", "mv link g", "ln -sfn elsewhere link", "rm -r sub/../dir",
		"mv dir moved && rm -r moved",
		"test -w f", "ls", "ls --color=always", "mkdir new && mv f new/", "python3 -c 'import os; os.truncate(\"f\", 0)'",
	}
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			m := edit(t, map[string]worktreetest.File{
				"f": {Data: "content"}, "other": {Data: "other content"}, "dir/a": {Data: "deep"}, "sub/x": {},
				"link": {Mode: object.ModeSymlink, Data: "f"},
			})
			for _, path := range []string{"f", "other", "dir/a", "link"} {
				m.src.Rule(path, worktreetest.Rule{Err: os.ErrDeadlineExceeded})
			}
			m.run("sh", "-c", command)
			if n := m.src.Calls("Size") + m.src.Calls("Open"); n != 0 {
				t.Errorf("the source was asked %d times for sizes or contents, want none", n)
			}
		})
	}
}

// The same while another process waits for the size, and that process gets the right size in the end.
func TestBlockedSize(t *testing.T) {
	files := map[string]worktreetest.File{"big": {Data: pattern(4097)}}
	for _, name := range []string{"rm", "mv", "chmod", "ln", "touch", "trunc", "open"} {
		files[name] = worktreetest.File{Data: name + " has this"}
	}
	m := edit(t, files)
	release := make(chan struct{})
	for path := range files {
		m.src.Rule(path, worktreetest.Rule{Block: release})
	}
	stat := make(map[string]chan int64)
	for path := range files {
		size := make(chan int64, 1)
		stat[path] = size
		go func() {
			var st unix.Stat_t
			if err := unix.Stat(m.path(path), &st); err != nil {
				t.Errorf("stat %s: %v", path, err)
			}
			size <- st.Size
		}()
		m.until("stat waits", func() bool { return m.src.Waiting(path) == 1 })
	}
	began := time.Now()
	for what, err := range map[string]error{
		"rm":    os.Remove(m.path("rm")),
		"mv":    os.Rename(m.path("mv"), m.path("moved")),
		"chmod": os.Chmod(m.path("chmod"), 0o600),
		"ln":    os.Link(m.path("ln"), m.path("linked")),
		"touch": os.Chtimes(m.path("touch"), time.Time{}, time.Unix(1, 0)),
		"trunc": os.WriteFile(m.path("trunc"), nil, 0),
		"open":  exec.Command("touch", m.path("open")).Run(),
		"new":   os.WriteFile(m.path("new"), []byte("beside"), 0o666),
	} {
		if err != nil {
			t.Errorf("change %s while sizes are unknown: %v", what, err)
		}
	}
	if took := time.Since(began); took > await.Patience { // the sizes arrive only later
		t.Errorf("changes without a size took %v", took)
	}
	select {
	case size := <-stat["big"]:
		t.Errorf("stat did not wait for the size, and returned %d", size)
	default:
	}
	close(release)
	for path, size := range stat {
		want := int64(len(files[path].Data))
		if path == "trunc" {
			want = 0
		}
		if got := <-size; got != want {
			t.Errorf("stat %s: got size %d, want %d", path, got, want)
		}
	}
	for path, want := range map[string]string{"moved": "mv", "chmod": "chmod", "ln": "ln", "linked": "ln",
		"touch": "touch", "open": "open", "big": "big"} {
		if b, err := os.ReadFile(m.path(path)); err != nil || string(b) != files[want].Data {
			t.Errorf("read %s: got %.30q, %v", path, b, err)
		}
	}
}

// An overlayfs above the mount copies files up, and opens them in a way that looks as if only a write followed.
func TestSizeUnderOverlay(t *testing.T) {
	file := worktreetest.File{Data: pattern(5_000)}
	m := edit(t, map[string]worktreetest.File{"f": file, "g": file, "h": file})
	top := t.TempDir()
	dirs := make(map[string]string)
	for _, name := range []string{"upper", "work", "merged"} {
		dirs[name] = filepath.Join(top, name)
		if err := os.Mkdir(dirs[name], 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(top, 0) })
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dirs["merged"], "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", m.dir, dirs["upper"], dirs["work"])); err != nil {
		t.Skipf("cannot mount an overlay: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dirs["merged"], 0); err != nil {
			t.Error(err)
		}
	})
	m.run("sh", "-ec", "cd "+dirs["merged"]+"; printf x >> f; chmod 600 g; ln h i")
	for name, want := range map[string]string{"f": pattern(5_000) + "x", "g": pattern(5_000), "i": pattern(5_000)} {
		if got := m.run("cat", filepath.Join(dirs["merged"], name)); got != want {
			t.Errorf("copied-up %s: got %d bytes, want %d", name, len(got), len(want))
		}
	}
}

// Processes that stat, read and list files at once while the source learns their sizes never see a wrong size.
func TestSizeRaces(t *testing.T) {
	const n = 150
	files := make(map[string]worktreetest.File)
	for i := range n {
		files[fmt.Sprintf("d/f%03d", i)] = worktreetest.File{Data: pattern(1 + i*97%9000)}
	}
	for round := range 3 {
		m := edit(t, files)
		var all sync.WaitGroup
		check := func(path string) {
			want := files[path].Data
			st, err := os.Stat(m.path(path))
			if err != nil || st.Size() != int64(len(want)) {
				t.Errorf("round %d: stat %s: %v, want %d bytes, %v", round, path, st, len(want), err)
			}
			if b, err := os.ReadFile(m.path(path)); err != nil || string(b) != want {
				t.Errorf("round %d: read %s: %d bytes, want %d, %v", round, path, len(b), len(want), err)
			}
		}
		for worker := range 4 {
			all.Go(func() {
				for i := range n {
					check(fmt.Sprintf("d/f%03d", (i*(2*worker+1)+worker*40)%n))
				}
			})
		}
		all.Go(func() {
			for range 5 {
				entries, err := os.ReadDir(m.path("d"))
				if err != nil || len(entries) != n {
					t.Errorf("round %d: listing has %d entries, %v", round, len(entries), err)
				}
				for _, e := range entries {
					if st, err := e.Info(); err != nil || st.Size() != int64(len(files["d/"+e.Name()].Data)) {
						t.Errorf("round %d: stat of a listed file: got %v, %v", round, st, err)
					}
				}
			}
		})
		all.Wait()
	}
}

// If the source returned a wrong size, the first read fails, and a later stat returns the right size.
func TestResizedWritable(t *testing.T) {
	for _, lie := range []int64{3, 5000} {
		m := edit(t, map[string]worktreetest.File{"f": {Data: "the truth", Size: lie}})
		if st, err := os.Stat(m.path("f")); err != nil || st.Size() != lie {
			t.Fatalf("stat before the first read: got %v, %v", st, err)
		}
		open, err := os.Open(m.path("f"))
		if err != nil {
			t.Fatal(err)
		}
		// The kernel may repeat the read when it knows the right size.
		if b, err := io.ReadAll(open); err == nil && string(b) != "the truth" {
			t.Errorf("read of a file whose size is wrong: got %q without an error", b)
		}
		m.until("the right size", func() bool {
			st, err := os.Stat(m.path("f"))
			return err == nil && st.Size() == 9
		})
		if b, err := os.ReadFile(m.path("f")); err != nil || string(b) != "the truth" {
			t.Errorf("read after the size was corrected: got %q, %v", b, err)
		}
		open.Close()
	}
}
