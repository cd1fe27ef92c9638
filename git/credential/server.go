package credential

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/transport"
)

const (
	answerTime = time.Minute // timeout for one question, including the time that the user's own credential helper takes
	// maxAskers is the maximum number of questions that are answered at the same time.
	maxAskers = 32
)

// Source holds the logins of a mount. transport.Remote implements it.
type Source interface {
	// Credential returns the login for the question q. It returns false if there is none.
	Credential(ctx context.Context, q transport.Question) (transport.Credential, bool, error)
	// Refused and Accepted record whether the server has refused or accepted a login that Credential returned.
	Refused(ctx context.Context, q transport.Question, secret string)
	Accepted(ctx context.Context, q transport.Question, secret string)
}

// Server answers git's questions about the logins of one git directory, until Close is called.
type Server struct {
	gitDir   string
	user     uint32 // owner of the files of the mount
	source   Source
	log      *zap.Logger
	listener *gitsocket.Listener
	// room is a semaphore. It holds one element for each connection that is being answered.
	room   chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Serve starts to answer credential requests for the git directory, and returns at once. The user who owns the files of the mount gets
// answers, like the owner of the git directory on the disk.
func Serve(gitDir string, s Source, user uint32, o gitsocket.Options, log *zap.Logger) (*Server, error) {
	l, err := gitsocket.Listen(gitDir, socketName, o)
	if err != nil {
		return nil, fmt.Errorf("serve credentials of %s: %w", gitDir, err)
	}
	server := &Server{gitDir: gitDir, user: user, source: s, log: log, listener: l, room: make(chan struct{}, maxAskers)}
	var ctx context.Context
	ctx, server.cancel = context.WithCancel(context.Background())
	server.wg.Go(func() { server.accept(ctx) })
	return server, nil
}

// Close stops listening, cancels all questions in progress and returns when they have ended.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	return err
}

// accept answers connections, each in a separate goroutine, until ctx ends.
func (s *Server) accept(ctx context.Context) {
	for {
		// While maxAskers questions are being answered, further connections wait in the queue of the socket.
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.listener.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("accept credential requests of git", zap.Error(err))
			}
			return
		}
		s.wg.Go(func() {
			defer func() { <-s.room }()
			defer conn.Close()
			// Close the connection when the Server is closed, so that a blocked read returns.
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := s.answer(ctx, conn); err != nil && ctx.Err() == nil {
				s.log.Warn("answer credential request of git", zap.String("git", s.gitDir), zap.Error(err))
			}
		})
	}
}

// answer answers the one question of a connection.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn) error {
	uid, err := peer(conn)
	if err != nil {
		return err
	}
	if !s.lets(uid) {
		return fmt.Errorf("refuse login: user %d may not use the credentials of this mount", uid)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	q, whole, err := readMessage(conn)
	if err != nil || !whole {
		return err
	}
	conn.Write(s.reply(ctx, q).lines()) // an error means that git was interrupted
	return nil
}

// reply returns the answer to a question. For a store or an erase, the answer is empty.
func (s *Server) reply(ctx context.Context, q message) message {
	switch {
	case q.op == opGet:
		c, ok, err := s.source.Credential(ctx, q.question)
		if err != nil {
			return message{failure: err.Error()}
		}
		if ok {
			return message{user: c.User, password: c.Password, scheme: c.Scheme, value: c.Value,
				question: transport.Question{Schemes: c.Scheme != ""}}
		}
	case q.op == opStore && q.secret != "":
		s.source.Accepted(ctx, q.question, q.secret)
	case q.op == opErase && q.secret != "":
		s.source.Refused(ctx, q.question, q.secret)
	}
	return message{}
}

// lets reports whether the processes of the user uid get an answer. The mode of the socket already restricts the users in
// this way, but the owner of the socket may change the mode.
func (s *Server) lets(uid uint32) bool {
	owner, err := gitsocket.Owner(s.gitDir)
	return uid == 0 || uid == s.user || uid == uint32(os.Geteuid()) || err == nil && uid == owner.Uid
}

// peer returns the user id of the process at the other end (SO_PEERCRED).
func peer(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil {
		return 0, ctlErr
	}
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return cred.Uid, nil
}
