// Package query is the asking side of a file system monitor's socket, and the framing that both sides speak: git's
// simple-ipc, which is pkt-lines with a flush behind the last.
//
// It stands apart from the answering side because the hook program that older gits start for every command is made of
// it: it imports nothing that takes time to start.
package query

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Socket is the name of the socket in a git directory. It is the one git's own client connects to.
const Socket = "fsmonitor--daemon.ipc"

// patience bounds how long a monitor that is there may take; git looks itself if it takes longer.
const patience = 30 * time.Second

// ErrCut says that the other side hung up, or spoke no pkt-lines.
var ErrCut = errors.New("broken pkt-line")

// Read reads packets up to a flush or the end of the input and returns their data, limit bytes at most. It returns ErrCut for
// anything else, and for more.
func Read(r *pktline.Reader, limit int) ([]byte, error) {
	var all []byte
	for {
		kind, data, err := r.Next()
		switch {
		case err == io.EOF, err == nil && kind == pktline.Flush:
			return all, nil // git, too, takes the end of the input for a flush
		case err == io.ErrUnexpectedEOF, errors.Is(err, pktline.ErrLength), err == nil && kind != pktline.Data, len(all)+len(data) > limit:
			return nil, ErrCut
		case err != nil:
			return nil, err
		}
		all = append(all, data...)
	}
}

// Write writes text as packets and a flush.
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

// tries is how often a monitor is asked that hangs up: it may have died, and another answers on the same socket.
const tries = 3

// Changes asks the monitor of a git directory what has changed since a token and writes its answer as it is:
// the next token, NUL, and every path with a NUL behind. The answer "/" stands for everything.
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

// dial connects through the directory's descriptor, since the path of a socket cannot be longer than 107 bytes.
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
		err = syscall.SetNonblock(fd, true) // so that the deadline holds
	}
	if err != nil {
		syscall.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return os.NewFile(uintptr(fd), Socket), nil
}
