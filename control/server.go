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
	requestTime = 10 * time.Second      // timeout for receiving the request line, and for sending a message
	undoTime    = 30 * time.Second      // timeout for unmounting a mount whose caller has disconnected
	acceptPause = 50 * time.Millisecond // pause after a failed accept
	endingTime  = 10 * time.Second      // time for which Listen waits for another server that is closing the same socket
	endingPause = 5 * time.Millisecond  // interval at which Listen checks whether the other server has ended
)

// Server answers the requests on one socket.
type Server struct {
	handler  Handler // carries out the requests
	log      *zap.Logger
	socket   string // path of the socket; "" for a socket for guests
	listener *net.UnixListener
	lock     *fileLock      // lock of the socket's path; nil for a socket for guests
	guests   *guests        // set if the clients are guests; nil if they are processes of the host's user
	conns    sync.WaitGroup // waits for the goroutines of the connections

	mu      sync.Mutex                 // protects the fields below
	closed  bool                       // the server was closed
	onClose func()                     // function that OnClose has set
	working int                        // number of requests that are counted as in progress
	waiting map[*net.UnixConn]struct{} // connections whose request is not in progress yet
	// closed when the Shutdown request in progress has ended; nil if no such request is in progress
	ending chan struct{}
}

// Listen creates the server of a socket. If another server is closing the socket, Listen waits until that server has
// ended. If another server uses the socket, Listen returns ErrInUse. Clients can connect immediately; they wait until
// Serve is called.
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

// listened reports whether a process listens on a socket whose lock is held. If no process listens, the holder of the
// lock is ending, because a server removes its socket first and releases its lock last. The supervisor may also hold
// the lock of a killed server for the server's successor.
func listened(ctx context.Context, socket string) bool {
	conn, err := dial(ctx, socket)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, ErrNoServer)
}

// Inherit returns a server that continues with the socket of a server that has died. listener and lock are the
// descriptors that Files of that server has returned; the new server owns them from now on. If they are nil or belong
// to another socket, Inherit does the same as Listen.
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

// newServer returns a server for a listening socket. lock is nil for a socket for guests, which has no lock file.
func newServer(socket string, l *net.UnixListener, lock *fileLock, h Handler, log *zap.Logger) *Server {
	return &Server{
		handler: h, log: log, socket: socket, listener: l, lock: lock,
		waiting: make(map[*net.UnixConn]struct{}),
	}
}

// Files returns the descriptors that a successor needs: a copy of the listening socket, which the caller must close,
// and the lock, which the server still owns.
func (s *Server) Files() (listener, lock *os.File, err error) {
	listener, err = s.listener.File()
	if err != nil {
		return nil, nil, fmt.Errorf("copy control socket: %w", err)
	}
	return listener, s.lock.f, nil
}

// Serve answers requests until ctx ends, a Shutdown request has succeeded, or Close or CloseIdle is called. The end of
// ctx cancels the requests in progress. Serve returns after the last request was answered and the socket's path is
// free.
func (s *Server) Serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, s.Close)()
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		// accept failed, probably because the process has no free descriptors; the end of a request releases some
		if err != nil {
			s.log.Error("accept control connection", zap.Error(err))
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		s.conns.Go(func() {
			defer conn.Close()
			// Refuse a guest beyond the limit at once, so that one program in a container cannot use up the daemon's
			// descriptors.
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

// OnClose sets a function that is called when the socket is closed, before the last requests are answered. The function
// must close all copies that Files has returned. As long as a copy is open, the kernel does not disconnect clients
// whose connections were not accepted.
func (s *Server) OnClose(done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onClose = done
}

// Close stops accepting connections. Requests that have arrived are still answered.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

// CloseIdle closes the server if no request is in progress and the function idle returns true. It reports whether the
// server is closed. No request is lost: a request that arrives at the same time either counts as in progress, or its
// caller gets ErrNoServer. New requests wait while the function idle runs, so this function must not wait for a
// request.
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

// closeLocked closes the socket, and all connections whose request has not arrived. The caller holds mu.
func (s *Server) closeLocked() {
	if s.closed {
		return
	}
	s.closed = true
	if s.guests != nil {
		s.guests.close()
	} else {
		// removed before the listener is closed, so that a client that is refused finds no socket and starts another daemon
		os.Remove(s.socket)
		s.listener.Close()
	}
	if s.onClose != nil {
		s.onClose()
	}
	for conn := range s.waiting {
		conn.Close()
	}
}

// serve answers the request on one connection. It returns true if the server must end, after a Shutdown request.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) (end bool) {
	// If the server was closed after this connection was accepted, drop the connection.
	if !s.admit(conn) {
		return false
	}
	out := &sender{conn: conn, version: Protocol}
	reader := bufio.NewReader(conn)
	conn.SetReadDeadline(time.Now().Add(requestTime))
	r, err := s.readRequest(conn, reader)
	o, args := r.op, r.args
	if err != nil {
		o = "" // no operation is carried out, because the request is invalid
	}
	if r.version != 0 {
		out.version = r.version
	}
	// An invalid request also counts as in progress, so that CloseIdle does not close the server before the error is sent.
	if !s.beginRequest(ctx, conn, o) {
		return false
	}
	defer s.finish()
	// the client has sent no request and only checked whether a server answers, as Dial does
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		out.send(message{Error: AsError(err)})
		return false
	}
	conn.SetReadDeadline(time.Time{})

	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { // the caller sends no more bytes, so the read returns only when the caller has disconnected
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
		// Close the server before the reply is sent, because the caller expects that the path of the socket is free after the
		// reply.
		s.decide(err == nil)
	}

	if err == nil {
		// If the caller of a mount request has disconnected, it cannot unmount the mount, so the server unmounts it.
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
	s.log.Debug("answered request", zap.String("op", string(o)), zap.Duration("took", time.Since(start)), zap.Error(err))
	conn.SetReadDeadline(time.Now()) // this deadline ends the read in the goroutine of watch
	watch.Wait()
	cancel()
	return o == opShutdown && err == nil
}

// admit adds a connection to s.waiting. It returns false if the server is closed.
func (s *Server) admit(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.waiting[conn] = struct{}{}
	return true
}

// beginRequest counts a request as in progress. While a Shutdown request is in progress, a mount request and another
// Shutdown request wait for its result: if the shutdown fails, the waiting request is carried out; if the shutdown
// succeeds, the caller gets ErrNoServer and can start another server. beginRequest returns false if the server is
// closed.
func (s *Server) beginRequest(ctx context.Context, conn *net.UnixConn, o op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// mu is released while this request waits, because the method decide, which ends the wait, acquires mu.
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

// decide wakes the requests that wait for the result of a Shutdown request. If end is true, the shutdown has succeeded,
// and decide closes the server.
func (s *Server) decide(end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end {
		s.closeLocked()
	}
	close(s.ending)
	s.ending = nil
}

// finish ends a request that beginRequest has counted as in progress.
func (s *Server) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working--
}

// readRequest reads and decodes the line of a request, after it has checked which user sent it. It returns io.EOF if
// the client closed the connection without sending anything.
func (s *Server) readRequest(conn *net.UnixConn, r *bufio.Reader) (asked, error) {
	peer, err := peerOf(conn)
	if err != nil {
		return asked{}, err
	}
	// The mode of the socket permits only its owner and root to connect. This check matters if the mode of the socket or
	// of its directory was changed.
	if s.guests == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		s.log.Warn("refuse control connection", zap.Uint32("uid", peer.Uid), zap.Int32("pid", peer.Pid))
		return asked{}, &Error{Code: ExitFailed, Kind: CodePermission, Verb: "talk to", Object: "daemon",
			Cause: fmt.Sprintf("daemon belongs to user %d and does not serve other users", os.Geteuid())}
	}
	line, err := readLine(r, maxRequest)
	if errors.Is(err, io.EOF) {
		return asked{}, err
	} else if err != nil {
		return asked{}, badRequest("%v", err)
	}
	a, err := decodeRequest(line)
	// The server would never read bytes that follow the request, so such bytes are an error of the client.
	if err == nil && r.Buffered() > 0 {
		err = badRequest("unexpected bytes after the request")
	}
	return a, err
}

// work calls the handler's method for operation o. If the handler panics, work returns an error, so that the process
// and its other mounts continue.
func (s *Server) work(ctx context.Context, o op, args any, out *sender) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("recover from panic in handler", zap.String("op", string(o)), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = &Error{Code: ExitFailed, Verb: string(o), Cause: "internal error; the daemon's log has the details"}
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
			return h.Mounts(ctx, args.(MountsRequest))
		}
		return s.handler.Status(ctx)
	case opPrefetch:
		return s.handler.Prefetch(ctx, args.(PrefetchRequest), out.progress)
	case opSwitch:
		return s.handler.Switch(ctx, args.(SwitchRequest), out.progress)
	case opRefresh:
		h, ok := s.handler.(Refresher)
		if !ok {
			return nil, unsupported("this process cannot refresh mounts")
		}
		return h.Refresh(ctx, args.(RefreshRequest), out.progress)
	case opTrace:
		return empty{}, s.handler.Trace(ctx, args.(TraceRequest), func(t Trace) error { return out.trace(ctx, t) })
	case opShutdown:
		return empty{}, s.handler.Shutdown(ctx)
	case opCredentialSet:
		c, ok := s.handler.(CredentialHolder)
		if !ok {
			return nil, unsupported("this server does not accept new tokens")
		}
		return c.SetCredential(ctx, args.(CredentialRequest))
	case opUpgrade:
		u, ok := s.handler.(Upgrader)
		if !ok {
			return nil, &Error{Code: ExitFailed, Kind: CodeUnsupported, Verb: "upgrade", Object: "daemon",
				Cause: "daemon runs without a supervisor",
				Hint:  "unmount all mounts of the daemon, and mount again"}
		}
		return empty{}, u.Upgrade(ctx, args.(UpgradeRequest))
	}
	return s.workSession(ctx, o, args, out)
}

// undo unmounts the mount at dir, because the caller that requested the mount has disconnected.
func (s *Server) undo(ctx context.Context, dir string) {
	// The context of the request has ended because its caller has disconnected, so the unmount must not use that context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	_, err := s.handler.Unmount(ctx, UnmountRequest{Dir: dir})
	s.log.Info("unmounted because the client disconnected", zap.String("dir", dir), zap.Error(err))
}
