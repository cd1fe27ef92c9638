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

// Device connects a mount to the process that serves it: an open /dev/fuse, the kernel's first request, INIT, and the
// answer to it. Whoever has all three can go on where another process ended: the kernel keeps the mount for as long as
// somebody has the device open, and sends again what was read and not answered (FUSE_NOTIFY_RESEND).
type Device struct {
	file   *os.File
	init   []byte
	answer []byte // empty until the mount was served
	served int    // what the library has it as
}

// ErrUnfit says that a mount was begun by another version of this program, and this one cannot go on with it.
var ErrUnfit = errors.New("this program would serve the mount in another way than the one that began it")

var errHello = errors.New("it is not what a mount begins with")

const (
	opcodeInit   = 26      // FUSE_INIT, uapi/linux/fuse.h
	notifyResend = 7       // FUSE_NOTIFY_RESEND
	maxHello     = 1 << 13 // bytes; the least that the kernel takes for a read of the device (FUSE_MIN_READ_BUFFER)

	// resent marks in a request's number that it was sent before (FUSE_UNIQUE_RESEND): it may have been done already.
	resent = 1 << 63
)

// Attach mounts at dir, an existing directory, what nobody serves yet: whoever looks there waits.
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

// Adopt takes the device of a mount that somebody else has made, perhaps one who may what this process may not, and
// that nobody has served.
func Adopt(file *os.File) (*Device, error) {
	request := make([]byte, maxHello)
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(int(file.Fd()), request) })
	if err != nil {
		return nil, fmt.Errorf("read the kernel's first request: %w", err)
	}
	d := &Device{file: file, init: request[:n:n]}
	if _, err := d.hello(); err != nil {
		return nil, fmt.Errorf("read the kernel's first request: %w", err)
	}
	return d, nil
}

// Inherit takes the device of a mount that another process has served; hello is what its Device.Hello was.
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

// File is the open device. It is closed when the mount that is served with it has ended.
func (d *Device) File() *os.File { return d.file }

// Hello is what a successor needs beside the device. It is whole once Serve has returned.
func (d *Device) Hello() []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(d.init)))
	return append(append(b, d.init...), d.answer...)
}

// CanMove says whether another process can go on with the mount. With a kernel that does not send unanswered requests
// again (before 6.9), those who made them would wait for ever.
func (d *Device) CanMove() bool {
	in, err := d.hello()
	return err == nil && in.Flags64()&raw.CAP_HAS_RESEND != 0
}

// agreed says whether the mount may have a capability that this program asks for and former versions did not: one that
// another process began goes on with what was answered then.
func (d *Device) agreed(capability uint64) bool {
	if len(d.answer) == 0 {
		return true
	}
	var answer struct {
		raw.OutHeader
		raw.InitOut
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&answer)), unsafe.Sizeof(answer)), d.answer)
	return answer.Flags64()&capability != 0
}

// hello reads INIT. That of an older kernel is shorter.
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

// begin makes a server of the library that answers requests with f, and has INIT answered. The library reads INIT from
// a socket, because the kernel says it but once; afterwards the device takes the socket's place.
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
	s, err := raw.NewServer(f, fmt.Sprintf("/dev/fd/%d", pair[0]), o) // owns pair[0] from here on
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
			return nil, fmt.Errorf("answer the kernel's first request: %w", err)
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

// resend asks for what another process has read and not answered.
func (d *Device) resend() error {
	var header [16]byte // struct fuse_out_header
	binary.NativeEndian.PutUint32(header[0:], uint32(len(header)))
	binary.NativeEndian.PutUint32(header[4:], notifyResend)
	if _, err := unix.Write(int(d.file.Fd()), header[:]); err != nil {
		return fmt.Errorf("have the kernel send again what was not answered: %w", err)
	}
	return nil
}

// attachDirect mounts for root. It does not look at dir: where somebody waits for the mount (autofs), that would wait, too.
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
		"default_permissions", // the kernel checks modes: no ACCESS requests
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

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
