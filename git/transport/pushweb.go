package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Limits for pushes over HTTP.
const (
	// A body whose length is unknown is sent only if it is larger than postWhole, because some servers and proxies do not
	// support such requests. git's http.postBuffer serves the same purpose.
	postWhole = 1 << 20
	// advertisedLong is a number of refs. If a server lists more refs for a push, later calls of receive avoid requesting
	// the complete list.
	advertisedLong = 256
)

// webPush is a push over HTTP.
type webPush struct{ web *web }

var _ pushLine = webPush{}

// receive requests the server's capabilities and refs. If the server has many refs, receive keeps the capabilities.
// Later calls that have prefixes then request only the refs below these prefixes, from upload-pack.
func (h *web) receive(ctx context.Context, prefixes []string) (pushLine, Receiver, error) {
	// A listing of many refs is long, and receive-pack cannot restrict the listing, so keep the capabilities from the
	// first listing.
	h.mu.Lock()
	known := h.receiver
	h.mu.Unlock()
	if known != nil && len(prefixes) > 0 {
		about := *known
		refs, err := h.list(ctx, prefixes)
		if err == nil {
			about.Refs = refs
			return webPush{h}, about, nil
		}
		if !errors.Is(err, ErrNoV2) {
			return nil, about, err
		}
	}
	var about Receiver
	count := 0
	err := h.advertisement(ctx, receivePack, func(p *pktReader) (err error) {
		about, err = parseReceiver(p, nil)
		count = len(about.Refs)
		about.Refs = filterRefs(about.Refs, prefixes)
		return err
	})
	if err != nil {
		return nil, about, err
	}
	if count > advertisedLong {
		brief := about
		brief.Refs, brief.Alternates = nil, nil
		h.mu.Lock()
		h.receiver = &brief
		h.mu.Unlock()
	}
	return webPush{h}, about, nil
}

// openBlind returns a push at once, because an HTTP push is one request that needs no preceding listing.
func (h *web) openBlind() pushLine { return webPush{h} }

// filterRefs returns the refs whose names begin with one of the prefixes. It reuses the array of the slice refs, whose
// contents are lost.
func filterRefs(refs []Ref, prefixes []string) []Ref {
	filtered := refs[:0]
	for _, r := range refs {
		if wanted(r.Name, prefixes) {
			filtered = append(filtered, r)
		}
	}
	return filtered
}

// list returns the refs below prefixes, like Remote.Refs but without retries.
func (h *web) list(ctx context.Context, prefixes []string) ([]Ref, error) {
	_, caps, err := h.remote.connect(ctx)
	if err != nil {
		return nil, err
	}
	message, err := refsMessage(caps, prefixes)
	if err != nil {
		return nil, err
	}
	var refs Refs
	err = ask(ctx, h, readsRefs, message, func(a *answer) (err error) {
		refs, err = parseRefs(a.pktReader, caps.Format, prefixes)
		return err
	})
	return refs.List, err
}

// close does nothing, because an HTTP push has no connection before send.
func (webPush) close() {}

// send sends the push as one POST request. The request is not repeated after a transport fault, because the server may
// have applied the updates.
func (l webPush) send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error,
	read func(*pktReader) error) error {
	h := l.web
	base, _ := h.at()
	c := call{method: http.MethodPost, service: receivePack, kind: "result", url: below(base, receivePack.path(), "")}
	var up *upload
	if pack == nil {
		c.body = head
	} else {
		// If a login is refused, the body must be sent again, so each attempt calls the pack function again.
		c.open = func() (io.ReadCloser, int64, error) {
			if up != nil {
				up.Close()
			}
			up = &upload{head: bytes.NewReader(head)}
			return up.start(ctx, pack)
		}
	}
	a, err := h.send(ctx, c)
	if err == nil {
		if err = read(a.pktReader); err != nil {
			a.abort()
		} else {
			a.finish()
		}
	}
	if up != nil {
		packed := up.stop()
		// If the pack function failed first, its error is the cause of the failed request, so return that error. If the pack
		// function failed because the request had failed (isIO), return the error of the request.
		if err != nil && packed != nil && !isIO(packed) && ctx.Err() == nil {
			err = packed
		}
	}
	// A push is not repeated at another URL. The next push begins with a new discovery, which follows the redirect.
	var m moved
	if errors.As(err, &m) {
		err = fmt.Errorf("%w: %w during a push", ErrUnreachable, err)
	}
	return err
}

// upload is the body of a push: the commands in head, then the pack. The field made is the emitter that runs the pack
// function, which writes the pack into the field pipe. The field all is a reader of the whole body.
type upload struct {
	head io.Reader
	pipe *io.PipeReader
	made *emitter
	all  io.Reader
}

// start starts the pack function and returns the body and its length. If the body is larger than postWhole, the length
// is unknown and start returns -1 as the length.
func (u *upload) start(ctx context.Context, pack func(context.Context, io.Writer) error) (io.ReadCloser, int64, error) {
	r, w := io.Pipe()
	u.pipe = r
	u.made = emit(ctx, func(ctx context.Context) error {
		err := pack(ctx, w)
		w.CloseWithError(err)
		return err
	})
	var first bytes.Buffer
	_, err := io.CopyN(&first, io.MultiReader(u.head, r), postWhole)
	if err == io.EOF {
		u.all = &first
		return u, int64(first.Len()), nil
	}
	if err != nil {
		u.stop()
		return nil, 0, err
	}
	u.all = io.MultiReader(&first, r)
	return u, -1, nil
}

// Read returns the next bytes of the body.
func (u *upload) Read(b []byte) (int, error) { return u.all.Read(b) }

// Close stops the pack function. net/http calls Close at the end of the request, from another goroutine.
func (u *upload) Close() error {
	u.pipe.CloseWithError(brokenPipe{errUnread})
	return nil
}

// stop ends the pack function and returns its error.
func (u *upload) stop() error {
	u.Close()
	return u.made.stop()
}

// pacedBody is a request body that controls the stall clock: the clock runs while bytes are being sent, and is stopped
// while the next bytes are being produced.
type pacedBody struct {
	io.ReadCloser
	w *watch
}

// Read returns the next bytes of the body. The clock is stopped while these bytes are produced.
func (b pacedBody) Read(p []byte) (int, error) {
	b.w.disarm()
	n, err := b.ReadCloser.Read(p)
	b.w.arm()
	return n, err
}
