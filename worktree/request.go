package worktree

import "context"

// Request is what the kernel calls a request that a call is made for. A context carries it under RequestKey.
type Request struct {
	ID    uint64
	Again bool // it was read by a process before, which may have done it
}

// RequestKey is the key of a *Request in a context.
type RequestKey struct{}

// requestOf gives the request that a call is made for; nil: none of the kernel's.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(RequestKey{}).(*Request)
	return r
}
