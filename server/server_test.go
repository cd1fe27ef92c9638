package server_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/server/running"
)

// TestMain runs the tests. If an environment variable names a data directory, it runs a server instead: tests that kill
// a server start this program with the variable.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_SERVER_DATA"); dir != "" {
		s, err := server.Open(context.Background(), server.Options{Data: dir, Listen: "127.0.0.1:0", Log: zap.NewNop()})
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString(s.URL + "\n")
		s.Serve(context.Background())
		return
	}
	os.Exit(m.Run())
}

// start runs a server until the test ends. It returns the server, and a function that stops it earlier.
func start(t *testing.T, o server.Options) (s *server.Server, stop func()) {
	t.Helper()
	o.Listen, o.Log = "127.0.0.1:0", zap.NewNop()
	s, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

func connect(t *testing.T, url, token string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: url, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestStartAgain checks that the first start creates an account and an admin token, which is written to a file, and
// that a later start keeps both.
func TestStartAgain(t *testing.T) {
	dir := t.TempDir()
	s, stop := start(t, server.Options{Data: dir})
	if s.Admin == "" {
		t.Error("first start has no admin token")
	}
	text, err := os.ReadFile(filepath.Join(dir, "admin-token"))
	if err != nil || strings.TrimSpace(string(text)) != string(s.Admin) {
		t.Errorf("file of the admin token: got %q, %v", text, err)
	}
	for _, name := range []string{"admin-token", "server.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: got %v, %v, want 0600", name, info.Mode(), err)
		}
	}
	c := connect(t, s.URL, string(s.Admin))
	if _, err := c.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "app"}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n",
		"/metrics":      "artifactfs_server_start_time_seconds",
		"/openapi.json": `"openapi"`, "/": `name="token"`} {
		if status, text := get(t, s.URL+path); status != 200 || !strings.Contains(text, want) {
			t.Errorf("GET %s: got %d and %.80q, want %q", path, status, text, want)
		}
	}
	_, err = server.Open(t.Context(), server.Options{Data: dir, Listen: "127.0.0.1:0", Log: zap.NewNop()})
	if !errors.Is(err, server.ErrInUse) {
		t.Errorf("second server in the directory: got %v, want %v", err, server.ErrInUse)
	}
	more, err := server.NewAdmin(t.Context(), server.Options{Data: dir}) // the server runs in the meantime
	if err != nil {
		t.Fatal(err)
	}
	stop()
	again, _ := start(t, server.Options{Data: dir})
	if again.Admin != "" || again.Account != s.Account {
		t.Errorf("second start: got a new token %v and account %s, want none and %s", again.Admin != "",
			again.Account, s.Account)
	}
	for _, token := range []string{string(s.Admin), string(more)} {
		if _, err := connect(t, again.URL, token).Repo(t.Context(), "team", "app"); err != nil {
			t.Errorf("admin token after a restart: %v", err)
		}
	}
}

// TestGivenAdminToken checks that a token that an operator has written into the file is valid on every node.
func TestGivenAdminToken(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	token := "afs_admin_" + strings.Repeat("0a", 20)
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := server.Options{Data: filepath.Join(dir, "data"), AdminTokenFile: file, Account: strings.Repeat("ab", 16)}
	for range 2 {
		s, stop := start(t, o)
		if id, err := connect(t, s.URL, token).Account(t.Context()); s.Admin != "" || err != nil || id != o.Account {
			t.Errorf("server with a given token: got a new token %v, account %s, %v", s.Admin != "", id, err)
		}
		stop()
	}
	for text, want := range map[string]string{"short\n": "must consist of", "": "empty", "a\nb\n": "more than one line"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Listen, o.Log = "127.0.0.1:0", zap.NewNop()
		s, err := server.Open(t.Context(), o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("file with %q: got %v, want %q", text, err, want)
		}
	}
}

// TestStopWithStream checks that a server can stop while a client reads a stream of events.
func TestStopWithStream(t *testing.T) {
	s, stop := start(t, server.Options{Data: t.TempDir()})
	c := connect(t, s.URL, string(s.Admin))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		s.URL+"/artifactfs/v1/accounts/"+s.Account+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+string(s.Admin))
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("stream of events: %v, %v", res, err)
	}
	defer res.Body.Close()
	if _, err := c.CreateRepo(t.Context(), "team", client.CreateRepo{Name: "app"}); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "data:") {
	}
	if !strings.Contains(lines.Text(), "cf.artifacts.repo.created") {
		t.Errorf("first event: got %q", lines.Text())
	}
	begin := time.Now()
	stop()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("stopping took %s", took)
	}
}

// TestStopWaitsForRequests checks that a request that is running when the server is stopped gets its answer.
func TestStopWaitsForRequests(t *testing.T) {
	dir := t.TempDir()
	s, stop := start(t, server.Options{Data: dir})
	body, more := io.Pipe()
	reading := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(reading) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		s.URL+"/client/v4/accounts/"+s.Account+"/artifacts/namespaces/team/repos", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+string(s.Admin))
	req.Header.Set("Expect", "100-continue") // the client sends the body when the server begins to read it
	sender := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	answered := make(chan int, 1)
	go func() {
		res, err := sender.Do(req)
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		res.Body.Close()
		answered <- res.StatusCode
	}()
	<-reading
	if _, err := io.WriteString(more, `{"name":`); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	await.Until(t, "the server refuses connections", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Error("the server stopped while a request was running")
	default:
	}
	if _, err := io.WriteString(more, `"late"}`); err != nil {
		t.Fatal(err)
	}
	more.Close()
	if status := <-answered; status != http.StatusCreated {
		t.Errorf("request that was running: got status %d, want %d", status, http.StatusCreated)
	}
	<-stopped
	again, _ := start(t, server.Options{Data: dir})
	if _, err := connect(t, again.URL, string(s.Admin)).Repo(t.Context(), "team", "late"); err != nil {
		t.Errorf("repository after the restart: %v", err)
	}
}

// TestKill checks that the directory of a killed server can be opened again, and contains everything that was
// acknowledged.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TEST_SERVER_DATA="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("round %d: server did not start: %v", round, err)
		}
		token, err := running.ReadToken(filepath.Join(dir, "admin-token"))
		if err != nil {
			t.Fatal(err)
		}
		c := connect(t, strings.TrimSpace(line), string(token))
		for _, name := range names {
			if _, err := c.Repo(t.Context(), "team", name); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		killed := make(chan struct{})
		go func() { // kill the server while it creates repositories
			defer close(killed)
			time.AfterFunc(time.Duration(20+round*7)*time.Millisecond, func() { cmd.Process.Kill() })
			cmd.Wait()
		}()
		for n := 0; ; n++ {
			name := "r" + string(rune('a'+round)) + "-" + big.NewInt(int64(n)).String()
			if _, err := c.CreateRepo(t.Context(), "team", client.CreateRepo{Name: name}); err != nil {
				break
			}
			names = append(names, name)
		}
		<-killed
	}
	if len(names) == 0 {
		t.Error("no repository was created")
	}
}

// TestCertificateIsReadAgain checks that the server uses a certificate that was replaced while it runs.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := writeCertificate(t, cert, key, 1)
	s, _ := start(t, server.Options{Data: filepath.Join(dir, "data"), TLSCert: cert, TLSKey: key})
	if !strings.HasPrefix(s.URL, "https://") {
		t.Fatalf("URL: got %s, want https", s.URL)
	}
	serial := func(pool *x509.CertPool) int64 {
		t.Helper()
		c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{RootCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(first); got != 1 {
		t.Errorf("certificate: got %d, want 1", got)
	}
	if err := os.WriteFile(key, []byte("half of a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(first); got != 1 {
		t.Errorf("certificate while the files are replaced: got %d, want 1", got)
	}
	second := writeCertificate(t, cert, key, 2)
	if got := serial(second); got != 2 {
		t.Errorf("certificate after it was replaced: got %d, want 2", got)
	}
}

// writeCertificate writes a certificate for 127.0.0.1, and returns a pool that trusts it. The modification time of the
// files depends on the serial number.
func writeCertificate(t *testing.T, cert, key string, serial int64) *x509.CertPool {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(serial) * time.Second)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return pool
}

// TestObjectStoreAtStart checks that a server does not start if the object store refuses it. It starts if the object
// store does not answer, because it can serve the packs that it has, and reports that it is not ready.
func TestObjectStoreAtStart(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	status := http.StatusNotFound
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
	defer store.Close()
	options := server.Options{Data: t.TempDir(), Listen: "127.0.0.1:0", Log: zap.NewNop(),
		Objects: "s3://bucket/prefix?endpoint=" + store.URL}
	for _, status = range []int{http.StatusNotFound, http.StatusForbidden} {
		if _, err := server.Open(t.Context(), options); !errors.Is(err, server.ErrObjects) {
			t.Errorf("start with a store that answers %d: got %v, want %v", status, err, server.ErrObjects)
		}
	}
	store.Close()
	s, _ := start(t, options)
	if status, text := get(t, s.URL+"/readyz"); status != http.StatusServiceUnavailable ||
		text != "object store is unavailable\n" {
		t.Errorf("readyz while the store does not answer: got %d and %q", status, text)
	}
}
