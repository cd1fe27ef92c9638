package transport

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// lanePush is a push over a connection of its own: receive-pack serves one push and exits.
type lanePush struct {
	remote *Remote
	conn   duplex
	stream *watched
	pkt    *pktReader
	// once ensures that the flush that ends an unused push is not written after commands.
	once sync.Once
}

var _ pushLine = (*lanePush)(nil)

// receive opens a connection to receive-pack and reads the refs below the prefixes, which the server sends first.
func (s *lanes) receive(ctx context.Context, prefixes []string) (pushLine, Receiver, error) {
	conn, err := s.dialPush(ctx)
	if err != nil {
		return nil, Receiver{}, err
	}
	s.remote.stats.connections.Add(1)
	w := s.remote.watches.add(ctx, s.remote.opts.Connect+s.remote.opts.Stall, conn.abort)
	defer w.release()
	l := &lanePush{remote: s.remote, conn: conn, stream: &watched{r: conn, w: w}}
	l.pkt = newPktReader(l.stream)
	about, err := parseReceiver(l.pkt, prefixes)
	if err != nil {
		cause := w.ended()
		conn.abort()
		if cause == nil {
			err = conn.explain(ctx, err)
		}
		return nil, about, err
	}
	if s.local != "" && about.sideBand && isPartial(ctx, s.local) {
		// In a partial clone check_connected (git 2.39, connected.c) returns with the side band's
		// pipe open if the new commits came from the promisor, and receive-pack then waits for the
		// end of that pipe forever.
		about.sideBand = false
	}
	return l, about, nil
}

// openBlind returns nil: on these carriers the server lists its refs before each push.
func (*lanes) openBlind() pushLine { return nil }

// close ends the connection with a flush in place of commands, as the protocol demands.
func (l *lanePush) close() {
	l.once.Do(func() {
		l.conn.Write(pktline.AppendFlush(nil))
		l.conn.abort()
	})
}

// send writes commands and pack in one goroutine and reads the answer in this one, because a server may answer, and
// stop reading, before it has received the whole pack.
func (l *lanePush) send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error {
	l.once.Do(func() {}) // close must not write any more
	defer l.conn.abort()
	l.remote.stats.requests.Add(1)
	w := l.remote.watches.add(ctx, pushPatience*l.remote.opts.Stall, l.conn.abort)
	defer w.release()
	p := &pulse{w: w}
	l.stream.w, l.stream.r = w, l.conn
	l.pkt.SetSource(&pulsing{r: l.conn, p: p})
	var unmade error // why there is no complete pack, unless the connection failed or the pack is not read any more
	e := emit(ctx, func(ctx context.Context) error {
		to := &pulsing{w: l.conn, p: p}
		if _, err := to.Write(head); err != nil || pack == nil {
			p.sent()
			return err
		}
		if err := pack(ctx, to); err != nil {
			if to.failed == nil { // the server must not take a truncated pack for a whole one
				if ctx.Err() == nil {
					unmade = err
				}
				l.conn.abort()
			}
			p.sent()
			return err
		}
		p.sent()
		return to.failed
	})
	err := read(l.pkt)
	if err != nil {
		l.conn.abort()
	}
	err = pushError(w, e, err)
	if err == nil { // the server has answered
		return unmade
	}
	return err
}

// pushError returns why a push failed, by precedence: the end of the watch, the error of the pack,
// the error of the answer.
func pushError(w *watch, e *emitter, read error) error {
	if read == nil {
		// The server has answered: it does not need the rest of the pack.
		e.stop()
		return nil
	}
	cause := w.ended()
	packed := e.stop()
	switch {
	case cause != nil:
		return w.explain(cause)
	case packed != nil && !isIO(packed):
		return packed
	}
	return fault(read)
}

// pulse runs the clock of a push while bytes are sent or awaited, and stops it while a pack is
// being produced.
type pulse struct {
	w     *watch
	awake atomic.Bool // everything was sent
}

// sent starts the clock of the wait for the answer.
func (p *pulse) sent() {
	p.awake.Store(true)
	p.w.arm()
}

// pulsing is one of the two directions.
type pulsing struct {
	r      io.Reader
	w      io.Writer
	p      *pulse
	failed error // first error of Write
}

// Read reads from the server. After everything was sent, each byte restarts the clock.
func (s *pulsing) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.p.awake.Load() {
		s.p.w.arm()
	}
	return n, err
}

// Write sends bytes to the server. The clock runs only while the write lasts: the pack may take long to produce.
func (s *pulsing) Write(b []byte) (int, error) {
	s.p.w.arm()
	n, err := s.w.Write(b)
	s.p.w.disarm()
	if err != nil {
		err = brokenPipe{err}
		s.failed = err
	}
	return n, err
}
