package transport

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// lanePush is a push over a dialogue of its own: receive-pack serves one and ends.
type lanePush struct {
	remote *Remote
	conn   duplex
	stream *watched
	pkt    *pktReader
	once   sync.Once
}

var _ pushLine = (*lanePush)(nil)

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
		// There check_connected (git 2.39, connected.c) returns with the side band's pipe open if the new commits came from
		// the promisor, and receive-pack waits for its end for ever.
		about.sideBand = false
	}
	return l, about, nil
}

// blind: whoever asks to push over a dialogue is told of refs first.
func (*lanes) blind() pushLine { return nil }

// close ends the dialogue as the protocol wants it, with a flush in place of commands.
func (l *lanePush) close() {
	l.once.Do(func() {
		l.conn.Write(pktline.AppendFlush(nil))
		l.conn.abort()
	})
}

func (l *lanePush) send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error {
	l.once.Do(func() {}) // nothing more is said at the end
	defer l.conn.abort()
	l.remote.stats.requests.Add(1)
	w := l.remote.watches.add(ctx, pushPatience*l.remote.opts.Stall, l.conn.abort)
	defer w.release()
	p := &pulse{w: w}
	l.stream.w, l.stream.r = w, l.conn
	l.pkt.SetSource(&pulsing{r: l.conn, p: p})
	var unmade error // why there is no whole pack, if it is not for the connection, or because nobody wants it any more
	e := emit(ctx, func(ctx context.Context) error {
		to := &pulsing{w: l.conn, p: p}
		if _, err := to.Write(head); err != nil || pack == nil {
			p.sent()
			return err
		}
		if err := pack(ctx, to); err != nil {
			if to.failed == nil { // the server must not take what it has for a pack
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
	err = settle(w, e, err)
	if err == nil { // the server has said what it thinks of what it got
		return unmade
	}
	return err
}

// settle says why a push has failed: what ended it, then what went wrong with the pack, then what was read.
func settle(w *watch, e *emitter, read error) error {
	if read == nil {
		// The server has answered; what it did not read is of no use to it.
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

// pulse keeps the clock of a push: it runs while bytes are under way or awaited, and stands while a pack is being made.
type pulse struct {
	w     *watch
	awake atomic.Bool // all was sent
}

func (p *pulse) sent() {
	p.awake.Store(true)
	p.w.arm()
}

// pulsing is one of the two directions.
type pulsing struct {
	r      io.Reader
	w      io.Writer
	p      *pulse
	failed error // of Write
}

func (s *pulsing) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.p.awake.Load() {
		s.p.w.arm()
	}
	return n, err
}

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
