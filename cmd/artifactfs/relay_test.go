package main

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// A relay that cannot start states the cause in one line, with a hint; one that runs answers, and ends with SIGTERM.
func TestRelayStarts(t *testing.T) {
	a := newAfs(t)
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := os.WriteFile(filepath.Join(a.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--listen 0.0.0.0:0", "--allow is missing", control.ExitUsage},
		{"--listen :0", "--allow is missing", control.ExitUsage},
		{"--listen 9428", "want HOST:PORT", control.ExitUsage},
		{"--allow git.example.org", "invalid URL", control.ExitUsage},
		{"--cache-size 1M", "want at least", control.ExitUsage},
		{"--tls-cert cert.pem", "must be given together", control.ExitUsage},
		{"--tls-cert none --tls-key none --listen 127.0.0.1:0", "read certificate", control.ExitFailed},
		{"--ca-file file --listen 127.0.0.1:0", "contains no certificate", control.ExitFailed},
		{"--objects ftp://host --listen 127.0.0.1:0", "scheme", control.ExitFailed},
		{"--data file --listen 127.0.0.1:0", "file", control.ExitFailed},
		{"--listen " + used.Addr().String(), "another program listens", control.ExitFailed},
	} {
		r := a.run(append([]string{"relay"}, strings.Fields(c.args)...)...)
		first, _, _ := strings.Cut(r.stderr, "\n")
		if r.code != c.code || !strings.Contains(first, c.want) || !strings.HasPrefix(first, "artifactfs: ") {
			t.Errorf("relay %s: exit %d, want %d and %q in\n%s", c.args, r.code, c.code, c.want, r.stderr)
		}
	}
	cmd := a.command("relay", "--listen", "127.0.0.1:0", "--cache-size", "64M")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "relaying at ")
	if !ok {
		t.Fatalf("relay printed %q, %v", line, err)
	}
	res, err := http.Get(url + "/healthz")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("/healthz: got %v, %v", res, err)
	}
	if r := a.run("relay", "--listen", "127.0.0.1:0"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "another relay uses the data directory") {
		t.Errorf("second relay: exit %d, %s", r.code, r.stderr)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("end of the relay: %v", err)
	}
}
