package gittest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// ServerOptions configures a server and its simulated network line.
type ServerOptions struct {
	Root      string        // all repositories below this directory are served, including those behind symbolic links
	Addr      string        // host and port to listen on; "" for a free port of 127.0.0.1
	RTT       time.Duration // round-trip time
	Bandwidth int64         // bandwidth of each direction in bytes per second; 0 for no limit
	// if true, packs are not read: requests, wants and objects are counted, and blobs are Uncounted
	Cheap bool
	// Config contains settings of the form KEY=VALUE for git, which override those of the repositories. Without them
	// and settings of the repositories, partial clones and requests for any object are allowed, and requests for the
	// sizes of objects are not (transfer.advertiseObjectInfo).
	Config []string
	Each   func(Request) // called for each complete request, from several goroutines
	Stderr io.Writer     // receives the error output of git's processes; if nil, it is discarded
}

// Server serves git repositories until Close is called.
type Server struct {
	scheme string
	root   string
	home   string // directory with the server's own files, such as its configuration and keys
	config []string
	cheap  bool

	stderr   io.Writer
	log      *Log
	link     link
	group    group
	wg       sync.WaitGroup
	readers  chan struct{} // semaphore that limits how many packs are read at the same time
	shutdown []func()      // functions that Close calls after it has closed the link

	mu         sync.Mutex
	closed     bool
	injections []*Injection
}

// newServer returns a Server with the parts that all kinds of servers have. The caller must complete it and then call
// open.
func newServer(scheme string, o ServerOptions) (*Server, error) {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", o.Root, err)
	}
	if info, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("serve %s: %w", o.Root, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("serve %s: not a directory", o.Root)
	}
	home, err := os.MkdirTemp("", "gittest-server-*")
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", o.Root, err)
	}
	if err := os.WriteFile(filepath.Join(home, "gitconfig"), []byte(globalConfig), 0o644); err != nil {
		os.RemoveAll(home)
		return nil, fmt.Errorf("serve %s: %w", o.Root, err)
	}
	s := &Server{scheme: scheme, root: root, home: home, config: slices.Clone(o.Config), cheap: o.Cheap,
		stderr: o.Stderr, log: newLog(o.Each), readers: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	s.link.opened = s.log.connection
	s.link.rtt.Store(int64(o.RTT))
	s.link.bandwidth.Store(o.Bandwidth)
	return s, nil
}

func (s *Server) open(addr string) error {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	return s.link.open(addr)
}

// Serve starts a smart HTTP server that runs git http-backend. It refuses pushes unless the repository's setting
// http.receivepack allows them.
func Serve(o ServerOptions) (*Server, error) {
	path, err := program("git-http-backend")
	if err != nil {
		return nil, err
	}
	s, err := newServer("http", o)
	if err != nil {
		return nil, err
	}
	inner := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.link.dial = inner.dial
	h := &handler{s: s, backend: backend{s, path}}
	web := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*pipeConn).number)
		}}
	s.wg.Go(func() { web.Serve(inner) })
	s.shutdown = append(s.shutdown, func() { web.Close() })
	if err := s.open(o.Addr); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// URL returns the URL of a repository. repo is the path of the repository, relative to Root or absolute.
func (s *Server) URL(repo string) string {
	if rel, err := filepath.Rel(s.root, repo); filepath.IsAbs(repo) && err == nil {
		repo = rel
	}
	s.link.mu.Lock()
	addr := s.link.addr
	s.link.mu.Unlock()
	return s.scheme + "://" + addr + "/" + strings.TrimPrefix(filepath.ToSlash(repo), "/")
}

// Repos returns the names of the repositories below Root, in the form that URL accepts. "." means that Root itself is a
// repository.
func (s *Server) Repos() ([]string, error) {
	var found []string
	var visit func(dir, name string, depth int) error
	visit = func(dir, name string, depth int) error {
		if isRepo(dir) {
			found = append(found, name)
			return nil
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("list repositories: %w", err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			// the depth is limited, because symbolic links may form a cycle
			if info, err := os.Stat(path); err == nil && info.IsDir() && depth < 8 {
				if err := visit(path, filepath.Join(name, e.Name()), depth+1); err != nil && !errors.Is(err, fs.ErrPermission) {
					return err
				}
			}
		}
		return nil
	}
	return found, visit(s.root, ".", 0)
}

// isRepo reports whether dir is a bare repository or a working tree with a directory .git.
func isRepo(dir string) bool {
	for _, d := range []string{dir, filepath.Join(dir, ".git")} {
		_, err := os.Stat(filepath.Join(d, "HEAD"))
		_, err2 := os.Stat(filepath.Join(d, "objects"))
		if err == nil && err2 == nil {
			return true
		}
	}
	return false
}

// Log returns the log of requests.
func (s *Server) Log() *Log { return s.log }

// SetRTT changes the round-trip time for all bytes that are sent from now on.
func (s *Server) SetRTT(rtt time.Duration) { s.link.rtt.Store(int64(rtt)) }

// Down closes all connections and refuses new connections until Up is called.
func (s *Server) Down() { s.link.cut() }

// Silence closes all connections. Until Up is called, new connections get no answer, as behind a firewall that drops
// packets.
func (s *Server) Silence() error { return s.link.silence() }

// Lose makes the kernel drop every packet that a client sends, on existing and new connections, until end is called.
// Neither the client nor the server is notified.
func (s *Server) Lose() (end func(), err error) { return s.link.lose() }

// Up listens at the same port again, after Down or Silence.
func (s *Server) Up() error { return s.link.listen() }

// Close closes all connections, ends all processes, and waits until they have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	s.group.close()
	s.link.close()
	for _, f := range s.shutdown {
		f()
	}
	s.wg.Wait()
	if err := os.RemoveAll(s.home); err != nil {
		return fmt.Errorf("close server: %w", err)
	}
	return nil
}

// enter records that a handler begins. It returns false if the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

type connKey struct{}

// pipeListener passes the link's connections to net/http in memory, so that no second port is needed.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// pipeConn is the server's end of a connection. number is the number of the connection in the log.
type pipeConn struct {
	net.Conn
	number int
}

func (l *pipeListener) dial(number int) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- &pipeConn{theirs, number}:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

const (
	maxAsk   = 64 << 20  // maximum size in bytes of a request as it was sent
	maxPlain = 256 << 20 // maximum size in bytes of a decoded request
)

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return b, err
}

func gunzip(r *bytes.Reader) ([]byte, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return readAtMost(z, maxPlain)
}
