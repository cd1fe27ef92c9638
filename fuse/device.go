package fuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Device connects a mount to the process that serves the mount. It consists of an open /dev/fuse, the kernel's first
// request (INIT), and the reply to INIT. A process that has all three can continue a mount of another process: the
// kernel keeps the mount as long as any process has the device open, and resends the requests that were read and not
// answered (FUSE_NOTIFY_RESEND).
type Device struct {
	file   *os.File // the open /dev/fuse of the mount
	init   []byte   // the INIT request, as read from the device
	answer []byte   // the reply to INIT; empty before the first Serve
	served int      // descriptor from which go-fuse reads requests; valid while the mount is served
}

// ErrUnfit means that this program cannot take a mount over, because the version that started the mount answered INIT
// differently, and the kernel applies that first answer for as long as the mount exists.
var ErrUnfit = errors.New("mount was started by an incompatible version of artifactfs")

// errHello means that the bytes that were read as the kernel's INIT request are not an INIT request.
var errHello = errors.New("first request of the kernel is not INIT")

const (
	opcodeInit   = 26 // FUSE_INIT in the kernel's uapi/linux/fuse.h
	notifyResend = 7  // FUSE_NOTIFY_RESEND in the same file
	// size of the buffer for INIT in bytes; the kernel refuses reads with a smaller buffer (FUSE_MIN_READ_BUFFER)
	maxHello = 1 << 13

	// resent is the bit in the id of a request that was sent before (FUSE_UNIQUE_RESEND). The previous process may have
	// carried out such a request without answering it.
	resent = 1 << 63
)

// Attach mounts at dir, an existing directory, and returns the mount's device. System calls that use the mount wait
// until Serve is called. If this host has no /dev/fuse, the error is ErrNoFUSE.
func Attach(dir string, o Options) (*Device, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	if _, err := os.Stat("/dev/fuse"); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("mount %s: %w", dir, ErrNoFUSE)
	}
	attach := attachDirect
	if os.Geteuid() != 0 {
		attach = attachFusermount
	}
	file, err := attach(dir, o)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	d, err := Adopt(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), file.Close())
	}
	return d, nil
}

// Adopt returns the Device of a mount that no process has served yet. The mount may have been made by another process,
// perhaps one with more privileges. Adopt reads the kernel's INIT request from file.
func Adopt(file *os.File) (*Device, error) {
	request := make([]byte, maxHello)
	n, err := retryEINTR(func() (int, error) { return unix.Read(int(file.Fd()), request) })
	if err != nil {
		return nil, fmt.Errorf("read first request of the kernel: %w", err)
	}
	d := &Device{file: file, init: request[:n:n]}
	if _, err := d.hello(); err != nil {
		return nil, fmt.Errorf("read first request of the kernel: %w", err)
	}
	return d, nil
}

// Inherit returns the Device of a mount that another process has served. hello is the result of Device.Hello in the
// other process.
func Inherit(file *os.File, hello []byte) (*Device, error) {
	d := &Device{file: file}
	if len(hello) >= 4 {
		if n := int64(binary.LittleEndian.Uint32(hello)); n < int64(len(hello)-4) {
			d.init, d.answer = bytes.Clone(hello[4:4+n]), bytes.Clone(hello[4+n:])
		}
	}
	if _, err := d.hello(); err != nil {
		return nil, fmt.Errorf("take over mount: %w", err)
	}
	return d, nil
}

// File returns the open /dev/fuse. Serve closes the file when the mount has ended.
func (d *Device) File() *os.File { return d.file }

// Hello returns the INIT request and the reply to it, in the form that Inherit reads. A successor needs both in
// addition to the open device. The reply is included only after Serve has returned.
func (d *Device) Hello() []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(d.init)))
	return append(append(b, d.init...), d.answer...)
}

// CanMove reports whether another process can take the mount over. Linux before 6.9 cannot resend unanswered requests,
// so after a takeover the callers of those requests would wait forever.
func (d *Device) CanMove() bool {
	in, err := d.hello()
	return err == nil && in.Flags64()&raw.CAP_HAS_RESEND != 0
}

// hello decodes the INIT request. Older kernels send a shorter request, whose missing fields become 0.
func (d *Device) hello() (in raw.InitIn, err error) {
	whole := make([]byte, unsafe.Sizeof(in))
	copy(whole, d.init)
	if _, err := binary.Decode(whole, binary.NativeEndian, &in); err != nil {
		return in, err
	}
	if in.Opcode != opcodeInit || int(in.Length) != len(d.init) {
		return in, errHello
	}
	return in, nil
}

// begin creates a go-fuse server that passes requests to f, and makes the server answer INIT. go-fuse always reads INIT
// first, but the kernel sends INIT only once, so begin offers the stored INIT on a socket. Then begin replaces the
// socket's descriptor by the device. If the answer differs from the answer that an earlier process sent, the error is
// ErrUnfit.
func (d *Device) begin(f raw.RawFileSystem, o *raw.MountOptions) (*raw.Server, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	d.served = pair[0]
	if _, err := unix.Write(pair[1], d.init); err != nil {
		return nil, errors.Join(os.NewSyscallError("write", err), unix.Close(pair[0]))
	}
	s, err := raw.NewServer(f, fmt.Sprintf("/dev/fd/%d", pair[0]), o) // from here on the server owns pair[0]
	if err != nil {
		return nil, err
	}
	if err := residentBuffers(s); err != nil {
		return nil, err
	}
	answer := make([]byte, maxHello)
	n, err := unix.Read(pair[1], answer)
	if err != nil {
		return nil, os.NewSyscallError("read", err)
	}
	answer = answer[:n:n]
	switch {
	case len(d.answer) == 0:
		if _, err := unix.Write(int(d.file.Fd()), answer); err != nil {
			return nil, fmt.Errorf("answer first request of the kernel: %w", err)
		}
		d.answer = answer
	case !bytes.Equal(answer, d.answer):
		return nil, ErrUnfit
	}
	if err := unix.Dup3(int(d.file.Fd()), pair[0], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("dup3", err)
	}
	return s, nil
}

// resend makes the kernel send all requests again that were read from the device and not answered.
func (d *Device) resend() error {
	var header [16]byte // a struct fuse_out_header of the kernel
	binary.NativeEndian.PutUint32(header[0:], uint32(len(header)))
	binary.NativeEndian.PutUint32(header[4:], notifyResend)
	if _, err := unix.Write(int(d.file.Fd()), header[:]); err != nil {
		return fmt.Errorf("make the kernel resend unanswered requests: %w", err)
	}
	return nil
}

// attachDirect mounts at dir, as root, by mount(2), and returns the open device. It must not call stat on dir: below an
// automount (autofs) every look-up of dir waits until this mount exists.
func attachDirect(dir string, o Options) (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	options := []string{
		fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d", fd, unix.S_IFDIR, os.Geteuid(), os.Getegid()),
		"default_permissions", // the kernel checks permission bits itself and sends no ACCESS
		fmt.Sprintf("max_read=%d", maxRequest),
	}
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	if o.Through != "" {
		dir = o.Through
	}
	if err := unix.Mount(o.FsName, dir, fsType, flags, strings.Join(options, ",")); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// retryEINTR calls f until the error is not EINTR.
func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
