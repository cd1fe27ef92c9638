package promisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/gitsocket"
	"github.com/artifactfs/artifactfs/internal/pktline"
)

// socketName is where questions about a git directory are answered, inside it.
const socketName = "artifactfs-promisor"

// Ask is the command that git runs as upload-pack of our promisor remote. It passes the dialogue on
// to the daemon. Errors are written to out, where git reads them, and git then asks the origin.
// protocol is the value of GIT_PROTOCOL.
func Ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	err := ask(ctx, gitDir, protocol, in, out)
	if err != nil {
		out.Write(errorPacket(err.Error())) // git may have exited
	}
	return err
}

// ask is Ask without the report of errors.
func ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	if !strings.Contains(protocol, "version=2") {
		return fmt.Errorf("git speaks an old protocol (%q): protocol.version=2 is needed", protocol)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The parent process is the `git fetch` that started this command.
	c := &caller{gitDir: gitDir, hint: ancestors(os.Getppid())}
	defer c.hangUp()
	greeting, err := c.retry(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := out.Write(greeting); err != nil {
		return err
	}
	requests := make(chan []byte)
	go func() { // reading on is how we learn that git is gone
		defer cancel()
		defer close(requests)
		for r := pktline.NewReader(in, bufSize); ; {
			q, err := readMessage(r)
			if err != nil || string(q) == "0000" {
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	for q := range requests {
		answer, err := c.retry(ctx, q)
		if ctx.Err() != nil {
			// git ended or was interrupted, so no process reads the answer.
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(answer); err != nil {
			return err
		}
	}
	return nil
}

const (
	// askTries bounds how often a request is repeated when the connection breaks: the daemon may
	// have died, and its successor continues on the same socket. It is bounded, since the request
	// may be what kills the daemon.
	askTries = 5
	// returnTime bounds the wait for a daemon that returns on a socket of its own, and returnLook
	// is the interval of the checks.
	returnTime = 2 * time.Second
	returnLook = 20 * time.Millisecond

	// maxMessage bounds one message in memory, in bytes: a request may name maxWants objects by
	// SHA-256.
	maxMessage = 128 << 20
)

// errUnreachable means that no daemon listens on the socket.
var errUnreachable = errors.New("the daemon of this mount cannot be reached")

// caller talks to whichever daemon serves the mount.
type caller struct {
	gitDir string
	hint   Hint
	conn   net.Conn // nil: not connected
	in     *pktline.Reader
}

// hangUp closes the connection, if there is one.
func (c *caller) hangUp() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// retry returns the answer to a request, or, without a request, the greeting. Neither depends on
// earlier messages.
func (c *caller) retry(ctx context.Context, request []byte) (answer []byte, err error) {
	for try := 1; ; try++ {
		answer, err = c.try(ctx, request, try > 1 || request != nil)
		if err == nil || ctx.Err() != nil || try == askTries {
			return answer, err
		}
		c.hangUp()
		if try == 1 && errors.Is(err, errUnreachable) && request == nil {
			return nil, err // there was none in the first place
		}
	}
}

// try sends a request once, over the open connection or a new one, and returns the answer.
func (c *caller) try(ctx context.Context, request []byte, again bool) ([]byte, error) {
	greeting, err := c.connect(ctx, again)
	if err != nil || request == nil {
		return greeting, err
	}
	// The end of ctx closes the connection, which ends a blocked read or write.
	defer context.AfterFunc(ctx, func(n net.Conn) func() { return func() { n.Close() } }(c.conn))()
	if _, err := c.conn.Write(request); err != nil {
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	answer, err := readMessage(c.in)
	if err != nil {
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	return answer, nil
}

// connect connects if there is no connection. again says that there was one, so that a successor
// may be starting.
func (c *caller) connect(ctx context.Context, again bool) (greeting []byte, err error) {
	if c.conn != nil {
		return nil, nil
	}
	for end := time.Now().Add(returnTime); ; {
		if c.conn, err = gitsocket.Dial(ctx, c.gitDir, socketName); err == nil {
			break
		}
		if !again || ctx.Err() != nil || time.Now().After(end) {
			return nil, errUnreachable
		}
		time.Sleep(returnLook)
	}
	defer context.AfterFunc(ctx, func(n net.Conn) func() { return func() { n.Close() } }(c.conn))()
	c.in = pktline.NewReader(c.conn, bufSize)
	// The hint precedes the greeting: the daemon reads it before it writes anything.
	if err := writeHint(c.conn, c.hint); err != nil {
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	if greeting, err = readMessage(c.in); err != nil {
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	return greeting, nil
}

// readMessage reads packets up to a flush, or an error, behind which nothing follows, and returns
// them as they were written.
func readMessage(r *pktline.Reader) (message []byte, err error) {
	for {
		kind, data, err := readPacket(r)
		if err != nil {
			return nil, err
		}
		switch kind {
		case pktline.Flush:
			return pktline.AppendFlush(message), nil
		case pktline.Delim:
			message = pktline.AppendDelim(message)
			continue
		}
		message = pktline.Append(message, data)
		if bytes.HasPrefix(data, []byte("ERR ")) {
			return message, nil
		}
		if len(message) > maxMessage {
			return nil, fmt.Errorf("%w: message of more than %d bytes", errProtocol, maxMessage)
		}
	}
}
