package fuse

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// playedKernel returns a socket that the server uses as its device, and the other end, at which the test acts as the
// kernel.
func playedKernel(t *testing.T) (device *os.File, kernel int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	device = os.NewFile(uintptr(pair[0]), "/dev/fuse")
	t.Cleanup(func() { device.Close() })
	return device, pair[1]
}

// kernelSays returns the bytes of a request of the kernel.
func kernelSays(t *testing.T, opcode uint32, unique uint64, body any) []byte {
	t.Helper()
	var text bytes.Buffer
	if err := binary.Write(&text, binary.NativeEndian, body); err != nil {
		t.Fatal(err)
	}
	const header = int(unsafe.Sizeof(raw.InHeader{}))
	b := make([]byte, header, header+text.Len())
	binary.NativeEndian.PutUint32(b, uint32(header+text.Len()))
	binary.NativeEndian.PutUint32(b[4:], opcode)
	binary.NativeEndian.PutUint64(b[8:], unique)
	binary.NativeEndian.PutUint64(b[16:], raw.FUSE_ROOT_ID)
	return append(b, text.Bytes()...)
}

// lookupReporter sends the name of each lookup to asked.
type lookupReporter struct {
	raw.RawFileSystem
	asked chan string
}

func (f lookupReporter) Lookup(c <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	f.asked <- name
	return f.RawFileSystem.Lookup(c, h, name, out)
}

// TestSentAgainBeforeAnythingIsRead: a successor must ask the kernel to resend unanswered requests before it reads any
// request. Otherwise the kernel also resends a request that the successor has already read, two threads process it, and
// one answer is lost.
func TestSentAgainBeforeAnythingIsRead(t *testing.T) {
	src, state := takeoverSource(), t.TempDir()
	tree, err := worktree.Open(filepath.Join(state, "inodes"), src,
		worktree.Options{Root: src.Root, Time: commitTime, Overlay: filepath.Join(state, "overlay")})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	o := Options{FsName: "again", Log: zap.NewNop()}

	before, kernel := playedKernel(t)
	endMount := sync.OnceFunc(func() { unix.Close(kernel) })
	defer endMount()
	hello := kernelSays(t, opcodeInit, 1, []uint32{7, 45, 1 << 17, ^uint32(0), ^uint32(0), 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0})
	if _, err := unix.Write(kernel, hello); err != nil {
		t.Fatal(err)
	}
	first, err := Adopt(before)
	if err != nil {
		t.Fatal(err)
	}
	fs := newFileSystem(tree, o)
	if _, err := first.begin(fs, mountOptions(o, fs)); err != nil {
		t.Fatal(err)
	}

	device, kernel := playedKernel(t)
	filler := make([]byte, 1<<10)
	for err = nil; err == nil; { // fill the socket, so that the server's write blocks until the test reads
		_, err = unix.SendmsgN(int(device.Fd()), filler, nil, nil, unix.MSG_DONTWAIT)
	}
	if _, err := unix.Write(kernel, kernelSays(t, 1, 2, []byte("f\x00"))); err != nil { // FUSE_LOOKUP
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	o.wrap = func(fs raw.RawFileSystem) raw.RawFileSystem { return lookupReporter{fs, asked} }
	d, err := Inherit(device, first.Hello())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		s, err := Serve(tree, t.TempDir(), d, o)
		served <- err
		if err == nil {
			s.Wait()
		}
		close(served)
	}()
	select {
	case <-asked:
		t.Error("a request was read before the resend notification was sent")
		asked <- "f"
	case <-time.After(100 * time.Millisecond):
	}
	heard := make([]byte, maxHello)
	for n := len(filler); n == len(filler); {
		if n, err = unix.Read(kernel, heard); err != nil {
			t.Fatal(err)
		}
		if n != len(filler) && (n != 16 || binary.NativeEndian.Uint32(heard[4:]) != notifyResend) {
			t.Errorf("first message of the successor: got %x, want the resend notification", heard[:n])
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if name := <-asked; name != "f" {
		t.Errorf("looked up %q", name)
	}
	endMount()
	<-served
}
