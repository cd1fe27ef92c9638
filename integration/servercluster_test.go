package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
	"github.com/artifactfs/artifactfs/integration/harness/s3test"
	"github.com/artifactfs/artifactfs/server/client"
)

// cluster contains several nodes of artifactfs serve, which share a PostgreSQL database and an S3 bucket, behind a TCP
// proxy that does not know which of them are alive.
type cluster struct {
	w     *world
	pg    *pgtest.Server
	s3    *s3test.Server
	nodes []*clusterNode
	proxy *dumbProxy
	token string // admin token
}

// clusterNode is one node. It keeps its data directory when its process is killed and started again.
type clusterNode struct {
	c    *cluster
	addr string
	data string

	mu    sync.Mutex
	cmd   *exec.Cmd     // nil while the node is killed
	ended chan struct{} // closed when cmd has ended
}

// clusterDatabase is the name of the database of a cluster.
const clusterDatabase = "trial"

// newCluster starts PostgreSQL, S3 and the nodes. The test is skipped if one of the two is not installed.
func newCluster(w *world, nodes int, flags ...string) *cluster {
	w.Helper()
	c := &cluster{w: w}
	var err error
	if c.pg, err = pgtest.Start(pgtest.Options{}); errors.Is(err, pgtest.ErrMissing) {
		w.Skip(err)
	}
	check2(w, err)
	w.Cleanup(func() { check2(w, c.pg.Close()) })
	c.s3 = s3test.Start(w)
	database, err := c.pg.Create(clusterDatabase)
	check2(w, err)
	c.run(nodes, append([]string{"--database", database, "--objects", c.s3.URL("objects")}, flags...))
	return c
}

// newLoneServer starts one node with SQLite and a directory of objects.
func newLoneServer(w *world, flags ...string) *cluster {
	w.Helper()
	c := &cluster{w: w}
	c.run(1, flags)
	return c
}

// run starts the proxy and the nodes.
func (c *cluster) run(nodes int, flags []string) {
	w := c.w
	w.Helper()
	c.proxy = newDumbProxy(w)
	tokenFile := filepath.Join(w.root, "admin-token")
	for i := range nodes {
		n := &clusterNode{c: c, addr: freeAddress(w), data: filepath.Join(w.root, fmt.Sprint("node", i))}
		c.nodes = append(c.nodes, n)
		c.proxy.add(n.addr)
		args := append([]string{"serve", "--data", n.data, "--listen", n.addr, "--public-url", c.proxy.url(),
			"--admin-token-file", tokenFile}, flags...)
		w.Cleanup(func() {
			n.kill()
			if w.Failed() {
				log, _ := os.ReadFile(n.data + ".log")
				w.Logf("log of %s:\n%s", n.data, log[max(0, len(log)-4<<10):])
			}
		})
		check2(w, n.start(args))
		check2(w, n.ready())
	}
	token, err := os.ReadFile(tokenFile)
	check2(w, err)
	c.token = strings.TrimSpace(string(token))
}

// freeAddress returns an address of the loopback interface at which no process listens.
func freeAddress(w *world) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check2(w, err)
	defer l.Close()
	return l.Addr().String()
}

// start starts the process of the node. If args is nil, the arguments of the last start are used.
func (n *clusterNode) start(args []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if args == nil {
		args = n.cmd.Args[1:]
	}
	log, err := os.OpenFile(n.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Env = os.Environ()
	for name, value := range s3test.Credentials() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	n.cmd, n.ended = cmd, make(chan struct{})
	ended := n.ended
	go func() {
		cmd.Wait()
		close(ended)
	}()
	return nil
}

// ready waits until the node answers requests.
func (n *clusterNode) ready() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		answer, err := http.Get("http://" + n.addr + "/readyz")
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(answer.Status)
		}
		select {
		case <-n.ended:
			log, _ := os.ReadFile(n.data + ".log")
			return fmt.Errorf("node ended: %s", log[max(0, len(log)-2<<10):])
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node is not ready: %w", err)
		}
	}
}

// kill kills the process of the node with SIGKILL. Its git processes are not killed; they end when they notice that the
// server has gone.
func (n *clusterNode) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil && n.cmd.Process != nil {
		n.cmd.Process.Kill()
		<-n.ended
	}
}

// restart starts a killed node again. It tries again while the database is unavailable, because a node does not start
// without one.
func (n *clusterNode) restart() error {
	for deadline := time.Now().Add(patience); ; {
		if err := n.start(nil); err != nil {
			return err
		}
		err := n.ready()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		n.kill()
	}
}

// api returns a client of the REST API that goes through the proxy. Each request uses a new connection, so that the
// requests are distributed over the nodes.
func (c *cluster) api() *client.Client {
	c.w.Helper()
	return c.apiAt(c.proxy.url())
}

// apiAt returns a client of the REST API at a URL.
func (c *cluster) apiAt(url string) *client.Client {
	c.w.Helper()
	found, err := client.New(client.Options{URL: url, Token: c.token,
		HTTP: &http.Client{Timeout: commandTime, Transport: &http.Transport{DisableKeepAlives: true}}})
	return must[*client.Client](c.w)(found, err)
}

// gitAs runs stock git with a token of the server.
func gitAs(ctx context.Context, dir, token string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(gittest.Env(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=http.extraHeader",
		"GIT_CONFIG_VALUE_1=Authorization: Bearer "+token)
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("git %s: %w: %.400s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// dumbProxy forwards TCP connections to each of its addresses in turn. It skips an address that refuses the connection.
type dumbProxy struct {
	l    net.Listener
	next atomic.Int64

	mu    sync.Mutex
	addrs []string
}

func newDumbProxy(w *world) *dumbProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check2(w, err)
	p := &dumbProxy{l: l}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(conn.(*net.TCPConn))
		}
	})
	w.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return p
}

func (p *dumbProxy) url() string { return "http://" + p.l.Addr().String() }

func (p *dumbProxy) add(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addrs = append(p.addrs, addr)
}

// pass forwards one connection, and closes it if no address accepts a connection.
func (p *dumbProxy) pass(conn *net.TCPConn) {
	defer conn.Close()
	p.mu.Lock()
	addrs := p.addrs
	p.mu.Unlock()
	first := int(p.next.Add(1))
	for i := range addrs {
		to, err := net.DialTimeout("tcp", addrs[(first+i)%len(addrs)], time.Second)
		if err != nil {
			continue
		}
		defer to.Close()
		var both sync.WaitGroup
		both.Go(func() {
			io.Copy(to, conn)
			to.(*net.TCPConn).CloseWrite()
		})
		both.Go(func() {
			io.Copy(conn, to)
			// If the node was killed, the client's connection must be closed in both directions.
			conn.Close()
		})
		both.Wait()
		return
	}
}

// rows returns the result of a query of the cluster's database, one string for each row.
func (c *cluster) rows(t testing.TB, sql string) []string {
	t.Helper()
	out := must[string](t)(c.pg.Query(clusterDatabase, sql))
	if out == "" {
		return nil
	}
	return strings.Split(out, "\n")
}
