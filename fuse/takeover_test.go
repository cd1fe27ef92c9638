package fuse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// The test's process keeps the device and never looks into the mount; a child serves it, and is killed again and again;
// another child uses it, and must not notice. What a child is to do stands in its environment.
const (
	roleEnv  = "AFS_TAKEOVER_ROLE"
	mountEnv = "AFS_TAKEOVER_MOUNT"
	stateEnv = "AFS_TAKEOVER_STATE"

	takeoverFiles = 400
	takeoverDir   = 1500 // own files of the directory that is listed
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "serve":
		if err := serveTakeover(os.Getenv(mountEnv), os.Getenv(stateEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
	case "use":
		useTakeover(os.Getenv(mountEnv))
	case "map":
		if err := writeMapped(os.Getenv(mountEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "map:", err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func takeoverContent(i int) string { return strings.Repeat(fmt.Sprintf("file %d\n", i), 50+i) }

func takeoverOptions() Options {
	return Options{FsName: "takeover", StatFS: "/", AllowOther: os.Getuid() == 0}
}

// serveTakeover serves the mount of descriptor 3 until it is killed or the mount has ended.
func serveTakeover(dir, state string) error {
	src := takeoverSource()
	device := os.NewFile(3, "/dev/fuse")
	unix.CloseOnExec(3)
	hello, err := os.ReadFile(filepath.Join(state, "hello"))
	later := err == nil
	var d *Device
	if later {
		d, err = Inherit(device, hello)
	} else {
		d, err = Adopt(device)
	}
	if err != nil {
		return err
	}
	tree, err := worktree.Open(filepath.Join(state, "inodes"), src, worktree.Options{
		Root: src.Root, Time: commitTime, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		Overlay: filepath.Join(state, "overlay"), Journal: filepath.Join(state, "journal"), TakeOver: later,
	})
	if err != nil {
		return err
	}
	o := takeoverOptions()
	o.Log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.Lock(os.Stderr), zapcore.WarnLevel))
	o.wrap = func(fs raw.RawFileSystem) raw.RawFileSystem { return mortal{fs} }
	s, err := Serve(tree, dir, d, o)
	if err != nil {
		return err
	}
	if !later {
		if err := os.WriteFile(filepath.Join(state, "hello"), d.Hello(), 0o600); err != nil {
			return err
		}
	}
	fmt.Println("serving")
	s.Wait()
	return tree.Close()
}

// mortal dies now and then when it has done what it was asked to do, and before it says so.
type mortal struct{ raw.RawFileSystem }

func die() {
	if rand.IntN(150) == 0 {
		unix.Kill(os.Getpid(), unix.SIGKILL)
	}
}

func (m mortal) Mknod(c <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	defer die()
	return m.RawFileSystem.Mknod(c, in, name, out)
}

func (m mortal) Mkdir(c <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	defer die()
	return m.RawFileSystem.Mkdir(c, in, name, out)
}

func (m mortal) Unlink(c <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	defer die()
	return m.RawFileSystem.Unlink(c, h, name)
}

func (m mortal) Rmdir(c <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	defer die()
	return m.RawFileSystem.Rmdir(c, h, name)
}

func (m mortal) Rename(c <-chan struct{}, in *raw.RenameIn, name, to string) raw.Status {
	defer die()
	return m.RawFileSystem.Rename(c, in, name, to)
}

func (m mortal) Link(c <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	defer die()
	return m.RawFileSystem.Link(c, in, name, out)
}

func (m mortal) Symlink(c <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	defer die()
	return m.RawFileSystem.Symlink(c, h, target, name, out)
}

func (m mortal) SetXAttr(c <-chan struct{}, in *raw.SetXAttrIn, name string, value []byte) raw.Status {
	defer die()
	return m.RawFileSystem.SetXAttr(c, in, name, value)
}

func (m mortal) RemoveXAttr(c <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	defer die()
	return m.RawFileSystem.RemoveXAttr(c, h, name)
}

func (m mortal) Write(c <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	defer die()
	return m.RawFileSystem.Write(c, in, data)
}

func (m mortal) SetAttr(c <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	defer die()
	return m.RawFileSystem.SetAttr(c, in, out)
}

// TestTakeover kills the process that serves a mount, many times, under processes that must not notice.
func TestTakeover(t *testing.T) {
	kills := 25
	if testing.Short() {
		kills = 5
	}
	dir, state := t.TempDir(), t.TempDir()
	d, err := attachOnly(dir, takeoverOptions())
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	defer d.Close()
	detached := false
	detach := func() {
		if !detached {
			detached = true
			if err := exec.Command("umount", "-l", dir).Run(); err != nil {
				t.Error(err)
			}
		}
	}
	defer detach()

	serve := child(t, "serve", dir, state, d)
	await(t, serve, "serving")
	user := child(t, "use", dir, state, nil)
	var report []byte
	var userErr error
	var using atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := user.out.ReadString('\n')
		using.Store(err == nil)
		report, _ = io.ReadAll(user.out)
		userErr = user.Wait()
	}()
	deaths := 0
	for alive := true; alive; {
		if using.Load() {
			deaths++
		}
		died := make(chan struct{})
		go func() {
			defer close(died)
			serve.Wait()
		}()
		pause := time.Duration(20+rand.IntN(80)) * time.Millisecond
		if deaths >= kills { // it may die by itself all the same
			user.Process.Signal(syscall.SIGTERM)
			pause = time.Hour
		}
		kill := time.AfterFunc(pause, func() { serve.Process.Kill() })
		select {
		case <-died:
			kill.Stop()
			serve = child(t, "serve", dir, state, d) // it may die before it says that it serves
		case <-ended:
			kill.Stop()
			serve.Process.Kill()
			<-died
			alive = false
		}
	}
	if userErr != nil {
		t.Errorf("user: %v", userErr)
	}
	t.Logf("%d deaths\n%s", deaths, report)
	if !bytes.Contains(report, []byte("errors 0\n")) {
		t.Error("the user of the mount noticed")
	}
	// Nothing of the user is left: no name, and no node without one.
	detach()
	d.Close()
	src := takeoverSource()
	tree, err := worktree.Open(filepath.Join(state, "inodes"), src, worktree.Options{
		Root: src.Root, Overlay: filepath.Join(state, "overlay"), OverlayReadOnly: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if n := tree.Changed(); n != 0 {
		t.Errorf("%d changes are left", n)
	}
}

func takeoverSource() *worktreetest.Source {
	files := make(map[string]worktreetest.File)
	for i := range takeoverFiles {
		files[fmt.Sprintf("d%d/f%d", i%20, i)] = worktreetest.File{Data: takeoverContent(i)}
	}
	return worktreetest.New(files)
}

// attachOnly mounts and leaves the kernel's first request unread.
func attachOnly(dir string, o Options) (*os.File, error) {
	if os.Geteuid() == 0 {
		return attachDirect(dir, o)
	}
	return attachFusermount(dir, o)
}

type childProcess struct {
	*exec.Cmd
	out *bufio.Reader
}

func child(t *testing.T, role, dir, state string, device *os.File) childProcess {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), roleEnv+"="+role, mountEnv+"="+dir, stateEnv+"="+state)
	cmd.Stderr = os.Stderr
	if device != nil {
		cmd.ExtraFiles = []*os.File{device}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return childProcess{cmd, bufio.NewReader(out)}
}

func await(t *testing.T, c childProcess, word string) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		t.Fatalf("waiting for %q: %q, %v", word, line, err)
	}
}

// user is what uses the mount.
type takeoverUser struct {
	dir     string
	stop    atomic.Bool
	errors  atomic.Int64
	ops     atomic.Int64
	longest atomic.Int64 // nanoseconds of one round of the stall meter
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
	for i, work := range []func(int){u.read, u.read, u.names, u.names, u.nameless, u.list, u.attributes, u.stall, u.append} {
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
	fmt.Printf("rounds %d, longest stall %v\nerrors %d\n", u.ops.Load(), time.Duration(u.longest.Load()).Round(time.Millisecond), u.errors.Load())
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

// read reads a file of the base tree that nobody keeps in memory.
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

// names makes, moves and removes: whatever is done twice or not at all fails.
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

// nameless uses a file that has no name any more.
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

// list sees each name that stays exactly once.
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

// stall measures how long a request may take that the kernel cannot answer.
func (u *takeoverUser) stall(n int) {
	start := time.Now()
	if _, err := os.Lstat(filepath.Join(u.dir, fmt.Sprintf("absent%d", n))); !errors.Is(err, os.ErrNotExist) {
		u.failed("stat of nothing: %v", err)
	}
	u.longest.Store(max(u.longest.Load(), int64(time.Since(start))))
	time.Sleep(time.Millisecond)
}

// append has each line once, and in order.
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
