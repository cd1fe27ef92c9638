package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// user is the load of the process that uses the mount.
type takeoverUser struct {
	dir     string
	stop    atomic.Bool
	errors  atomic.Int64
	ops     atomic.Int64
	longest atomic.Int64 // longest round of stall, in nanoseconds
}

func useTakeover(dir string) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	u := &takeoverUser{dir: dir}
	list := filepath.Join(dir, "list")
	u.must("mkdir", os.Mkdir(list, 0o755))
	for i := range takeoverDir {
		u.must("create", os.WriteFile(filepath.Join(list, fmt.Sprintf("stays%d", i)), nil, 0o644))
	}
	fmt.Println("using")
	var all sync.WaitGroup
	for i, work := range []func(int){u.read, u.read, u.names, u.names, u.nameless, u.list, u.attributes,
		u.stall, u.append} {
		all.Go(func() {
			for round := 0; !u.stop.Load(); round++ {
				work(i*1_000_000 + round)
				u.ops.Add(1)
			}
		})
	}
	<-asked
	u.stop.Store(true)
	all.Wait()
	u.must("clean up", os.RemoveAll(list))
	u.must("clean up", os.RemoveAll(filepath.Join(dir, "appended")))
	left, err := os.ReadDir(dir)
	u.must("list", err)
	if len(left) != 20 {
		u.failed("left: %v", left)
	}
	fmt.Printf("rounds %d, longest stall %v\nerrors %d\n", u.ops.Load(),
		time.Duration(u.longest.Load()).Round(time.Millisecond), u.errors.Load())
}

func (u *takeoverUser) failed(format string, args ...any) {
	u.errors.Add(1)
	fmt.Printf(format+"\n", args...)
}

func (u *takeoverUser) must(what string, err error) {
	if err != nil {
		u.failed("%s: %v", what, err)
	}
}

// read reads a file of the base tree that is not in the page cache.
func (u *takeoverUser) read(int) {
	i := rand.IntN(takeoverFiles)
	f, err := os.Open(filepath.Join(u.dir, fmt.Sprintf("d%d/f%d", i%20, i)))
	if err != nil {
		u.failed("open: %v", err)
		return
	}
	defer f.Close()
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	got, err := io.ReadAll(f)
	if err != nil || string(got) != takeoverContent(i) {
		u.failed("read %d: %d bytes, %v", i, len(got), err)
	}
}

// names creates, renames and removes files. It fails if a request is performed twice or not at all.
func (u *takeoverUser) names(n int) {
	base := filepath.Join(u.dir, fmt.Sprintf("n%d", n))
	file, moved, link := filepath.Join(base, "file"), filepath.Join(base, "moved"), filepath.Join(base, "link")
	u.must("mkdir", os.Mkdir(base, 0o755))
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		u.failed("create: %v", err)
		return
	}
	_, err = f.WriteString(base)
	u.must("write", errors.Join(err, f.Close()))
	u.must("rename", os.Rename(file, moved))
	u.must("link", os.Link(moved, link))
	u.must("symlink", os.Symlink("moved", file))
	got, err := os.ReadFile(file)
	if string(got) != base {
		u.failed("read back %s: %q, %v", base, got, err)
	}
	u.must("exchange", unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, moved, unix.RENAME_EXCHANGE))
	if target, err := os.Readlink(moved); target != "moved" {
		u.failed("exchange %s: %q, %v", base, target, err)
	}
	for _, path := range []string{file, moved, link, base} {
		u.must("remove", os.Remove(path))
	}
}

// nameless uses an open file that has been removed.
func (u *takeoverUser) nameless(n int) {
	f, err := os.OpenFile(filepath.Join(u.dir, fmt.Sprintf("nameless%d", n)), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		u.failed("create: %v", err)
		return
	}
	defer f.Close()
	u.must("remove", os.Remove(f.Name()))
	want := bytes.Repeat([]byte(f.Name()), 100)
	for range 5 {
		_, err := f.WriteAt(want, 0)
		u.must("write nameless", err)
		u.must("sync nameless", f.Sync())
		unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		time.Sleep(10 * time.Millisecond)
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			u.failed("read nameless: %v", err)
		}
	}
}

// list reads a directory, and checks that each name that stays is returned exactly once.
func (u *takeoverUser) list(n int) {
	extra := filepath.Join(u.dir, "list", fmt.Sprintf("extra%d", n))
	u.must("create", os.WriteFile(extra, []byte("x"), 0o644))
	d, err := os.Open(filepath.Join(u.dir, "list"))
	if err != nil {
		u.failed("open directory: %v", err)
		return
	}
	defer d.Close()
	seen := make(map[string]int)
	for {
		names, err := d.Readdirnames(100)
		for _, name := range names {
			seen[name]++
		}
		if err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i := range takeoverDir {
		if name := fmt.Sprintf("stays%d", i); seen[name] != 1 {
			u.failed("list: %s seen %d times", name, seen[name])
			break
		}
	}
	u.must("remove", os.Remove(extra))
}

func (u *takeoverUser) attributes(n int) {
	path := filepath.Join(u.dir, fmt.Sprintf("attributes%d", n))
	u.must("create", os.WriteFile(path, nil, 0o644))
	u.must("setxattr", unix.Setxattr(path, "user.x", []byte("1"), unix.XATTR_CREATE))
	u.must("removexattr", unix.Removexattr(path, "user.x"))
	u.must("chmod", os.Chmod(path, 0o600))
	u.must("truncate", os.Truncate(path, 4096))
	if info, err := os.Stat(path); err != nil || info.Size() != 4096 || info.Mode() != 0o600 {
		u.failed("stat: %v, %v", info, err)
	}
	u.must("remove", os.Remove(path))
}

// stall measures the longest duration of a request that the kernel cannot answer itself.
func (u *takeoverUser) stall(n int) {
	start := time.Now()
	if _, err := os.Lstat(filepath.Join(u.dir, fmt.Sprintf("absent%d", n))); !errors.Is(err, os.ErrNotExist) {
		u.failed("stat of nothing: %v", err)
	}
	u.longest.Store(max(u.longest.Load(), int64(time.Since(start))))
	time.Sleep(time.Millisecond)
}

// append appends lines, and checks that the file has each line once and in order.
func (u *takeoverUser) append(n int) {
	path := filepath.Join(u.dir, "appended")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		u.failed("open to append: %v", err)
		return
	}
	defer f.Close()
	for i := range 20 {
		_, err := fmt.Fprintf(f, "%d\n", n*100+i)
		u.must("append", err)
	}
	u.must("sync", f.Sync())
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	u.must("read appended", err)
	var want bytes.Buffer
	for i := range 20 {
		fmt.Fprintf(&want, "%d\n", n*100+i)
	}
	if !bytes.HasSuffix(text, want.Bytes()) {
		u.failed("appended lines are not there")
	}
	if len(text) > 1<<20 {
		u.must("truncate", f.Truncate(0))
	}
}
