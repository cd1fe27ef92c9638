package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// fusermount3(1) mounts and unmounts for users without the privilege. It sends the open device over
// a socket whose number it reads from its environment.
const (
	fusermountName = "fusermount3"
	fusermountEnv  = "_FUSE_COMMFD=3" // the first of ExtraFiles
)

// attachFusermount mounts at dir with fusermount3 and returns the open device. The error quotes the
// program's output.
func attachFusermount(dir string, o Options) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "socket")
	defer unix.Close(ours)
	// A comma would end the option.
	escape := strings.NewReplacer(`\`, `\\`, ",", `\,`)
	options := []string{
		"nosuid", "nodev", "default_permissions", "fsname=" + escape.Replace(o.FsName), "subtype=" + subtype,
		fmt.Sprintf("max_read=%d", maxRequest),
	}
	if o.ReadOnly {
		options = append(options, "ro")
	}
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	cmd := exec.Command(fusermountName, "-o", strings.Join(options, ","), "--", dir)
	cmd.Env = append(os.Environ(), fusermountEnv)
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.CombinedOutput()
	theirs.Close()
	if err != nil {
		if text := bytes.TrimSpace(out); len(text) > 0 {
			return nil, fmt.Errorf("%s: %s", fusermountName, text)
		}
		return nil, err
	}
	return receiveDevice(ours)
}

// receiveDevice returns the device that fusermount3 has sent over the socket. It does not wait,
// since the program has ended.
func receiveDevice(socket int) (*os.File, error) {
	data, control := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("receive device of %s: %w", fusermountName, err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return nil, fmt.Errorf("receive device of %s: %w", fusermountName, err)
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
		}
	}
	return nil, errors.New(fusermountName + " gave no device")
}

// fusermount unmounts for a user without the privilege.
func (s *Server) fusermount(ctx context.Context, flags int) error {
	args := []string{"-u", "--", s.dir}
	if flags == unix.MNT_DETACH {
		args = append([]string{"-z"}, args...)
	}
	out, err := exec.CommandContext(ctx, fusermountName, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	// The cause is only in its text; a mount that still exists is busy.
	if listed(s.dir) {
		return fmt.Errorf("%w: %s", ErrBusy, bytes.TrimSpace(out))
	}
	return nil
}
