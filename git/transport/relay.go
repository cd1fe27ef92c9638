package transport

import (
	"context"
	"errors"
	"io"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// A remote over HTTP may be reached through a relay (Options.Via). The carrier of the remote then has a second carrier,
// its *front*, which sends the same requests with the same logins to the relay. If the front fails, or if no byte
// arrives from the relay for the time via.Silence, the request is sent to the git server. Pushes do not use the front.

// newFront returns the front of the carrier h.
func (h *web) newFront(set endpoint.Settings) (*web, error) {
	r := h.remote
	base := r.opts.Via.For(h.base)
	ws, err := set.HTTP(base, "", r.opts.Env)
	if err != nil {
		return nil, err
	}
	ws.FollowRedirects = false // the front follows no redirects, because the carrier h follows them
	ws.Headers = h.set.Headers // headers for the remote, which may contain a login
	t, d, err := r.connector.newTransport(ws)
	if err != nil {
		return nil, err
	}
	return &web{remote: r, endpoint: h.endpoint, transport: t, dialer: d, set: ws, base: base, auth: h.auth,
		relay: r.route}, nil
}

// nearest returns the front if it may be used for the next request, and nil otherwise. After the request, the caller
// must call the method report of the front.
func (h *web) nearest() *web {
	if h.front == nil || !h.front.relay.Use() {
		return nil
	}
	return h.front
}

// report records the result of a request that the front h has sent. It does nothing if h is nil.
func (h *web) report(err error) {
	var status statusError
	var lacks NotOurRef
	switch {
	case h == nil:
		return
	case err == nil, err == io.EOF, errors.As(err, &lacks):
		// io.EOF is the regular end of a pack whose start was reported before
		h.relay.Answered(err == io.EOF)
		return
	// The caller has ended the request, which shows nothing about the relay.
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errAborted),
		errors.Is(err, errClosed):
		return
	}
	h.relay.Failed(err, !isFault(err) || errors.As(err, &status))
	h.remote.log.Info("relay failed, the git server is asked", zap.String("relay", h.relay.URL()),
		zap.String("remote", h.remote.URL()),
		zap.Error(err))
}

// InvalidAnswer records that the contents of an answer were invalid. If the answer has come from a relay, the next
// requests are sent to the git server.
func (r *Remote) InvalidAnswer(err error) {
	if c, _, _ := r.known(); c != nil {
		if h, ok := c.(*web); ok {
			h.front.report(err)
		}
	}
}

// converse sends a command and calls read with the answer. If the answer of a relay cannot be read, it sends the
// command to the git server.
func converse(ctx context.Context, c carrier, kind commandKind, message []byte, read func(*answer) error) error {
	a, err := c.exchange(ctx, kind, message)
	for err == nil {
		front := a.front
		failure := read(a)
		front.report(failure)
		if failure == nil {
			return nil
		}
		a.abort()
		if front == nil || ctx.Err() != nil {
			return streamFault(failure)
		}
		a, err = c.(*web).post(ctx, message)
	}
	return err
}
