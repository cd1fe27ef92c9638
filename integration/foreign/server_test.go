package foreign

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// account is the id of the account of every server; wrangler requires 32 hexadecimal digits.
const account = "0123456789abcdef0123456789abcdef"

// home is a running server, with a client for it.
type home struct {
	url    string
	admin  string // admin token
	client *client.Client
}

// lines collects the output of a process.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts the program. At the end of the test the program gets SIGTERM, and the test fails if it ends with an
// error.
func start(t *testing.T, env []string, args ...string) (stdout io.Reader, log *lines) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log = &lines{}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("artifactfs %s: %v\n%s", args[0], err, log)
		}
		if t.Failed() {
			t.Logf("artifactfs %s wrote:\n%s", args[0], log)
		}
	})
	return stdout, log
}

// serve starts a server with a new directory. The server ends with the test.
func serve(t *testing.T, flags ...string) *home {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data, "--account", account}, flags...)
	out, log := start(t, gittest.Env(), args...)
	h := &home{}
	for in := bufio.NewScanner(out); h.url == ""; {
		if !in.Scan() {
			t.Fatalf("artifactfs serve ended without its address: %v\n%s", in.Err(), log)
		}
		for _, word := range strings.Fields(in.Text()) {
			if strings.HasPrefix(word, "http://127.0.0.1:") {
				h.url = word
			}
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	admin, err := os.ReadFile(filepath.Join(data, "admin-token"))
	if err != nil {
		t.Fatal(err)
	}
	h.admin = strings.TrimSpace(string(admin))
	h.connect(t)
	return h
}

func (h *home) connect(t *testing.T) {
	t.Helper()
	var err error
	if h.client, err = client.New(client.Options{URL: h.url, Token: h.admin, HTTP: &http.Client{}}); err != nil {
		t.Fatal(err)
	}
}

// create creates a repository.
func (h *home) create(t *testing.T, name string) client.Created {
	t.Helper()
	c, err := h.client.CreateRepo(t.Context(), "foreign", client.CreateRepo{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// token creates a token for a repository.
func (h *home) token(t *testing.T, create client.CreateToken) client.NewToken {
	t.Helper()
	c, err := h.client.CreateToken(t.Context(), "foreign", create)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// owner creates a token for the REST API that is valid for one namespace.
func (h *home) owner(t *testing.T, namespace string) string {
	t.Helper()
	c, err := h.client.Extensions().CreateControlToken(t.Context(),
		client.CreateControlToken{Role: "owner", Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	return c.Plaintext
}
