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

	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// socketName is the name of the daemon's socket in the git directory. Requests for missing objects are sent to this
// socket.
const socketName = "artifactfs-promisor"

// Ask implements the command that git runs as upload-pack of the daemon's promisor remote. It passes git's requests on
// to the daemon, and the answers of the daemon back to git. It writes errors to out, where git reads them. After an
// error, git requests the objects from the origin. The parameter protocol is the value of GIT_PROTOCOL.
func Ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	err := ask(ctx, gitDir, protocol, in, out)
	if err != nil {
		out.Write(errorPacket(err.Error())) // the error is ignored, because git may have exited
	}
	return err
}

// ask does the same as Ask, but returns errors and does not write them to out.
func ask(ctx context.Context, gitDir, protocol string, in io.Reader, out io.Writer) error {
	if !strings.Contains(protocol, "version=2") {
		return fmt.Errorf("read git protocol %q: version 2 is required; set protocol.version=2", protocol)
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
	go func() { // this goroutine reads also during a request, because the end of the stream shows that git has exited
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
			// git has exited or was interrupted, so no process reads the answer.
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
	// askTries is the maximum number of times that a request is sent if the connection breaks. Repeating a request is
	// useful if the daemon has died and its successor serves the same socket. The number is limited, because the request
	// itself may make the daemon crash.
	askTries = 5
	// returnTime is the maximum time in which a restarted daemon must listen on the socket again. returnLook is the
	// interval between two attempts to connect.
	returnTime = 2 * time.Second
	returnLook = 20 * time.Millisecond

	// maxMessage is the maximum size in bytes of a message in memory. A request may contain maxWants ids of SHA-256.
	maxMessage = 128 << 20
)

// errUnreachable means that no daemon listens on the socket.
var errUnreachable = errors.New("no daemon serves this mount")

// caller is the client side of a connection to the daemon that serves the mount. It connects again if the daemon is
// replaced.
type caller struct {
	gitDir string
	hint   Hint
	conn   net.Conn // nil while not connected
	in     *pktline.Reader
}

// hangUp closes the connection if it is open.
func (c *caller) hangUp() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// retry sends a request and returns the answer. If request is nil, it returns the greeting, the first message of the
// daemon. If the connection breaks, retry repeats the request on a new connection, which is possible because the answer
// does not depend on earlier messages.
func (c *caller) retry(ctx context.Context, request []byte) (answer []byte, err error) {
	for try := 1; ; try++ {
		answer, err = c.try(ctx, request, try > 1 || request != nil)
		if err == nil || ctx.Err() != nil || try == askTries {
			return answer, err
		}
		c.hangUp()
		if try == 1 && errors.Is(err, errUnreachable) && request == nil {
			return nil, err // the first attempt to connect has failed, so no daemon is running
		}
	}
}

// try sends a request once, on the open connection or on a new one, and returns the answer. If request is nil, try
// returns the greeting. The parameter again is passed to connect.
func (c *caller) try(ctx context.Context, request []byte, again bool) ([]byte, error) {
	greeting, err := c.connect(ctx, again)
	if err != nil || request == nil {
		return greeting, err
	}
	// When ctx ends, close the connection, so that a blocked read or write returns.
	defer context.AfterFunc(ctx, func(n net.Conn) func() { return func() { n.Close() } }(c.conn))()
	if _, err := c.conn.Write(request); err != nil {
		return nil, fmt.Errorf("request objects from daemon: %w", err)
	}
	answer, err := readMessage(c.in)
	if err != nil {
		return nil, fmt.Errorf("request objects from daemon: %w", err)
	}
	return answer, nil
}

// connect opens a connection and returns the greeting, unless a connection is open. The parameter again is true if an
// earlier connection has ended. In this case a successor of the daemon may be starting, so connect waits until it
// listens.
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
	// Send the hint before the greeting is read, because the daemon reads the hint before it writes the greeting.
	if err := writeHint(c.conn, c.hint); err != nil {
		return nil, fmt.Errorf("request objects from daemon: %w", err)
	}
	if greeting, err = readMessage(c.in); err != nil {
		return nil, fmt.Errorf("request objects from daemon: %w", err)
	}
	return greeting, nil
}

// readMessage reads packets up to and including a flush packet or an error packet, and returns their bytes.
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
			return nil, fmt.Errorf("%w: message is longer than %d bytes", errProtocol, maxMessage)
		}
	}
}
