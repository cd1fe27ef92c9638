package worktree

import (
	"context"

	"github.com/artifactfs/artifactfs/overlay"
)

// Request is what the kernel calls a request that a call is made for. A context carries it under RequestKey.
//
// A change carries it into the overlay's log, in the record that makes it. So a request that was done and not answered,
// because the process died between the two, and that comes Again to who took the mount over, is answered by what it made
// and not done twice. What failed was not done, and is tried again.
type Request struct {
	ID    uint64
	Again bool // it was read by a process before, which may have done it
}

// RequestKey is the key of a *Request in a context.
type RequestKey struct{}

// requestOf returns the request that a call is made for; nil: none of the kernel's.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(RequestKey{}).(*Request)
	return r
}

// isDone reports whether the request that a call is made for was done by a process before, and which node it made; 0: none.
func (t *Tree) isDone(ctx context.Context) (made Node, done bool) {
	r := requestOf(ctx)
	if r == nil || !r.Again || t.layer == nil {
		return 0, false
	}
	t.layer.View(func(l overlay.Reader) { made, done = l.Request(r.ID) })
	return made, done
}

// answer notes that the change is what the request asks for that it is made for, and which node it makes; 0: none.
func (e *edit) answer(ctx context.Context, made Node) {
	if r := requestOf(ctx); r != nil {
		e.tx.Request(r.ID, made)
	}
}

// attrOf returns a node as it is, without waiting.
func (t *Tree) attrOf(n Node) (Attr, error) {
	in, err := t.inode(n)
	if err != nil {
		return Attr{}, err
	}
	return t.describe(in), nil
}
