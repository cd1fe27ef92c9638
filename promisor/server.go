package promisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitsocket"
	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/object"
)

// questionTime bounds one question; downloads have bounds of their own, which are shorter where
// nothing moves.
const questionTime = 15 * time.Minute

// Provider fetches objects to where git reads them; *fetch.Store and *fetch.Local are Providers.
type Provider interface {
	Format() object.Format
	// Objects returns the object directories that the git directory borrows.
	Objects() []string
	// Refresh finds packs that other processes, such as git, have added.
	Refresh() error
	// Missing returns those of ids that are in no pack that git uses.
	Missing(ids []object.ID) []object.ID
	// Provide has the wanted objects in such packs when it returns, and tries the same with blobs
	// along.
	Provide(ctx context.Context, wanted, along []object.ID) error
}

// Server answers the questions about one git directory until Close.
type Server struct {
	gitDir   string
	provider Provider
	log      *zap.Logger
	listener *gitsocket.Listener
	oracle   *oracle
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Serve answers questions about the git directory from now on.
func Serve(gitDir string, p Provider, o gitsocket.Options, log *zap.Logger) (*Server, error) {
	s := &Server{gitDir: gitDir, provider: p, log: log}
	var err error
	if s.listener, err = gitsocket.Listen(gitDir, socketName, o); err != nil {
		return nil, fmt.Errorf("serve missing objects of %s: %w", gitDir, err)
	}
	if s.oracle, err = newOracle(gitDir, p, log); err != nil {
		s.listener.Close()
		return nil, fmt.Errorf("serve missing objects of %s: %w", gitDir, err)
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() { s.accept(ctx) })
	return s, nil
}

// Close ends all questions and waits for them; git asks the origin from now on.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	return errors.Join(err, s.oracle.close())
}

// accept answers each connection in a goroutine of its own, until the listener is closed.
func (s *Server) accept(ctx context.Context) {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("no more questions of git are answered", zap.Error(err))
			}
			return
		}
		s.wg.Go(func() {
			defer conn.Close()
			// Closing the connection ends the goroutine that reads from it.
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := s.converse(ctx, conn); err != nil && ctx.Err() == nil {
				s.log.Warn("answer git", zap.String("git", s.gitDir), zap.Error(err))
			}
		})
	}
}

// converse is the dialogue with one asker.
func (s *Server) converse(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	r := bufio.NewReader(conn)
	hint, err := readHint(r)
	if err != nil {
		return err
	}
	format := s.provider.Format()
	// Protocol version 2 starts with the server's capabilities, before any request.
	if _, err := conn.Write(advertisement(format)); err != nil {
		return fmt.Errorf("advertise: %w", err)
	}
	packets := pktline.NewReader(r, bufSize)
	requests := make(chan request)
	var readErr error
	go func() { // ends with the connection; reading on is how we learn that the asker is gone
		defer close(requests)
		for {
			q, err := readRequest(packets, format)
			if err != nil {
				if err != io.EOF {
					readErr = err
				}
				cancel()
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	for q := range requests {
		if _, err := conn.Write(s.answer(ctx, hint, q)); err != nil {
			return nil // git was interrupted
		}
	}
	return readErr
}

// answer returns the packets that answer one request of git.
func (s *Server) answer(ctx context.Context, hint Hint, q request) []byte {
	switch q.command {
	case "ls-refs":
		// git compares no refs with those of a promisor remote: the list may be empty.
		return pktline.AppendFlush(nil)
	case "fetch":
		if err := s.fetch(ctx, hint, q.wants); err != nil {
			return errorPacket(err.Error())
		}
		// git finds the objects in the object store that it borrows, so the pack in the answer is
		// empty.
		return nothingPack(s.provider.Format(), q.done)
	}
	return errorPacket(fmt.Sprintf("unknown command %.80q", q.command))
}

// fetch fetches the objects that git wants, and the predicted ones.
func (s *Server) fetch(ctx context.Context, hint Hint, wants []object.ID) error {
	start := time.Now()
	// Another command may have fetched some of the objects meanwhile.
	wants = s.oracle.lacking(wants)
	along := s.oracle.predict(ctx, hint, wants)
	predicted := time.Since(start)
	err := s.provider.Provide(ctx, wants, along)
	s.log.Debug("question of git", zap.Any("commands", hint.Commands), zap.Int("wants", len(wants)),
		zap.Stringer("first", first(wants)), zap.Int("along", len(along)),
		zap.Duration("predicted", predicted), zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// first names a question in the log.
func first(wants []object.ID) object.ID {
	if len(wants) == 0 {
		return object.ID{}
	}
	return wants[0]
}
