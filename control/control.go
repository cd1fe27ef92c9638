// Package control is the conversation between the command line and the process that serves mounts: typed
// requests over a unix socket, progress while one is worked on, and one result or one error at its end.
//
// Promises:
//   - A connection carries one request, then zero or more messages of progress or trace, then exactly one result or error.
//   - Who goes away takes the request along: closing the writing half of the connection, or dying, cancels the
//     context its handler runs under. A mount that succeeds after its asker left is unmounted again.
//   - Only the same user or root can talk to a server: socket 0600 in a directory 0700, and the peer's uid is asked
//     of the kernel by both sides before a byte is read.
//   - One server per socket path, ever: a lock file beside it says whose it is, so that neither two servers started
//     at once nor somebody clearing away dead sockets can take a living one's place.
//   - A server may die and another process go on with its socket and its lock (Files, Inherit): askers wait meanwhile, and
//     who had asked already asks again, where that cannot do a thing twice.
//   - A secret crosses the socket and goes nowhere else: MountRequest.Token is never printed, marshalled or logged.
//
// Both sides ignore fields that they do not know: requests and replies only ever gain fields. A server names those that it
// ignored in its answer, and refuses the request if they are among those that the request needs. doc/protocol.md describes
// the messages for programs that are not written in Go.
//
// Ensure returns a Client of the daemon of a state directory and starts the daemon if none runs. The zero value of a field of
// a request means the default of the command line.
package control

import (
	"context"
	"errors"
)

// Protocol is the version of the messages. It changes only when a message changes its meaning; a new operation or a new field
// does not change it. Oldest is the oldest version that is understood. A server answers a request in the older one of its
// own version and the request's, so that a client of any version from Oldest on works for what both know: version 5 has other
// names for some fields of replies (see fromNames5). Some operations
// are answered to older clients too (see timeless), and the refusal of all others is readable to them.
const (
	Protocol = 6
	Oldest   = 5
)

// Handler does what is asked. Its methods are called concurrently; they return soon after ctx ends. An error that
// is, or wraps, an *Error reaches the asker as it is, any other as ExitFailed with its text.
type Handler interface {
	// Mount returns when what MountRequest.Wait names is there. progress may be called from one goroutine at a time.
	Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error)
	Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error)
	// Status tells of all mounts this process serves.
	Status(ctx context.Context) (Status, error)
	// Prefetch raises what the request names, and with Wait returns when it is fetched.
	Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error)
	// Switch moves a working tree to another commit, as a whole or not at all but for what it says it kept.
	Switch(ctx context.Context, r SwitchRequest, progress func(Progress)) (SwitchReply, error)
	// Trace gives what happens in a mount to emit until the mount is gone. emit waits for the asker.
	Trace(ctx context.Context, r TraceRequest, emit func(Trace) error) error
	// Shutdown unmounts everything; once it has succeeded the server ends.
	Shutdown(ctx context.Context) error
}

// Lister is a Handler that tells what is mounted in less time than Status.
type Lister interface {
	// Mounts is Status without what has to be counted: files, contents and changes.
	Mounts(ctx context.Context) (Status, error)
}

// Upgrader is a Handler that can be replaced.
type Upgrader interface {
	// Upgrade has another process go on with the mounts. It returns when that cannot be; else this process ends.
	Upgrade(ctx context.Context, r UpgradeRequest) error
}

var (
	// ErrNoServer says that nobody serves the socket, or that who did went away before answering.
	ErrNoServer = errors.New("no daemon answers")
	// ErrInUse says that another process serves the socket.
	ErrInUse = errors.New("another daemon serves this socket")
)
