package fsmonitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// TestMain runs the tests, or the fsmonitor hook if git has started this program as the hook.
func TestMain(m *testing.M) {
	if query.IsHook(os.Args[0]) {
		os.Exit(query.Hook(os.Args, os.Stdout))
	}
	os.Exit(m.Run())
}

func serve(t *testing.T, dir string, ask Ask) *Server {
	t.Helper()
	s, err := Serve(dir, ask, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ask(t *testing.T, dir, token string) string {
	t.Helper()
	var out bytes.Buffer
	if err := query.Changes(dir, token, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAnswers(t *testing.T) {
	many := make([]string, 50_000)
	for i := range many {
		many[i] = fmt.Sprintf("a directory/and a file %d", i)
	}
	// Path that is longer than the maximum of a socket address.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	serve(t, dir, func(_ context.Context, _ int32, token string) (string, []string, bool, error) {
		switch token {
		case "none":
			return "n:1", nil, false, nil
		case "two":
			return "n:2", []string{"a/b", "c/"}, false, nil
		case "many":
			return "n:3", many, false, nil
		case "bad":
			return "", nil, false, errors.New("broken")
		}
		return "n:4", nil, true, nil
	})
	for token, want := range map[string]string{
		"none": "n:1\x00", "two": "n:2\x00a/b\x00c/\x00", "many": "n:3\x00" + strings.Join(many, "\x00") + "\x00",
		"": "n:4\x00/\x00", "other": "n:4\x00/\x00", "flush": "n:4\x00/\x00", "bad": "0\x00/\x00",
		strings.Repeat("x", maxToken): "n:4\x00/\x00",
	} {
		if got := ask(t, dir, token); got != want {
			t.Errorf("answer to token %.20q: got %.60q, want %.60q", token, got, want)
		}
	}
}

func dial(t *testing.T, dir string) net.Conn {
	t.Helper()
	t.Chdir(dir)
	c, err := net.Dial("unix", query.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestBadClients checks that clients that send invalid data, or nothing, do not affect other clients, and do not delay
// Close.
func TestBadClients(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, func(context.Context, int32, string) (string, []string, bool, error) {
		return "n:1", []string{strings.Repeat("p", 1<<20)}, false, nil
	})
	for _, said := range []string{
		"", "0", "zzzz", "0001", "0002x", "0003", "fff5", "ffff", "0005", "GET / HTTP/1.0\r\n\r\n",
		strings.Repeat("0008abcd", maxToken),
	} {
		c := dial(t, dir)
		if _, err := io.WriteString(c, said); err != nil && said == "" {
			t.Fatal(err)
		}
		if err := c.(*net.UnixConn).CloseWrite(); err != nil {
			continue // the server has closed the connection already
		}
		if said == "" {
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				t.Errorf("answer to a silent client: got %q, %v", rest, err)
			}
		}
	}
	for range 20 {
		dial(t, dir) // this client sends nothing
		if err := query.Write(dial(t, dir), []byte("t")); err != nil {
			t.Fatal(err) // this client does not read the answer
		}
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if got := ask(t, dir, "t"); !strings.HasPrefix(got, "n:1\x00ppp") {
				t.Errorf("answer: got %.20q", got)
			}
		})
	}
	all.Wait()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience / 2):
		t.Error("Close waits for silent clients")
	}
	if err := query.Changes(dir, "t", io.Discard); err == nil {
		t.Error("a closed server answers")
	}
	if _, err := os.Lstat(filepath.Join(dir, query.Socket)); err != nil {
		t.Errorf("the socket does not exist after Close, so git cannot wait for the next server: %v", err)
	}
	serve(t, dir, func(context.Context, int32, string) (string, []string, bool, error) { return "n:2", nil, false, nil })
	if got := ask(t, dir, "t"); got != "n:2\x00" {
		t.Errorf("answer of the next server: got %q", got)
	}
}

// TestCloseEndsQuestions checks that a query in progress ends when the server is closed.
func TestCloseEndsQuestions(t *testing.T) {
	dir := t.TempDir()
	asked := make(chan bool)
	s := serve(t, dir, func(ctx context.Context, _ int32, _ string) (string, []string, bool, error) {
		close(asked)
		<-ctx.Done()
		return "", nil, false, ctx.Err()
	})
	c := dial(t, dir)
	if err := query.Write(c, []byte("t")); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got, err := query.Read(pktline.NewReader(c, 100), 100); err != nil || string(got) != "0\x00/\x00" {
		t.Errorf("answer of a closed server: got %q, %v", got, err)
	}
}

// TestQuit checks that git fsmonitor--daemon stop makes the server stop, and waits until no process listens on the
// socket.
func TestQuit(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, func(context.Context, int32, string) (string, []string, bool, error) { return "n:1", nil, false, nil })
	c := dial(t, dir)
	if err := query.Write(c, []byte("quit")); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "0000" {
		t.Errorf("answer to quit: got %q, %v", rest, err)
	}
	if _, err := net.Dial("unix", query.Socket); err == nil {
		t.Error("a process still listens after quit")
	}
	for deadline := time.Now().Add(10 * time.Second); query.Changes(dir, "t", io.Discard) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the server did not listen again")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestHookArguments(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, func(_ context.Context, _ int32, token string) (string, []string, bool, error) {
		return "for " + token, nil, false, nil
	})
	for _, c := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{dir + "/" + query.HookName, "2", "t:1"}, 0, "for t:1\x00"},
		{[]string{dir + "/" + query.CarefulName, "2", "t:1"}, 0, "for t:1\x00"},
		{[]string{query.Beside(dir, query.HookName), "2", "t:1"}, 0, "for t:1\x00"},
		{[]string{query.Beside(dir+"/", query.CarefulName), "2", "t:1"}, 0, "for t:1\x00"},
		{[]string{dir + "/artifactfs/" + query.CarefulName, "2", "t:1"}, 0, "for t:1\x00"},
		{[]string{dir + "/other/" + query.HookName, "2", "t:1"}, 1, ""},
		{[]string{dir + "/" + query.HookName + "-x", "2", "t:1"}, 1, ""},
		{[]string{dir + "/" + query.HookName, "1", "123"}, 2, ""},
		{[]string{dir + "/" + query.HookName}, 2, ""},
		{[]string{"/nonexistent/" + query.HookName, "2", "t:1"}, 1, ""},
	} {
		var out bytes.Buffer
		if code := query.Hook(c.args, &out); code != c.code || out.String() != c.out {
			t.Errorf("hook with the arguments %q: got exit status %d and output %q", c.args, code, out.String())
		}
	}
	for name, want := range map[string]bool{
		"artifactfs": false, "/usr/bin/artifactfs": false, "artifactfs-csi": false, "artifactfs-fsmonitor": true,
		"./artifactfs-fsmonitor-careful": true, "/m/1/git-artifactfs-fsmonitor": true,
		".git/artifactfs/artifactfs-fsmonitor-careful": true, "/artifactfs-fsmonitor/artifactfs": false,
		"xartifactfs-fsmonitor": false, "": false,
	} {
		if got := query.IsHook(name); got != want {
			t.Errorf("IsHook(%q): got %v", name, got)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"0000", "0005a0000", "0004", "fff0", "0005a", "000", "zzzz0000"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 1000
		text, err := query.Read(pktline.NewReader(bytes.NewReader(in), 100), limit)
		if err != nil {
			return
		}
		if len(text) > limit {
			t.Fatalf("encoded answer has %d bytes", len(text))
		}
		var out bytes.Buffer
		if err := query.Write(&out, text); err != nil {
			t.Fatal(err)
		}
		if again, err := query.Read(pktline.NewReader(&out, 100), limit); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("answer %q was parsed as %q, %v", text, again, err)
		}
	})
}
