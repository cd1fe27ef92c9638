// Package query is the client of the socket of a file system monitor. It also implements the message format that client
// and server use, which is git's simple-ipc: pkt-lines that end with a flush packet.
//
// The package is separate from the server (package fsmonitor), because older versions of git start the hook program,
// which is a client, for every command. So this package imports nothing that takes time to initialize.
package query

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Socket is the name of the socket in a git directory. git's own client uses the same name.
const Socket = "fsmonitor--daemon.ipc"

// patience is how long the client waits for an answer. After that time, git searches the working tree for changes
// without the monitor.
const patience = 30 * time.Second

// ErrCut means that the other side has closed the connection early, or has sent something that is not a pkt-line.
var ErrCut = errors.New("invalid pkt-line")

// Read reads packets up to a flush packet or the end of the input, and returns their data. It returns ErrCut if there
// are more than limit bytes of data, or a packet of another kind.
func Read(r *pktline.Reader, limit int) ([]byte, error) {
	var all []byte
	for {
		kind, data, err := r.Next()
		switch {
		case err == io.EOF, err == nil && kind == pktline.Flush:
			return all, nil // like git, accept the end of the input in place of a flush packet
		case err == io.ErrUnexpectedEOF, errors.Is(err, pktline.ErrLength), err == nil && kind != pktline.Data,
			len(all)+len(data) > limit:
			return nil, ErrCut
		case err != nil:
			return nil, err
		}
		all = append(all, data...)
	}
}

// Write writes text as data packets, followed by a flush packet.
func Write(w io.Writer, text []byte) error {
	out := make([]byte, 0, len(text)+len(text)/pktline.MaxData*4+8)
	for len(text) > 0 {
		n := min(len(text), pktline.MaxData)
		out = pktline.Append(out, text[:n])
		text = text[n:]
	}
	_, err := w.Write(pktline.AppendFlush(out))
	return err
}

// tries is the maximum number of times that Changes sends a query. It sends the query again if the monitor closes the
// connection, because the monitor may have died and its successor listens on the same socket.
const tries = 3

// Changes queries the monitor of a git directory for the changes since the journal position token. It writes the answer
// to w unchanged: the next token and a NUL, and then every changed path, each followed by a NUL. The path "/" in the
// answer means that the monitor does not know which paths have changed, so git must examine all of them.
func Changes(gitDir, token string, w io.Writer) error {
	for try := 1; ; try++ {
		answer, err := ask(gitDir, token)
		if err == nil {
			_, err = w.Write(answer)
			return err
		}
		cut := errors.Is(err, ErrCut) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !cut || try == tries {
			return err
		}
	}
}

// ask sends one query and returns the answer.
func ask(gitDir, token string) ([]byte, error) {
	f, err := dial(gitDir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := Write(f, []byte(token)); err != nil {
		return nil, err
	}
	answer, err := Read(pktline.NewReader(f, 4<<10), 1<<31-1)
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 || answer[0] == 0 {
		return nil, ErrCut
	}
	return answer, nil
}

// dial connects to the socket. It uses the descriptor of the socket's directory, because the path of a socket is
// limited to 107 bytes (unix(7)).
func dial(gitDir string) (*os.File, error) {
	dir, err := os.Open(gitDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	to := &syscall.SockaddrUnix{Name: proc.FDPath(dir) + "/" + Socket}
	err = syscall.Connect(fd, to)
	for err == syscall.EINTR {
		err = syscall.Connect(fd, to)
	}
	if err == nil {
		err = syscall.SetNonblock(fd, true) // set non-blocking mode, which deadlines need
	}
	if err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return os.NewFile(uintptr(fd), Socket), nil
}
