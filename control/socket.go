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

	"github.com/artifactfs/artifactfs/internal/proc"
)

// probeTime is how long a socket may take to accept a connection before it counts as alive but
// busy.
const probeTime = 2 * time.Second

// StateDir returns the absolute state directory: dir if it is not empty, else $ARTIFACTFS_STATE,
// else /var/lib/artifactfs for root and $XDG_STATE_HOME/artifactfs (~/.local/state/artifactfs) for
// others.
func StateDir(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("ARTIFACTFS_STATE")
	}
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/lib/artifactfs"
	}
	// The XDG base directory specification has relative paths ignored.
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

// DaemonSocket is where the shared background daemon of a state directory listens.
func DaemonSocket(state string) string { return filepath.Join(state, "run", "daemon.sock") }

// MountSocket is where process pid, serving its own mount in the foreground, listens.
func MountSocket(state string, pid int) string {
	return filepath.Join(state, "run", "mount-"+strconv.Itoa(pid)+".sock")
}

// Sockets lists the sockets of a state directory that have a server, the shared daemon's first. It
// removes sockets of dead processes.
func Sockets(ctx context.Context, state string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(quoteGlob(filepath.Join(state, "run")), "*.sock"))
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	var live []string
	for _, socket := range names { // sorted, and "daemon" is less than "mount-"
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
		default: // it may be alive: requests will show the problem
			live = append(live, socket)
		}
	}
	return live, nil
}

// removeDead removes a socket that refused a connection, unless a process is about to serve it.
func removeDead(socket string) {
	l, err := takeLock(socket)
	if err != nil {
		return
	}
	os.Remove(socket)
	l.release()
}

// quoteGlob quotes the characters of a path that filepath.Glob would expand.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// dial connects to a socket and refuses to speak to another user's process; root's is trusted, and
// root trusts all.
func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	name, done, err := shortName(socket)
	// The directory of the socket does not exist, so no process listens.
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
		if errors.As(err, &op) { // its text would repeat the path, perhaps a made-up one
			err = op.Err
		}
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	conn := c.(*net.UnixConn)
	peer, err := peerOf(conn)
	if err == nil && peer.Uid != 0 && os.Geteuid() != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("served by user %d: %w", peer.Uid, os.ErrPermission)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// peerOf returns, from the kernel, the process that called connect(2), or listen(2), at the other
// end.
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("ask for peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	// The kernel recorded the user and process when the connection was made, so the peer cannot
	// forge them.
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("ask for peer: %w", err)
	}
	return cred, nil
}

// shortName spells a socket's path so that it fits the 108 bytes of sockaddr_un; done ends the
// spelling's validity.
func shortName(socket string) (name string, done func(), err error) {
	// The limit is 108 bytes with the zero byte. A few are left for the suffix of a temporary name.
	if len(socket) <= 100 {
		return socket, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return proc.Self.FDPath(fd) + "/" + filepath.Base(socket), func() { unix.Close(fd) }, nil
}

// listen creates a listening socket of mode 0600 at its path: bound under another name, then
// renamed. So a socket that refuses connections is dead.
func listen(socket string) (*net.UnixListener, *fileLock, error) {
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	// Another user who may write to the directory could replace the socket.
	if info.Mode()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return nil, nil, fmt.Errorf("listen on %s: others may write to the directory: %w", socket, os.ErrPermission)
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

// bindAndRename creates a listening socket under a temporary name and renames it. The caller holds
// the lock of the socket.
func bindAndRename(socket string) (*net.UnixListener, error) {
	newborn := socket + ".new"
	os.Remove(newborn) // left by a process that died here; the lock is ours
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

// inherit continues to listen. A predecessor may have died after it removed its socket: then a new
// one is created.
func inherit(socket string, listener *os.File) (*net.UnixListener, error) {
	if _, err := os.Lstat(socket); err != nil || listener == nil {
		l, err := bindAndRename(socket)
		if err == nil && listener != nil {
			listener.Close()
		}
		return l, err
	}
	l, err := net.FileListener(listener) // of a copy
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	// A descriptor of another kind cannot be listened on.
	if !ok {
		l.Close()
		return nil, errors.New("the inherited descriptor is no unix socket")
	}
	u.SetUnlinkOnClose(false)
	// Clients see the process that called listen last (unix(7), SO_PEERCRED), and that one is dead.
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

// fileLock is the ownership of a socket's path, which the kernel releases when all processes that
// hold it have ended.
type fileLock struct {
	f    *os.File
	path string
}

// isLockOf reports whether a file is the lock of a socket: its path may have been removed by a
// server that ended, or belong to another state directory.
func isLockOf(socket string, lock *os.File) bool {
	mine, err1 := lock.Stat()
	there, err2 := os.Lstat(lockName(socket))
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

// lockName returns the path of the lock file of a socket.
func lockName(socket string) string { return socket + ".lock" }

// takeLock locks the path of a socket. It never waits: it returns ErrInUse if another process, or
// another server of this one, has the lock.
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
		// The holder before us may have removed the file between our open and our flock.
		mine, err1 := f.Stat()
		there, err2 := os.Lstat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return &fileLock{f, path}, nil
		}
		f.Close()
	}
}

// release removes the lock file and releases the lock.
func (l *fileLock) release() {
	// The file is removed while it is locked: a process that opened it before finds another file
	// under the name, and tries again.
	os.Remove(l.path)
	if raw, err := l.f.SyscallConn(); err == nil { // closing would not release it while another process has a copy
		raw.Control(func(fd uintptr) { unix.Flock(int(fd), unix.LOCK_UN) })
	}
	l.f.Close()
}
