package control

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"syscall"
	"time"
)

// undoPatience is how long a caller that gives up waits for the reply that its request was undone.
const undoPatience = 10 * time.Second

// Client sends requests to the server of one socket. It holds no connection; its methods may be
// called concurrently.
//
// Errors: an *Error from the handler; ErrNoServer when no server answers; the error of ctx when it
// ended first, and then the request has been undone unless the server does not react.
type Client struct {
	socket string
	root   string // of the mount that this process is in, if it is a guest there; "": it is none
}

// Dial checks that a server answers at the socket. It returns ErrNoServer if none does.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return &Client{socket: socket}, conn.Close()
}

// connect opens a connection for one request: to the daemon's socket, or from inside of a mount.
func (c *Client) connect(ctx context.Context) (*net.UnixConn, error) {
	if c.root != "" {
		return dialGuest(ctx, c.root)
	}
	return dial(ctx, c.socket)
}

// name returns the server's name for errors.
func (c *Client) name() string { return cmp.Or(c.socket, c.root) }

// Mount asks for a mount; progress is called from this goroutine.
func (c *Client) Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
	if r.Nonce == "" {
		r.Nonce = rand.Text()
	}
	r = r.ofCaller()
	return call[MountReply](ctx, c, opMount, r, progress)
}

// Unmount asks to end a mount.
func (c *Client) Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error) {
	return call[UnmountReply](ctx, c, opUnmount, r, nil)
}

// Status asks for all mounts of the server.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, opStatus, empty{}, nil)
}

// Mounts is Status without the parts that have to be counted, for callers that look for a mount.
func (c *Client) Mounts(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, opMounts, empty{}, nil)
}

// Prefetch asks to fetch contents before they are read; progress is called from this goroutine.
func (c *Client) Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error) {
	return call[PrefetchReply](ctx, c, opPrefetch, r, progress)
}

// Refresh asks to fetch the mounted branch, and to go there if the mount follows it.
func (c *Client) Refresh(ctx context.Context, r RefreshRequest, progress func(Progress)) (RefreshReply, error) {
	return call[RefreshReply](ctx, c, opRefresh, r, progress)
}

// Switch asks to move a working tree to another commit; progress is called from this goroutine.
func (c *Client) Switch(ctx context.Context, r SwitchRequest, progress func(Progress)) (SwitchReply, error) {
	return call[SwitchReply](ctx, c, opSwitch, r, progress)
}

// Upgrade replaces the daemon by a process of another executable, which takes the mounts over.
// ErrNoServer means that this has begun, since the process that received the request has ended.
func (c *Client) Upgrade(ctx context.Context, r UpgradeRequest) error {
	_, err := call[empty](ctx, c, opUpgrade, r, nil)
	return err
}

// Shutdown asks the server to unmount everything and to end.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := call[empty](ctx, c, opShutdown, empty{}, nil)
	return err
}

const (
	askAgain = 100                   // times; each is the death of a worker
	askPause = 10 * time.Millisecond // between them
)

// errBroken means that a server went away before it answered.
var errBroken = fmt.Errorf("%w any more: it ended before it was done", ErrNoServer)

// call sends a request. If the server dies meanwhile and its successor takes over the socket, call
// repeats the request, provided that a repetition has no further effect.
func call[R any](ctx context.Context, c *Client, o op, args any, progress func(Progress)) (R, error) {
	var reply R
	line, err := encodeRequest(o, args)
	if err != nil {
		return reply, err
	}
	for try := range askAgain {
		var answer message
		answer, err = c.ask(ctx, o, line, progress)
		if err == nil {
			if answer.Version < renamed {
				answer.Result = fromNames5(answer.Result, reflect.TypeFor[R]())
			}
			if err := json.Unmarshal(answer.Result, &reply); err != nil {
				return reply, fmt.Errorf("read answer to %s: %w", o, err)
			}
			if c.root != "" {
				named(c.root, &reply)
			}
			return reply, nil
		}
		var e *Error
		if try > 0 && o == opUnmount && errors.As(err, &e) && e.Code == ExitNotMounted {
			return gone[R](args), nil // done by the process that died before it could reply
		}
		if !errors.Is(err, errBroken) || !repeatable(o, args) || ctx.Err() != nil {
			return reply, err
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
		}
	}
	return reply, err
}

// gone is the answer to an unmount that was made and not answered.
func gone[R any](args any) (reply R) {
	if r, ok := any(&reply).(*UnmountReply); ok {
		r.Dir = args.(UnmountRequest).Dir
	}
	return reply
}

// repeatable reports whether asking twice does no more than asking once.
func repeatable(o op, args any) bool {
	switch o {
	case opMount:
		return args.(MountRequest).Nonce != ""
	case opSwitch:
		r := args.(SwitchRequest)
		// A revision derived from HEAD names another commit the second time.
		return r.Create == "" && r.Ref != "-" && (r.Ref == "HEAD" || !strings.Contains(r.Ref, "HEAD") && !strings.Contains(r.Ref, "@"))
	case opCheckpoint: // the second finds the checkpoint that the first has made, or makes it
		return true
	case opRestore: // the successor has completed it; but the checkpoints that it makes change which one is the newest
		r := args.(RestoreRequest)
		return r.Nonce != "" && !strings.HasPrefix(r.ID, "@")
	case opFork:
		return args.(ForkRequest).Mount.Nonce != ""
	case opSync, opSessions, opSessionsOn, opSessionLog, opSessionShow, opSessionDiff, opSessionSet, opSessionGC, opSessionTrash,
		opSessionTranscript, opSessionErase, opSessionCompare:
		return true
	case opStatus, opMounts, opPrefetch, opRefresh, opUnmount, opShutdown, opCredentialSet:
		return true
	}
	return false
}

// ask asks once. errBroken: the server went away after it was reached.
func (c *Client) ask(ctx context.Context, o op, line []byte, progress func(Progress)) (message, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return message{}, err
	}
	defer conn.Close()
	// To give up means to close the writing half and to wait for the server's reply, so that after
	// Ctrl-C the prompt returns when everything is as before.
	patience := undoPatience
	if o.timeless() {
		patience = 0 // there is nothing to undo
	}
	defer context.AfterFunc(ctx, func() {
		conn.SetReadDeadline(time.Now().Add(patience))
		conn.CloseWrite()
	})()
	answer, err := exchange(conn, o, line, progress)
	if err == nil || ctx.Err() == nil && errors.Is(err, errBroken) {
		return answer, err
	}
	if ctx.Err() != nil {
		return message{}, ctx.Err()
	}
	var e *Error
	if errors.As(err, &e) {
		return message{}, e
	}
	return message{}, fmt.Errorf("ask %s: %w", c.name(), err)
}

// exchange sends the request and returns the message with the result.
func exchange(conn *net.UnixConn, o op, line []byte, progress func(Progress)) (message, error) {
	conn.SetWriteDeadline(time.Now().Add(requestTime))
	// A server that refuses without reading breaks the pipe, but its reply with the reason can be
	// read.
	_, writeErr := conn.Write(line)
	if writeErr != nil && !errors.Is(writeErr, syscall.EPIPE) && !errors.Is(writeErr, syscall.ECONNRESET) {
		return message{}, fmt.Errorf("send request: %w", writeErr)
	}
	r := bufio.NewReader(conn)
	for {
		line, err := readLine(r, maxMessage)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
			return message{}, errBroken
		case err != nil:
			return message{}, fmt.Errorf("read answer: %w", err)
		}
		m, err := decodeMessage(line)
		switch {
		case err != nil:
			return message{}, err
		case !readable(m.Version) && !(o.timeless() && m.Version >= firstTimeless):
			return message{}, otherVersion(conn, m.Version)
		case m.Error != nil:
			return message{}, m.Error
		case m.Result != nil:
			if progress != nil && len(m.Ignored) > 0 {
				progress(Progress{Message: "the daemon is older than this program and ignored " + strings.Join(m.Ignored, ", ") +
					": artifactfs daemon --upgrade replaces it by a newer one"})
			}
			return m, nil
		case progress != nil && m.Progress != nil:
			progress(*m.Progress)
		}
	}
}

// readable reports whether this version understands messages of another one.
func readable(version int) bool { return version >= Oldest && version <= Protocol }

// otherVersion returns the error for an answer in a protocol version that this program does not
// read. Its hint names the way to replace or stop the daemon.
func otherVersion(conn *net.UnixConn, version int) *Error {
	e := &Error{Code: ExitFailed, Kind: CodeUnsupported, Verb: "talk to", Object: "daemon",
		Cause: fmt.Sprintf("it speaks protocol %d, this command speaks %d", version, Protocol),
		Hint:  "use the artifactfs that started it, or stop it"}
	if version >= firstTimeless {
		e.Hint = "`artifactfs daemon --upgrade` replaces it by this command's version; its mounts continue"
	} else if peer, err := peerOf(conn); err == nil && peer.Pid > 0 {
		e.Hint += fmt.Sprintf(": `kill %d` unmounts all it serves first", peer.Pid)
	}
	return e
}
