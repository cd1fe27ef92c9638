// Package control is the protocol between the command line and the daemon. A client sends a typed request over a unix
// socket. The server sends messages about the progress, and ends with one result or one error.
//
// Promises:
//   - A connection carries one request, then zero or more messages of progress or trace, then exactly one result or
//     error.
//   - If the caller closes the writing half of the connection or dies, its request is canceled: the context of the
//     handler ends. A
//     mount that succeeds after its caller has disconnected is unmounted again.
//   - Only processes of the same user or of root can use a server. The socket has mode 0600 in a directory of mode
//     0700, and both
//     sides get the peer's user id from the kernel before they read a byte.
//   - A socket path has at most one server. The server holds a lock file beside the socket. So two servers that start
//     at the same
//     time, or a process that removes sockets of dead servers, cannot replace a living server.
//   - If a server dies, another process can continue to use the socket and the lock of that server (see Server.Files
//     and Inherit).
//     Clients wait for that process, and repeat their request if repeating it has no further effect.
//   - A secret is sent only over the socket: values of type Secret, such as MountRequest.Token, are never printed,
//     marshaled or
//     logged.
//
// Both sides ignore fields that they do not know, so that new versions can add fields to requests and replies. The
// reply of a server names the fields of the request that it ignored. If the request needs one of these fields, the
// server refuses it. doc/internals/protocol/README.md describes the messages for programs that are not written in Go.
//
// Ensure returns a Client of the daemon of a state directory, and starts the daemon if it is not running. If a field of
// a request has its zero value, the default of the command line applies.
package control

import (
	"context"
	"errors"
)

// Protocol is the version of the messages. It changes only if a message changes its meaning, not if an operation or a
// field is added. A server refuses requests of older versions, and answers those of newer versions in its own version.
const Protocol = 6

// Handler carries out requests. Its methods are called concurrently, and must return soon after ctx ends. If a method
// returns an *Error, or an error that wraps one, that *Error is sent to the caller. For any other error, the text of
// the error is sent, with the code ExitFailed.
type Handler interface {
	// Mount mounts a remote. It returns when the mount has reached the state that MountRequest.Wait names. It calls
	// progress from one goroutine at a time.
	Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error)
	// Unmount unmounts a directory.
	Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error)
	// Status returns the status of all mounts that this process serves.
	Status(ctx context.Context) (Status, error)
	// Prefetch requests the given files before all other background requests. If Wait is set, it returns when the files
	// are fetched.
	Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error)
	// Switch changes a working tree to another commit. It changes either nothing, or everything except the paths that the
	// reply lists as kept.
	Switch(ctx context.Context, r SwitchRequest, progress func(Progress)) (SwitchReply, error)
	// Trace calls emit with the requests that a mount has answered, until the mount ends. emit blocks until the caller
	// reads.
	Trace(ctx context.Context, r TraceRequest, emit func(Trace) error) error
	// Shutdown unmounts everything. If it succeeds, the server then ends.
	Shutdown(ctx context.Context) error
}

// MountsRequest requests a list of all mounts.
type MountsRequest struct {
	// Names limits the status of each mount to the parts by which a client finds it: id, directory, remote, session and
	// session remote, and its state without the errors of a degraded mount.
	Names bool `json:"names,omitempty"`
}

func (MountsRequest) validate() error { return nil }

// Lister is a Handler that implements a faster variant of Status.
type Lister interface {
	// Mounts returns the same as Status, without the numbers of files, contents and changes.
	Mounts(ctx context.Context, r MountsRequest) (Status, error)
}

// Upgrader is a Handler that another process can replace.
type Upgrader interface {
	// Upgrade makes another process take over the mounts, and ends this process. It returns only if the upgrade has
	// failed.
	Upgrade(ctx context.Context, r UpgradeRequest) error
}

var (
	// ErrNoServer means that no process serves the socket, or that the server ended before it answered.
	ErrNoServer = errors.New("no daemon is running")
	// ErrInUse means that another process serves the socket.
	ErrInUse = errors.New("another daemon uses this socket")
)
