package relay

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/wire"
)

const (
	// maxRead is the maximum size, in bytes, of a request that the relay reads to decide whether it can answer the
	// request. Larger requests are passed.
	maxRead = 4 << 20
	// maxPlain is the maximum size, in bytes, of a request after decompression.
	maxPlain = 32 << 20
	// beatTime is the interval at which the relay checks whether it must send a sign of life to a patient client. The
	// client gets one after at most two intervals. That is well below the time of silence after which the client goes
	// to the git server.
	beatTime = 50 * time.Millisecond
)

// ServeHTTP implements http.Handler.
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "This is a relay for git repositories.\n"+errRoute.Error()+"\n")
		return
	case "/healthz":
		_, _ = io.WriteString(w, "ok\n")
		return
	case "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = r.writeMetrics(w) // the only possible error is that the client has closed the connection
		return
	}
	remote, s, err := parseRoute(req)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case s == receivePack:
		http.Error(w, "pushes do not go through the relay: set remote.NAME.pushurl to the URL of the git server",
			http.StatusForbidden)
		return
	case s == discovery && req.Method != http.MethodGet, s == uploadPack && req.Method != http.MethodPost:
		http.Error(w, "method is not allowed", http.StatusMethodNotAllowed)
		return
	case !r.allowed.contains(remote):
		http.Error(w, "this relay does not serve the remote: --allow lists those that it serves", http.StatusForbidden)
		return
	}
	e := &exchange{relay: r, w: w, req: req, caller: callerOf(req, remote), start: time.Now(), format: object.SHA1}
	e.remote = r.remoteOf(remote)
	e.patient = req.Header.Get(PatientHeader) != ""
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	if e.patient {
		e.beat(ctx)
		defer e.beats.Wait()
	}
	defer cancel()
	e.answer(ctx, s)
}

// exchange is one request of a client.
type exchange struct {
	relay   *Relay
	remote  *remote
	w       http.ResponseWriter
	req     *http.Request
	caller  caller
	start   time.Time
	patient bool
	body    []byte        // body of the request as the client has sent it; nil if it was not read
	format  object.Format // object format of the request
	kind    kind

	beats sync.WaitGroup
	mu    sync.Mutex // held while the header of an answer is written
	began bool       // true after the header of the answer was written
	out   *wire.FetchWriter
}

// beat starts a goroutine that sends signs of life to the client until ctx ends: informational answers before the
// header of the answer, and empty packets in a pack.
func (e *exchange) beat(ctx context.Context) {
	e.beats.Go(func() {
		t := time.NewTicker(beatTime)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			e.mu.Lock()
			out, began := e.out, e.began
			if !began {
				e.w.WriteHeader(http.StatusProcessing)
			}
			e.mu.Unlock()
			if out != nil {
				out.KeepAlive()
			}
		}
	})
}

// begin writes the header of an answer. No sign of life is sent after it, except in packs.
func (e *exchange) begin(status int, header func(http.Header)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began = true
	header(e.w.Header())
	e.w.WriteHeader(status)
}

// beginFetch writes the header of the answer to a fetch, and returns the writer of its body.
func (e *exchange) beginFetch() *wire.FetchWriter {
	e.begin(http.StatusOK, func(h http.Header) {
		h.Set("Content-Type", resultType)
		h.Set("Cache-Control", "no-cache")
	})
	out := wire.NewFetchWriter(countingWriter{e.w, &e.relay.counts.sent}, e.flush)
	e.mu.Lock()
	e.out = out
	e.mu.Unlock()
	return out
}

// flush sends buffered bytes to the client.
func (e *exchange) flush() {
	// an error is ignored, because the next write also reports that the client has closed the connection
	_ = http.NewResponseController(e.w).Flush()
}

// answer answers the request, either from the files of the relay or by passing it, and records the outcome in metrics
// and log.
func (e *exchange) answer(ctx context.Context, s service) {
	outcome, err := e.decide(ctx, s)
	e.relay.counts.requests[e.kind][outcome].Add(1)
	log := e.relay.log.Debug
	if outcome == failed && ctx.Err() == nil {
		log = e.relay.log.Info
	}
	log("request", zap.String("remote", e.remote.name()), zap.String("kind", e.kind.String()),
		zap.String("outcome", outcome.String()),
		zap.Duration("took", time.Since(e.start)), zap.Error(err))
	if outcome == failed {
		e.mu.Lock()
		began := e.began
		e.mu.Unlock()
		if began {
			// abort the connection, so that the client notices that the answer is incomplete
			panic(http.ErrAbortHandler)
		}
		e.begin(http.StatusBadGateway, func(h http.Header) { h.Set("Content-Type", "text/plain; charset=utf-8") })
		_, _ = fmt.Fprintf(e.w, "relay: %v\n", err)
	}
}

// decide answers the request, or passes it, and returns the outcome.
func (e *exchange) decide(ctx context.Context, s service) (outcome, error) {
	if s == discovery {
		e.kind = refs
		return e.passDiscovery(ctx)
	}
	body, whole, err := readBody(e.req)
	if err != nil {
		return failed, err
	}
	e.body = body
	req, ok := wire.Request{}, false
	if whole && strings.Contains(e.req.Header.Get("Git-Protocol"), "version=2") {
		if plain, err := decode(body, e.req.Header.Get("Content-Encoding")); err == nil {
			req, err = wire.ParseRequest(plain)
			ok = err == nil
		}
	}
	if !ok {
		return e.pass(ctx)
	}
	e.format = req.Format
	served, err := false, error(nil)
	switch req.Command {
	case "ls-refs":
		e.kind = refs
		return e.passRefs(ctx)
	case "object-info":
		e.kind = sizes
		served, err = e.serveSizes(ctx, req)
	case "fetch":
		served, err = e.serveFetch(ctx, req)
	}
	switch {
	case err != nil:
		return failed, err
	case served:
		return hit, nil
	case req.Command == "fetch":
		return e.passFetch(ctx)
	}
	return e.pass(ctx)
}

// serveFetch answers a fetch if the relay can. It returns false if the request has to be passed.
func (e *exchange) serveFetch(ctx context.Context, req wire.Request) (served bool, err error) {
	if !req.Plain || len(req.Wants) == 0 {
		return false, nil
	}
	switch {
	case len(req.Wants) == 1 && !req.Shallow && req.Depth == snapDepth && req.Filter == snapFilter:
		e.kind = snaps
		return e.serveSnap(ctx, req.Wants[0])
	case len(req.Wants) == 1 && !req.Shallow && req.Depth == 1 && req.Filter == "":
		e.kind = commits
		return e.serveCommit(ctx, req.Wants[0])
	case req.Filter == "" || req.Filter == snapFilter:
		e.kind = parts
		return e.serveParts(ctx, req)
	}
	return false, nil
}

// readBody reads the body of a request, at most maxRead bytes. If the body is longer, whole is false, and req.Body
// returns the remaining bytes.
func readBody(req *http.Request) (body []byte, whole bool, err error) {
	body, err = io.ReadAll(io.LimitReader(req.Body, maxRead+1))
	if err != nil {
		return nil, false, fmt.Errorf("read request: %w", err)
	}
	return body, len(body) <= maxRead, nil
}

// decode returns a request without the content encoding that a client has applied.
func decode(body []byte, encoding string) ([]byte, error) {
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		plain, err := io.ReadAll(io.LimitReader(z, maxPlain+1))
		if err == nil && len(plain) > maxPlain {
			err = fmt.Errorf("request has more than %d bytes after decompression", maxPlain)
		}
		return plain, err
	}
	return nil, fmt.Errorf("unknown content encoding %.20q of request", encoding)
}
