// Package gitsocket creates and opens the sockets in a mount's git directory. Programs that git starts connect to the
// daemon through these sockets.
//
// Such a socket belongs to the owner of the git directory, and only that user and root may connect. The socket outlives
// the process that listens on it: the successor inherits the listening descriptor, and programs that connect in between
// wait in the socket's queue.
package gitsocket

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Options holds the descriptor that the predecessor has left, and the function that passes the descriptor to the
// successor.
type Options struct {
	// Inherited is the listening socket of the predecessor, or nil if there is none. Listen closes this file.
	Inherited *os.File
	// Keep is called with the listening socket, so that a successor can inherit it. Keep must copy the file if it needs
	// the file after it has returned. A nil Keep means that there is no successor.
	Keep func(listening *os.File) error
}

// Listener is a listening socket with a name in a git directory.
type Listener struct {
	*net.UnixListener
	gitDir, name string
}

// acceptPause is the interval between two attempts to accept a connection after an error.
const acceptPause = 100 * time.Millisecond

// Next accepts the next connection. If that fails because the process has no free descriptors, Next tries again,
// because the end of a connection releases some. It returns an error only after ctx has ended or the Listener was
// closed.
func (l *Listener) Next(ctx context.Context) (*net.UnixConn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err == nil || ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		if !clock.Wait(ctx, acceptPause) {
			return nil, ctx.Err()
		}
	}
}

// Listen continues to listen at the inherited socket. If there is none, it creates the socket called name in gitDir,
// replacing an earlier file with this name. If this process runs as root, the socket is given to the owner of gitDir.
func Listen(gitDir, name string, o Options) (*Listener, error) {
	if o.Inherited != nil {
		return inherit(gitDir, name, o.Inherited)
	}
	path := filepath.Join(gitDir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	short, done, err := address(gitDir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	// The user of the git directory can replace the socket by a symbolic link at any moment. So the mode is set through
	// the descriptor, before the socket has a name, and the owner is changed without following a link.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	any, err := config.Listen(context.Background(), "unix", short)
	if err != nil {
		return nil, err
	}
	l := any.(*net.UnixListener)
	l.SetUnlinkOnClose(false) // the path that was passed to config.Listen may be invalid when the listener is closed
	if owner, ownerErr := Owner(gitDir); ownerErr == nil && os.Geteuid() == 0 {
		err = os.Lchown(path, int(owner.Uid), int(owner.Gid))
	}
	if err == nil && o.Keep != nil {
		var f *os.File
		if f, err = l.File(); err == nil {
			err = errors.Join(o.Keep(f), f.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Listener{l, gitDir, name}, nil
}

// inherit returns a Listener for a listening socket of the predecessor. It closes f.
func inherit(gitDir, name string, f *os.File) (*Listener, error) {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("inherited descriptor is not a listening unix socket"), l.Close())
	}
	u.SetUnlinkOnClose(false)
	return &Listener{u, gitDir, name}, nil
}

// Close removes the socket's file and ends listening, also for other processes that have the descriptor.
func (l *Listener) Close() error {
	os.Remove(filepath.Join(l.gitDir, l.name))
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	return l.UnixListener.Close()
}

// Dial connects to the socket called name in gitDir. The error wraps the error of connect(2): fs.ErrNotExist if there
// is no socket, syscall.ECONNREFUSED if no process listens on it.
func Dial(ctx context.Context, gitDir, name string) (net.Conn, error) {
	short, done, err := address(gitDir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}

// Owner returns the result of stat(2) for a git directory, which contains its owner.
func Owner(gitDir string) (*syscall.Stat_t, error) {
	info, err := os.Stat(gitDir)
	if err != nil {
		return nil, err
	}
	return info.Sys().(*syscall.Stat_t), nil
}

// address returns a path of the socket that fits into the 108 bytes of sockaddr_un (unix(7)). The caller must call
// done; after that, the path is not valid any more.
func address(gitDir, name string) (short string, done func(), err error) {
	if path := filepath.Join(gitDir, name); len(path) <= 100 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(gitDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return proc.Self.FDPath(fd) + "/" + name, func() { unix.Close(fd) }, nil
}
