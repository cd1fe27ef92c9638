package transport

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// lanePush is a push over ssh, git:// or a local process. Each push has its own connection, because receive-pack serves
// one push and then exits.
type lanePush struct {
	remote *Remote
	conn   duplex
	stream *watched
	pkt    *pktReader
	// once ensures that close does not write its flush packet after commands were sent.
	once sync.Once
}

var _ pushLine = (*lanePush)(nil)

// receive opens a connection to receive-pack and reads the server's refs below the prefixes, which the server sends
// first.
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
		// In a partial clone, check_connected (git 2.39, connected.c) returns without closing the side band's pipe if the new
		// commits were fetched from the promisor. receive-pack then waits forever for the end of that pipe, so the side band
		// is not requested.
		about.sideBand = false
	}
	return l, about, nil
}

// openBlind returns nil, because on this carrier the server sends its refs before each push.
func (*lanes) openBlind() pushLine { return nil }

// close ends a push that was not sent. It writes a flush packet in place of commands, as the protocol demands. After
// send, close does nothing.
func (l *lanePush) close() {
	l.once.Do(func() {
		l.conn.Write(pktline.AppendFlush(nil))
		l.conn.abort()
	})
}

// send writes the commands and the pack in a second goroutine and reads the answer in the calling goroutine, because a
// server may answer and stop reading before it has received the whole pack.
func (l *lanePush) send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error,
	read func(*pktReader) error) error {
	l.once.Do(func() {}) // from now on the method close must not write
	defer l.conn.abort()
	l.remote.stats.requests.Add(1)
	w := l.remote.watches.add(ctx, pushPatience*l.remote.opts.Stall, l.conn.abort)
	defer w.release()
	p := &pulse{w: w}
	l.stream.w, l.stream.r = w, l.conn
	l.pkt.SetSource(&pulsing{r: l.conn, p: p})
	var unmade error // error of the pack function; nil if the connection failed or the answer arrived first
	e := emit(ctx, func(ctx context.Context) error {
		to := &pulsing{w: l.conn, p: p}
		if _, err := to.Write(head); err != nil || pack == nil {
			p.sent()
			return err
		}
		if err := pack(ctx, to); err != nil {
			// If a write has failed, the connection is broken already. Otherwise close it, because the server could mistake the
			// truncated pack for a complete pack.
			if to.failed == nil {
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
	if err == nil { // the answer was read completely
		return unmade
	}
	return err
}

// pushError stops the pack function and returns the reason why a push has failed. The parameter read is the error that
// occurred while the answer was read; if it is nil, the push has not failed and pushError returns nil. The reason is
// the error that ended the watch if there is one, otherwise an error of the pack function that no broken connection has
// caused, otherwise read.
func pushError(w *watch, e *emitter, read error) error {
	if read == nil {
		// The server has answered, so it does not need the rest of the pack.
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

// pulse controls the stall clock of a push. The clock runs while bytes are written or awaited, and is stopped while the
// pack is being produced.
type pulse struct {
	w     *watch
	awake atomic.Bool // whether all commands and the whole pack were written
}

// sent records that the commands and the pack were written, and starts the clock for the answer.
func (p *pulse) sent() {
	p.awake.Store(true)
	p.w.arm()
}

// pulsing is one direction of the connection, either r or w, with the clock that it controls.
type pulsing struct {
	r      io.Reader
	w      io.Writer
	p      *pulse
	failed error // first error that Write returned
}

// Read reads from the server. After the commands and the pack were written, each call restarts the clock.
func (s *pulsing) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.p.awake.Load() {
		s.p.w.arm()
	}
	return n, err
}

// Write sends bytes to the server. The clock runs only during the write, because producing the pack may take long.
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
