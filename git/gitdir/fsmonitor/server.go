// Package fsmonitor is a file system monitor: it answers git's query for the paths in a working tree that have changed
// since the previous query. It listens on the socket in the git directory at which git 2.55 and later expect git's own
// monitor on Linux. Older versions of git use a hook program that connects to the same socket (package query).
//
// A query is a token. The answer is the next token and the changed paths. The queries "quit" and "flush" are commands
// of `git fsmonitor--daemon`. After "quit" the server stops listening for a moment, long enough for git to notice that
// the monitor has ended. "flush" is answered like a query with an unknown token.
//
// # Keeping git from starting its own monitor
//
// If no process listens on the socket, git waits for a second and then starts its own monitor. That monitor would watch
// the mount's directory even while nothing is mounted there, and would answer all later queries. The server prevents
// this in two ways. First, when the server closes, it leaves the socket file in the directory. git then waits for the
// next server, which replaces the file by a rename. Second, the server creates the lock file that git's monitor would
// create before its socket. While this file exists, git's monitor does not start, and git searches for changes itself,
// which is slower but correct.
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

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	lockName = query.Socket + ".lock" // name of the lock file that git's own monitor uses
	newName  = query.Socket + ".new"  // temporary name of a new socket, which is then renamed

	// a token that Ask never returns, so for this token the monitor always answers "everything may have changed"
	noToken = "0"

	maxToken = 64 << 10 // maximum size of a query in bytes
	// maximum number of connections at a time; further connections wait in the kernel's queue
	maxClients = 256
	patience   = 10 * time.Second       // time limit for a client to send its query, and then to receive the answer
	grace      = 500 * time.Millisecond // time limit that replaces patience while the server closes
	absence    = 300 * time.Millisecond // pause after "quit", and after errors of accept(2) and listen(2)
)

// Ask is a function that returns the changes since the journal position token: the next token and the changed paths,
// relative to the root. The paths of directories end with a slash. If the result all is true, the changes are not
// known, and git must examine all paths. The parameter pid is the process that asks, or 0 if it is in another pid
// namespace.
type Ask func(ctx context.Context, pid int32, token string) (next string, paths []string, all bool, err error)

// Options pass the socket from a server that died to this server, and from this server to its successor.
type Options struct {
	// Inherited is the listening socket of a server that died, or nil. The server answers the connections that already
	// wait on this socket. Serve takes ownership of the file.
	Inherited *os.File
	// Keep is called with each listening socket before clients can find it, so that the socket can be passed to a
	// successor. Keep must not close the file. It may be nil.
	Keep func(listening *os.File) error
}

// Server answers the queries on the socket of one git directory.
type Server struct {
	gitDir string
	ask    Ask                  // function that returns the answers
	keep   func(*os.File) error // the function Options.Keep
	ctx    context.Context      // canceled by Close
	cancel context.CancelFunc
	done   sync.WaitGroup // waits for run and for the clients
	room   chan struct{}  // contains one element for each open connection; its capacity limits their number

	// mu protects the fields below.
	mu       sync.Mutex
	listener *net.UnixListener      // nil during the pause after "quit"
	clients  map[*net.UnixConn]bool // open connections; Close shortens their deadlines
}

// Serve listens on the socket of a git directory and answers queries with the results of the function ask, until Close
// is called.
func Serve(gitDir string, ask Ask, o Options) (*Server, error) {
	l, err := inherit(gitDir, o.Inherited)
	if l == nil && err == nil {
		l, err = listen(gitDir, o.Keep)
	}
	if err != nil {
		return nil, fmt.Errorf("serve file system monitor: %w", err)
	}
	s := &Server{gitDir: gitDir, ask: ask, keep: o.Keep, room: make(chan struct{}, maxClients), listener: l,
		clients: map[*net.UnixConn]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.done.Add(1)
	go s.run(l)
	return s, nil
}

// inherit returns the listener for the socket of a server that died. It returns nil if the socket was shut down because
// git had sent "quit".
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
	// Repeat the rename, because the previous server may have died after it called Keep and before it renamed the socket.
	err = os.Rename(filepath.Join(gitDir, newName), filepath.Join(gitDir, query.Socket))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, l.Close())
	}
	return u, nil
}

// isShut reports whether a listening socket was shut down by shutdown(2), after which clients can no longer connect to
// it.
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

// shut refuses further connections on the listener and closes it. It calls shutdown(2), because close(2) alone would
// leave the socket open if other processes have the same socket open.
func shut(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	l.Close()
}

// listen creates a new socket and renames it to its final name, where it replaces the socket of an earlier server.
func listen(gitDir string, keep func(*os.File) error) (*net.UnixListener, error) {
	lock, err := os.OpenFile(filepath.Join(gitDir, lockName), os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lock.Close(); err != nil {
		return nil, err
	}
	// the socket is created through this descriptor, because its path is limited to 107 bytes (unix(7))
	dir, err := os.Open(gitDir)
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

// run accepts clients until the server is closed. After each "quit" it pauses for the duration absence.
func (s *Server) run(l *net.UnixListener) {
	defer s.done.Done()
	for l != nil {
		s.accept(l)
		l = s.again()
	}
}

// accept starts a goroutine for each client. It returns when the listener or the server is closed.
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
			select { // accept has failed, most likely because the process has no free file descriptors
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

// again waits for the duration absence after git has sent "quit", and then listens again. It returns nil if the server
// is closed.
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

// client reads the query of one client and sends the answer.
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
	if err := in.Fill(1); err != nil { // the client sends nothing if it only checks whether a monitor listens
		return
	}
	word, err := query.Read(in, maxToken)
	if err != nil {
		return
	}
	switch string(word) {
	case "quit":
		s.stopListening()
		_ = query.Write(c, nil)
		return
	case "flush":
		word = nil
	}
	pid, err := peer(c)
	if err != nil {
		return
	}
	next, paths, all, err := s.ask(s.ctx, pid, string(word))
	if err != nil {
		next, all = noToken, true
	}
	if s.expect(c) != nil {
		return
	}
	_ = query.Write(c, answer(next, paths, all)) // an error means that the client has exited
}

// peer returns the process that has connected.
func peer(c *net.UnixConn) (pid int32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	return pid, errors.Join(err, controlErr)
}

// expect sets the deadline for the next step of a client: to send its query, or to receive the answer.
func (s *Server) expect(c *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c] = true
	if s.ctx.Err() != nil {
		return c.SetDeadline(time.Now().Add(grace))
	}
	return c.SetDeadline(time.Now().Add(patience))
}

// answer returns an answer in the format of version 2 of the hook's protocol (githooks(5)).
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

// stopListening stops listening. For the command "quit", stopListening is called before the client gets its answer.
func (s *Server) stopListening() {
	s.mu.Lock()
	l := s.listener
	s.listener = nil
	s.mu.Unlock()
	if l != nil {
		shut(l)
	}
}

// away reports whether the server has stopped using the listener l.
func (s *Server) away(l *net.UnixListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener != l
}

// Close stops listening and waits until the queries in progress are answered. The socket file remains, so that later
// clients wait for the next server.
func (s *Server) Close() error {
	s.cancel()
	s.stopListening()
	s.mu.Lock()
	for c := range s.clients {
		c.SetDeadline(time.Now().Add(grace))
	}
	s.mu.Unlock()
	s.done.Wait()
	return nil
}
