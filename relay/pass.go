package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/wire"
)

const (
	// maxListing is the maximum size, in bytes, of an answer with refs or capabilities that the relay reads completely
	// before it passes it. During that time it can send signs of life to the client.
	maxListing = 4 << 20
	// maxNamed is the maximum number of objects in a listing of refs that are recorded as proofs. For the objects of a
	// longer listing, the relay sends a request to the git server when it needs a proof.
	maxNamed = 512
)

// passed is the answer of a git server while it is passed to the client.
type passed struct {
	*http.Response
	head  []byte // bytes of the body that were read already
	whole bool   // true if head is the whole body
}

// send sends the request of the client to the git server. If listing is set, it reads the whole answer, unless the
// answer is large.
func (e *exchange) send(ctx context.Context, listing bool) (*passed, error) {
	path, query, body := "/git-upload-pack", "", io.Reader(nil)
	if e.req.Method == http.MethodGet {
		path, query = "/info/refs", "service=git-upload-pack"
	} else {
		body = io.MultiReader(bytes.NewReader(e.body), e.req.Body)
		if e.req.ContentLength == int64(len(e.body)) {
			// from a Reader in memory, net/http can send the body again on another connection
			body = bytes.NewReader(e.body)
		}
	}
	req, err := http.NewRequest(e.req.Method, below(e.remote.url, path, query), body)
	if err != nil {
		return nil, err
	}
	for name, values := range e.req.Header {
		if slices.Contains(neutralHeaders, name) && name != "Content-Length" {
			req.Header[name] = values
		}
	}
	for name, values := range e.caller.headers {
		req.Header[name] = values
	}
	if body != nil {
		if e.req.ContentLength >= 0 {
			req.ContentLength = e.req.ContentLength
		}
		req.Header["Idempotency-Key"] = []string{}
	}
	res, err := e.relay.upstream.do(ctx, req)
	if err != nil {
		return nil, err
	}
	p := &passed{Response: res}
	if listing {
		if p.head, err = io.ReadAll(io.LimitReader(res.Body, maxListing+1)); err != nil {
			res.Body.Close()
			return nil, fmt.Errorf("read answer of git server: %w", err)
		}
		p.whole = len(p.head) <= maxListing
	}
	return p, nil
}

// forward writes the answer of the git server to the client, and returns the outcome.
func (e *exchange) forward(p *passed) (outcome, error) {
	e.begin(p.StatusCode, func(h http.Header) {
		for name, values := range p.Header {
			if !slices.Contains(hopHeaders, name) {
				h[name] = values
			}
		}
	})
	to := countingWriter{e.w, &e.relay.counts.passedBytes}
	_, err := to.Write(p.head)
	if err == nil {
		_, err = io.CopyBuffer(flushingWriter{to, e.flush}, onlyReader{p.Body}, make([]byte, 64<<10))
	}
	if err != nil {
		return failed, fmt.Errorf("pass answer of git server: %w", err)
	}
	return outcomeOf(p.StatusCode), nil
}

// outcomeOf returns the outcome of a passed request to which the git server has answered with this HTTP status.
func outcomeOf(status int) outcome {
	if status == http.StatusOK {
		return passedOn
	}
	return refused
}

// flushingWriter sends each part of an answer to the client as soon as the git server has sent it.
type flushingWriter struct {
	io.Writer
	flush func()
}

// Write implements io.Writer.
func (w flushingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.flush()
	return n, err
}

// onlyReader hides the other methods of a reader, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }

// pass passes a request that the relay does not understand.
func (e *exchange) pass(ctx context.Context) (outcome, error) {
	p, err := e.send(ctx, false)
	if err != nil {
		return failed, err
	}
	defer p.Body.Close()
	return e.forward(p)
}

// passDiscovery passes the request for the capabilities, and records the capabilities of the git server.
func (e *exchange) passDiscovery(ctx context.Context) (outcome, error) {
	p, err := e.send(ctx, true)
	if err != nil {
		return failed, err
	}
	defer p.Body.Close()
	if p.whole && p.StatusCode == http.StatusOK && typeOf(p.Response) == refsType {
		if caps, err := wire.ReadCapabilities(bytes.NewReader(p.head)); err == nil {
			e.remote.learn(caps)
		}
	}
	return e.forward(p)
}

// passRefs passes a request for refs. It records the objects in the answer as proofs that the reader may read them.
func (e *exchange) passRefs(ctx context.Context) (outcome, error) {
	p, err := e.send(ctx, true)
	if err != nil {
		return failed, err
	}
	defer p.Body.Close()
	if p.whole && p.StatusCode == http.StatusOK && typeOf(p.Response) == resultType {
		named := map[object.ID]bool{}
		err := wire.ReadRefs(bytes.NewReader(p.head), e.format, func(id object.ID) {
			if len(named) <= maxNamed {
				named[id] = true
			}
		})
		for id := range named {
			if err == nil && len(named) <= maxNamed {
				e.relay.grants.Allow(e.caller.reader, id, e.start)
			}
		}
	}
	return e.forward(p)
}

// passFetch passes a fetch. A patient client gets empty packets while the git server computes the pack.
func (e *exchange) passFetch(ctx context.Context) (outcome, error) {
	p, err := e.send(ctx, false)
	if err != nil {
		return failed, err
	}
	defer p.Body.Close()
	if !e.patient || p.StatusCode != http.StatusOK || typeOf(p.Response) != resultType ||
		p.Header.Get("Content-Encoding") != "" {
		return e.forward(p)
	}
	n, err := e.beginFetch().Copy(p.Body)
	e.relay.counts.sent.Add(-n) // counts.sent must not include these bytes, because they were passed
	e.relay.counts.passedBytes.Add(n)
	if err != nil {
		return failed, fmt.Errorf("pass answer of git server: %w", err)
	}
	return passedOn, nil
}

// prove returns a function that asks the git server whether the caller may read an object: it fetches the object alone,
// without the objects to which it refers.
func (e *exchange) prove(id object.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		req := wire.Request{Format: id.Format(), Wants: []object.ID{id}, Depth: 1, Filter: "tree:0"}
		a, body, err := e.relay.upstream.fetch(ctx, e.remote.url, e.caller, req)
		if err != nil {
			return err
		}
		defer body.Close()
		// The server may report only in the side band that it does not have the object, so the whole answer is read.
		_, err = io.Copy(io.Discard, a)
		return err
	}
}

// check returns nil if the caller may read an object, and otherwise the reason.
func (e *exchange) check(ctx context.Context, id object.ID) error {
	return e.relay.grants.Check(ctx, e.caller.reader, id, e.prove(id))
}
