package transport

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// Limits of the idle connections that are kept.
const (
	maxIdleLanes = 8
	idleLane     = 60 * time.Second // each kept connection is an upload-pack process on the server
)

// duplex is a connection to one upload-pack or receive-pack process. Read and Write transfer the bytes of git's
// protocol.
type duplex interface {
	io.Reader
	io.Writer
	// abort drops the connection: reads and writes that are blocked return. It may be called more than once.
	abort()
	// explain returns the cause of err, if the cause can be found, and otherwise err itself. The error err occurred before
	// the first answer.
	explain(ctx context.Context, err error) error
}

// dial opens a connection on which the server sends the first message.
type dial func(ctx context.Context) (duplex, error)

// lane is a connection to one upload-pack process. It serves one exchange (a request and its answer) at a time, and is
// idle between two exchanges.
type lane struct {
	conn   duplex
	stream *watched
	pkt    *pktReader
	idle   *time.Timer // closes the connection after it has been idle for idleLane
	// The field listed is true if the connection has served ls-refs. The upload-pack process caches the loose refs that it
	// has read until it exits, so a second listing on the same connection could be out of date. Objects are not affected,
	// because upload-pack looks them up again for each command.
	listed bool
	// whether the connection was opened before it was needed and is still unused; lanes.mu protects it while idle
	spare bool
}

// lanes is the carrier over ssh, git:// and local processes. It keeps idle connections for later exchanges.
type lanes struct {
	remote   *Remote
	dial     dial   // opens a connection to upload-pack
	dialPush dial   // opens a connection to receive-pack
	local    string // path of the repository if it is on this host, otherwise ""
	once     bool   // whether a connection serves one exchange only

	// mu protects the fields below.
	mu   sync.Mutex
	idle []*lane // idle connections, the most recently used one last
	// opening is closed when the attempt to open the spare connection has ended. It is nil if no spare connection is being
	// opened, or if an exchange is already waiting for that connection.
	opening chan struct{}
	closed  bool
}

var _ carrier = (*lanes)(nil)

// newLanes returns a carrier. The parameter to is a function that returns, for a service, the function that opens
// connections to this service.
func (r *Remote) newLanes(to func(service) dial) *lanes {
	return &lanes{remote: r, dial: to(uploadPack), dialPush: to(receivePack)}
}

// open opens a connection and reads the capabilities, which the server sends first.
func (s *lanes) open(ctx context.Context) (*lane, Capabilities, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, Capabilities{}, err
	}
	s.remote.stats.connections.Add(1)
	w := s.remote.watches.add(ctx, s.remote.opts.Connect+s.remote.opts.Stall, conn.abort)
	defer w.release()
	l := &lane{conn: conn, stream: &watched{r: conn, w: w}}
	l.pkt = newPktReader(l.stream)
	caps, err := parseCapabilities(l.pkt)
	if err != nil {
		cause := w.ended()
		conn.abort()
		if cause == nil {
			err = conn.explain(ctx, err)
		}
		return nil, caps, err
	}
	return l, caps, nil
}

// discover opens a connection and returns the capabilities that the server sends first. It keeps the connection for the
// first command.
func (s *lanes) discover(ctx context.Context) (Capabilities, error) {
	l, caps, err := s.open(ctx)
	if err == nil {
		s.put(l)
	}
	return caps, err
}

// exchange sends the command on an idle connection. If there is none, it uses the spare connection that is being
// opened, and if there is no such connection either, a new one.
func (s *lanes) exchange(ctx context.Context, kind commandKind, message []byte) (*answer, error) {
	l := s.take(kind)
	if l == nil {
		coming, err := s.awaitSpare(ctx)
		if err != nil {
			return nil, err
		}
		if coming {
			l = s.take(kind)
		}
	}
	if l != nil {
		a, err := s.send(ctx, l, kind, message)
		// The server may have closed an idle connection. If no byte of an answer arrived, the server has not served the
		// command, so send it again on a new connection.
		if err == nil || !errors.Is(err, errHungUp) {
			return a, err
		}
	}
	l, _, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	return s.send(ctx, l, kind, message)
}

// send sends one command on the connection l, which the caller has removed from s.idle, and waits until the answer
// begins. If it returns an error, the connection has been closed.
func (s *lanes) send(ctx context.Context, l *lane, kind commandKind, message []byte) (*answer, error) {
	l.listed = l.listed || kind == readsRefs
	s.remote.stats.requests.Add(1)
	w := s.remote.watches.add(ctx, s.remote.opts.Stall, l.conn.abort)
	l.stream.w = w
	w.arm()
	_, err := l.conn.Write(message)
	w.disarm()
	if err == nil {
		err = l.pkt.Fill(4)
	}
	if err != nil {
		cause := w.ended()
		w.release()
		l.conn.abort()
		if cause != nil {
			return nil, w.explain(cause)
		}
		// If no byte of an answer has arrived, the server had closed the idle connection, so the command may be sent again.
		if len(l.pkt.Buffered()) == 0 {
			err = errors.Join(errHungUp, err)
		}
		return nil, fault(cut(err))
	}
	return &answer{
		pktReader: l.pkt,
		keep: func() {
			w.release()
			s.put(l)
		},
		drop: func() {
			w.end(errAborted)
			w.release()
			l.conn.abort()
		},
	}, nil
}

// take removes the most recently used idle connection from s.idle and returns it. The server is least likely to have
// closed this connection. take returns nil if no idle connection can serve this kind of command.
func (s *lanes) take(kind commandKind) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.idle) - 1; i >= 0; i-- {
		if l := s.idle[i]; kind != readsRefs || !l.listed {
			s.idle = slices.Delete(s.idle, i, i+1)
			l.idle.Stop()
			l.spare = false
			return l
		}
	}
	return nil
}

// put keeps an idle connection for the next exchange, or closes the connection if it cannot be used again.
func (s *lanes) put(l *lane) {
	// Close a connection on which bytes have arrived after the end of an answer. These bytes belong to no exchange and
	// would be read as the start of the next answer.
	keep := len(l.pkt.Buffered()) == 0 && l.pkt.Err() == nil
	s.mu.Lock()
	keep = keep && !s.closed && !s.once && len(s.idle) < maxIdleLanes
	if keep {
		s.idle = append(s.idle, l)
		l.idle = time.AfterFunc(idleLane, func() { s.expire(l) })
	}
	s.mu.Unlock()
	if !keep {
		s.hangUp(l)
	}
}

// expire closes the connection l, which was idle for idleLane, unless an exchange has taken it in the meantime.
func (s *lanes) expire(l *lane) {
	s.mu.Lock()
	i := slices.Index(s.idle, l)
	if i >= 0 {
		s.idle = slices.Delete(s.idle, i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 {
		s.hangUp(l)
	}
}

// hangUp closes a connection. Before that it sends a flush packet in place of a command, as the protocol demands. This
// write does not block, because the buffer of an idle pipe or socket is empty.
func (s *lanes) hangUp(l *lane) {
	l.conn.Write(pktline.AppendFlush(nil))
	l.conn.abort()
}

// close closes all idle connections. Connections that become idle later are closed at once.
func (s *lanes) close() {
	s.mu.Lock()
	s.closed = true
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, l := range idle {
		l.idle.Stop()
		s.hangUp(l)
	}
}
