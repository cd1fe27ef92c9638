package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/server/client"
)

const (
	hostileIdle = 3000 // connections that never send a request
	hostileSlow = 200  // connections that send a byte of a header every half second
	// bytes by which the server's memory may grow during the test; git needs 150 MiB for the 16 MiB of commands that one
	// push may send
	hostileMore = 256 << 20
	slowHeader  = 10 * time.Second
)

// A server serves other clients, within limits of memory, while thousands of connections send no request, or send it
// slowly. Slow clients are disconnected.
func TestServerAmongIdleAndSlowClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	raiseOpenFiles(t)
	c := newLoneServer(w)
	n := c.nodes[0]
	before := residentOf(t, n)
	open := func() net.Conn { return must[net.Conn](t)(net.Dial("tcp", n.addr)) }
	for range hostileIdle {
		conn := open()
		t.Cleanup(func() { conn.Close() })
	}
	ended := make(chan time.Duration, hostileSlow)
	var slow sync.WaitGroup
	defer slow.Wait()
	for range hostileSlow {
		conn := open()
		slow.Go(func() {
			defer conn.Close()
			start := now()
			io.WriteString(conn, "GET /readyz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			for time.Since(start.at) < patience {
				if _, err := conn.Write([]byte("a")); err != nil {
					break
				}
				conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				var answer [512]byte
				if _, err := conn.Read(answer[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
			}
			ended <- start.elapsed()
		})
	}
	l := &serverTrial{w: w, c: c, failures: map[string]int{}}
	start := time.Now()
	l.makeRepos(3)
	l.sound(*l.repos[0], n)
	took := time.Since(start)
	if grown := residentOf(t, n) - before; grown > hostileMore {
		t.Errorf("memory of the server has grown by %d MiB, may grow by %d", grown>>20, hostileMore>>20)
	} else {
		t.Logf("beside %d idle and %d slow connections, three repositories were made, pushed to and one cloned in %v; the server has grown by %d MiB", hostileIdle, hostileSlow, took, grown>>20)
	}
	slow.Wait()
	close(ended)
	for d := range ended {
		if d > slowHeader+20*time.Second { // time that a busy machine may add
			t.Fatalf("a client that sends a byte of its header every 0.5 s was disconnected after %v, want about %v",
				d, slowHeader)
		}
	}
}

// raiseOpenFiles lets this process open as many files as the system allows. Processes that it starts inherit the limit.
func raiseOpenFiles(t *testing.T) {
	t.Helper()
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Max < hostileIdle+hostileSlow+1000 {
		t.Skipf("this process may open only %d files", limit.Max)
	}
	old := limit
	limit.Cur = limit.Max
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
}

// residentOf returns the resident memory of a node in bytes.
func residentOf(t *testing.T, n *clusterNode) int64 {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	text := must[[]byte](t)(os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid)))
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("the kernel does not state the resident memory")
	return 0
}

// endless is a body that repeats a text without end, and counts the bytes that were read.
type endless struct {
	text string
	n    int64
}

// Read implements io.Reader.
func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[(e.n+int64(i))%int64(len(e.text))]
	}
	e.n += int64(len(p))
	return len(p), nil
}

// The server refuses a body that exceeds the maximum size before it has read the whole body, and a compressed body that
// expands to more than the maximum. The server's memory stays within limits.
func TestServerRefusesOversizeBodies(t *testing.T) {
	w := newWorld(t)
	c := newLoneServer(w)
	n := c.nodes[0]
	api := c.api()
	made, err := api.CreateRepo(t.Context(), trialSpace, client.CreateRepo{Name: "victim"})
	check(t, err)
	account, err := api.Account(t.Context())
	check(t, err)
	before := residentOf(t, n)

	const id = "0123456789012345678901234567890123456789"
	const want, command = "0032want " + id + "\n", "0063" + id + " " + id + " refs/heads/x\n"
	bomb := func(text string) io.Reader { // 512 MiB
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := io.Copy(z, io.LimitReader(&endless{text: text}, 512<<20))
		check(t, errors.Join(err, z.Close()))
		return &packed
	}
	git := strings.Replace(made.Remote, c.proxy.url(), "http://"+n.addr, 1)
	for _, body := range []struct {
		name, url, token, kind, encoding string
		body                             io.Reader
		most                             int64 // bytes that the server may read
	}{
		{"JSON", "http://" + n.addr + "/client/v4/accounts/" + account + "/artifacts/namespaces/" + trialSpace + "/repos",
			c.token, "application/json", "", &endless{text: " "}, 32 << 20},
		{"wants", git + "/git-upload-pack", made.Token, "application/x-git-upload-pack-request", "",
			&endless{text: want}, 256 << 20},
		{"zipped wants", git + "/git-upload-pack", made.Token, "application/x-git-upload-pack-request", "gzip",
			bomb(want), 0},
		{"commands of a push", git + "/git-receive-pack", made.Token, "application/x-git-receive-pack-request", "",
			&endless{text: command}, 256 << 20},
		{"zipped push", git + "/git-receive-pack", made.Token, "application/x-git-receive-pack-request", "gzip",
			bomb(command), 0},
	} {
		t.Run(body.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			req := must[*http.Request](t)(http.NewRequestWithContext(ctx, http.MethodPost, body.url, io.NopCloser(body.body)))
			req.Header.Set("Authorization", "Bearer "+body.token)
			req.Header.Set("Content-Type", body.kind)
			if body.encoding != "" {
				req.Header.Set("Content-Encoding", body.encoding)
			}
			status := "connection closed"
			if res, err := http.DefaultClient.Do(req); err == nil {
				text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
				res.Body.Close()
				status = res.Status
				if res.StatusCode < 400 && !bytes.Contains(text, []byte("ERR ")) && !bytes.Contains(text, []byte("unpack ")) {
					t.Errorf("status %s with %.100q, want a refusal", res.Status, text)
				}
			} else if ctx.Err() != nil {
				t.Fatalf("no answer within %v", patience)
			}
			if e, is := body.body.(*endless); is && e.n > body.most {
				t.Errorf("the server has read %d MiB, may read %d", e.n>>20, body.most>>20)
			}
			grown := residentOf(t, n) - before
			if grown > hostileMore {
				t.Errorf("memory of the server has grown by %d MiB, may grow by %d", grown>>20, hostileMore>>20)
			}
			t.Logf("%s; the server has grown by %d MiB", status, grown>>20)
		})
	}
	l := &serverTrial{w: w, c: c, failures: map[string]int{}}
	l.makeRepos(1)
	l.sound(*l.repos[0], n)
}

// A push whose connection breaks leaves no ref, and no file in the replicas, whatever part of it was sent.
func TestServerForgetsBrokenPushes(t *testing.T) {
	w := newWorld(t)
	c := newLoneServer(w)
	n := c.nodes[0]
	l := &serverTrial{w: w, c: c, failures: map[string]int{}}
	l.makeRepos(1)
	r := l.repos[0]
	first, _ := l.sound(*r, n)
	cutter := newCutter(w, n.addr)
	dir := w.place("cut")
	w.git("", "init", "-q", "-b", "main", dir)
	for i, limit := range []int64{1, 400, 900, 2 << 10, 64 << 10, 1 << 20} {
		data := make([]byte, 2<<20)
		rand.NewChaCha8([32]byte{byte(i)}).Read(data)
		check(t, os.WriteFile(filepath.Join(dir, "big"), data, 0o644))
		w.git(dir, "add", "-A")
		w.git(dir, "commit", "-qm", "Large")
		cutter.limit(limit)
		url := strings.Replace(r.url, c.proxy.url(), "http://"+cutter.l.Addr().String(), 1)
		if _, err := gitAs(t.Context(), dir, r.token, "push", "-q", url, "HEAD:refs/heads/cut"); err == nil {
			t.Errorf("push that is cut off after %d bytes has succeeded", limit)
		}
	}
	cutter.limit(0)
	for _, left := range []string{"push-*", "objects/incoming-*", "objects/tmp_objdir-*", "objects/pack/tmp_*"} {
		found, err := filepath.Glob(filepath.Join(n.data, "replicas", "repos", "*", "*", left))
		if check(t, err); len(found) > 0 {
			l.until("broken pushes leave no files", func() bool {
				found, _ = filepath.Glob(filepath.Join(n.data, "replicas", "repos", "*", "*", left))
				return len(found) == 0
			})
		}
	}
	if refs, _ := l.sound(*r, n); len(refs) != len(first) {
		t.Errorf("refs after broken pushes: got %v, want %v", refs, first)
	}
}

// cutter is a proxy that closes a connection after a number of bytes from the client.
type cutter struct {
	l    net.Listener
	mu   sync.Mutex
	most int64 // 0: no limit
}

func newCutter(w *world, to string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check2(w, err)
	c := &cutter{l: l}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go io.Copy(from, server)
				io.CopyN(server, from, c.allowed())
			}()
		}
	}()
	w.Cleanup(func() { l.Close() })
	return c
}

func (c *cutter) limit(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = n
}

// allowed returns the limit, or a large number if there is none.
func (c *cutter) allowed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most == 0 {
		return 1 << 50
	}
	return c.most
}
