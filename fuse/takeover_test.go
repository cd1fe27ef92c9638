package fuse

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
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

// The test process holds the device and never accesses the mount. A child serves the mount and is killed repeatedly.
// Another child uses the mount, and its operations must not fail. The environment of a child names its role.
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
		if signal.Ignored(syscall.SIGINT) { // a parent like nohup ignores it: programs that tests start would inherit that
			signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
		}
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
	o.Log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.Lock(os.Stderr),
		zapcore.WarnLevel))
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

// mortal kills its process now and then after it has performed a request and before the reply is sent.
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

// TestTakeover kills the process that serves a mount many times, while another process uses the mount and must see no
// error.
func TestTakeover(t *testing.T) {
	kills := 25
	if testing.Short() {
		kills = 5
	}
	dir, state := t.TempDir(), t.TempDir()
	d, err := attachOnly(dir, takeoverOptions())
	if err != nil {
		t.Skipf("FUSE is not available: %v", err)
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
	awaitWord(t, serve, "serving")
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
	deaths, first := 0, true
	for alive := true; alive; {
		if using.Load() {
			deaths++
		}
		died := make(chan struct{})
		go func() {
			defer close(died)
			serve.Process.Wait()
		}()
		pause := time.Duration(20+rand.IntN(80)) * time.Millisecond
		if deaths >= kills { // mortal may still kill it
			user.Process.Signal(syscall.SIGTERM)
			pause = time.Hour
		}
		victim, began := serve, first || rand.IntN(4) == 0
		first = false
		go func() {
			if !began { // if starting takes long (race detector, load), most servers must live until they serve
				victim.out.ReadString('\n')
			}
			select {
			case <-time.After(pause):
				victim.Process.Kill()
			case <-died:
			}
		}()
		select {
		case <-died:
			serve = child(t, "serve", dir, state, d) // it may die before it prints that it serves
		case <-ended:
			serve.Process.Kill()
			<-died
			alive = false
		}
	}
	if userErr != nil {
		t.Errorf("process that uses the mount: %v", userErr)
	}
	t.Logf("%d deaths\n%s", deaths, report)
	if !bytes.Contains(report, []byte("errors 0\n")) {
		t.Error("the process that uses the mount failed")
	}
	// The user process leaves nothing behind: no names, and no nodes without a name.
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
	if n := tree.Overlay().Changed(); n != 0 {
		t.Errorf("changes after the test: got %d, want 0", n)
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

func awaitWord(t *testing.T, c childProcess, word string) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		t.Fatalf("wait for %q: got line %q, %v", word, line, err)
	}
}
