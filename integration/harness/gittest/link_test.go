package gittest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// openLink opens a link to a server that calls handle for each connection.
func openLink(t *testing.T, rtt time.Duration, bandwidth int64, handle func(net.Conn)) *link {
	t.Helper()
	back, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := newLog(nil)
	l := &link{opened: log.connection, dial: func(int) (net.Conn, error) { return net.Dial("tcp", back.Addr().String()) }}
	l.rtt.Store(int64(rtt))
	l.bandwidth.Store(bandwidth)
	if err := l.open("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := back.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		l.close()
		back.Close()
		wg.Wait()
	})
	return l
}

func echo(c net.Conn) { io.Copy(c, c) }

func (l *link) connect(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// askByte sends a byte and waits until it is sent back.
func askByte(t *testing.T, c net.Conn) {
	t.Helper()
	var b [1]byte
	if _, err := c.Write([]byte{'x'}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatal(err)
	}
}

// takes checks that f takes at most the duration most, without the time in which the machine was overloaded. It runs f
// up to five times, because the machine may be busy. A run that takes less than the duration least is an error.
func takes(t *testing.T, what string, least, most time.Duration, f func()) {
	t.Helper()
	var best time.Duration
	for range 5 {
		start, stalled := time.Now(), await.StalledTime()
		f()
		took := time.Since(start)
		if took < least {
			t.Fatalf("%s took %v, that is less than %v", what, took, least)
		}
		took -= await.StalledTime() - stalled
		if took <= most {
			return
		}
		if best == 0 || took < best {
			best = took
		}
	}
	t.Errorf("%s took %v at best, want at most %v", what, best, most)
}

func TestDelayIsThatOfALine(t *testing.T) {
	const rtt = 60 * time.Millisecond
	l := openLink(t, rtt, 0, echo)
	takes(t, "connection and first request", 2*rtt, 5*rtt/2, func() { askByte(t, l.connect(t)) })
	c := l.connect(t)
	askByte(t, c)
	takes(t, "a request on a warm connection", rtt, 3*rtt/2, func() { askByte(t, c) })
	takes(t, "five requests in turn", 5*rtt, 6*rtt, func() {
		for range 5 {
			askByte(t, c)
		}
	})
}

func TestConnectingAheadIsFree(t *testing.T) {
	const rtt = 60 * time.Millisecond
	l := openLink(t, rtt, 0, echo)
	warm := make([]net.Conn, 5)
	for i := range warm {
		warm[i] = l.connect(t)
	}
	askByte(t, l.connect(t)) // takes two round trips; after that, the other connections are established
	next := 0
	takes(t, "a first request on a connection made long ago", rtt, 3*rtt/2, func() {
		askByte(t, warm[next])
		next++
	})
}

func TestServerThatSpeaksFirst(t *testing.T) {
	const rtt = 60 * time.Millisecond
	l := openLink(t, rtt, 0, func(c net.Conn) { c.Write([]byte("hello")) })
	takes(t, "a greeting", 2*rtt, 5*rtt/2, func() {
		if b, err := io.ReadAll(l.connect(t)); string(b) != "hello" || err != nil {
			t.Fatalf("got %q, %v", b, err)
		}
	})
}

func TestBytesUnderWayDoNotWaitForEachOther(t *testing.T) {
	const rtt = 60 * time.Millisecond
	l := openLink(t, rtt, 0, echo)
	c := l.connect(t)
	askByte(t, c)
	takes(t, "forty pieces sent over 40 ms", rtt+40*time.Millisecond, 2*rtt+40*time.Millisecond, func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range 41 {
			<-tick.C
			c.Write([]byte{'x'})
		}
		if _, err := io.ReadFull(c, make([]byte, 41)); err != nil {
			t.Fatal(err)
		}
	})
	others := make([]net.Conn, 8)
	for i := range others {
		others[i] = l.connect(t)
		askByte(t, others[i])
	}
	takes(t, "a request on each of eight connections", rtt, 2*rtt, func() {
		var wg sync.WaitGroup
		for _, o := range others {
			wg.Go(func() { askByte(t, o) })
		}
		wg.Wait()
	})
}

func TestLongDistanceDoesNotNarrowTheLine(t *testing.T) {
	const size = 32 << 20
	l := openLink(t, 40*time.Millisecond, 0, func(c net.Conn) { c.Write(make([]byte, size)) })
	takes(t, "32 MiB over 40 ms", 80*time.Millisecond, 800*time.Millisecond, func() {
		if n, err := io.Copy(io.Discard, l.connect(t)); n != size || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
	})
}

func TestBandwidthIsLimitedAndShared(t *testing.T) {
	const rate, size = 4 << 20, 1 << 20 // one transfer takes a quarter of a second
	l := openLink(t, 0, rate, func(c net.Conn) { c.Write(make([]byte, size)) })
	download := func() {
		if n, err := io.Copy(io.Discard, l.connect(t)); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	takes(t, "1 MiB at 4 MiB/s", 235*time.Millisecond, 330*time.Millisecond, download)
	takes(t, "three times 1 MiB side by side", 735*time.Millisecond, 900*time.Millisecond, func() {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(download)
		}
		wg.Wait()
	})
	up := openLink(t, 0, rate, func(c net.Conn) {
		io.Copy(io.Discard, io.LimitReader(c, size))
		c.Write([]byte{'x'})
	})
	takes(t, "1 MiB upwards", 235*time.Millisecond, 330*time.Millisecond, func() {
		c := up.connect(t)
		c.Write(make([]byte, size))
		io.ReadFull(c, make([]byte, 1))
	})
}

func TestSmallAnswersGetTheirTurnOnABusyLine(t *testing.T) {
	l := openLink(t, 0, 1<<20, func(c net.Conn) {
		var b [1]byte
		for {
			if _, err := c.Read(b[:]); err != nil {
				return
			}
			if b[0] == 'b' {
				c.Write(make([]byte, 4<<20))
			} else {
				c.Write(b[:])
			}
		}
	})
	busy, small := l.connect(t), l.connect(t)
	busy.Write([]byte{'b'})
	if _, err := io.ReadFull(busy, make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	takes(t, "a byte beside a download", 0, 60*time.Millisecond, func() { askByte(t, small) })
}

func TestBytesArriveAsSent(t *testing.T) {
	l := openLink(t, 3*time.Millisecond, 200<<20, echo)
	data := noise(5 << 20)
	c := l.connect(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := data; len(b) > 0; {
			n := min(len(b), 100_003)
			c.Write(b[:n])
			b = b[n:]
			// bytes must arrive in order even if the round-trip time decreases
			l.rtt.Store(int64(len(b)%7) * int64(time.Millisecond))
		}
		c.(*net.TCPConn).CloseWrite()
	})
	got, err := io.ReadAll(c)
	wg.Wait()
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes came back, or not as sent: %v", len(got), len(data), err)
	}
}

func TestDownRefusesAndUpIsTheSamePort(t *testing.T) {
	l := openLink(t, 0, 0, echo)
	c := l.connect(t)
	askByte(t, c)
	addr := l.addr
	l.cut()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection survived")
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing gave %v, want refusal", err)
	}
	if err := l.listen(); err != nil {
		t.Fatal(err)
	}
	if l.addr != addr {
		t.Errorf("up again on %s, was %s", l.addr, addr)
	}
	askByte(t, l.connect(t))
}

func TestClosedLinkLeavesNothingRunning(t *testing.T) {
	l := openLink(t, time.Hour, 0, echo)
	for range 5 {
		l.connect(t).Write([]byte("never arrives"))
	}
	running := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "gittest.(*link)")
	}
	await.Until(t, "connections are carried", func() bool { return running() >= 5 })
	l.close()
	await.Until(t, "all goroutines of the link have ended", func() bool { return running() == 0 })
	if err := l.listen(); err != nil || l.listener != nil {
		t.Errorf("a closed link listens again: %v", err)
	}
}
