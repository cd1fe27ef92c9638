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

// fusermount3(1) mounts and unmounts for users who may not call mount(2). It sends the open device over a socket, whose
// descriptor number it reads from an environment variable.
const (
	fusermountName = "fusermount3"
	fusermountEnv  = "_FUSE_COMMFD=3" // the first of exec.Cmd's ExtraFiles has descriptor 3
)

// attachFusermount mounts at dir with fusermount3 and returns the open device. If the program fails, the error
// contains its output.
func attachFusermount(dir string, o Options) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "socket")
	defer unix.Close(ours)
	// Escape the name of the file system, because a comma in the name would otherwise end the mount option.
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
			return nil, fmt.Errorf("run %s: %s", fusermountName, text)
		}
		return nil, err
	}
	return receiveDevice(ours)
}

// receiveDevice returns the device that fusermount3 has sent over the socket. The program must have ended, because
// receiveDevice does not wait for the message.
func receiveDevice(socket int) (*os.File, error) {
	data, control := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("receive FUSE descriptor from %s: %w", fusermountName, err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return nil, fmt.Errorf("receive FUSE descriptor from %s: %w", fusermountName, err)
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
		}
	}
	return nil, errors.New(fusermountName + " returned no FUSE descriptor")
}

// fusermount unmounts with fusermount3. flags is 0 or MNT_DETACH. The error is ErrBusy if the mount still exists after
// fusermount3 has ended.
func (s *Server) fusermount(ctx context.Context, flags int) error {
	args := []string{"-u", "--", s.dir}
	if flags == unix.MNT_DETACH {
		args = append([]string{"-z"}, args...)
	}
	out, err := exec.CommandContext(ctx, fusermountName, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	// fusermount3 states the cause only in text for people. If the mount still exists, the cause is that the mount is in
	// use.
	if listed(s.dir) {
		return fmt.Errorf("%w: %s", ErrBusy, bytes.TrimSpace(out))
	}
	return nil
}
