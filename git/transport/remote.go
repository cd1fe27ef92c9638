package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/git/transport/via"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/clock"
)

// Defaults and limits of Options.
const (
	defaultStall   = 30 * time.Second
	defaultConnect = 15 * time.Second
	// waitMost is the longest pause that the client makes because the server asks for one. If the server asks for a longer
	// pause, the client does not retry, and returns the error to the caller.
	waitMost = 2 * time.Minute
)

// carrier is an interface that exchanges messages with a server over one kind of connection. It has two
// implementations: web for HTTP, and lanes for ssh, git:// and local processes.
type carrier interface {
	// discover requests the server's capabilities.
	discover(ctx context.Context) (Capabilities, error)
	// exchange sends one command, which is a message of packets that ends with a flush packet. It returns when the answer
	// begins to arrive.
	exchange(ctx context.Context, kind commandKind, message []byte) (*answer, error)
	// receive opens a push. It returns the server's refs below the prefixes, and its capabilities for pushes.
	receive(ctx context.Context, prefixes []string) (pushLine, Receiver, error)
	// openBlind opens a push before the server has sent any message. It returns nil if the carrier does not support this.
	openBlind() pushLine
	// spare returns a function that opens a connection before it is needed. It returns nil if such a connection is ready
	// or is being opened.
	spare() func(context.Context) error
	// close drops idle connections. The caller has ended the exchanges in progress.
	close()
}

// commandKind is the kind of data that a command reads on the server: objects or refs.
type commandKind uint8

const (
	readsObjects commandKind = iota
	readsRefs
)

// answer is the answer to a command: packets up to a flush packet. The caller must call either finish or abort.
type answer struct {
	*pktReader
	body io.Reader // the answer without its division into packets; nil unless it was received over HTTP
	keep func()    // called after the answer was read completely, so that the connection may serve the next exchange
	drop func()    // closes the connection
	once sync.Once
	// front is the carrier through a relay that has received the answer; nil if the git server itself has sent it.
	front *web
}

// finish marks the answer as completely read, so that its connection can be used again.
func (a *answer) finish() { a.once.Do(func() { a.keep() }) }

// abort discards the rest of the answer and closes its connection.
func (a *answer) abort() { a.once.Do(func() { a.drop() }) }

// Remote is a git repository behind a URL. It is safe for concurrent use.
//
// Lock order: no goroutine acquires a lock while it holds another, or waits for the network while it holds one. The
// channel discoveryToken is not a lock: it has room for one element, and a goroutine requests the capabilities only
// after it has sent an element to the channel. Other goroutines wait until the element was removed, or until their
// context ends.
type Remote struct {
	endpoint *endpoint.URL
	opts     Options
	log      *zap.Logger
	stats    counters
	watches  watches
	tasks    tasks
	route    *via.Route // way through the relay; nil if there is no relay
	// connector opens connections with the options, counters and tasks of this Remote.
	connector connector
	// refusesFilter is true after the server has refused filterBlobs. Requests with this filter are then sent without it.
	refusesFilter atomic.Bool
	// discoveryToken contains one element while a goroutine requests the capabilities or creates the carrier.
	discoveryToken chan struct{}

	mu sync.Mutex
	// mu protects the fields below.
	carrier carrier       // nil until the first connection
	caps    *Capabilities // nil until the discovery has succeeded
	early   *early        // nil if no command was sent ahead, or if its answer was taken
	closed  bool
}

// newRemote returns a Remote. Options that are zero are replaced by their defaults.
func newRemote(ep *endpoint.URL, o Options) *Remote {
	if o.Stall <= 0 {
		o.Stall = defaultStall
	}
	if o.Connect <= 0 {
		o.Connect = defaultConnect
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	r := &Remote{endpoint: ep, opts: o, log: o.Log, discoveryToken: make(chan struct{}, 1), route: via.NewRoute(o.Via)}
	r.connector = connector{opts: &r.opts, stats: &r.stats, tasks: &r.tasks, url: r.URL()}
	return r
}

// Stats returns the values of the counters, which count since Open.
func (r *Remote) Stats() Stats {
	s := r.stats.snapshot()
	s.Quiet, s.Relay = r.watches.quiet(time.Now()), r.route.Usage()
	return s
}

// Close ends the exchanges in progress, drops idle connections and waits for child processes and background goroutines.
func (r *Remote) Close() error {
	r.tasks.close()
	r.mu.Lock()
	c, e := r.carrier, r.early
	r.closed = true
	r.mu.Unlock()
	// End the exchanges first, so that no exchange takes a connection that is about to be closed.
	r.watches.close()
	r.dropEarly(e)
	if c != nil {
		c.close()
	}
	r.tasks.wait()
	return nil
}

// newCarrier returns the carrier for the remote's URL. The URL is first rewritten by the insteadOf settings of git's
// configuration.
func (r *Remote) newCarrier(ctx context.Context) (carrier, error) {
	ep := r.endpoint
	if ep.Scheme == endpoint.Local {
		return r.newLocal(ep.Path), nil
	}
	set, err := endpoint.ReadSettings(ctx, r.opts.Env)
	if err != nil {
		return nil, err
	}
	if raw, ok := set.Rewrite(ep.Raw); ok {
		if ep, err = endpoint.Parse(raw); err != nil {
			return nil, err
		}
	}
	switch ep.Scheme {
	case endpoint.HTTP:
		return r.newWeb(ep, set)
	case endpoint.SSH:
		ssh := endpoint.NewSSHProgram(set, r.opts.Env)
		return r.newLanes(func(s service) dial { return r.connector.dialSSH(ep, ssh, s) }), nil
	case endpoint.Git:
		return r.newLanes(func(s service) dial { return r.connector.dialGit(ep, s) }), nil
	case endpoint.Local:
		return r.newLocal(ep.Path), nil
	}
	return nil, fmt.Errorf("connect to remote: unknown URL scheme %d", ep.Scheme)
}

// known returns the carrier, or nil if it does not exist yet, and the capabilities, or nil if they are not known yet.
func (r *Remote) known() (carrier, *Capabilities, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, errClosed
	}
	return r.carrier, r.caps, nil
}

// connect returns the carrier and the capabilities. The first successful call requests the capabilities from the
// server. Later calls return the stored values.
func (r *Remote) connect(ctx context.Context) (carrier, Capabilities, error) {
	c, caps, err := r.known()
	if err != nil || caps != nil {
		return c, deref(caps), err
	}
	select {
	case r.discoveryToken <- struct{}{}:
		defer func() { <-r.discoveryToken }()
	case <-ctx.Done():
		return nil, Capabilities{}, context.Cause(ctx)
	}
	// While this goroutine waited, another goroutine may have finished the discovery.
	c, caps, err = r.known()
	if err != nil || caps != nil {
		return c, deref(caps), err
	}
	if c == nil {
		if c, err = r.createCarrier(ctx); err != nil {
			return nil, Capabilities{}, err
		}
	}
	found, err := c.discover(ctx)
	if err != nil {
		if !isFault(err) {
			r.refuseEarly()
		}
		return nil, Capabilities{}, err
	}
	r.mu.Lock()
	r.caps = &found
	r.mu.Unlock()
	return c, found, nil
}

// createCarrier creates the carrier for the remote's URL and stores it in r. The caller has sent an element to
// r.discoveryToken.
func (r *Remote) createCarrier(ctx context.Context) (carrier, error) {
	c, err := r.newCarrier(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	closed := r.closed
	r.carrier = c
	r.mu.Unlock()
	if closed { // the method Close ran before r.carrier was set, so it has not closed c
		c.close()
		return nil, errClosed
	}
	return c, nil
}

// carrierFor returns the carrier, for callers that do not need the capabilities. It creates the carrier if necessary.
func (r *Remote) carrierFor(ctx context.Context) (carrier, error) {
	c, _, err := r.known()
	if err != nil || c != nil {
		return c, err
	}
	select {
	case r.discoveryToken <- struct{}{}:
		defer func() { <-r.discoveryToken }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c, _, err = r.known(); err != nil || c != nil {
		return c, err
	}
	return r.createCarrier(ctx)
}

// deref returns the capabilities to which c points, or the zero value if c is nil.
func deref(c *Capabilities) Capabilities {
	if c == nil {
		return Capabilities{}
	}
	return *c
}

// capabilities returns the server's capabilities. It retries a discovery that failed.
func (r *Remote) capabilities(ctx context.Context) (Capabilities, error) {
	var caps Capabilities
	err := r.attempts(ctx, "connect to", func(_ carrier, c Capabilities) error {
		caps = c
		return nil
	})
	return caps, err
}

// attempts connects to the server and calls the function in the parameter once with the carrier and the capabilities.
// It repeats this until the function succeeds, fails with an error that is not transient, or Options.Retries is used
// up.
func (r *Remote) attempts(ctx context.Context, verb string, once func(carrier, Capabilities) error) error {
	return r.attemptsAtMost(ctx, r.opts.Retries, verb, once)
}

// attemptsAtMost is like attempts, but uses the number retries in place of Options.Retries.
func (r *Remote) attemptsAtMost(ctx context.Context, retries int, verb string,
	once func(carrier, Capabilities) error) error {
	return r.try(ctx, retries, verb, func() error {
		c, caps, err := r.connect(ctx)
		if err == nil {
			err = once(c, caps)
		}
		return err
	})
}

// pauses are the pauses before retries, in addition to the pause that the server has requested.
var pauses = backoff.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// try calls the function in the parameter once until this function succeeds, fails with an error that is not transient,
// or the retries are used up. The parameter verb is the start of the error message.
func (r *Remote) try(ctx context.Context, retries int, verb string, once func() error) error {
	start := time.Now()
	for n := 0; ; n++ {
		err := once()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && !errors.Is(err, errClosed) {
			r.stats.fail(err)
			// Only a transient fault justifies another attempt. Any other error would occur again.
			var t transient
			if errors.As(err, &t) && n < retries {
				if wait := t.after + pauses.Pause(n+1); fits(ctx, wait) && r.patient(time.Since(start)+wait) {
					r.log.Debug("retry request", zap.String("verb", verb), zap.String("remote", r.URL()), zap.Duration("wait", wait),
						zap.Error(err))
					if clock.Wait(ctx, wait) {
						continue
					}
				}
			}
		}
		if ctx.Err() != nil { // after ctx has ended, any other error is a consequence of that end
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s %s: %w", verb, r.URL(), err)
	}
}

// fits reports whether another attempt is possible after a pause of the duration wait: the pause must end before the
// deadline of ctx and must not be longer than waitMost.
func fits(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return wait <= waitMost && (!ok || time.Until(deadline) > wait)
}

// patient reports whether Options.Patience allows another attempt. The parameter after is the time between the start of
// the first attempt and the start of the next one.
func (r *Remote) patient(after time.Duration) bool {
	return r.opts.Patience <= 0 || after < r.opts.Patience
}

// Refs lists the refs that begin with one of the prefixes, or all refs if there are no prefixes.
func (r *Remote) Refs(ctx context.Context, prefixes []string) (Refs, error) {
	var refs Refs
	err := r.attempts(ctx, "list refs of", func(c carrier, caps Capabilities) error {
		message := func(caps Capabilities) ([]byte, error) { return refsMessage(caps, prefixes) }
		return r.exchangeAhead(ctx, c, caps, readsRefs, message, func(a *answer) (err error) {
			if refs, err = parseRefs(a.pktReader, caps.Format, prefixes); err == nil {
				a.finish()
			}
			return err
		})
	})
	return refs, err
}

// ObjectInfo returns the sizes of objects in bytes, and -1 for each object that the server does not have.
// Capabilities.ObjectInfo must be true.
func (r *Remote) ObjectInfo(ctx context.Context, ids []object.ID) ([]int64, error) {
	var sizes []int64
	if len(ids) == 0 {
		return nil, nil
	}
	err := r.attempts(ctx, "request object sizes from", func(c carrier, caps Capabilities) error {
		message, err := infoMessage(caps, ids)
		if err != nil {
			return err
		}
		return ask(ctx, c, readsObjects, message, func(a *answer) (err error) {
			sizes, err = parseInfo(a.pktReader, caps.Format, ids)
			return err
		})
	})
	return sizes, err
}

// ask sends a command and calls the function read with the answer. The function read must read the answer to its end.
func ask(ctx context.Context, c carrier, kind commandKind, message []byte, read func(*answer) error) error {
	return converse(ctx, c, kind, message, func(a *answer) error {
		err := read(a)
		if err == nil {
			a.finish()
		}
		return err
	})
}

// streamFault returns a transport fault if err is the end of the stream in the middle of a message. It returns other
// errors unchanged.
func streamFault(err error) error {
	if err = cut(err); errors.Is(err, io.ErrUnexpectedEOF) {
		return fault(err)
	}
	return err
}

// Fetch requests the wanted objects and all objects that are reachable from them, as far as Depth and Filter allow. It
// returns when the pack begins to arrive. If the server advertises filters but refuses the filter of the request
// (uploadpackfilter.allow), the request is repeated without it, and FetchResponse.Unfiltered is true.
func (r *Remote) Fetch(ctx context.Context, req FetchRequest) (*FetchResponse, error) {
	send := func(req FetchRequest) (res *FetchResponse, err error) {
		retries := r.opts.Retries
		if req.Once {
			retries = 0
		}
		err = r.attemptsAtMost(ctx, retries, "fetch from", func(c carrier, caps Capabilities) error {
			message := func(caps Capabilities) ([]byte, error) { return fetchMessage(caps, req) }
			return r.exchangeAhead(ctx, c, caps, readsObjects, message, func(a *answer) (err error) {
				res, err = r.startPack(a, caps.Format)
				return err
			})
		})
		return res, err
	}
	if req.Filter != filterBlobs || !r.refusesFilter.Load() {
		res, err := send(req)
		var said remoteError
		if req.Filter == "" || !errors.As(err, &said) {
			return res, err
		}
	}
	// The protocol has no error codes, so the repeated request shows whether the filter was the cause.
	refused := req.Filter
	req.Filter = ""
	res, err := send(req)
	if err != nil {
		return nil, err
	}
	res.Unfiltered = true
	if refused == filterBlobs {
		r.refusesFilter.Store(true)
	}
	return res, nil
}
