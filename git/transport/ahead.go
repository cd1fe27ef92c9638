package transport

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// Normally, a command is sent after the server's capabilities are known, which costs a new Remote one more round trip.
// Most servers have the same capabilities. Therefore, over HTTP, one command can be *sent ahead*: on a second
// connection, at the same time as the request for the capabilities. The first call that needs this command uses the
// answer. The command is sent again in the normal way if the server does not have the assumed capabilities (protocol
// v0, only plain files, no filters, another hash), if it demands a login, or if it redirects.

// aheadPatience is how long the client waits, after the capabilities have arrived, for the answer to a command that was
// sent ahead. A server that serves only one connection at a time never answers on the second connection.
const aheadPatience = 2 * time.Second

// Ahead records which servers have refused a command that was sent ahead, so that these servers are not sent such
// commands again. The zero value is ready to use. Ahead is safe for concurrent use.
type Ahead struct {
	mu      sync.Mutex
	refused map[string]bool // keys: a command and a server, such as "fetch https://example.com"
}

// mayTry reports whether a command may be sent ahead. The parameter place is a string that names the command and the
// server.
func (a *Ahead) mayTry(place string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.refused[place]
}

// refuse records that a server has refused a command sent ahead. The parameter place names the command and the server,
// as in mayTry.
func (a *Ahead) refuse(place string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused == nil {
		a.refused = map[string]bool{}
	}
	a.refused[place] = true
}

// early is a command that was sent ahead. The goroutine that removes the command from Remote.early owns it, and must
// end the command or use its answer.
type early struct {
	kind    commandKind
	format  object.Format // the hash format that was assumed
	message string
	place   string // the command and the server: the key in Ahead.refused
	front   *web   // the relay to which the command was sent; nil if it was sent directly to the git server
	cancel  context.CancelFunc
	expiry  *time.Timer   // ends the command after spareAge if its answer was not used
	done    chan struct{} // closed when the answer begins to arrive, or when the attempt has failed

	// The fields below do not change once done is closed.
	answer *answer // nil if there is no answer
	judged bool    // whether the server has refused the command by the status or the content type of its answer
}

// assumed returns the capabilities that most servers have. Commands that are sent ahead are encoded for these
// capabilities.
func assumed(f object.Format) Capabilities {
	return Capabilities{Format: f, Filter: true, Shallow: true}
}

// RefsAhead sends the ls-refs command of the first call of Refs ahead, if Options.Ahead allows it and the capabilities
// are not known yet. RefsAhead does not wait for the answer. The prefixes must be the same as in the call of Refs.
func (r *Remote) RefsAhead(ctx context.Context, prefixes []string) {
	if message, err := refsMessage(assumed(object.SHA1), prefixes); err == nil {
		r.sendAhead(ctx, &early{kind: readsRefs, format: object.SHA1, message: string(message), place: "ls-refs"})
	}
}

// FetchAhead sends the command of the first call of Fetch ahead, like RefsAhead. That call must make the same request.
func (r *Remote) FetchAhead(ctx context.Context, req FetchRequest) {
	if len(req.Wants) == 0 {
		return
	}
	f := req.Wants[0].Format()
	if message, err := fetchMessage(assumed(f), req); err == nil {
		r.sendAhead(ctx, &early{kind: readsObjects, format: f, message: string(message), place: "fetch"})
	}
}

// sendAhead sends e in the background, unless the server's capabilities are already known or the server has refused a
// command of the same kind before.
func (r *Remote) sendAhead(ctx context.Context, e *early) {
	if _, caps, err := r.known(); r.opts.Ahead == nil || err != nil || caps != nil {
		return
	}
	// call carrierFor before the discovery starts, because the discovery holds r.discoveryToken while it runs
	c, err := r.carrierFor(ctx)
	if err != nil {
		return
	}
	h, ok := c.(*web)
	if !ok { // over ssh, git:// and pipes the server sends the first message, so no command can be sent ahead
		return
	}
	base, _ := h.at()
	// A refusal is recorded for the whole host, because all repositories of a host are usually served by the same program.
	e.place += " " + base.Scheme + "://" + base.Host
	if !r.opts.Ahead.mayTry(e.place) || r.tasks.begin() != nil {
		return
	}
	if e.front = h.nearest(); e.front != nil {
		h = e.front
	}
	// the answer may be read after the caller's context has ended
	ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.done = make(chan struct{})
	r.mu.Lock()
	// Check again, because another goroutine may have sent a command ahead, or finished the discovery, since the first
	// check.
	busy := r.early != nil || r.caps != nil
	if !busy {
		r.early = e
		e.expiry = time.AfterFunc(spareAge, func() { r.dropEarly(e) })
	}
	r.mu.Unlock()
	if busy {
		e.cancel()
		r.tasks.done()
		return
	}
	go func() {
		defer r.tasks.done()
		defer close(e.done)
		var err error
		if e.answer, e.judged, err = h.ahead(ctx, []byte(e.message)); e.answer != nil {
			e.answer.front = e.front
		} else {
			e.front.report(err)
			r.log.Debug("send command in advance", zap.String("remote", r.URL()), zap.Error(err))
		}
	}()
}

// removeEarly sets Remote.early to nil if its value is e. It returns false if another goroutine has already removed e.
func (r *Remote) removeEarly(e *early) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e == nil || r.early != e {
		return false
	}
	r.early = nil
	return true
}

// dropEarly ends e if no call has taken its answer.
func (r *Remote) dropEarly(e *early) {
	if r.removeEarly(e) {
		e.end()
	}
}

// refuseEarly ends the command that was sent ahead, and records that no such command may be sent ahead to this server
// again.
func (r *Remote) refuseEarly() {
	r.mu.Lock()
	e := r.early
	r.mu.Unlock()
	if r.removeEarly(e) {
		r.opts.Ahead.refuse(e.place)
		e.end()
	}
}

// end cancels the command and discards its answer. The caller has removed e from Remote.early.
func (e *early) end() {
	e.expiry.Stop()
	e.cancel()
	<-e.done
	if e.answer != nil {
		e.answer.abort()
	}
}

// takeEarly returns the answer to the command sent ahead if that command equals the command that the caller would send
// now, and nil otherwise. It waits at most aheadPatience for the answer to begin. If the caller cannot read the answer,
// it must call refuseEarly.
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
	// The command must be byte for byte the command that was sent ahead. Otherwise its answer would belong to another
	// request.
	if same, err := message(assumed(e.format)); err != nil || string(same) != e.message || !r.removeEarly(e) {
		return nil, nil
	}
	e.expiry.Stop()
	refused = func() {
		// Only a refusal by the git server is recorded: the failure of a relay shows nothing about the git server.
		if e.front == nil {
			r.opts.Ahead.refuse(e.place)
		}
	}
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
	stop := context.AfterFunc(ctx, e.cancel) // from now on the command is canceled when ctx, the caller's context, ends
	a = e.answer
	keep, drop := a.keep, a.drop
	a.keep = func() { stop(); keep(); e.cancel() }
	a.drop = func() { stop(); drop(); e.cancel() }
	return a, refused
}

// exchangeAhead sends a command and calls read with the answer. If the same command was sent ahead, exchangeAhead first
// calls read with the answer to the command sent ahead. It sends the command again if read fails for a reason other
// than a missing object or the end of ctx.
func (r *Remote) exchangeAhead(ctx context.Context, c carrier, caps Capabilities, kind commandKind,
	message func(Capabilities) ([]byte, error), read func(*answer) error) error {
	if a, refused := r.takeEarly(ctx, caps, kind, message); a != nil {
		err := read(a)
		a.front.report(err)
		var lacks NotOurRef
		if err == nil || errors.As(err, &lacks) && a.front == nil || ctx.Err() != nil {
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
	return converse(ctx, c, kind, b, read)
}

// The method ahead sends one command. If the server demands a login, the method fails, because the discovery handles
// logins. The result judged is true if the server has answered with a status or a content type that is an error.
func (h *web) ahead(ctx context.Context, message []byte) (_ *answer, judged bool, err error) {
	base, auth := h.at()
	c := call{method: http.MethodPost, service: uploadPack, kind: "result", body: message,
		url: below(base, uploadPack.path(), "")}
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
