package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// posixChecks must pass on every file system on Linux. They also run in a new directory of a plain file
// system, where a failure means that the check is wrong.
var posixChecks = []struct {
	name string
	run  func(t *testing.T, dir string)
}{
	{"fifo", posixFifo},
	{"socket", posixSocket},
	{"flock", posixFlock},
	{"record locks", posixRecordLocks},
	{"append by processes", posixAppend},
	{"ordinary user", posixOrdinaryUser},
	{"set-user-ID", posixSetUserID},
	{"set-group-ID directory", posixSetGroupID},
	{"fallocate", posixFallocate},
	{"holes", posixHoles},
	{"holes of unwritten pages", posixHolesOfDirtyPages},
	{"statfs", posixStatfs},
	{"times", posixTimes},
	{"tmpfile", posixTmpfile},
	{"direct", posixDirect},
	{"memory shared by processes", posixSharedMemory},
	{"execute", posixExecute},
	{"hard links", posixHardLinks},
	{"special files", posixSpecialFiles},
	{"names", posixNames},
	{"deep", posixDeep},
	{"readdir while entries come and go", posixReadDir},
	{"seek in a directory", posixSeekDir},
	{"removed working directory", posixRemovedDirectory},
	{"rename", posixRename},
	{"inotify", posixInotify},
}

func TestPosixItself(t *testing.T) {
	for _, c := range posixChecks {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for d := dir; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
				os.Chmod(d, 0o755) // so that the unprivileged user can enter it
			}
			c.run(t, dir)
		})
	}
}

func TestPosix(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), map[string]gittest.File{"file": {Data: []byte("x\n")}})
	for dir := w.root; dir != "/"; dir = filepath.Dir(dir) {
		info := must[os.FileInfo](t)(os.Stat(dir))
		if err := os.Chmod(dir, info.Mode()|0o011); err != nil {
			t.Fatal(err)
		}
	}
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--allow-other")
	for i, c := range posixChecks {
		t.Run(c.name, func(t *testing.T) {
			dir := m.path(fmt.Sprintf("check%d", i))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			c.run(t, dir)
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// Some checks need another process: this program again, with an environment variable that selects a function.
func init() {
	what, arg, _ := strings.Cut(os.Getenv("AFS_TEST_CHILD"), " ")
	if what == "" {
		return
	}
	if err := children[what](arg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var children = map[string]func(string) error{
	"dial": dialChild,
	"read": readChild,
	"lock": func(path string) error { // reports whether the first byte could be locked
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1})
	},
	"append": func(path string) error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		for i := range appendLines {
			if _, err := fmt.Fprintf(f, "%d %d %s\n", os.Getpid(), i, strings.Repeat("x", i%200)); err != nil {
				return err
			}
		}
		return f.Close()
	},
	"memory": func(path string) error { // writes the answer to the second page when the first has a request
		mem, f, err := sharedPages(path)
		if err != nil {
			return err
		}
		defer f.Close()
		for deadline := time.Now().Add(patience); mem[0] == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				return errors.New("nothing was asked")
			}
		}
		mem[4096] = mem[0] + 1
		return nil
	},
}

const appendLines = 300

func child(what string, arg string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AFS_TEST_CHILD="+what+" "+arg)
	return cmd
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants checks that an operation failed with an errno.
func wants(t *testing.T, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st
}

func posixFifo(t *testing.T, dir string) {
	path := filepath.Join(dir, "fifo")
	check(t, unix.Mkfifo(path, 0o600))
	go os.WriteFile(path, []byte("through a fifo"), 0)
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "through a fifo" {
		t.Errorf("read the fifo: got %q (%v), want \"through a fifo\"", got, err)
	}
}

func posixSocket(t *testing.T, dir string) {
	path := filepath.Join(dir, "s")
	l := must[net.Listener](t)(net.Listen("unix", path))
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, "through a socket")
			c.Close()
		}
	}()
	c := must[net.Conn](t)(net.Dial("unix", path))
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "through a socket" {
		t.Errorf("read the socket: got %q (%v), want \"through a socket\"", got, err)
	}
	if st := statOf(t, path); st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		t.Errorf("mode of the socket: got %o", st.Mode)
	}
}

func posixFlock(t *testing.T, dir string) {
	path := filepath.Join(dir, "file")
	f := must[*os.File](t)(os.Create(path))
	defer f.Close()
	check(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	g := must[*os.File](t)(os.Open(path))
	defer g.Close()
	wants(t, "second lock", unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	if err := exec.Command("flock", "-n", path, "true").Run(); err == nil {
		t.Error("another process could lock the file")
	}
	check(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	if err := exec.Command("flock", "-n", path, "true").Run(); err != nil {
		t.Errorf("another process could not lock the file: %v", err)
	}
}

func posixRecordLocks(t *testing.T, dir string) {
	path := filepath.Join(dir, "file")
	f := must[*os.File](t)(os.Create(path))
	defer f.Close()
	check(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1}))
	if child("lock", path).Run() == nil {
		t.Error("another process could lock the byte")
	}
	check(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Len: 1}))
	if out, err := child("lock", path).CombinedOutput(); err != nil {
		t.Errorf("another process could not lock the byte: %s", out)
	}
}

func posixAppend(t *testing.T, dir string) {
	path := filepath.Join(dir, "log")
	check(t, os.WriteFile(path, nil, 0o644))
	var all []*exec.Cmd
	for range 4 {
		c := child("append", path)
		check(t, c.Start())
		all = append(all, c)
	}
	next := map[string]int{}
	for _, c := range all {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		next[strconv.Itoa(c.Process.Pid)] = 0
	}
	data := must[[]byte](t)(os.ReadFile(path))
	for line := range bytes.Lines(data) {
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
		i, ok := next[fields[0]]
		if !ok || len(fields) != 3 || fields[1] != strconv.Itoa(i) || len(fields[2]) != i%200 {
			t.Fatalf("got line %q after %d lines of the process", line, i)
		}
		next[fields[0]]++
	}
	for pid, n := range next {
		if n != appendLines {
			t.Errorf("lines of process %s: got %d", pid, n)
		}
	}
}

// asNobody runs a shell script in the directory dir, with the unprivileged user ID 65534.
func asNobody(t *testing.T, dir, script string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	return runAsNobody(cmd)
}

func posixOrdinaryUser(t *testing.T, dir string) {
	check(t, os.Mkdir(filepath.Join(dir, "open"), 0o755))
	check(t, unix.Chmod(filepath.Join(dir, "open"), 0o1777))
	check(t, os.Mkdir(filepath.Join(dir, "closed"), 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "open", "roots"), []byte("r"), 0o644))
	check(t, os.WriteFile(filepath.Join(dir, "open", "secret"), []byte("r"), 0o600))
	for _, script := range []string{
		"echo mine >open/mine && chmod 600 open/mine && mkdir open/d && echo x >open/d/f && mv open/d/f open/f && ln open/f open/g && ln -s f open/l && rm open/g",
		"touch -d 2001-02-03 open/mine && chgrp " + strconv.Itoa(nobody) + " open/mine && cat open/roots",
	} {
		if out, err := asNobody(t, dir, script); err != nil {
			t.Errorf("run %s as another user: %v: %s", script, err, out)
		}
	}
	for _, script := range []string{
		"echo x >>open/roots", "cat open/secret", "rm -f open/roots", "mv open/roots open/other", "ls closed", "touch new",
		"chmod 777 open/roots", "chown 0 open/mine",
		"touch -d 2001-02-03 open/roots", "ln open/secret open/stolen 2>/dev/null && cat open/stolen", ": >open/roots",
	} {
		if out, err := asNobody(t, dir, script); err == nil {
			t.Errorf("script %s succeeded as another user: %s", script, out)
		}
	}
	if st := statOf(t, filepath.Join(dir, "open/mine")); st.Uid != nobody || st.Gid != nobody ||
		st.Mode != unix.S_IFREG|0o600 {
		t.Errorf("owner and mode: got uid %d, gid %d, mode %o", st.Uid, st.Gid, st.Mode)
	}
}

// A write to a set-user-ID program clears its set-user-ID bit, and so does a change of its owner.
func posixSetUserID(t *testing.T, dir string) {
	path := filepath.Join(dir, "program")
	check(t, os.WriteFile(path, []byte("x"), 0o644))
	for what, change := range map[string]func() error{
		"chown":      func() error { return os.Chown(path, 1, 1) },
		"write":      func() error { _, err := asNobody(t, dir, "echo y >>program"); return err },
		"truncation": func() error { _, err := asNobody(t, dir, ": >program"); return err },
		"allocation": func() error { _, err := asNobody(t, dir, "fallocate -l 5000 program"); return err },
	} {
		check(t, unix.Chmod(path, 0o6777))
		check(t, change())
		if st := statOf(t, path); st.Mode&0o7777 != 0o777 {
			t.Errorf("mode is %o after %s", st.Mode, what)
		}
	}
}

func posixSetGroupID(t *testing.T, dir string) {
	group := filepath.Join(dir, "group")
	check(t, os.Mkdir(group, 0o755))
	check(t, os.Chown(group, 0, 7))
	check(t, unix.Chmod(group, 0o2755))
	check(t, os.WriteFile(filepath.Join(group, "file"), nil, 0o644))
	check(t, os.Mkdir(filepath.Join(group, "sub"), 0o755))
	check(t, os.Symlink("x", filepath.Join(group, "link")))
	for _, name := range []string{"file", "sub", "link"} {
		st := statOf(t, filepath.Join(group, name))
		if st.Gid != 7 || (st.Mode&unix.S_ISGID != 0) != (name == "sub") {
			t.Errorf("new file %s: got gid %d, mode %o", name, st.Gid, st.Mode)
		}
	}
}

func posixFallocate(t *testing.T, dir string) {
	f := must[*os.File](t)(os.Create(filepath.Join(dir, "file")))
	defer f.Close()
	fd := int(f.Fd())
	check(t, unix.Fallocate(fd, 0, 0, 100_000))
	if st := statOf(t, f.Name()); st.Size != 100_000 || st.Blocks*512 < 100_000 {
		t.Errorf("fallocate: got size %d, %d blocks", st.Size, st.Blocks)
	}
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 100_000, 100_000))
	if st := statOf(t, f.Name()); st.Size != 100_000 || st.Blocks*512 < 200_000 {
		t.Errorf("fallocate that keeps the size: got size %d, %d blocks", st.Size, st.Blocks)
	}
	data := bytes.Repeat([]byte{7}, 100_000)
	_ = must[int](t)(f.WriteAt(data, 0))
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5000, 50_000))
	clear(data[5000:55_000])
	if got := must[[]byte](t)(os.ReadFile(f.Name())); !bytes.Equal(got, data) {
		t.Errorf("contents after punching a hole: %s", where(got, data))
	}
	wants(t, "length 0", unix.Fallocate(fd, 0, 0, 0), unix.EINVAL)
	wants(t, "negative offset", unix.Fallocate(fd, 0, -1, 5), unix.EINVAL)
}

// holes checks the results of SEEK_DATA and SEEK_HOLE: all bytes outside of the data ranges are zero.
func holes(t *testing.T, f *os.File, contents []byte) (inHoles int64) {
	t.Helper()
	fd, size := int(f.Fd()), int64(len(contents))
	for at := int64(0); at < size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data = size
		} else if err != nil || data < at {
			t.Fatalf("SEEK_DATA from %d: got %d, %v", at, data, err)
		}
		if len(bytes.Trim(contents[at:data], "\x00")) > 0 {
			t.Errorf("bytes %d to %d are reported as a hole, but are not zero", at, data)
		}
		inHoles += data - at
		if data == size {
			break
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil || hole <= data || hole > size {
			t.Fatalf("SEEK_HOLE from %d: got %d, %v", data, hole, err)
		}
		at = hole
	}
	_, err := unix.Seek(fd, size, unix.SEEK_DATA)
	wants(t, "SEEK_DATA from the end", err, unix.ENXIO)
	_, err = unix.Seek(fd, size+1, unix.SEEK_HOLE)
	wants(t, "SEEK_HOLE behind the end", err, unix.ENXIO)
	return inHoles
}

func posixHoles(t *testing.T, dir string) {
	f := must[*os.File](t)(os.Create(filepath.Join(dir, "file")))
	defer f.Close()
	contents := make([]byte, 4<<20)
	for _, at := range []int{1 << 20, 3<<20 + 5000} {
		copy(contents[at:], "data")
		_ = must[int](t)(f.WriteAt(contents[at:at+4], int64(at)))
	}
	check(t, f.Truncate(int64(len(contents))))
	check(t, f.Sync())
	if n := holes(t, f, contents); n < 2<<20 {
		t.Errorf("bytes in holes: got %d", n)
	}
	if st := statOf(t, f.Name()); st.Blocks*512 > 1<<20 {
		t.Errorf("blocks of the sparse file: got %d", st.Blocks)
	}
}

// Data that was just written is only in the page cache, and must not be reported as a hole.
func posixHolesOfDirtyPages(t *testing.T, dir string) {
	f := must[*os.File](t)(os.Create(filepath.Join(dir, "file")))
	defer f.Close()
	contents := make([]byte, 2<<20)
	check(t, f.Truncate(int64(len(contents))))
	for at := 1 << 19; at < len(contents); at += 1 << 19 {
		copy(contents[at:], "fresh")
		_ = must[int](t)(f.WriteAt([]byte("fresh"), int64(at)))
		holes(t, f, contents)
	}
}

func posixStatfs(t *testing.T, dir string) {
	var st unix.Statfs_t
	check(t, unix.Statfs(dir, &st))
	if st.Bsize < 512 || st.Blocks == 0 || st.Bfree > st.Blocks || st.Bavail == 0 || st.Bavail > st.Bfree ||
		st.Files == 0 || st.Ffree == 0 || st.Namelen != 255 {
		t.Errorf("statfs: got %+v, want plausible numbers of blocks and files", st)
	}
}

func posixTimes(t *testing.T, dir string) {
	path := filepath.Join(dir, "file")
	check(t, os.WriteFile(path, nil, 0o644))
	set := func(a, m unix.Timespec) unix.Stat_t {
		t.Helper()
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{a, m}, 0))
		return statOf(t, path)
	}
	for _, ts := range []unix.Timespec{{Sec: 1, Nsec: 1}, {Sec: 1234567890, Nsec: 123456789}, {Sec: 0, Nsec: 999999999},
		{Sec: -2, Nsec: 5}, {Sec: 5_000_000_000, Nsec: 7}} {
		other := unix.Timespec{Sec: ts.Sec + 3, Nsec: 17}
		if st := set(ts, other); st.Atim != ts || st.Mtim != other {
			t.Errorf("set %v and %v, got %v and %v", ts, other, st.Atim, st.Mtim)
		}
	}
	before := statOf(t, path)
	st := set(unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Sec: 77})
	if st.Atim != before.Atim || st.Mtim.Sec != 77 {
		t.Errorf("utimensat without atime: got atime %v, mtime %v", st.Atim, st.Mtim)
	}
	start := time.Now().Add(-20 * time.Millisecond) // the kernel's time stamps have the resolution of a tick
	st = set(unix.Timespec{Nsec: unix.UTIME_NOW}, unix.Timespec{Nsec: unix.UTIME_OMIT})
	if st.Mtim.Sec != 77 || time.Unix(st.Atim.Unix()).Before(start) {
		t.Errorf("utimensat with atime now: got atime %v, mtime %v", st.Atim, st.Mtim)
	}
	if time.Unix(st.Ctim.Unix()).Before(start) {
		t.Errorf("ctime after utimensat: got %v", st.Ctim)
	}
	ino, parent := st.Ino, statOf(t, dir)
	for deadline := time.Now().Add(patience); ; { // until the clock has moved on
		check(t, os.WriteFile(filepath.Join(dir, "tick"), nil, 0o644))
		check(t, os.Remove(filepath.Join(dir, "tick")))
		if now := statOf(t, dir); now.Mtim != parent.Mtim && now.Ctim != parent.Ctim {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("mtime of the directory stays %v", parent.Mtim)
		}
	}
	check(t, os.Rename(path, path+"2"))
	if st2 := statOf(t, path+"2"); st2.Mtim != st.Mtim || st2.Ino != ino {
		t.Errorf("after a rename mtime %v and inode %d, want %v and %d", st2.Mtim, st2.Ino, st.Mtim, ino)
	}
}
