package promisor

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// socketName is where questions about a git directory are answered, inside it.
const socketName = "artifactfs-promisor"

// Ask is the asker: what git runs as upload-pack of the promisor remote that is us. It hands the dialogue through to
// the daemon; whatever goes wrong, git reads it from out, and asks the origin. protocol is what git says in GIT_PROTOCOL.
func Ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	err := ask(ctx, gitDir, protocol, in, out)
	if err != nil {
		out.Write(errorPacket(err.Error())) // git may be gone; then nobody has to know
	}
	return err
}

func ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	if !strings.Contains(protocol, "version=2") {
		return fmt.Errorf("git speaks an old protocol (%q): protocol.version=2 is needed", protocol)
	}
	name, done, err := socketPath(gitDir)
	if err != nil {
		return fmt.Errorf("ask daemon: %w", err)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", name)
	done()
	if err != nil {
		return fmt.Errorf("the daemon of this mount cannot be reached")
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := writeHint(conn, ancestors(os.Getppid())); err != nil {
		return fmt.Errorf("ask daemon: %w", err)
	}
	go func() {
		io.Copy(conn, in)
		conn.CloseWrite()
	}()
	if _, err := io.Copy(out, conn); err != nil {
		return fmt.Errorf("ask daemon: %w", err)
	}
	return nil
}

// socketPath spells the path of the socket so that it fits the 108 bytes of an address; done ends its validity.
func socketPath(gitDir string) (name string, done func(), err error) {
	if path := filepath.Join(gitDir, socketName); len(path) <= 100 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(gitDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketName), func() { unix.Close(fd) }, nil
}
