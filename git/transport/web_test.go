package transport

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

func webRepo(t *testing.T) (*webServer, fixture) {
	t.Helper()
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	return serveWeb(t, root, false), fx
}

func TestRoundTrips(t *testing.T) {
	s, fx := webRepo(t)
	r := openRemote(t, s.URL+"/r", Options{})
	refs, err := r.Refs(t.Context(), []string{"refs/heads/main"})
	if err != nil || len(refs.List) != 1 {
		t.Fatalf("Refs = %+v, %v", refs, err)
	}
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}, Depth: 2, Filter: "blob:none"})
	if err != nil {
		t.Fatal(err)
	}
	unpack(t, fx.format, res.Pack)
	if want := []string{"GET /r/info/refs", "POST /r/git-upload-pack",
		"POST /r/git-upload-pack"}; !reflect.DeepEqual(s.requests(), want) {
		t.Errorf("requests = %q", s.requests())
	}
	if s.connections() != 1 {
		t.Errorf("got %d connections, want 1", s.connections())
	}
	if got := r.Stats(); got.Requests != 3 || got.Connections != 1 || got.RoundTrips != 4 {
		t.Errorf("Stats = %+v", got)
	}
	before := s.connections()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.blobs["noise"]}})
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, res.Pack)
				res.Pack.Close()
			}
		})
	}
	wg.Wait()
	if n := s.connections() - before; n > 3 {
		t.Errorf("12 fetches, 4 at a time, opened %d more connections, want at most 3", n)
	}
}

// TestKeptConnectionDied checks that a kept connection that the server has closed is replaced, and that this does not
// count as an attempt.
func TestKeptConnectionDied(t *testing.T) {
	s, _ := webRepo(t)
	r := openRemote(t, s.URL+"/r", Options{})
	for range 3 {
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		s.CloseClientConnections()
	}
}

func TestGzipRequest(t *testing.T) {
	s, fx := webRepo(t)
	var encodings []string
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		encodings = append(encodings, r.Header.Get("Content-Encoding"))
		h.ServeHTTP(w, r)
	})
	r := openRemote(t, s.URL+"/r", Options{})
	var wants []object.ID
	for _, id := range fx.blobs {
		wants = append(wants, id)
	}
	for _, w := range [][]object.ID{wants[:1], wants} {
		res, err := r.Fetch(t.Context(), FetchRequest{Wants: w})
		if err != nil {
			t.Fatal(err)
		}
		if got := unpack(t, fx.format, res.Pack); len(got) != len(w) {
			t.Errorf("got %d of %d objects", len(got), len(w))
		}
	}
	if want := []string{"", "", "gzip"}; !reflect.DeepEqual(encodings, want) {
		t.Errorf("Content-Encoding of the requests: %q, want %q", encodings, want)
	}
}

// status returns a handler that answers the first requests to paths with the suffix by a status: as many as times
// states, or all if it is 0.
func status(code int, header map[string]string, suffix string,
	times int) func(http.ResponseWriter, *http.Request, http.Handler) {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if !strings.HasSuffix(r.URL.Path, suffix) || times > 0 && n.Add(1) > int64(times) {
			h.ServeHTTP(w, r)
			return
		}
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		io.WriteString(w, "<html>no</html>")
	}
}

func TestStatuses(t *testing.T) {
	s, _ := webRepo(t)
	for _, c := range []struct {
		code     int
		header   map[string]string
		want     error
		requests int // expected number of requests with one retry
	}{
		{403, nil, ErrForbidden, 1},
		{404, nil, ErrNotFound, 1},
		{410, nil, ErrNotFound, 1},
		{401, nil, ErrAuth, 1},
		{401, map[string]string{"WWW-Authenticate": `Basic realm="x"`}, ErrAuth, 1},
		{500, nil, ErrUnreachable, 2},
		{503, nil, ErrUnreachable, 2},
		{200, map[string]string{"Content-Type": "text/plain"}, ErrNoV2, 1},
		{200, map[string]string{"Content-Type": "text/html; charset=utf-8"}, ErrNotFound, 1},
		{407, nil, ErrAuth, 1},
	} {
		s.set(status(c.code, c.header, "", 0))
		before := len(s.requests())
		r := openRemote(t, s.URL+"/r", Options{Retries: 1})
		_, err := r.Refs(t.Context(), nil)
		if !errors.Is(err, c.want) {
			t.Errorf("status %d: got %v, want %v", c.code, err, c.want)
		}
		if n := len(s.requests()) - before; n != c.requests {
			t.Errorf("status %d: got %d requests, want %d", c.code, n, c.requests)
		}
		if got := r.Stats(); err != nil && (got.LastError == "" || got.LastErrorAt.IsZero()) {
			t.Errorf("status %d: Stats = %+v", c.code, got)
		}
	}
}

func TestRetries(t *testing.T) {
	s, fx := webRepo(t)
	s.set(status(502, nil, "upload-pack", 2))
	r := openRemote(t, s.URL+"/r", Options{Retries: 2})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Errorf("two responses 502 and two retries: got %v", err)
	}
	s.set(status(429, map[string]string{"Retry-After": "1"}, "upload-pack", 1))
	begun := time.Now()
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}})
	if err != nil {
		t.Fatalf("one response 429: got %v", err)
	}
	res.Pack.Close()
	if d := time.Since(begun); d < time.Second {
		t.Errorf("waited %v, want the Retry-After of a second", d)
	}
	s.set(status(429, map[string]string{"Retry-After": "60"}, "upload-pack", 0))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	begun = time.Now()
	var limited RateLimited
	if _, err := r.Refs(ctx, nil); !errors.As(err, &limited) || limited.After != time.Minute {
		t.Errorf("Retry-After of a minute with 20 seconds left: got %v", err)
	}
	if d := time.Since(begun); d > 15*time.Second {
		t.Errorf("the error for a Retry-After beyond the deadline took %v", d)
	}
}

func TestRedirect(t *testing.T) {
	s, fx := webRepo(t)
	var authorized atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Secret") != "" {
			authorized.Store(true)
		}
		if strings.Contains(r.URL.Path, "/login") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend(filepath.Dir(fx.dir)).ServeHTTP(w, r)
	}))
	defer other.Close()
	to := other.URL + "/r"
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		switch _, rest, ok := strings.Cut(r.URL.Path, "/old"); {
		case ok:
			http.Redirect(w, r, to+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
		case strings.HasPrefix(r.URL.Path, "/loop"):
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		default:
			h.ServeHTTP(w, r)
		}
	})
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "http."+s.URL+".extraHeader")
	t.Setenv("GIT_CONFIG_VALUE_0", "X-Secret: s")
	withSecret := strings.Replace(s.URL, "http://", "http://me:secret@", 1)
	r := openRemote(t, withSecret+"/old", Options{Login: NewLogin("token", "")})
	for range 2 {
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.requests()); n != 1 {
		t.Errorf("requests to the old URL: got %d, want 1", n)
	}
	to = other.URL + "/login"
	if _, err := openRemote(t, withSecret+"/old", Options{Login: NewLogin("token", "")}).Refs(t.Context(),
		nil); !errors.Is(err, ErrAuth) {
		t.Errorf("redirect to a server that requires credentials: got %v", err)
	}
	if authorized.Load() {
		t.Error("secrets were sent to another host")
	}
	if _, err := openRemote(t, s.URL+"/loop", Options{}).Refs(t.Context(), nil); err == nil {
		t.Error("endless redirects succeeded")
	}
	to = other.URL + "/r/"
	t.Setenv("GIT_CONFIG_KEY_0", "http.followRedirects")
	t.Setenv("GIT_CONFIG_VALUE_0", "false")
	if _, err := openRemote(t, s.URL+"/old", Options{}).Refs(t.Context(), nil); err == nil {
		t.Error("http.followRedirects=false was ignored")
	}
}

// TestMovedLater checks that a redirect is followed that the server begins to send while the remote is in use.
func TestMovedLater(t *testing.T) {
	s, fx := webRepo(t)
	r := openRemote(t, s.URL+"/r", Options{})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fx.dir, fx.dir+"2"); err != nil {
		t.Fatal(err)
	}
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if rest, ok := strings.CutPrefix(r.URL.Path, "/r/"); ok {
			http.Redirect(w, r, "/r2/"+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		h.ServeHTTP(w, r)
	})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestOldServers(t *testing.T) {
	s, fx := webRepo(t)
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		r.Header.Del("Git-Protocol")
		h.ServeHTTP(w, r)
	})
	if _, err := openRemote(t, s.URL+"/r", Options{}).Capabilities(t.Context()); !errors.Is(err, ErrNoV2) {
		t.Errorf("server with protocol version 0: got %v", err)
	}
	git(t, fx.dir, "", "update-server-info")
	static := http.FileServer(http.Dir(filepath.Dir(fx.dir)))
	s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { static.ServeHTTP(w, r) })
	if _, err := openRemote(t, s.URL+"/r", Options{}).Capabilities(t.Context()); !errors.Is(err, ErrNoV2) {
		t.Errorf("dumb HTTP server: got %v", err)
	}
}

func TestCapabilitiesOff(t *testing.T) {
	s, fx := webRepo(t)
	git(t, fx.dir, "", "config", "uploadpack.allowFilter", "false")
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if r.Method != http.MethodGet {
			h.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder() // git before 2.40 always offers object-info
		h.ServeHTTP(rec, r)
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		io.WriteString(w, strings.Replace(rec.Body.String(), "0010object-info\n", "", 1))
	})
	r := openRemote(t, s.URL+"/r", Options{})
	c, err := r.Capabilities(t.Context())
	if err != nil || c.Filter || c.ObjectInfo || !c.Shallow {
		t.Errorf("Capabilities = %+v, %v", c, err)
	}
	if _, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.head}, Filter: "blob:none"}); err == nil {
		t.Error("a fetch with a filter that the server does not offer succeeded")
	}
	if _, err := r.ObjectInfo(t.Context(), []object.ID{fx.head}); err == nil {
		t.Error("object-info succeeded although the server does not offer it")
	}
}

func TestUnreachable(t *testing.T) {
	port := freePort(t)
	t.Setenv("GIT_SSH_COMMAND", "ssh -F /dev/null -o BatchMode=yes")
	for _, base := range []string{"http://127.0.0.1:" + port, "git://127.0.0.1:" + port, "ssh://127.0.0.1:" + port,
		"https://no-such-host.invalid", "git://no-such-host.invalid", "no-such-host.invalid:x"} {
		r := openRemote(t, base+"/r", Options{Connect: 5 * time.Second})
		if _, err := r.Refs(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("refs of %s: got %v, want ErrUnreachable", base, err)
		}
	}
}

func TestProxyFromEnvironment(t *testing.T) {
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	proxyForTests.mu.Lock()
	proxyForTests.target, proxyForTests.hosts = backend(root), nil
	proxyForTests.mu.Unlock()
	r := openRemote(t, "http://behind-proxy.invalid/r", Options{})
	if _, err := r.Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if hosts := proxyForTests.hosts; len(hosts) != 2 || hosts[0] != "behind-proxy.invalid" {
		t.Errorf("hosts requested from the proxy: got %q", hosts)
	}
	// The setting http.proxy has priority over the environment.
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "http.proxy")
	t.Setenv("GIT_CONFIG_VALUE_0", "127.0.0.1:"+freePort(t))
	if _, err := openRemote(t, "http://behind-proxy.invalid/r", Options{}).Refs(t.Context(), nil); !errors.Is(err,
		ErrUnreachable) {
		t.Errorf("unreachable proxy: got %v", err)
	}
}

func TestTLS(t *testing.T) {
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	s := serveWeb(t, root, true)
	if _, err := openRemote(t, s.URL+"/r", Options{}).Refs(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unknown certificate: got %v", err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_SSL_CAINFO", ca)
	var resumed atomic.Int64
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if r.TLS.DidResume {
			resumed.Add(1)
		}
		h.ServeHTTP(w, r)
	})
	r := openRemote(t, s.URL+"/r", Options{})
	for range 2 {
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		s.CloseClientConnections()
	}
	if resumed.Load() == 0 {
		t.Error("the second connection did not resume the TLS session")
	}
	os.Unsetenv("GIT_SSL_CAINFO")
	t.Setenv("GIT_SSL_NO_VERIFY", "1")
	if _, err := openRemote(t, s.URL+"/r", Options{}).Refs(t.Context(), nil); err != nil {
		t.Errorf("fetch without verification: %v", err)
	}
}
