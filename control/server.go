package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	requestTime = 10 * time.Second // for a request line to arrive once connected, and for a message to be taken
	undoTime    = 30 * time.Second // for the unmount of a mount whose caller has left
	acceptPause = 50 * time.Millisecond
	endingTime  = 10 * time.Second // for another server of the same path that is ending
	endingPause = 5 * time.Millisecond
)

// Server answers on one socket.
type Server struct {
	handler  Handler
	log      *zap.Logger
	socket   string
	listener *net.UnixListener
	lock     *fileLock
	guests   *guests // nil: it answers the user of the host
	conns    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	onClose func()
	working int                        // requests in a handler
	waiting map[*net.UnixConn]struct{} // connections whose request is not being worked on yet
	ending  chan struct{}              // closed when the Shutdown in progress is decided; nil without one
}

// Listen creates the server of a socket. It returns ErrInUse if another server has the socket, and
// waits for one that is ending. Connections wait until Serve is called.
func Listen(ctx context.Context, socket string, h Handler, log *zap.Logger) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, endingTime)
	defer cancel()
	l, lock, err := listen(socket)
	for errors.Is(err, ErrInUse) && ctx.Err() == nil && !listened(ctx, socket) {
		select {
		case <-time.After(endingPause):
		case <-ctx.Done():
		}
		l, lock, err = listen(socket)
	}
	if err != nil {
		return nil, err
	}
	return newServer(socket, l, lock, h, log), nil
}

// listened reports whether a process listens on a socket whose lock is held. A server that ends
// removes its socket first and releases its lock last; one that was killed may have lost its socket
// and still hold its lock.
func listened(ctx context.Context, socket string) bool {
	conn, err := dial(ctx, socket)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, ErrNoServer)
}

// Inherit continues the socket of a server that died; the caller has the result of its Files. It is
// Listen if they are nil or belong to another socket. The Server owns them from now on.
func Inherit(ctx context.Context, socket string, listener, lock *os.File, h Handler, log *zap.Logger) (*Server, error) {
	if lock == nil || !isLockOf(socket, lock) {
		for _, f := range []*os.File{listener, lock} {
			if f != nil {
				f.Close()
			}
		}
		return Listen(ctx, socket, h, log)
	}
	l, err := inherit(socket, listener)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return newServer(socket, l, &fileLock{lock, lockName(socket)}, h, log), nil
}

// newServer returns a server of a listening socket. lock is nil for the socket of guests, which has
// another owner.
func newServer(socket string, l *net.UnixListener, lock *fileLock, h Handler, log *zap.Logger) *Server {
	return &Server{
		handler: h, log: log, socket: socket, listener: l, lock: lock,
		waiting: make(map[*net.UnixConn]struct{}),
	}
}

// Files returns the descriptors for a successor: a copy of the listening socket, which the caller
// closes, and the lock, which remains the server's.
func (s *Server) Files() (listener, lock *os.File, err error) {
	listener, err = s.listener.File()
	if err != nil {
		return nil, nil, fmt.Errorf("copy control socket: %w", err)
	}
	return listener, s.lock.f, nil
}

// Serve answers requests until ctx ends (which cancels requests in progress), a Shutdown has
// succeeded, or Close or CloseIdle is called. It returns when the last request has been answered
// and the socket's path is free.
func (s *Server) Serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, s.Close)()
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil { // out of descriptors: they are released when requests end
			s.log.Error("accept control connection", zap.Error(err))
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		s.conns.Go(func() {
			defer conn.Close()
			// A guest beyond the limit is refused at once: one program in a container must not use
			// up the daemon's descriptors.
			if g := s.guests; g != nil {
				select {
				case g.room <- struct{}{}:
					defer func() { <-g.room }()
				default:
					g.full(&sender{conn: conn, version: Protocol})
					return
				}
			}
			if s.serve(ctx, conn) {
				cancel()
			}
		})
	}
	s.conns.Wait()
	if s.lock != nil {
		s.lock.release()
	}
}

// OnClose sets a function that is called when the socket is closed, before the last requests are
// answered. It must close all copies of Files: otherwise the kernel keeps clients waiting that have
// connected and were not accepted.
func (s *Server) OnClose(done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onClose = done
}

// Close stops accepting. Requests that have arrived are still answered.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

// CloseIdle closes the server if no request is in progress and idle returns true, and returns
// whether it did. A request that arrives meanwhile either counts as in progress, or its caller gets
// ErrNoServer: none is lost. idle is called while new requests are held back and must not wait for
// one.
func (s *Server) CloseIdle(idle func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	if s.working > 0 || !idle() {
		return false
	}
	s.closeLocked()
	return true
}

// closeLocked closes the socket and ends connections whose request has not arrived. It needs mu.
func (s *Server) closeLocked() {
	if s.closed {
		return
	}
	s.closed = true
	if s.guests != nil {
		s.guests.close()
	} else {
		os.Remove(s.socket) // before the listener: a client that finds no socket starts another daemon at once
		s.listener.Close()
	}
	if s.onClose != nil {
		s.onClose()
	}
	for conn := range s.waiting {
		conn.Close()
	}
}

// serve answers one connection. It returns whether the server is to end.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) (end bool) {
	// A connection that was accepted while the server closed is dropped.
	if !s.admit(conn) {
		return false
	}
	out := &sender{conn: conn, version: Protocol}
	reader := bufio.NewReader(conn)
	conn.SetReadDeadline(time.Now().Add(requestTime))
	r, err := s.readRequest(conn, reader)
	o, args := r.op, r.args
	if err != nil {
		o = "" // nothing will be worked on
	}
	if r.version != 0 {
		out.version = r.version
	}
	// Even an invalid request is begun, so that CloseIdle does not close the server before the
	// error is sent.
	if !s.beginRequest(ctx, conn, o) {
		return false
	}
	defer s.finish()
	if errors.Is(err, io.EOF) { // a client checked that the server is alive
		return false
	}
	if err != nil {
		out.send(message{Error: AsError(err)})
		return false
	}
	conn.SetReadDeadline(time.Time{})

	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { // the caller sends nothing more: any input means that it leaves
		reader.ReadByte()
		cancel()
	})
	out.start()
	start := time.Now()
	var result any
	if s.guests != nil {
		result, err = s.guests.work(r, func(r asked) (any, error) { return s.work(ctx, r.op, r.args, out) })
	} else {
		result, err = s.work(ctx, o, args, out)
	}
	out.stop()
	if o == opShutdown {
		s.decide(err == nil) // before the reply: afterwards the path is free
	}

	if err == nil {
		// The caller of a mount that has left cannot unmount it, so the server does.
		if err = ctx.Err(); err == nil || o != opMount {
			err = out.result(result, r.ignored)
		}
		if err != nil && o == opMount {
			s.undo(ctx, args.(MountRequest).Dir)
			out.send(message{Error: AsError(err)})
		}
	} else {
		out.send(message{Error: AsError(err)})
	}
	s.log.Debug("answered", zap.String("op", string(o)), zap.Duration("took", time.Since(start)), zap.Error(err))
	conn.SetReadDeadline(time.Now()) // ends the watch
	watch.Wait()
	cancel()
	return o == opShutdown && err == nil
}

// admit counts a connection until its request has arrived.
func (s *Server) admit(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.waiting[conn] = struct{}{}
	return true
}

// beginRequest counts a request as in progress. While a Shutdown is in progress, a mount waits for its
// result: either the mount is created after all, or its caller sees ErrNoServer and can start
// another server. begin returns false if the server has closed.
func (s *Server) beginRequest(ctx context.Context, conn *net.UnixConn, o op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// mu is released while this request waits, because decide needs it.
	for s.ending != nil && (o == opMount || o == opShutdown) && !s.closed && ctx.Err() == nil {
		ending := s.ending
		s.mu.Unlock()
		select {
		case <-ending:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	delete(s.waiting, conn)
	if s.closed || ctx.Err() != nil {
		return false
	}
	if o == opShutdown {
		s.ending = make(chan struct{})
	}
	s.working++
	return true
}

// decide ends the time in which mounts wait for a Shutdown.
func (s *Server) decide(end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end {
		s.closeLocked()
	}
	close(s.ending)
	s.ending = nil
}

// finish ends a request that begin has counted.
func (s *Server) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working--
}

// readRequest reads the one line of a request and checks the user at the other end. It returns
// io.EOF if the client sent nothing.
func (s *Server) readRequest(conn *net.UnixConn, r *bufio.Reader) (asked, error) {
	peer, err := peerOf(conn)
	if err != nil {
		return asked{}, err
	}
	// The mode of the socket admits only its owner and root. The check covers a socket whose mode
	// or directory was changed.
	if s.guests == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		s.log.Warn("control connection refused", zap.Uint32("uid", peer.Uid), zap.Int32("pid", peer.Pid))
		return asked{}, &Error{Code: ExitFailed, Kind: CodePermission, Verb: "talk to", Object: "daemon",
			Cause: fmt.Sprintf("it belongs to user %d and serves no other user", os.Geteuid())}
	}
	line, err := readLine(r, maxRequest)
	if errors.Is(err, io.EOF) {
		return asked{}, err
	} else if err != nil {
		return asked{}, badRequest("%v", err)
	}
	a, err := decodeRequest(line)
	// Bytes after the request would be ignored silently.
	if err == nil && r.Buffered() > 0 {
		err = badRequest("bytes behind the end")
	}
	return a, err
}

// work calls the handler. A handler that panics must not take the mounts of others with it.
func (s *Server) work(ctx context.Context, o op, args any, out *sender) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", zap.String("op", string(o)), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = &Error{Code: ExitFailed, Verb: string(o), Cause: "the daemon failed inside; its log says where"}
		}
	}()
	switch o {
	case opMount:
		return s.handler.Mount(ctx, args.(MountRequest), out.progress)
	case opUnmount:
		return s.handler.Unmount(ctx, args.(UnmountRequest))
	case opStatus:
		return s.handler.Status(ctx)
	case opMounts:
		if h, ok := s.handler.(Lister); ok {
			return h.Mounts(ctx)
		}
		return s.handler.Status(ctx)
	case opPrefetch:
		return s.handler.Prefetch(ctx, args.(PrefetchRequest), out.progress)
	case opSwitch:
		return s.handler.Switch(ctx, args.(SwitchRequest), out.progress)
	case opRefresh:
		h, ok := s.handler.(Refresher)
		if !ok {
			return nil, unsupported("this process does not refresh mounts")
		}
		return h.Refresh(ctx, args.(RefreshRequest), out.progress)
	case opTrace:
		return empty{}, s.handler.Trace(ctx, args.(TraceRequest), func(t Trace) error { return out.trace(ctx, t) })
	case opShutdown:
		return empty{}, s.handler.Shutdown(ctx)
	case opCredentialSet:
		c, ok := s.handler.(CredentialHolder)
		if !ok {
			return nil, unsupported("this server takes no new tokens")
		}
		return c.SetCredential(ctx, args.(CredentialRequest))
	case opUpgrade:
		u, ok := s.handler.(Upgrader)
		if !ok {
			return nil, &Error{Code: ExitFailed, Kind: CodeUnsupported, Verb: "upgrade", Object: "daemon", Cause: "this one has no supervisor",
				Hint: "unmount what it serves, and mount again"}
		}
		return empty{}, u.Upgrade(ctx, args.(UpgradeRequest))
	}
	return s.workSession(ctx, o, args, out)
}

// undo unmounts a mount whose caller has left.
func (s *Server) undo(ctx context.Context, dir string) {
	// The context of the request has ended with its caller, and the unmount must happen anyway.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	_, err := s.handler.Unmount(ctx, UnmountRequest{Dir: dir})
	s.log.Info("unmounted again, the asker left", zap.String("dir", dir), zap.Error(err))
}
