package worktree

import (
	"context"

	"github.com/artifactfs/artifactfs/overlay"
)

// Request identifies the request of the kernel that a call is made for. A context carries it under RequestKey.
//
// A change writes it to the overlay's log, in the same record as the change itself. If the process dies after a change and
// before the reply, the kernel repeats the request to the process that takes the mount over (Again). That process replies
// from the log and does not make the change a second time. A request that failed is not in the log and is executed again.
type Request struct {
	ID    uint64 // number of the request in the kernel's protocol
	Again bool   // an earlier process read the request and may have executed it
}

// RequestKey is the key of a *Request in a context.
type RequestKey struct{}

// requestOf returns the request that a call is made for; nil if the kernel did not request it.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(RequestKey{}).(*Request)
	return r
}

// isDone reports whether an earlier process executed the request that a call is made for, and returns the node that it
// created; 0: none.
func (ed *editor) isDone(ctx context.Context) (made Node, done bool) {
	r := requestOf(ctx)
	if r == nil || !r.Again || ed.view.layer == nil {
		return 0, false
	}
	ed.view.layer.View(func(l overlay.Reader) { made, done = l.Request(r.ID) })
	return made, done
}

// answer records that the change executes the request that the call is made for, and the node that it creates; 0: none.
func (e *edit) answer(ctx context.Context, made Node) {
	if r := requestOf(ctx); r != nil {
		e.tx.Request(r.ID, made)
	}
}
