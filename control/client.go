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
	"strings"
	"syscall"
	"time"
)

// undoPatience is the maximum time that a canceled call waits until the server has undone its request.
const undoPatience = 10 * time.Second

// Client sends requests to the server of one socket. It opens a connection for each request. Its methods may be called
// concurrently.
//
// The methods return an *Error if the handler failed, ErrNoServer if no server answers, and the error of ctx if ctx
// ended first. In the last case the server has undone the request, unless it did not react within undoPatience.
type Client struct {
	socket string // path of the daemon's socket; "" if this process is a guest
	root   string // root of the mount, if this process is a guest, which is a program inside of the mount; otherwise ""
}

// Dial checks that a server answers at the socket. It returns ErrNoServer if no server answers.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return &Client{socket: socket}, conn.Close()
}

// connect opens a connection for one request, either to the daemon's socket or, for a guest, to the socket inside of
// the mount.
func (c *Client) connect(ctx context.Context) (*net.UnixConn, error) {
	if c.root != "" {
		return dialGuest(ctx, c.root)
	}
	return dial(ctx, c.socket)
}

// name returns the name by which errors refer to the server.
func (c *Client) name() string { return cmp.Or(c.socket, c.root) }

// Mount requests a mount. It calls progress in the goroutine of the caller.
func (c *Client) Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
	if r.Nonce == "" {
		r.Nonce = rand.Text()
	}
	r = r.ofCaller()
	return call[MountReply](ctx, c, opMount, r, progress)
}

// Unmount requests that a mount is unmounted.
func (c *Client) Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error) {
	return call[UnmountReply](ctx, c, opUnmount, r, nil)
}

// Status returns the status of all mounts of the server.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, opStatus, empty{}, nil)
}

// Mounts returns the same as Status, but without the numbers that take long to count. With r.Names, it returns only the
// parts by which callers find a mount.
func (c *Client) Mounts(ctx context.Context, r MountsRequest) (Status, error) {
	return call[Status](ctx, c, opMounts, r, nil)
}

// Prefetch requests that contents are fetched before they are read. It calls progress in the goroutine of the caller.
func (c *Client) Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error) {
	return call[PrefetchReply](ctx, c, opPrefetch, r, progress)
}

// Refresh requests that the mounted branch is fetched, and that the mount moves to its new commit if the mount follows
// the branch.
func (c *Client) Refresh(ctx context.Context, r RefreshRequest, progress func(Progress)) (RefreshReply, error) {
	return call[RefreshReply](ctx, c, opRefresh, r, progress)
}

// Switch requests that a working tree is changed to another commit. It calls progress in the goroutine of the caller.
func (c *Client) Switch(ctx context.Context, r SwitchRequest, progress func(Progress)) (SwitchReply, error) {
	return call[SwitchReply](ctx, c, opSwitch, r, progress)
}

// Upgrade replaces the daemon by a process of another executable, which takes over the mounts. If Upgrade returns
// ErrNoServer, the upgrade has started, because the process that received the request has ended.
func (c *Client) Upgrade(ctx context.Context, r UpgradeRequest) error {
	_, err := call[empty](ctx, c, opUpgrade, r, nil)
	return err
}

// Shutdown requests that the server unmounts everything and ends.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := call[empty](ctx, c, opShutdown, empty{}, nil)
	return err
}

const (
	askAgain = 100                   // maximum number of attempts; an attempt fails if the worker dies
	askPause = 10 * time.Millisecond // pause between attempts
)

// errBroken means that the client was connected to a server, but the server ended before it answered.
var errBroken = fmt.Errorf("%w: daemon exited before the request was complete", ErrNoServer)

// call sends a request and returns the reply. If the server dies before it replies, and repeating the request has no
// further effect, call repeats the request, so that the server's successor answers it.
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
			if err := json.Unmarshal(answer.Result, &reply); err != nil {
				return reply, fmt.Errorf("read reply to %s: %w", o, err)
			}
			if c.root != "" {
				named(c.root, &reply)
			}
			return reply, nil
		}
		var e *Error
		if try > 0 && o == opUnmount && errors.As(err, &e) && e.Code == ExitNotMounted {
			return gone[R](args), nil // the server has unmounted everything before it died, so the request was carried out
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

// gone returns the reply to an unmount request that was carried out although the server could not reply.
func gone[R any](args any) (reply R) {
	if r, ok := any(&reply).(*UnmountReply); ok {
		r.Dir = args.(UnmountRequest).Dir
	}
	return reply
}

// repeatable reports whether sending the request twice has the same effect as sending it once.
func repeatable(o op, args any) bool {
	switch o {
	case opMount:
		return args.(MountRequest).Nonce != ""
	case opSwitch:
		r := args.(SwitchRequest)
		// A revision that is relative to HEAD can name another commit when it is resolved again.
		return r.Create == "" && r.Ref != "-" && (r.Ref == "HEAD" || !strings.Contains(r.Ref, "HEAD") &&
			!strings.Contains(r.Ref, "@"))
	case opCheckpoint: // a repeated request returns the checkpoint that the first request has made, if it has
		return true
	case opRestore:
		// The server's successor completes the restore. But a restore makes checkpoints, so after it, a name that begins with
		// "@" and counts back from the newest checkpoint can refer to another checkpoint.
		r := args.(RestoreRequest)
		return r.Nonce != "" && !strings.HasPrefix(r.ID, "@")
	case opFork:
		return args.(ForkRequest).Mount.Nonce != ""
	case opSync, opSessions, opSessionsOn, opSessionLog, opSessionShow, opSessionDiff, opSessionSet, opSessionGC,
		opSessionTrash,
		opSessionTranscript, opSessionErase, opSessionCompare, opSessionApprovals, opSessionPolicy, opSessionAnnotations,
		opCacheGet, opCacheKeys, opCacheGC, opSessionSummary, opSessionLocks:
		return true
	case opCachePut:
		// if an entry is expected, the repeated request would find the entry that the first one has stored
		return args.(CachePutRequest).Expect == ""
	case opStatus, opMounts, opPrefetch, opRefresh, opUnmount, opShutdown, opCredentialSet:
		return true
	}
	return false
}

// ask sends the request once. It returns errBroken if the server ended after the connection was made.
func (c *Client) ask(ctx context.Context, o op, line []byte, progress func(Progress)) (message, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return message{}, err
	}
	defer conn.Close()
	// To cancel, close the writing half of the connection and wait for the server's reply. So after Ctrl-C, the command
	// returns only after the request was undone.
	patience := undoPatience
	if o == opStatus || o == opUpgrade {
		patience = 0 // do not wait, because these requests have no effect that the server could undo
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
	return message{}, fmt.Errorf("send request %s: %w", c.name(), err)
}

// exchange sends the request and returns the message that contains the result. It passes progress messages to the
// function progress.
func exchange(conn *net.UnixConn, o op, line []byte, progress func(Progress)) (message, error) {
	conn.SetWriteDeadline(time.Now().Add(requestTime))
	// A server that refuses a request closes the connection without reading it, so the write fails. The reply with the
	// reason can be read nevertheless.
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
			return message{}, fmt.Errorf("read reply: %w", err)
		}
		m, err := decodeMessage(line)
		switch {
		case err != nil:
			return message{}, err
		case m.Version != Protocol:
			return message{}, otherVersion(conn, m.Version)
		case m.Error != nil:
			// The daemon does not know the operation, or a field that it needs.
			if e := m.Error; e.Kind == CodeUnsupported && e.Object == "request" && e.Hint == "" {
				e.Hint = "run artifactfs daemon --upgrade to replace the daemon, if it is older than this program"
			}
			return message{}, m.Error
		case m.Result != nil:
			if progress != nil && len(m.Ignored) > 0 {
				progress(Progress{Message: "the daemon is older than this program and ignored " + strings.Join(m.Ignored, ", ") +
					"; run artifactfs daemon --upgrade to replace the daemon"})
			}
			return m, nil
		case progress != nil && m.Progress != nil:
			progress(*m.Progress)
		}
	}
}

// otherVersion returns the error for an answer in a protocol version that this program does not understand. The hint of
// the error describes how to replace or stop the daemon.
func otherVersion(conn *net.UnixConn, version int) *Error {
	e := &Error{Code: ExitFailed, Kind: CodeUnsupported, Verb: "talk to", Object: "daemon",
		Cause: fmt.Sprintf("daemon uses protocol %d, but this command uses protocol %d", version, Protocol),
		Hint:  "use the artifactfs version that started the daemon, or stop the daemon"}
	if peer, err := peerOf(conn); err == nil && peer.Pid > 0 {
		e.Hint += fmt.Sprintf(": run kill %d to stop the daemon, which unmounts all its mounts", peer.Pid)
	}
	return e
}
