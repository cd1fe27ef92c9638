package metrics

import (
	"context"
	"crypto/subtle"
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

// Address is the address at which metrics are served: a unix socket, which only its owner can use, or an IP address
// with a port.
type Address struct {
	path string // path of the socket; "" if the address consists of host and port
	host string // "localhost", or an IP address
	port string
}

// ParseAddress parses unix:PATH or HOST:PORT. HOST is localhost or an IP address. Other names are refused, because
// their addresses could change later.
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
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return Address{}, fmt.Errorf("host %q is neither localhost nor an IP address", host)
	}
	return Address{host: host, port: port}, nil
}

// IsRemote reports whether other hosts can connect to the address. For such an address, Serve requires a token.
func (a Address) IsRemote() bool { return a.host != "" && !isLoopback(a.host) }

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

// Listen starts to listen at the address. If another process already listens there, the error wraps syscall.EADDRINUSE.
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

// listenUnix creates a unix socket that other users can never connect to: it creates the socket under a temporary name,
// sets its mode, and renames it to path. It replaces a socket of a process that has ended.
func listenUnix(path string) (net.Listener, error) {
	// A socket that accepts a connection belongs to a running process. A socket that refuses connections belonged to a
	// process that has ended, so it can be replaced.
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("existing file is not a socket")
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
	// Serve removes the socket. The listener cannot do so, because the socket is renamed below.
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

// Handler holds the functions that produce the replies to requests for metrics.
type Handler struct {
	Write func(ctx context.Context, out io.Writer) error // writes the metrics
	// Token returns the token that every request must contain. If Token is nil, requests need no token.
	Token func() (string, error)
}

// Serve answers HTTP requests at l until ctx ends, and then returns nil. The path /metrics returns the output of
// h.Write. The paths below /debug/pprof/ return Go's profiles. Profiles are not served if other hosts can connect,
// because they contain more information than metrics and take processor time.
func (a Address) Serve(ctx context.Context, l net.Listener, h Handler) error {
	if a.IsRemote() && h.Token == nil {
		return fmt.Errorf("serve metrics at %s: other hosts can connect, and no token is required", a)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		if err := h.Write(r.Context(), w); err != nil {
			// aborts the reply, so that the client does not mistake an incomplete reply for a complete one
			panic(http.ErrAbortHandler)
		}
	})
	if !a.IsRemote() {
		addProfiles(mux)
	}
	s := &http.Server{Handler: a.own(h.authorized(mux)), ReadHeaderTimeout: headerTime}
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

// addProfiles adds handlers for Go's profiles, and a page that lists the paths, to mux.
func addProfiles(mux *http.ServeMux) {
	// /debug/pprof/cmdline is not served, because a command line may contain a secret.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /{$}",
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "/metrics\n/debug/pprof/\n") })
}

// authorized returns a handler that passes requests with the right token to next, and refuses all others. It reads the
// token for each request, so that the token can be replaced while the process runs.
func (h Handler) authorized(next http.Handler) http.Handler {
	if h.Token == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := h.Token()
		if err != nil {
			http.Error(w, "the token of this host cannot be read", http.StatusServiceUnavailable)
			return
		}
		sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// The comparison takes the same time for every wrong token.
		if !ok || token == "" || subtle.ConstantTimeCompare([]byte(sent), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "send the token in the header Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// own returns a handler that refuses requests whose Host header does not name this host, and passes the others to h.
// This protects h from web pages of other hosts in a user's browser, which could otherwise reach h if their host name
// resolves to the loopback address.
func (a Address) own(h http.Handler) http.Handler {
	if a.path != "" || a.IsRemote() {
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
