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
	// Requests of unknown length are sent only for packs larger than this, since some servers and
	// proxies do not support them: git's http.postBuffer.
	postWhole = 1 << 20
	// A longer listing of refs is not requested again for a few of them.
	advertisedLong = 256
)

// webPush is a push over HTTP.
type webPush struct{ web *web }

var _ pushLine = webPush{}

// receive requests the capabilities once. If the server has many refs, later calls list the ones
// below prefixes by upload-pack.
func (h *web) receive(ctx context.Context, prefixes []string) (pushLine, Receiver, error) {
	// A listing of many refs is long, and receive-pack cannot restrict it, so the capabilities of the first one are
	// kept.
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

// openBlind returns a push at once: an HTTP push is one request, which needs no listing before it.
func (h *web) openBlind() pushLine { return webPush{h} }

// filterRefs keeps the refs below the prefixes. It overwrites refs.
func filterRefs(refs []Ref, prefixes []string) []Ref {
	filtered := refs[:0]
	for _, r := range refs {
		if wanted(r.Name, prefixes) {
			filtered = append(filtered, r)
		}
	}
	return filtered
}

// list is Remote.Refs without retries.
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

// close does nothing: no connection is held before the request.
func (webPush) close() {}

// send makes the push as one POST request. The request is not repeated after a fault, because the server may have
// applied it.
func (l webPush) send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error {
	h := l.web
	base, _ := h.at()
	c := call{method: http.MethodPost, service: receivePack, kind: "result", url: below(base, receivePack.path(), "")}
	var up *upload
	if pack == nil {
		c.body = head
	} else {
		// The body may be needed again after a refused login, so each attempt starts the pack anew.
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
		// An error of the pack is the cause of the failed request, unless the pack failed because the request did.
		if err != nil && packed != nil && !isIO(packed) && ctx.Err() == nil {
			err = packed
		}
	}
	// A push is not repeated at another URL: the next attempt begins with a new discovery.
	var m moved
	if errors.As(err, &m) {
		err = fmt.Errorf("%w: %w in the middle of a push", ErrUnreachable, err)
	}
	return err
}

// upload is the body of a push: commands, then the pack as it is produced.
// head holds the commands; pipe carries the pack; made is its producer; all is the whole body.
type upload struct {
	head io.Reader
	pipe *io.PipeReader
	made *emitter
	all  io.Reader
}

// start returns the body and its length if the pack is small, else -1.
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

// Close stops the pack. net/http calls it at the end of the request, from a goroutine of its own.
func (u *upload) Close() error {
	u.pipe.CloseWithError(brokenPipe{errUnread})
	return nil
}

// stop ends the producer of the pack and returns its error.
func (u *upload) stop() error {
	u.Close()
	return u.made.stop()
}

// pacedBody runs the clock of a watch while bytes are being sent, and stops it while more are being
// produced.
type pacedBody struct {
	io.ReadCloser
	w *watch
}

// Read returns the next bytes of the body. The clock stops while they are produced.
func (b pacedBody) Read(p []byte) (int, error) {
	b.w.disarm()
	n, err := b.ReadCloser.Read(p)
	b.w.arm()
	return n, err
}
