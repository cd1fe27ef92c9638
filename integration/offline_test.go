package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// offlineTime is the longest time for an operation that needs no contents. It is generous, because machines are busy: a
// wait for the network would be many times longer.
const offlineTime = 3 * time.Second

// Operations that need no contents need no network: no file has been read, no size is known, and the server is
// unreachable.
func TestWithoutNetwork(t *testing.T) {
	w := newWorld(t)
	const many = 1000
	files := map[string]gittest.File{}
	for i := range many {
		files[fmt.Sprintf("move/sub%d/f%04d", i%10, i)] = gittest.File{Data: fmt.Appendf(nil, "moved %d\n", i)}
		files[fmt.Sprintf("remove/sub%d/f%04d", i%10, i)] = gittest.File{Data: fmt.Appendf(nil, "removed %d\n", i)}
	}
	for i := range 100 {
		files[fmt.Sprintf("src/f%02d", i)] = gittest.File{Data: fmt.Appendf(nil, "source %d\n", i)}
	}
	w.commit(w.repo("r.git", object.SHA1), files)
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	m := w.bare(s.URL("r.git"), "--wait", "git", "--timeout", "60s")
	s.forget()
	s.Down()
	before := m.status().Network
	src := func(i int) string { return m.path(fmt.Sprintf("src/f%02d", i)) }
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"mv of a directory", func() error { return os.Rename(m.path("move"), m.path("moved")) }},
		{"mv by the command", func() error { return exec.Command("mv", m.path("moved/sub3"), m.path("moved/sub33")).Run() }},
		{"mv of a file", func() error { return os.Rename(src(0), m.path("moved/f")) }},
		{"mv over a file", func() error { return unix.Rename(src(1), src(2)) }}, // os.Rename calls lstat on the target
		{"mv of a new file over a file", func() error {
			if err := os.WriteFile(m.path("new"), []byte("new\n"), 0o644); err != nil {
				return err
			}
			return unix.Rename(m.path("new"), src(3))
		}},
		{"exchange", func() error {
			return unix.Renameat2(unix.AT_FDCWD, src(4), unix.AT_FDCWD, src(5), unix.RENAME_EXCHANGE)
		}},
		{"chmod", func() error { return os.Chmod(src(6), 0o755) }},
		{"chmod by the command", func() error { return exec.Command("chmod", "+x", src(7)).Run() }},
		{"chown", func() error { return os.Lchown(src(8), 1, 1) }},
		{"utimes", func() error { return os.Chtimes(src(9), time.Unix(1, 0), time.Unix(2, 0)) }},
		{"touch", func() error { return exec.Command("touch", src(10)).Run() }},
		{"link", func() error { return os.Link(src(11), m.path("link")) }},
		{"rm", func() error { return os.Remove(src(12)) }},
		{"rm by the command", func() error { return exec.Command("rm", src(13)).Run() }},
		{"rm -f by the command", func() error { return exec.Command("rm", "-f", src(14)).Run() }},
		{"truncate to nothing", func() error { return os.Truncate(src(15), 0) }},
		{": > file", func() error { return exec.Command("sh", "-c", ": >"+src(16)).Run() }},
		{"echo > file", func() error { return exec.Command("sh", "-c", "echo new >"+src(17)).Run() }},
		{"open to write it anew", func() error { return os.WriteFile(src(18), []byte("anew\n"), 0o644) }},
		{"create", func() error { return os.WriteFile(m.path("src/new"), []byte("new\n"), 0o644) }},
		{"mkdir", func() error { return os.MkdirAll(m.path("new-dir/a/b"), 0o755) }},
		{"ls", func() error { return exec.Command("ls", "-R", m.Dir).Run() }},
		{"find by name and type", func() error { return exec.Command("find", m.Dir, "-type", "f", "-name", "*.none").Run() }},
		{"rm -rf of a directory", func() error { return exec.Command("rm", "-rf", m.path("remove")).Run() }},
		{"rm -rf of a moved directory", func() error { return os.RemoveAll(m.path("moved/sub5")) }},
	} {
		start := now()
		err := within(offlineTime*10, c.do)
		took := start.elapsed()
		t.Logf("%-30s %8.1f ms", c.name, float64(took.Microseconds())/1000)
		if err != nil || took > offlineTime {
			t.Errorf("%s without a network: got %v after %v", c.name, err, took)
		}
	}
	if after := m.status().Network; after.Requests != before.Requests {
		t.Errorf("offline operations made %d requests", after.Requests-before.Requests)
	}
	if requests := s.Log().Requests(); len(requests) > 0 {
		t.Errorf("requests to the server: got %v, want none", requests)
	}
	// The changes have the expected result, and untouched files are fetched once the network is back.
	s.up()
	for path, want := range map[string]string{
		"moved/sub33/f0013": "moved 13\n", "moved/f": "source 0\n", src(2): "source 1\n", src(3): "new\n",
		src(4): "source 5\n", src(5): "source 4\n",
		src(6): "source 6\n", src(8): "source 8\n", src(10): "source 10\n", "link": "source 11\n", src(15): "", src(16): "",
		src(17): "new\n", src(18): "anew\n",
	} {
		if !filepath.IsAbs(path) {
			path = m.path(path)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("read %s: got %q, %v, want %q", path, got, err, want)
		}
		if info, err := os.Lstat(path); err != nil || info.Size() != int64(len(want)) {
			t.Errorf("stat %s: got size %d, %v", path, info.Size(), err)
		}
	}
	for _, path := range []string{"move", "remove", "src/f00", "src/f12", "src/f14", "moved/sub3", "moved/sub5"} {
		if _, err := os.Lstat(m.path(path)); !os.IsNotExist(err) {
			t.Errorf("lstat %s: got %v, want no such file", path, err)
		}
	}
	if st := statOf(t, src(6)); st.Mode&0o777 != 0o755 {
		t.Errorf("mode after chmod: got %o", st.Mode)
	}
	if st := statOf(t, src(9)); st.Mtim.Sec != 2 || st.Size != int64(len("source 9\n")) {
		t.Errorf("stat after the mtime was set: got mtime %v, size %d", st.Mtim, st.Size)
	}
}

// within returns an error if f has not returned after the duration d, so that a call that waits for the network does
// not block the test.
func within(d time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return fmt.Errorf("call did not return after %v", d)
	}
}

// The first call that reads the size of a file whose size is unknown returns the right size, whichever system call it
// is.
func TestSizesNeverLie(t *testing.T) {
	w := newWorld(t)
	sizes := []int{0, 1, 100, 4095, 4096, 4097, 8193, 70_001}
	ways := []struct {
		name string
		size func(path string) (int64, error)
	}{
		{"stat", func(path string) (int64, error) {
			info, err := os.Stat(path)
			if err != nil {
				return 0, err
			}
			return info.Size(), nil
		}},
		{"read", func(path string) (int64, error) {
			fd, err := open(path, unix.O_RDONLY, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			data, err := readHandle(fd)
			return int64(len(data)), err
		}},
		{"seek to the end", func(path string) (int64, error) {
			fd, err := open(path, unix.O_RDONLY, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			return unix.Seek(fd, 0, 2)
		}},
		{"append", func(path string) (int64, error) {
			fd, err := open(path, unix.O_WRONLY|unix.O_APPEND, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			if _, err := unix.Write(fd, []byte("+")); err != nil {
				return 0, err
			}
			at, err := unix.Seek(fd, 0, 1)
			return at - 1, err
		}},
		{"append by the shell", func(path string) (int64, error) {
			if err := exec.Command("sh", "-c", "printf + >>"+path).Run(); err != nil {
				return 0, err
			}
			data, err := os.ReadFile(path)
			return int64(len(data)) - 1, err
		}},
		{"write in the middle", func(path string) (int64, error) {
			fd, err := open(path, unix.O_WRONLY, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			if _, err := unix.Pwrite(fd, nil, 0); err != nil {
				return 0, err
			}
			var st unix.Stat_t
			if _, err := unix.Pwrite(fd, []byte("*"), 0); err != nil {
				return 0, err
			}
			err = unix.Fstat(fd, &st)
			return st.Size, err
		}},
		{"fstat of what was opened for writing", func(path string) (int64, error) {
			fd, err := open(path, unix.O_WRONLY, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(fd)
			var st unix.Stat_t
			err = unix.Fstat(fd, &st)
			return st.Size, err
		}},
		{"chmod, then stat", func(path string) (int64, error) {
			if err := os.Chmod(path, 0o700); err != nil {
				return 0, err
			}
			info, err := os.Stat(path)
			if err != nil {
				return 0, err
			}
			return info.Size(), nil
		}},
		{"rename, then stat", func(path string) (int64, error) {
			if err := os.Rename(path, path+".moved"); err != nil {
				return 0, err
			}
			info, err := os.Stat(path + ".moved")
			if err != nil {
				return 0, err
			}
			return info.Size(), nil
		}},
		{"cp", func(path string) (int64, error) {
			if out, err := exec.Command("cp", path, path+".copy").CombinedOutput(); err != nil {
				return 0, fmt.Errorf("%w: %s", err, out)
			}
			info, err := os.Stat(path + ".copy")
			if err != nil {
				return 0, err
			}
			return info.Size(), nil
		}},
		{"truncate to one", func(path string) (int64, error) { // the byte that remains is the first one of the file
			if err := os.Truncate(path, 1); err != nil {
				return 0, err
			}
			data, err := os.ReadFile(path)
			if err != nil || len(data) != 1 {
				return 0, fmt.Errorf("%d bytes, %v", len(data), err)
			}
			return -1, nil
		}},
	}
	files := map[string]gittest.File{}
	// each file has its own directory, so that readahead does not fetch it
	name := func(way, size int) string { return fmt.Sprintf("way%02d-%d/f", way, size) }
	for i := range ways {
		for _, n := range sizes {
			data := make([]byte, n)
			for j := range data {
				data[j] = byte('a' + (i+j)%26)
			}
			files[name(i, n)] = gittest.File{Data: data}
		}
	}
	w.commit(w.repo("r.git", object.SHA1), files)
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	m := w.bare(s.URL("r.git"))
	for i, way := range ways {
		for _, n := range sizes {
			path := m.path(name(i, n))
			var got int64
			err := within(patience, func() (err error) { got, err = way.size(path); return })
			want := int64(n)
			if way.name == "write in the middle" {
				want = max(want, 1)
			}
			if err != nil || got != want && got >= 0 {
				t.Errorf("size by %s: got %d, %v, want %d", way.name, got, err, want)
			}
		}
	}
}
