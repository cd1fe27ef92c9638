package fdstore

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// store is a descriptor store that a test runs.
type store struct {
	*testing.T
	socket string
	end    func()
}

func newStore(t *testing.T, socket string) *store {
	t.Helper()
	s, err := Listen(socket, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	st := &store{T: t, socket: socket}
	st.end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range s.daemons { // closes the descriptors, as the kernel does when the process ends
			if d.conn != nil {
				d.conn.Close()
			}
			for name := range maps.Clone(d.files) {
				d.remove(name)
			}
		}
	}
	return st
}

// process represents the processes of a daemon: they hold the write end of a pipe open.
type process struct{ life, alive *os.File }

func (st *store) process() *process {
	r, w, err := os.Pipe()
	if err != nil {
		st.Fatal(err)
	}
	return &process{r, w}
}

func (p *process) die() { p.alive.Close() }

func (st *store) daemon(p *process) Daemon { return Daemon{Name: "/state", Life: int(p.life.Fd())} }

func (st *store) connect(p *process) (*Client, map[string]int) {
	st.Helper()
	ctx, cancel := context.WithTimeout(st.Context(), await.Patience)
	defer cancel()
	c, kept, err := Connect(ctx, st.socket, st.daemon(p), func() {})
	if err != nil {
		st.Fatal(err)
	}
	return c, kept
}

// keep stores a memory file with this text.
func (st *store) keep(c *Client, name, text string) {
	st.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		st.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	f.WriteString(text)
	if err := errors.Join(c.Store(name, fd), c.Barrier(await.Patience)); err != nil {
		st.Fatal(err)
	}
}

// texts returns the contents of kept memory files, as NAME=TEXT, and closes them.
func (st *store) texts(kept map[string]int) (all []string) {
	st.Helper()
	for name, fd := range kept {
		f := os.NewFile(uintptr(fd), name)
		b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<10))
		if err != nil {
			st.Error(err)
		}
		f.Close()
		all = append(all, name+"="+string(b))
	}
	slices.Sort(all)
	return all
}

func (st *store) want(kept map[string]int, want ...string) {
	st.Helper()
	if got := st.texts(kept); !slices.Equal(got, want) {
		st.Errorf("kept descriptors: got %q, want %q", got, want)
	}
}

func TestDescriptorsOutliveTheDaemon(t *testing.T) {
	st := newStore(t, filepath.Join(t.TempDir(), "dir", "sock"))
	defer st.end()
	p := st.process()
	c, kept := st.connect(p)
	st.want(kept)
	for i := range 150 { // more than one message
		st.keep(c, "n"+strings.Repeat("i", i), "x")
	}
	for i := range 150 {
		if err := c.Remove("n" + strings.Repeat("i", i)); err != nil {
			t.Fatal(err)
		}
	}
	st.keep(c, "a.device", "one")
	st.keep(c, "a.device", "two")
	st.keep(c, "b", "three")
	all, err := List(t.Context(), st.socket)
	if err != nil || len(all) != 1 || all[0] != (Kept{"/state", 2, 1, true, 0}) {
		t.Errorf("list: got %+v, %v, want one running daemon with 2 files and 1 mount", all, err)
	}
	c.Close()
	p.die()
	c, kept = st.connect(st.process())
	defer c.Close()
	st.want(kept, "a.device=two", "b=three")
}

// TestSuccessorWaitsForAllProcesses checks that the descriptors are passed on only when all processes of the earlier
// daemon have ended. The worker may run longer than its supervisor, whose connection then ends first.
func TestSuccessorWaitsForAllProcesses(t *testing.T) {
	st := newStore(t, filepath.Join(t.TempDir(), "sock"))
	defer st.end()
	p := st.process()
	c, _ := st.connect(p)
	st.keep(c, "a", "x")
	c.Close()
	waits, got := make(chan struct{}, 1), make(chan map[string]int, 1)
	go func() {
		c, kept, err := Connect(t.Context(), st.socket, st.daemon(st.process()), func() { waits <- struct{}{} })
		if err != nil {
			t.Error(err)
		} else {
			defer c.Close()
		}
		got <- kept
	}()
	<-waits
	select {
	case <-got:
		t.Fatal("descriptors were passed on while a process of the earlier daemon ran")
	case <-time.After(200 * time.Millisecond):
	}
	p.die()
	st.want(<-got, "a=x")
}

// TestCanceledWait checks that a daemon whose wait is canceled leaves the descriptors to the next one.
func TestCanceledWait(t *testing.T) {
	st := newStore(t, filepath.Join(t.TempDir(), "sock"))
	defer st.end()
	p := st.process()
	c, _ := st.connect(p)
	st.keep(c, "a", "x")
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := Connect(ctx, st.socket, st.daemon(st.process()), cancel)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("connect: got %v, want canceled", err)
	}
	st.keep(c, "b", "y") // the first daemon is not disturbed
	c.Close()
	p.die()
	c, kept := st.connect(st.process())
	defer c.Close()
	st.want(kept, "a=x", "b=y")
}

// TestStoreAgain checks that a daemon that has lost its connection can store everything again, in the same store and in
// the successor of the store.
func TestStoreAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "sock")
	st := newStore(t, socket)
	p := st.process()
	c, _ := st.connect(p)
	st.keep(c, "old", "x")
	again, kept := st.connect(p) // the first connection has not ended
	st.want(kept)
	<-c.Lost()
	st.keep(again, "new", "y")
	if err := errors.Join(again.Complete(), again.Barrier(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(socket, zap.NewNop()); !errors.Is(err, ErrInUse) {
		t.Errorf("second server: got %v, want ErrInUse", err)
	}
	st.end()
	<-again.Lost()
	st = newStore(t, socket)
	defer st.end()
	third, kept := st.connect(p)
	st.want(kept)
	st.keep(third, "new", "y")
	third.Close()
	p.die()
	fourth, kept := st.connect(st.process())
	defer fourth.Close()
	st.want(kept, "new=y")
}

// TestLastToWaitIsNext checks that, of several daemons that wait, the daemon that connected last gets the descriptors
// next, and that the others wait for it.
func TestLastToWaitIsNext(t *testing.T) {
	st := newStore(t, filepath.Join(t.TempDir(), "sock"))
	defer st.end()
	first := st.process()
	c, _ := st.connect(first)
	st.keep(c, "a", "x")
	type admitted struct {
		who  int
		kept map[string]int
		c    *Client
	}
	got, processes := make(chan admitted), map[int]*process{}
	ctx, cancel := context.WithCancel(t.Context())
	for who := range 3 {
		waits, p := make(chan struct{}), st.process()
		processes[who] = p
		of := t.Context()
		if who == 1 {
			of = ctx
		}
		go func() {
			c, kept, err := Connect(of, st.socket, st.daemon(p), func() { close(waits) })
			if err == nil {
				got <- admitted{who, kept, c}
			}
		}()
		<-waits
	}
	if all, err := List(t.Context(), st.socket); err != nil || len(all) != 1 || all[0].Waiting != 3 {
		t.Errorf("list: got %+v, %v, want 3 daemons that wait", all, err)
	}
	cancel() // the second one no longer waits
	c.Close()
	first.die()
	for _, who := range []int{2, 0} {
		a := <-got
		if a.who != who {
			t.Fatalf("daemon %d got the descriptors, want %d", a.who, who)
		}
		st.want(a.kept, "a=x")
		a.c.Close()
		processes[who].die()
	}
}

// TestWaitingDaemonIsNotFirst checks that a daemon which knows that another daemon runs does not count as the first one
// at a new store.
func TestWaitingDaemonIsNotFirst(t *testing.T) {
	st := newStore(t, filepath.Join(t.TempDir(), "sock"))
	defer st.end()
	waits, got := make(chan struct{}), make(chan map[string]int)
	d := st.daemon(st.process())
	d.After = true
	go func() {
		c, kept, err := Connect(t.Context(), st.socket, d, func() { close(waits) })
		if err != nil {
			t.Error(err)
		} else {
			defer c.Close()
		}
		got <- kept
	}()
	<-waits
	p := st.process()
	c, _ := st.connect(p)
	st.keep(c, "a", "x")
	c.Close()
	p.die()
	st.want(<-got, "a=x")
}

// TestBarrierFailsWithoutStore checks that a store that ends before it has read the message of a barrier is not taken
// for one that has handled it, although the kernel closes the descriptor in the message.
func TestBarrierFailsWithoutStore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "store")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 20 {
		conn, err := dial(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{conn: conn}
		time.AfterFunc(5*time.Millisecond, func() { server.Close() })
		if err := c.Barrier(await.Patience); err == nil {
			t.Error("a barrier was confirmed by a store that has ended")
		}
		c.Close()
	}
}
