// Package control is the protocol between the command line and the daemon: typed requests over a
// unix socket, progress during a request, and one result or one error at its end.
//
// Promises:
//   - A connection carries one request, then zero or more messages of progress or trace, then exactly one
//     result or error.
//   - The end of the caller ends the request: closing the writing half of the connection, or dying, cancels
//     the context of its handler. A mount that succeeds after its caller left is unmounted again.
//   - Only the same user or root can use a server: the socket has mode 0600 in a directory of mode 0700, and
//     both sides get the peer's uid from the kernel before they read a byte.
//   - A socket path has at most one server: a lock file beside it names its owner, so that two servers that
//     start at once, or a process that removes dead sockets, cannot take the place of a living server.
//   - A server may die and another process continue its socket and its lock (Files, Inherit). Callers wait
//     meanwhile, and send a request again where a repetition has no further effect.
//   - A secret is only sent over the socket: MountRequest.Token is never printed, marshalled or logged.
//
// Both sides ignore fields that they do not know: requests and replies only ever gain fields. A
// server names the fields that it ignored in its reply, and refuses the request if they are among
// those that the request needs. doc/protocol.md describes the messages for programs that are not
// written in Go.
//
// Ensure returns a Client of the daemon of a state directory and starts the daemon if none runs.
// The zero value of a field of a request means the default of the command line.
package control

import (
	"context"
	"errors"
)

// Protocol is the version of the messages. It changes only when a message changes its meaning, not
// for a new operation or a new field. Oldest is the oldest version that is supported. A server
// answers a request in the older of its own version and the request's, so that clients of any
// version from Oldest on work for everything that both know: version 5 has other names for some
// fields of replies (see fromNames5). Some operations are answered to even older clients (see
// timeless), and these can read the refusal of all others.
const (
	Protocol = 6
	Oldest   = 5
)

// Handler carries out requests. Its methods are called concurrently; they return soon after ctx
// ends. An error that is, or wraps, an *Error is sent to the caller as it is, any other as
// ExitFailed with its text.
type Handler interface {
	// Mount returns when the state named by MountRequest.Wait is reached. progress is called by one
	// goroutine at a time.
	Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error)
	Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error)
	// Status returns of all mounts this process serves.
	Status(ctx context.Context) (Status, error)
	// Prefetch fetches files earlier, and with Wait returns when they are fetched.
	Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error)
	// Switch changes a working tree to another commit. It changes all of it or nothing, except for
	// the paths that the reply lists as kept.
	Switch(ctx context.Context, r SwitchRequest, progress func(Progress)) (SwitchReply, error)
	// Trace calls emit with the requests of a mount until it ends. emit waits for the caller.
	Trace(ctx context.Context, r TraceRequest, emit func(Trace) error) error
	// Shutdown unmounts everything; once it has succeeded the server ends.
	Shutdown(ctx context.Context) error
}

// Lister is a Handler with a faster variant of Status.
type Lister interface {
	// Mounts is Status without the counts of files, contents and changes.
	Mounts(ctx context.Context) (Status, error)
}

// Upgrader is a Handler that can be replaced.
type Upgrader interface {
	// Upgrade makes another process take the mounts over. It returns only if that is not possible;
	// otherwise this process ends.
	Upgrade(ctx context.Context, r UpgradeRequest) error
}

var (
	// ErrNoServer means that no process serves the socket, or that the server ended before it
	// replied.
	ErrNoServer = errors.New("no daemon answers")
	// ErrInUse means that another process serves the socket.
	ErrInUse = errors.New("another daemon serves this socket")
)
