package transport

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

// A command is normally sent after the server's capabilities are known, which costs a fresh Remote
// a round trip. Most servers have the same capabilities, so over HTTP one command can be sent
// ahead: at the same time as the discovery, on a connection of its own. The call that would have
// sent the command afterwards takes its answer. The command is sent again in the normal way if the
// server differs from what was assumed (protocol v0, files only, no filters, another hash), wants a
// login, or redirects.

// aheadPatience bounds how much later than the capabilities the answer to a command sent ahead may
// arrive. A server that serves one connection after the other never begins with the second.
const aheadPatience = 2 * time.Second

// Ahead records which servers have refused a command sent ahead, so that each of them refuses one
// only once. The zero value is ready to use. It is safe for concurrent use.
type Ahead struct {
	mu      sync.Mutex
	refused map[string]bool
}

// mayTry reports whether a command may be sent ahead to place, which is a command and a server.
func (a *Ahead) mayTry(place string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.refused[place]
}

// refuse records that place does not accept commands sent ahead.
func (a *Ahead) refuse(place string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused == nil {
		a.refused = map[string]bool{}
	}
	a.refused[place] = true
}

// early is a command sent ahead. The goroutine that removes it from Remote.early owns it.
type early struct {
	kind    commandKind
	format  object.Format // the assumed format
	message string
	place   string // the server, for Ahead
	cancel  context.CancelFunc
	expiry  *time.Timer   // ends a command whose answer is not taken
	done    chan struct{} // closed when the answer begins, or the attempt has failed

	// Constant once done is closed.
	answer *answer // nil: none
	judged bool    // the server has refused it
}

// assumed returns the capabilities of most servers.
func assumed(f object.Format) Capabilities {
	return Capabilities{Format: f, Filter: true, Shallow: true}
}

// RefsAhead sends the command of the first Refs ahead, if Options.Ahead allows it and no request
// was sent to the server yet. It does not wait for the answer.
func (r *Remote) RefsAhead(ctx context.Context, prefixes []string) {
	if message, err := refsMessage(assumed(object.SHA1), prefixes); err == nil {
		r.sendAhead(ctx, &early{kind: readsRefs, format: object.SHA1, message: string(message), place: "ls-refs"})
	}
}

// FetchAhead is RefsAhead for the first Fetch, which must make the same request.
func (r *Remote) FetchAhead(ctx context.Context, req FetchRequest) {
	if len(req.Wants) == 0 {
		return
	}
	f := req.Wants[0].Format()
	if message, err := fetchMessage(assumed(f), req); err == nil {
		r.sendAhead(ctx, &early{kind: readsObjects, format: f, message: string(message), place: "fetch"})
	}
}

// sendAhead sends e in the background, unless the server is known already or has refused it before.
func (r *Remote) sendAhead(ctx context.Context, e *early) {
	if _, caps, err := r.known(); r.opts.Ahead == nil || err != nil || caps != nil {
		return
	}
	c, err := r.carrierFor(ctx) // before the discovery starts, which holds discoveryToken
	if err != nil {
		return
	}
	h, ok := c.(*web)
	if !ok { // on other carriers the server speaks first
		return
	}
	base, _ := h.at()
	// Servers differ by host, so a refusal is recorded for the host and not for each repository.
	e.place += " " + base.Scheme + "://" + base.Host
	if !r.opts.Ahead.mayTry(e.place) || r.startTask() != nil {
		return
	}
	ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx)) // the exchange may outlive the discovery
	e.done = make(chan struct{})
	r.mu.Lock()
	// Another goroutine may have sent a command, or finished the discovery, meanwhile.
	busy := r.early != nil || r.caps != nil
	if !busy {
		r.early = e
		e.expiry = time.AfterFunc(spareAge, func() { r.dropEarly(e) })
	}
	r.mu.Unlock()
	if busy {
		e.cancel()
		r.tasks.Done()
		return
	}
	go func() {
		defer r.tasks.Done()
		defer close(e.done)
		var err error
		if e.answer, e.judged, err = h.ahead(ctx, []byte(e.message)); err != nil {
			r.log.Debug("command sent ahead", zap.String("remote", r.URL()), zap.Error(err))
		}
	}()
}

// removeEarly removes a command from Remote.early. It returns false if another goroutine has
// removed it.
func (r *Remote) removeEarly(e *early) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e == nil || r.early != e {
		return false
	}
	r.early = nil
	return true
}

// dropEarly ends a command whose answer is not taken.
func (r *Remote) dropEarly(e *early) {
	if r.removeEarly(e) {
		e.end()
	}
}

// refuseEarly ends the command sent ahead to a server that differs from what was assumed.
func (r *Remote) refuseEarly() {
	r.mu.Lock()
	e := r.early
	r.mu.Unlock()
	if r.removeEarly(e) {
		r.opts.Ahead.refuse(e.place)
		e.end()
	}
}

// end drops the answer, even if it has not arrived yet.
func (e *early) end() {
	e.expiry.Stop()
	e.cancel()
	<-e.done
	if e.answer != nil {
		e.answer.abort()
	}
}

// takeEarly returns the answer to the command sent ahead if it equals the command that would be
// sent now, else nil. The caller must call refused if it cannot read the answer.
func (r *Remote) takeEarly(ctx context.Context, caps Capabilities, kind commandKind,
	message func(Capabilities) ([]byte, error)) (a *answer, refused func()) {
	r.mu.Lock()
	e := r.early
	r.mu.Unlock()
	if e == nil || e.kind != kind {
		return nil, nil
	}
	if caps.Format != e.format || kind == readsObjects && !(caps.Filter && caps.Shallow) {
		r.refuseEarly()
		return nil, nil
	}
	// The command must be byte for byte the one that was sent ahead, or its answer would belong to another request.
	if same, err := message(assumed(e.format)); err != nil || string(same) != e.message || !r.removeEarly(e) {
		return nil, nil
	}
	e.expiry.Stop()
	refused = func() { r.opts.Ahead.refuse(e.place) }
	late := time.NewTimer(aheadPatience)
	defer late.Stop()
	select {
	case <-e.done:
	case <-late.C:
		refused()
		e.end()
		return nil, nil
	case <-ctx.Done():
		e.end()
		return nil, nil
	}
	if e.answer == nil {
		if e.cancel(); e.judged {
			refused()
		}
		return nil, nil
	}
	stop := context.AfterFunc(ctx, e.cancel) // from now on the exchange belongs to the caller
	a = e.answer
	keep, drop := a.keep, a.drop
	a.keep = func() { stop(); keep(); e.cancel() }
	a.drop = func() { stop(); drop(); e.cancel() }
	return a, refused
}

// exchangeAhead is exchange, but uses the answer to the command sent ahead if there is one and read
// accepts it.
func (r *Remote) exchangeAhead(ctx context.Context, c carrier, caps Capabilities, kind commandKind,
	message func(Capabilities) ([]byte, error), read func(*answer) error) error {
	if a, refused := r.takeEarly(ctx, caps, kind, message); a != nil {
		err := read(a)
		var lacks NotOurRef
		if err == nil || errors.As(err, &lacks) || ctx.Err() != nil {
			if err != nil {
				a.abort()
			}
			return err
		}
		a.abort()
		refused()
	}
	b, err := message(caps)
	if err != nil {
		return err
	}
	a, err := c.exchange(ctx, kind, b)
	if err != nil {
		return err
	}
	if err := read(a); err != nil {
		a.abort()
		return streamFault(err)
	}
	return nil
}

// ahead makes one request without answering a demand for a login: the discovery does that. judged
// says that there was an answer that must not be used.
func (h *web) ahead(ctx context.Context, message []byte) (_ *answer, judged bool, err error) {
	base, auth := h.at()
	c := call{method: http.MethodPost, service: uploadPack, kind: "result", body: message, url: below(base, uploadPack.path(), "")}
	l, err := auth.first()
	if err != nil {
		return nil, false, err
	}
	a, res, err := h.once(ctx, c, l)
	if err != nil {
		return nil, false, err
	}
	if err := h.judge(c, res); err != nil {
		a.finish()
		return nil, true, err
	}
	return a, false, nil
}
