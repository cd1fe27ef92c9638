package transport

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// Limits of the connections that are kept.
const (
	maxIdleLanes = 8
	idleLane     = 60 * time.Second // a kept upload-pack is a process on the server
)

// duplex is a connection to one upload-pack or receive-pack.
type duplex interface {
	io.Reader
	io.Writer
	// abort drops the connection; blocked reads and writes return. It may be called more than once.
	abort()
	// explain returns the cause of an error before the first answer, as far as it is known.
	explain(ctx context.Context, err error) error
}

// dial opens a connection on which the server speaks first.
type dial func(ctx context.Context) (duplex, error)

// lane is a connection with one upload-pack process. It belongs to one exchange, or is idle.
type lane struct {
	conn   duplex
	stream *watched
	pkt    *pktReader
	idle   *time.Timer
	// listed: it has served ls-refs. git caches the loose refs that it has read for the life of the
	// process, so a second listing would be stale. Objects are looked up again each time.
	listed bool
	spare  bool // opened ahead of need and not used yet; under lanes.mu once it is idle
}

// lanes is the carrier for stateful connections: ssh, git:// and local processes.
type lanes struct {
	remote   *Remote
	dial     dial   // opens a connection to upload-pack
	dialPush dial   // opens a connection to receive-pack
	local    string // path of a repository of this host; "" for another host

	// mu guards the fields below.
	mu   sync.Mutex
	idle []*lane // last used last
	// opening is closed when the opening of the spare lane has ended. It is nil if none is being opened, or if an exchange
	// waits for it already.
	opening chan struct{}
	closed  bool
}

var _ carrier = (*lanes)(nil)

// newLanes returns a carrier that opens connections with the dial functions that to returns for the two services.
func (r *Remote) newLanes(to func(service) dial) *lanes {
	return &lanes{remote: r, dial: to(uploadPack), dialPush: to(receivePack)}
}

// open dials and reads the capabilities, which the server sends first.
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

// discover opens a lane for its capabilities, and keeps the lane for the first command.
func (s *lanes) discover(ctx context.Context) (Capabilities, error) {
	l, caps, err := s.open(ctx)
	if err == nil {
		s.put(l)
	}
	return caps, err
}

// exchange sends the command on a kept lane, on a spare one, or on a new one, in this order.
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
		// A kept connection may have died unnoticed. If no byte came back, the command was not
		// served.
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

// send sends one command on lane l, which belongs to the caller, and waits until the answer begins. After an error
// the lane is closed.
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
		// No byte of an answer arrived: the server had closed the kept connection, and the command may be repeated.
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

// take returns the idle lane that was used last, which is most likely alive; nil if there is none
// for this kind of command.
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

// put keeps a lane for the next exchange, or ends it if it cannot be used again.
func (s *lanes) put(l *lane) {
	// Bytes beyond the end of an answer belong to no exchange; they would be taken for the next
	// answer.
	keep := len(l.pkt.Buffered()) == 0 && l.pkt.Err() == nil
	s.mu.Lock()
	keep = keep && !s.closed && len(s.idle) < maxIdleLanes
	if keep {
		s.idle = append(s.idle, l)
		l.idle = time.AfterFunc(idleLane, func() { s.expire(l) })
	}
	s.mu.Unlock()
	if !keep {
		s.hangUp(l)
	}
}

// expire ends a lane that was idle for idleLane, unless an exchange has taken it.
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

// hangUp ends a connection with a flush in place of a command, as the protocol demands. The buffer
// of an idle pipe or socket is empty, so the write does not block.
func (s *lanes) hangUp(l *lane) {
	l.conn.Write(pktline.AppendFlush(nil))
	l.conn.abort()
}

// close ends all idle lanes and keeps none from now on.
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
