package credential

import (
	"context"
	"fmt"
	"net"
	"os"
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
	*gitsocket.Server
	gitDir string
	user   uint32 // owner of the files of the mount
	source Source
}

// Serve starts to answer credential requests for the git directory, and returns at once. The user who owns the files of
// the mount gets answers, like the owner of the git directory on the disk.
func Serve(gitDir string, s Source, user uint32, o gitsocket.Options, log *zap.Logger) (*Server, error) {
	l, err := gitsocket.Listen(gitDir, socketName, o)
	if err != nil {
		return nil, fmt.Errorf("serve credentials of %s: %w", gitDir, err)
	}
	server := &Server{gitDir: gitDir, user: user, source: s}
	server.Server = l.Serve(maxAskers, log, server.answer)
	return server, nil
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

// lets reports whether the processes of the user uid get an answer. The mode of the socket already restricts the users
// in this way, but the owner of the socket may change the mode.
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
