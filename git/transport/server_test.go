package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// home is the home directory of all tests.
var home string

func TestMain(m *testing.M) {
	// Ignore the git configuration of the user and of the machine.
	var err error
	if home, err = os.MkdirTemp("", "transport-home"); err != nil {
		panic(err)
	}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "GIT_") && name != "GIT_EXEC_PATH" || strings.HasSuffix(strings.ToLower(name), "_proxy") ||
			name == "SSH_ASKPASS" {
			os.Unsetenv(name)
		}
	}
	os.Setenv("HOME", home)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	// net/http reads the variable once, and ignores it for loopback addresses.
	os.Setenv("http_proxy", proxyForTests.start())
	code := m.Run()
	if sshServer.stop != nil {
		sshServer.stop()
	}
	proxyForTests.server.Close()
	os.RemoveAll(home)
	os.Exit(code)
}

// fixture is a bare repository with two commits, a branch, a lightweight tag and an annotated tag.
type fixture struct {
	dir         string
	format      object.Format
	first, head object.ID
	tag         object.ID
	blobs       map[string]object.ID // blobs of the commit head, by path
}

func git(t testing.TB, dir string, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v failed: %v\n%s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func emptyRepo(t testing.TB, dir string, f object.Format) {
	t.Helper()
	if err := gittest.Init(dir, f, "[uploadpack]\n\tallowFilter = true\n[transfer]\n\tadvertiseObjectInfo = true\n"+
		"[http]\n\treceivepack = true\n"); err != nil {
		t.Fatal(err)
	}
}

func makeRepo(t testing.TB, dir string, f object.Format) fixture {
	t.Helper()
	emptyRepo(t, dir, f)
	var s strings.Builder
	commit := func(n int) {
		fmt.Fprintf(&s, "commit refs/heads/main\nmark :%d\ncommitter a <a@b> %d +0000\ndata 2\nc\n", n, 1600000000+n)
		for i := range 50 {
			data := strings.Repeat(fmt.Sprintf("line %d of file %d\n", n, i), 50+i)
			fmt.Fprintf(&s, "M 100644 inline dir/file%d\ndata %d\n%s\n", i, len(data), data)
		}
		noise := make([]byte, 300_000) // cannot be compressed, so that a pack has many packets
		for i, x := 0, uint32(n); i < len(noise); i++ {
			x = x*1664525 + 1013904223
			noise[i] = byte(x >> 24)
		}
		fmt.Fprintf(&s, "M 100644 inline noise\ndata %d\n%s\n", len(noise), noise)
	}
	commit(1)
	commit(2)
	s.WriteString("reset refs/heads/topic\nfrom :1\n\nreset refs/tags/light\nfrom :1\n\n")
	s.WriteString("tag v1\nfrom :2\ntagger a <a@b> 1600000009 +0000\ndata 2\nt\n\n")
	git(t, dir, s.String(), "fast-import", "--quiet")
	fx := fixture{dir: dir, format: f, blobs: map[string]object.ID{}}
	ids := strings.Fields(git(t, dir, "", "rev-parse", "main", "topic", "v1"))
	fx.head, fx.first, fx.tag = object.MustID(ids[0]), object.MustID(ids[1]), object.MustID(ids[2])
	for line := range strings.Lines(git(t, dir, "", "ls-tree", "-r", "main")) {
		meta, path, _ := strings.Cut(strings.TrimSpace(line), "\t")
		fx.blobs[path] = object.MustID(strings.Fields(meta)[2])
	}
	return fx
}

// webServer is git http-backend behind a handler that tests can replace.
type webServer struct {
	*httptest.Server
	mu    sync.Mutex
	log   []string        // requests, as "METHOD path"
	peers map[string]bool // client addresses, one per connection
	// numbers of accepted and of closed connections, with or without requests
	accepted, gone int
	wrap           func(http.ResponseWriter, *http.Request, http.Handler)
}

func (s *webServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.log...)
}

func (s *webServer) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.peers)
}

// accepts returns the numbers of accepted and of open connections, with or without requests.
func (s *webServer) accepts() (all, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted, s.accepted - s.gone
}

func (s *webServer) set(wrap func(http.ResponseWriter, *http.Request, http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrap = wrap
}

func backend(root string) http.Handler {
	out, _ := exec.Command("git", "--exec-path").Output()
	return &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/", Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1",
			"HOME=/nonexistent"},
		InheritEnv: []string{"PATH"},
		Stderr:     io.Discard,
		Logger:     log.New(io.Discard, "", 0),
	}
}

func serveWeb(t testing.TB, root string, secure bool) *webServer {
	t.Helper()
	s := &webServer{peers: map[string]bool{}}
	h := backend(root)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.log = append(s.log, r.Method+" "+r.URL.Path)
		s.peers[r.RemoteAddr] = true
		wrap := s.wrap
		s.mu.Unlock()
		if wrap != nil {
			wrap(w, r, h)
			return
		}
		h.ServeHTTP(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch state {
		case http.StateNew:
			s.accepted++
		case http.StateClosed, http.StateHijacked:
			s.gone++
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func openRemote(t testing.TB, url string, o Options) *Remote {
	t.Helper()
	r, err := Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// freePort returns a loopback port that was free when it was called.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// startServer runs a server that listens on a port until stop is called.
func startServer(t testing.TB, port string, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second // a busy machine may be slow to copy the output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	stop = sync.OnceFunc(func() { cmd.Process.Kill(); <-gone })
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
			return stop
		}
		select {
		case <-gone:
			t.Fatalf("%v ended: %s", cmd.Args, out.String())
		case <-ctx.Done():
			stop()
			t.Fatalf("%v did not start to listen: %v", cmd.Args, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func serveGitDaemon(t testing.TB, root string) string {
	t.Helper()
	out, _ := exec.Command("git", "--exec-path").Output()
	path := filepath.Join(strings.TrimSpace(string(out)), "git-daemon")
	if _, err := os.Stat(path); err != nil {
		t.Skip("git daemon is not installed")
	}
	port := freePort(t)
	t.Cleanup(startServer(t, port, exec.Command(path, "--export-all", "--reuseaddr", "--listen=127.0.0.1", "--port="+port,
		"--base-path="+root, root)))
	return "git://127.0.0.1:" + port
}

// sshServer is the sshd of all tests: its start costs more than a test.
var sshServer struct {
	sync.Mutex
	dir, port string
	stop      func()
}

// serveSSH returns the base URL of a real sshd, which the first call starts with new keys. It sets GIT_SSH_COMMAND for
// the test.
func serveSSH(t *testing.T) string {
	t.Helper()
	s := &sshServer
	s.Lock()
	defer s.Unlock()
	if s.stop == nil {
		startSSH(t)
	}
	t.Setenv("GIT_SSH_COMMAND", fmt.Sprintf("ssh -F /dev/null -i %s/user -o IdentitiesOnly=yes "+
		"-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes", s.dir))
	return "ssh://127.0.0.1:" + s.port
}

// startSSH starts sshServer. Its files are in the home directory of the tests.
func startSSH(t *testing.T) {
	t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		if sshd = "/usr/sbin/sshd"; exec.Command(sshd, "-V").Run() != nil {
			if _, err := os.Stat(sshd); err != nil {
				t.Skip("sshd is not installed")
			}
		}
	}
	if os.Geteuid() == 0 {
		os.MkdirAll("/run/sshd", 0o755) // sshd requires the directory if it runs as root
	}
	dir, port := filepath.Join(home, "sshd"), freePort(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	conf := fmt.Sprintf("Port %s\nListenAddress 127.0.0.1\nHostKey %[2]s/host\nAuthorizedKeysFile %[2]s/user.pub\n"+
		"StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"+
		"AcceptEnv GIT_PROTOCOL\nPidFile none\nPermitRootLogin yes\nMaxStartups 100\n"+
		"SetEnv SHLVL=2\n", port, dir) // bash then reads no .bashrc, which may take seconds
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	sshServer.stop = startServer(t, port, exec.Command(sshd, "-D", "-e", "-f", filepath.Join(dir, "conf")))
	sshServer.dir, sshServer.port = dir, port
}

// unpack indexes a pack by git in a new repository, and returns the ids of its objects.
func unpack(t testing.TB, f object.Format, p io.ReadCloser) map[object.ID]bool {
	t.Helper()
	defer p.Close()
	dir := t.TempDir()
	git(t, "/", "", "init", "-q", "--bare", "--object-format="+f.String(), dir)
	cmd := exec.Command("git", "index-pack", "--stdin", "--promisor")
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, p, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("index-pack: %v: %s", err, stderr.String())
	}
	ids := map[object.ID]bool{}
	for line := range strings.Lines(git(t, dir, "", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")) {
		ids[object.MustID(strings.TrimSpace(line))] = true
	}
	return ids
}

// forwardProxy is an HTTP proxy that sends all requests to the server target.
type forwardProxy struct {
	server *httptest.Server
	mu     sync.Mutex
	target http.Handler
	hosts  []string
}

var proxyForTests forwardProxy

func (p *forwardProxy) start() string {
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.hosts = append(p.hosts, r.URL.Host)
		h := p.target
		p.mu.Unlock()
		if h == nil {
			http.Error(w, "no target", http.StatusBadGateway)
			return
		}
		h.ServeHTTP(w, r)
	}))
	return p.server.URL
}
