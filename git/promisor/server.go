package promisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb/namedset"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// questionTime is the maximum time for which one connection of git is served. Downloads have their own time limits,
// which are shorter if no bytes arrive.
const questionTime = 15 * time.Minute

// maxConnections is the maximum number of connections to one mount at a time. A container that opens more must not use
// up the descriptors of this process, which other mounts need.
const maxConnections = 128

// Provider fetches objects into packs that git reads. *fetch.Store and *fetch.Local are Providers.
type Provider interface {
	Format() object.Format
	// Objects returns the object directories that are alternates of the git directory.
	Objects() []string
	// Refresh makes packs visible that other processes, such as git, have added.
	Refresh() error
	// Missing returns the elements of ids that are not in any pack that git uses.
	Missing(ids []object.ID) []object.ID
	// NamedBlobs returns the set of the blobs that trees name which were fetched, so that a remote has these blobs.
	NamedBlobs() namedset.Union
	// Provide fetches objects and returns after all objects in wanted are in packs that git uses. It also tries to fetch
	// the blobs in along; if some of these cannot be fetched, Provide does not return an error.
	Provide(ctx context.Context, wanted, along []object.ID) error
}

// Server answers git's requests for objects that are missing in one git directory, until Close.
type Server struct {
	provider  Provider
	log       *zap.Logger
	socket    *gitsocket.Server
	oracle    *oracle
	existence *existence
}

// Serve starts to answer requests for the objects of the git directory gitDir. shown is the tree that the mount shows.
func Serve(gitDir string, p Provider, shown Shown, o gitsocket.Options, log *zap.Logger) (*Server, error) {
	s := &Server{provider: p, log: log, existence: &existence{provider: p, shown: shown}}
	l, err := gitsocket.Listen(gitDir, socketName, o)
	if err != nil {
		return nil, fmt.Errorf("serve missing objects of %s: %w", gitDir, err)
	}
	if s.oracle, err = newOracle(gitDir, p, log); err != nil {
		l.Close()
		return nil, fmt.Errorf("serve missing objects of %s: %w", gitDir, err)
	}
	s.socket = l.Serve(maxConnections, log, s.converse)
	return s, nil
}

// Close cancels all requests and waits until they have ended. From then on, git requests missing objects from the
// origin.
func (s *Server) Close() error { return errors.Join(s.socket.Close(), s.oracle.close()) }

// converse serves one connection: it reads the hint and answers git's requests.
func (s *Server) converse(ctx context.Context, conn *net.UnixConn) error {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	r := bufio.NewReader(conn)
	hint, err := readHint(r)
	if err != nil {
		return err
	}
	format := s.provider.Format()
	// In protocol version 2 the server sends its capabilities before the first request.
	if _, err := conn.Write(advertisement(format)); err != nil {
		return fmt.Errorf("send capabilities: %w", err)
	}
	packets := pktline.NewReader(r, bufSize)
	requests := make(chan request)
	var readErr error
	go func() { // read during a request, because the end of the stream shows that git has exited
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
			return nil // git was interrupted, which is not an error
		}
	}
	return readErr
}

// answer returns the packets that answer one command of git.
func (s *Server) answer(ctx context.Context, hint Hint, q request) []byte {
	switch q.command {
	case "ls-refs":
		// This command asks for the list of refs. git does not use the refs of a promisor remote, so the list may be empty.
		return pktline.AppendFlush(nil)
	case "fetch":
		if err := s.fetch(ctx, hint, q.wants); err != nil {
			return errorPacket(err.Error())
		}
		// git finds the requested objects in its alternates, so the pack in the answer need not contain these objects.
		return nothingPack(s.provider.Format(), q.done)
	}
	return errorPacket(fmt.Sprintf("unknown command %.80q", q.command))
}

// fetch fetches the objects that git has requested, and the objects in the prediction.
func (s *Server) fetch(ctx context.Context, hint Hint, wants []object.ID) error {
	start := time.Now()
	// Another command may have fetched some of the objects in the meantime.
	wants = s.oracle.lacking(wants)
	along := s.oracle.predict(ctx, hint, wants)
	predicted := time.Since(start)
	err := s.provider.Provide(ctx, wants, along)
	s.log.Debug("answered request of git", zap.Any("commands", hint.Commands), zap.Int("wants", len(wants)),
		zap.Stringer("first", first(wants)), zap.Int("along", len(along)),
		zap.Duration("predicted", predicted), zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// first returns the first id of wants, which identifies the request in the log, or the zero id if wants is empty.
func first(wants []object.ID) object.ID {
	if len(wants) == 0 {
		return object.ID{}
	}
	return wants[0]
}
