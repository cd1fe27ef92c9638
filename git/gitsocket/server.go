package gitsocket

import (
	"context"
	"net"
	"path/filepath"
	"sync"

	"go.uber.org/zap"
)

// Server answers the connections of a Listener until Close is called.
type Server struct {
	listener *Listener
	log      *zap.Logger
	answer   func(ctx context.Context, conn *net.UnixConn) error
	room     chan struct{} // contains one element for each connection; its capacity is the maximum number of connections
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Serve starts to answer at most the given number of connections at a time, and returns at once. It calls the function
// answer for each connection, and closes the connection when that function returns.
func (l *Listener) Serve(most int, log *zap.Logger,
	answer func(ctx context.Context, conn *net.UnixConn) error) *Server {
	s := &Server{listener: l, log: log.With(zap.String("socket", filepath.Join(l.gitDir, l.name))), answer: answer,
		room: make(chan struct{}, most)}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() { s.accept(ctx) })
	return s
}

// Close stops listening, cancels the answers in progress and returns when they have ended.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	return err
}

// accept answers connections, each in a separate goroutine, until ctx ends.
func (s *Server) accept(ctx context.Context) {
	for {
		// While the maximum number of connections are open, further ones wait in the queue of the socket.
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.listener.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("accept connections of git", zap.Error(err))
			}
			return
		}
		s.wg.Go(func() {
			defer func() { <-s.room }()
			defer conn.Close()
			// Close the connection when the Server is closed, so that a blocked read returns.
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := s.answer(ctx, conn); err != nil && ctx.Err() == nil {
				s.log.Warn("answer request of git", zap.Error(err))
			}
		})
	}
}
