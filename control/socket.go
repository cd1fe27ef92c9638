package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// probeTime is the maximum time to wait until a server accepts a connection. A server that takes longer counts as alive
// but busy.
const probeTime = 2 * time.Second

// StateDir returns the absolute path of the state directory: dir, if dir is not empty; otherwise $ARTIFACTFS_STATE, if
// that variable is set; otherwise /var/lib/artifactfs for root, and $XDG_STATE_HOME/artifactfs (by default
// ~/.local/state/artifactfs) for other users.
func StateDir(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("ARTIFACTFS_STATE")
	}
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/lib/artifactfs"
	}
	// According to the XDG base directory specification, relative paths in the variable must be ignored.
	if x := os.Getenv("XDG_STATE_HOME"); dir == "" && filepath.IsAbs(x) {
		dir = filepath.Join(x, "artifactfs")
	}
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find state directory: %w", err)
		}
		dir = filepath.Join(home, ".local", "state", "artifactfs")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find state directory: %w", err)
	}
	return abs, nil
}

// DaemonSocket returns the path of the socket on which the shared background daemon of a state directory listens.
func DaemonSocket(state string) string { return filepath.Join(state, "run", "daemon.sock") }

// MountSocket returns the path of the socket on which process pid listens, if the process serves a single mount in the
// foreground.
func MountSocket(state string, pid int) string {
	return filepath.Join(state, "run", "mount-"+strconv.Itoa(pid)+".sock")
}

// Sockets returns the paths of the sockets of a state directory that have a server. The socket of the shared daemon is
// the first. Sockets removes sockets whose servers are dead.
func Sockets(ctx context.Context, state string) ([]string, error) {
	names, err := disk.Glob(filepath.Join(state, "run"), "*.sock")
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	var live []string
	for _, socket := range names { // names are sorted, and "daemon" is less than "mount-"
		if base := filepath.Base(socket); base != "daemon.sock" && !strings.HasPrefix(base, "mount-") {
			continue
		}
		probe, cancel := context.WithTimeout(ctx, probeTime)
		conn, err := dial(probe, socket)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("list sockets: %w", ctx.Err())
		case err == nil:
			conn.Close()
			live = append(live, socket)
		case errors.Is(err, ErrNoServer):
			removeDead(socket)
		default: // assume that a server is alive; requests to it will report the problem
			live = append(live, socket)
		}
	}
	return live, nil
}

// removeDead removes a socket that has refused a connection. It does nothing if a process holds the lock to serve the
// socket.
func removeDead(socket string) {
	l, err := takeLock(socket)
	if err != nil {
		return
	}
	os.Remove(socket)
	l.release()
}

// dial connects to a socket. It returns ErrNoServer if no process listens, and an error if the server is run by another
// user. A server that is run by root is accepted, and root accepts every server.
func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	name, done, err := shortName(socket)
	// If the directory of the socket does not exist, no process listens.
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("connect to %s: %w", socket, ErrNoServer)
	} else if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	defer done()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", name)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("connect to %s: %w", socket, ErrNoServer)
	case err != nil:
		var op *net.OpError
		if errors.As(err, &op) { // drop the path in the text of op, which may be the name that shortName has created
			err = op.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	conn := c.(*net.UnixConn)
	peer, err := peerOf(conn)
	if err == nil && peer.Uid != 0 && os.Geteuid() != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("connect to daemon of user %d: %w", peer.Uid, os.ErrPermission)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// Listens reports whether a process has a listening socket at a path. The process may be too busy to answer, or may be
// ending.
func Listens(ctx context.Context, socket string) bool {
	c, err := dial(ctx, socket)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// peerOf returns the process at the other end of a connection, as the kernel recorded it: the process that called
// connect(2) or, for a client, the process that called listen(2).
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read peer credentials of the socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	// The kernel records the user and the process when the connection is made, so the peer cannot forge them.
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("read peer credentials of the socket: %w", err)
	}
	return cred, nil
}

// shortName returns a name for a socket that fits into the 108 bytes of sockaddr_un. The name is valid until done is
// called.
func shortName(socket string) (name string, done func(), err error) {
	// The limit of 108 bytes includes a zero byte. Some bytes are reserved for the suffix of a temporary name.
	if len(socket) <= 100 {
		return socket, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return proc.Self.FDPath(fd) + "/" + filepath.Base(socket), func() { unix.Close(fd) }, nil
}

// listen creates a listening socket with mode 0600, and the lock of its path. It binds the socket to a temporary name
// and then renames it. Therefore a socket at the path listens from the start, and a socket that refuses connections is
// dead.
func listen(socket string) (*net.UnixListener, *fileLock, error) {
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	// If another user may write to the directory, that user could replace the socket.
	if info.Mode()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return nil, nil, fmt.Errorf("listen on %s: other users may write to the directory: %w", socket, os.ErrPermission)
	}
	lock, err := takeLock(socket)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	l, err := bindAndRename(socket)
	if err != nil {
		lock.release()
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, lock, nil
}

// bindAndRename creates a listening socket under a temporary name and renames it to socket. The caller holds the lock
// of the socket.
func bindAndRename(socket string) (*net.UnixListener, error) {
	newborn := socket + ".new"
	// a process that died in this function may have left the file; no live process uses it, because this process holds
	// the lock
	os.Remove(newborn)
	name, done, err := shortName(newborn)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(newborn, 0o600)
	if err == nil {
		err = os.Rename(newborn, socket)
	}
	if err != nil {
		l.Close()
		os.Remove(newborn)
		return nil, err
	}
	return l, nil
}

// inherit returns a listener that continues with the descriptor of a dead server. If the dead server had already
// removed its socket, inherit creates a new socket.
func inherit(socket string, listener *os.File) (*net.UnixListener, error) {
	if _, err := os.Lstat(socket); err != nil || listener == nil {
		l, err := bindAndRename(socket)
		if err == nil && listener != nil {
			listener.Close()
		}
		return l, err
	}
	l, err := net.FileListener(listener) // close this descriptor, because FileListener uses a copy
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	// If the descriptor is not a unix socket, it does not belong to a server.
	if !ok {
		l.Close()
		return nil, errors.New("inherited descriptor is not a unix socket")
	}
	u.SetUnlinkOnClose(false)
	// SO_PEERCRED shows clients the process that called listen last (unix(7)). That process is dead, so call listen again.
	raw, err := u.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { unix.Listen(int(fd), unix.SOMAXCONN) })
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	listener.Close()
	return u, nil
}

// fileLock is the lock of a socket's path: a lock file that is locked by flock(2). The kernel releases the lock when
// all processes that hold the descriptor of the file have ended.
type fileLock struct {
	f    *os.File // open lock file, on which flock(2) is held
	path string   // path of the lock file
}

// isLockOf reports whether an open file is the lock file of a socket. It returns false if the server that used the lock
// file has removed it, or if the file belongs to another state directory.
func isLockOf(socket string, lock *os.File) bool {
	mine, err1 := lock.Stat()
	there, err2 := os.Lstat(lockName(socket))
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

// lockName returns the path of the lock file of a socket.
func lockName(socket string) string { return socket + ".lock" }

// takeLock locks the path of a socket. It does not wait: it returns ErrInUse if another process, or another server of
// this process, holds the lock.
func takeLock(socket string) (*fileLock, error) {
	path := lockName(socket)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = ErrInUse
			}
			return nil, err
		}
		// The previous holder may have removed the file after this process opened the file and before this process locked it.
		// In that case, try again.
		mine, err1 := f.Stat()
		there, err2 := os.Lstat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return &fileLock{f, path}, nil
		}
		f.Close()
	}
}

// release removes the lock file, and then releases the lock.
func (l *fileLock) release() {
	// The file is removed while it is locked. A process that opened the file earlier acquires the lock of a removed file.
	// takeLock notices that the path does not lead to this file any more, and tries again.
	os.Remove(l.path)
	// unlock explicitly, because closing the file releases the lock only if no other process has a copy of the
	// descriptor
	if raw, err := l.f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Flock(int(fd), unix.LOCK_UN) })
	}
	l.f.Close()
}
