// Package fsmonitor answers git's question what has changed in a working tree since the last time it looked, on the
// socket in the git directory where git (2.55 and later on Linux) expects its own monitor; older gits ask through a
// hook program that speaks to the same socket (package query).
//
// A question is a token, the answer the next token and the paths. The words "quit" and "flush" are git's commands to
// its monitor (`git fsmonitor--daemon`): after "quit" nobody answers for a moment, long enough for git to see it go, and
// "flush" gets the answer to a token that nobody knows.
//
// # Nobody else starts
//
// Where nobody answers, git waits a second and then starts its own monitor, which would watch a mount that may not be
// there and keep answering from then on. The socket therefore stays in the directory when the server closes, so that git
// waits for the next one, a next one takes the name over by a rename, and the lock that git's monitor takes before it
// makes its socket is held for good. git then looks at the files itself, and is right.
package fsmonitor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	lockName = query.Socket + ".lock" // as git's lock files are named
	newName  = query.Socket + ".new"

	noToken = "0" // that nobody gives out, and everybody answers with everything

	maxToken   = 64 << 10               // bytes of a question
	maxClients = 256                    // connections at a time; more wait in the kernel's queue
	patience   = 10 * time.Second       // for a client to ask, and to take the answer
	grace      = 500 * time.Millisecond // the same, while the server closes
	absence    = 300 * time.Millisecond
)

// Ask tells what changed since a token: the token of now, and the paths relative to the root, those of directories with a
// slash behind; all says that everything may have.
type Ask func(ctx context.Context, token string) (next string, paths []string, all bool, err error)

// Options are about processes that come after this one.
type Options struct {
	// Inherited is the listening socket of a server that died: whoever has connected to it meanwhile is answered. It is the
	// server's from now on.
	Inherited *os.File
	// Keep is given every socket that is listened on, before anybody can find it; nil: nobody keeps them.
	Keep func(listening *os.File) error
}

// Server answers on the socket of one git directory.
type Server struct {
	gitDir string
	ask    Ask
	keep   func(*os.File) error
	ctx    context.Context // of everything the server does; ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup
	room   chan struct{} // one for each client there may be

	mu       sync.Mutex
	listener *net.UnixListener // nil while it is away
	clients  map[*net.UnixConn]bool
}

// Serve starts to answer.
func Serve(gitDir string, ask Ask, o Options) (*Server, error) {
	l, err := inherit(gitDir, o.Inherited)
	if l == nil && err == nil {
		l, err = listen(gitDir, o.Keep)
	}
	if err != nil {
		return nil, fmt.Errorf("serve file system monitor: %w", err)
	}
	s := &Server{gitDir: gitDir, ask: ask, keep: o.Keep, room: make(chan struct{}, maxClients), listener: l, clients: map[*net.UnixConn]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done.Add(1)
	go s.run(l)
	return s, nil
}

// inherit listens on the socket of a server that died; nil if that does not listen any more, because git wanted it to quit.
func inherit(gitDir string, f *os.File) (*net.UnixListener, error) {
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || isShut(u) {
		return nil, l.Close()
	}
	u.SetUnlinkOnClose(false)
	// It is kept before it takes its name, which may be all that is missing.
	err = os.Rename(filepath.Join(gitDir, newName), filepath.Join(gitDir, query.Socket))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, l.Close())
	}
	return u, nil
}

// isShut says whether nobody can connect any more.
func isShut(l *net.UnixListener) bool {
	shut := true
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			_, err := unix.Poll(poll, 0)
			shut = err != nil || poll[0].Revents != 0
		})
	}
	return err != nil || shut
}

// shut refuses all who connect from now on, though others may have the socket open, too.
func shut(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	l.Close()
}

// listen takes the socket's name, whoever had it.
func listen(gitDir string, keep func(*os.File) error) (*net.UnixListener, error) {
	lock, err := os.OpenFile(filepath.Join(gitDir, lockName), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lock.Close(); err != nil {
		return nil, err
	}
	dir, err := os.Open(gitDir) // the path of a socket cannot be longer than 107 bytes
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fresh := filepath.Join(gitDir, newName)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	short := proc.FDPath(dir) + "/" + newName
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if keep != nil {
		f, err := l.File()
		if err == nil {
			err = errors.Join(keep(f), f.Close())
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if err := os.Rename(fresh, filepath.Join(gitDir, query.Socket)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// run accepts clients until the server is closed, with a pause whenever git wants the monitor to quit.
func (s *Server) run(l *net.UnixListener) {
	defer s.done.Done()
	for l != nil {
		s.accept(l)
		l = s.again()
	}
}

func (s *Server) accept(l *net.UnixListener) {
	for {
		select {
		case s.room <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := l.AcceptUnix()
		if err != nil {
			<-s.room
			if errors.Is(err, net.ErrClosed) || s.away(l) {
				return
			}
			select { // no descriptors left, most likely
			case <-time.After(absence):
			case <-s.ctx.Done():
				return
			}
			continue
		}
		s.done.Add(1)
		go s.client(c)
	}
}

// again comes back after git wanted the monitor to quit; nil: the server is closed.
func (s *Server) again() *net.UnixListener {
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-time.After(absence):
		}
		l, err := listen(s.gitDir, s.keep)
		if err != nil {
			continue
		}
		s.mu.Lock()
		if s.ctx.Err() == nil {
			s.listener = l
			s.mu.Unlock()
			return l
		}
		s.mu.Unlock()
		shut(l)
		return nil
	}
}

func (s *Server) client(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
		c.Close()
		<-s.room
		s.done.Done()
	}()
	if s.expect(c) != nil {
		return
	}
	in := pktline.NewReader(c, 512)
	if err := in.Fill(1); err != nil { // only wanted to know whether somebody is there
		return
	}
	word, err := query.Read(in, maxToken)
	if err != nil {
		return
	}
	switch string(word) {
	case "quit":
		s.leave()
		_ = query.Write(c, nil)
		return
	case "flush":
		word = nil
	}
	next, paths, all, err := s.ask(s.ctx, string(word))
	if err != nil {
		next, all = noToken, true
	}
	if s.expect(c) != nil {
		return
	}
	_ = query.Write(c, answer(next, paths, all)) // to a client that is gone
}

// expect gives a client time for its next step.
func (s *Server) expect(c *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c] = true
	if s.ctx.Err() != nil {
		return c.SetDeadline(time.Now().Add(grace))
	}
	return c.SetDeadline(time.Now().Add(patience))
}

// answer puts an answer as the hook's protocol version 2 has it.
func answer(next string, paths []string, all bool) []byte {
	out := append([]byte(next), 0)
	if all {
		return append(out, '/', 0)
	}
	for _, p := range paths {
		out = append(append(out, p...), 0)
	}
	return out
}

// leave stops to listen, before the client that wanted it is let go.
func (s *Server) leave() {
	s.mu.Lock()
	l := s.listener
	s.listener = nil
	s.mu.Unlock()
	if l != nil {
		shut(l)
	}
}

// away says whether a socket is not listened on any more.
func (s *Server) away(l *net.UnixListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener != l
}

// Close stops to answer and waits for questions under way. Who asks from now on waits for a next server.
func (s *Server) Close() error {
	s.cancel()
	s.leave()
	s.mu.Lock()
	for c := range s.clients {
		c.SetDeadline(time.Now().Add(grace))
	}
	s.mu.Unlock()
	s.done.Wait()
	return nil
}
