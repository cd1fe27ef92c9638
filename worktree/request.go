package worktree

import (
	"context"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Request identifies the request of the kernel that causes a call. A *Request is stored in a context with the key
// RequestKey.
//
// A change writes the request to the overlay's log, in the same record as the change itself. If the process dies after
// a change and before the reply, the kernel sends the request again to the process that takes the mount over (Again).
// That process takes the reply from the log and does not make the change a second time. A request that has failed is
// not in the log, so it is executed again.
type Request struct {
	ID    uint64 // number of the request in the kernel's protocol
	Again bool   // true if an earlier process has read the request and may have executed it
}

// RequestKey is the key of a *Request in a context.
type RequestKey struct{}

// requestOf returns the request that has caused a call. It returns nil if the cause was not a request of the kernel.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(RequestKey{}).(*Request)
	return r
}

// isDone returns done as true if an earlier process has executed the request that has caused a call. made is the node
// that the request has created, or 0 if the request has created no node.
func (ed *editor) isDone(ctx context.Context) (made Node, done bool) {
	r := requestOf(ctx)
	if r == nil || !r.Again || ed.view.layer == nil {
		return 0, false
	}
	ed.view.layer.View(func(l overlay.Reader) { made, done = l.Request(r.ID) })
	return made, done
}

// answer records in the log that this change executes the request that has caused the call. made is the node that the
// change creates, or 0 if the change creates no node.
func (e *edit) answer(ctx context.Context, made Node) {
	if r := requestOf(ctx); r != nil {
		e.tx.Request(r.ID, made)
	}
}
