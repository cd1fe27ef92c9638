package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server"
	"github.com/artifactfs/artifactfs/server/client"
)

// startQuick runs a server with short time limits for clients until the test ends.
func startQuick(t *testing.T, o server.Options, body, answer time.Duration) *server.Server {
	t.Helper()
	o.Data, o.Listen, o.Log = t.TempDir(), "127.0.0.1:0", zap.NewNop()
	s, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.SetTimes(body, answer)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	})
	return s
}

// dial connects to a server. Reads and writes of the connection fail after await.Patience.
func dial(t *testing.T, s *server.Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBodyThatIsNotSent checks that a client that announces a body and does not send it gets an answer, and loses its
// connection.
func TestBodyThatIsNotSent(t *testing.T) {
	s := startQuick(t, server.Options{}, 50*time.Millisecond, time.Minute)
	for path, want := range map[string]int{
		"/git/a/b.git/git-upload-pack":                               http.StatusUnauthorized,
		"/client/v4/accounts/" + s.Account + "/artifacts/namespaces": http.StatusUnauthorized,
		"/client/v4/elsewhere":                                       http.StatusNotFound,
		"/unknown":                                                   http.StatusNotFound,
		"/openapi.json":                                              http.StatusMethodNotAllowed,
		"/readyz":                                                    http.StatusOK,
	} {
		for _, framing := range []string{"Content-Length: 1000\r\n\r\n{", "Content-Length: 300000\r\n\r\n",
			"Transfer-Encoding: chunked\r\n\r\n5\r\n{"} {
			c := dial(t, s)
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-upload-pack-request\r\n%s",
				path, framing)
			in := bufio.NewReader(c)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Errorf("POST %s, %q: %v", path, framing, err)
				continue
			}
			if res.StatusCode != want {
				t.Errorf("POST %s, %q: got status %d, want %d", path, framing, res.StatusCode, want)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Errorf("POST %s, %q: read the answer: %v", path, framing, err)
			}
			if _, err := in.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
				t.Errorf("POST %s, %q: connection is still open: %v", path, framing, err)
			}
		}
	}
}

// TestExpectContinueIsRefused checks that a client that sends "Expect: 100-continue" gets the status at once if the
// server does not need the body.
func TestExpectContinueIsRefused(t *testing.T) {
	s := startQuick(t, server.Options{}, time.Hour, time.Hour)
	for _, path := range []string{"/git/a/b.git/git-receive-pack",
		"/client/v4/accounts/" + s.Account + "/artifacts/namespaces", "/unknown"} {
		c := dial(t, s)
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-receive-pack-request\r\n"+
			"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n", path)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("POST %s: %v", path, err)
			continue
		}
		if res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusNotFound {
			t.Errorf("POST %s: got status %d, want 401 or 404", path, res.StatusCode)
		}
		res.Body.Close()
		c.Close()
	}
}

// TestAnswersThatAreNotRead checks that a client that sends requests and reads no answers loses its connection.
func TestAnswersThatAreNotRead(t *testing.T) {
	s := startQuick(t, server.Options{}, time.Minute, 100*time.Millisecond)
	for _, path := range []string{"/openapi.json", "/metrics", "/unknown"} {
		c := dial(t, s)
		request := []byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
		var err error
		for err == nil { // until the server does not read any more, and then closes the connection
			_, err = c.Write(request)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("GET %s: connection is still open", path)
		}
	}
}

// TestLongRequests checks that streams and transfers may take longer than other answers.
func TestLongRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const answer = 4 * time.Second // a busy machine creates a repository in less
	for version, o := range map[int]server.Options{
		1: {},
		2: {TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")},
	} {
		t.Run(fmt.Sprintf("HTTP%d", version), func(t *testing.T) {
			t.Parallel()
			var roots *x509.CertPool
			if version == 2 {
				roots = writeCertificate(t, o.TLSCert, o.TLSKey, 1)
			}
			s := startQuick(t, o, time.Second, answer)
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
			t.Cleanup(transport.CloseIdleConnections)
			web := &http.Client{Transport: transport}
			c, err := client.New(client.Options{URL: s.URL, Token: string(s.Admin), HTTP: web})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "app"}); err != nil {
				t.Fatal(err)
			}
			do := func(method, path, kind string, body io.Reader) *http.Response {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+string(s.Admin))
				r.Header.Set("Content-Type", kind)
				res, err := web.Do(r)
				if err != nil {
					t.Fatalf("%s %s: %v", method, path, err)
				}
				if res.StatusCode != http.StatusOK || res.ProtoMajor != version {
					t.Fatalf("%s %s: got status %d by HTTP/%d, want 200 by HTTP/%d", method, path, res.StatusCode,
						res.ProtoMajor, version)
				}
				return res
			}
			stream := do(http.MethodGet, "/artifactfs/v1/accounts/"+s.Account+"/events", "", nil)
			defer stream.Body.Close()
			begin := time.Now()
			over := make(chan struct{}) // closed when all requests have taken longer than the limit for other requests
			go func() {
				defer close(over)
				<-time.After(2 * answer)
			}()
			for _, service := range []string{"git-upload-pack", "git-receive-pack"} {
				body, more := io.Pipe()
				go func() {
					io.WriteString(more, "00")
					<-over
					io.WriteString(more, "00")
					more.Close()
				}()
				res := do(http.MethodPost, "/git/team/app.git/"+service, "application/x-"+service+"-request", body)
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					t.Errorf("%s: %v", service, err)
				}
				res.Body.Close()
			}
			if took := time.Since(begin); took < 2*answer {
				t.Errorf("requests took %s, which is too short to test anything", took)
			}
			if _, err := c.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "late"}); err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(stream.Body); ; {
				if !lines.Scan() {
					t.Fatalf("stream of events ended: %v", lines.Err())
				}
				if strings.HasPrefix(lines.Text(), "data:") && strings.Contains(lines.Text(), "late") {
					break
				}
			}
		})
	}
}

// TestTrustedProxy checks that the audit log names the client for which a trusted proxy has sent a request.
func TestTrustedProxy(t *testing.T) {
	var proxies server.Proxies
	if err := proxies.Set("127.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, server.Options{Data: t.TempDir(), Proxies: proxies})
	await.Until(t, "the audit log names the client", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/artifactfs/v1/accounts/"+s.Account+"/audit",
			nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+string(s.Admin))
		r.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.9")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && strings.Contains(string(text), `"remote":"203.0.113.9"`)
	})
}
