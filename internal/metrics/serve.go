package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	unixPrefix = "unix:"
	headerTime = 10 * time.Second // timeout for the header of a request to arrive
	probeTime  = time.Second      // timeout for checking whether a process accepts connections at the socket
)

// Address is the address at which metrics are served: a unix socket, which only its owner can use, or a loopback
// address.
type Address struct {
	path string // path of the socket; "" if the address consists of host and port
	host string // "localhost", or an IP address of the loopback
	port string // port of a loopback address
}

// ParseAddress parses unix:PATH or HOST:PORT. It refuses addresses that other hosts could reach.
func ParseAddress(text string) (Address, error) {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		if path == "" {
			return Address{}, errors.New("unix: must be followed by a path")
		}
		path, err := filepath.Abs(path)
		return Address{path: path}, err
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Address{}, errors.New("address has neither the form unix:PATH nor HOST:PORT")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return Address{}, fmt.Errorf("invalid port %q", port)
	}
	if !isLoopback(host) {
		return Address{}, fmt.Errorf("address %q is not a loopback address, so other hosts could connect", host)
	}
	return Address{host: host, port: port}, nil
}

// isLoopback reports whether only this host can reach the address.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// String returns the address as ParseAddress reads it.
func (a Address) String() string {
	if a.path != "" {
		return unixPrefix + a.path
	}
	return net.JoinHostPort(a.host, a.port)
}

// Listen starts to listen at the address. If another process listens there, the error wraps syscall.EADDRINUSE.
func (a Address) Listen() (net.Listener, error) {
	if a.path == "" {
		l, err := net.Listen("tcp", a.String())
		if err != nil {
			return nil, fmt.Errorf("listen for metrics: %w", err)
		}
		return l, nil
	}
	l, err := listenUnix(a.path)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics at %s: %w", a.path, err)
	}
	return l, nil
}

// listenUnix creates the socket under a temporary name and renames it after its mode is set, so that other users can
// never connect. It replaces a socket that a dead process has left.
func listenUnix(path string) (net.Listener, error) {
	// A socket that accepts a connection belongs to a live process. A socket that refuses connections was left by a dead
	// process, so it can be replaced.
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("another file that is not a socket exists")
		}
		conn, err := net.DialTimeout("unix", path, probeTime)
		if err == nil {
			conn.Close()
			return nil, syscall.EADDRINUSE
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
			return nil, err
		}
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	os.Remove(fresh) // an earlier process with the same process ID may have left this file
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Serve removes the socket, because it is renamed below and the listener does not know its final name.
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(fresh, 0o600); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		os.Remove(fresh)
		l.Close()
		return nil, err
	}
	return l, nil
}

// Serve answers HTTP requests at l until ctx ends, and then returns nil. /metrics returns the output of write, and
// Go's profiles are below /debug/pprof/.
func (a Address) Serve(ctx context.Context, l net.Listener, write func(ctx context.Context, out io.Writer) error) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		if err := write(r.Context(), w); err != nil {
			panic(http.ErrAbortHandler) // abort the reply, so that the client does not mistake an incomplete reply for a complete one
		}
	})
	// /debug/pprof/cmdline is not served, because a command line may contain a secret.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "/metrics\n/debug/pprof/\n") })
	s := &http.Server{Handler: a.own(mux), ReadHeaderTimeout: headerTime}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	err := s.Serve(l)
	if a.path != "" {
		os.Remove(a.path)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve metrics: %w", err)
}

// own protects h from web pages of other hosts that a user views in a browser on this host. Such a page can reach h
// if the name of its host is made to resolve to the loopback address; own refuses requests whose Host header has such
// a name.
func (a Address) own(h http.Handler) http.Handler {
	if a.path != "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !isLoopback(strings.Trim(host, "[]")) {
			http.Error(w, "ask by a loopback address", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
