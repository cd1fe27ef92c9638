package keeper

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (supervisor, worker *Conn) {
	t.Helper()
	supervisor, peer, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(peer.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if worker, err = Open(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { supervisor.Close(); worker.Close() })
	return supervisor, worker
}

func memory(t *testing.T, text string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f
}

func contents(t *testing.T, fd int) string {
	t.Helper()
	defer unix.Close(fd)
	b := make([]byte, 100)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestWhatTheDeadHaveSentArrives(t *testing.T) {
	for name, unread := range map[string]bool{"all read": false, "one message unread": true} {
		t.Run(name, func(t *testing.T) { lastMessages(t, unread) })
	}
}

// lastMessages compares the messages that arrive from a worker that has died, with the messages that it has sent. If
// unread is true, the worker has not read the last message to it.
func lastMessages(t *testing.T, unread bool) {
	s, w := pair(t)
	if unread {
		if err := s.SendKey(Reason, "one"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Keep("a.state", memory(t, "one")); err != nil {
		t.Fatal(err)
	}
	if err := w.Keep("a.state", memory(t, "two")); err != nil {
		t.Fatal(err)
	}
	w.Drop("b")
	w.Close()
	for _, want := range []string{"one", "two"} {
		m, fds, err := s.Receive()
		if err != nil || m[Store] != "1" || m[Name] != "a.state" || len(fds) != 1 || contents(t, fds[0]) != want {
			t.Fatalf("received message: got %v, %v, %v", m, fds, err)
		}
	}
	if m, fds, err := s.Receive(); err != nil || m[Remove] != "1" || m[Name] != "b" || len(fds) != 0 {
		t.Errorf("received message: got %v, %v", m, err)
	}
	if _, _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("receive at the end: got %v", err)
	}
	s.Close()
	if err := w.Keep("c", memory(t, "")); err == nil {
		t.Error("send on a closed conversation succeeded")
	}
}

// TestStartBringsEverything sends more descriptors than fit into one message or into the buffer of the socket.
func TestStartBringsEverything(t *testing.T) {
	const many = 600
	s, w := pair(t)
	descriptors := map[string]int{}
	for i := range many {
		descriptors[fmt.Sprintf("%08x.state", i)] = int(memory(t, fmt.Sprint(i)).Fd())
	}
	sent := make(chan error, 1)
	want := Start{Reason: "it\nfell", Count: 7, Hung: 2, Managed: true, Supervisor: 4, UpgradeFailed: "why = not"}
	go func() {
		err := s.SendDescriptors(descriptors)
		if err == nil {
			err = s.Send(want.Message())
		}
		sent <- err
	}()
	start, got, err := w.AwaitStart("v1")
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	want.Reason = "it fell"
	if start != want || len(got) != many {
		t.Errorf("start message: got %+v with %d descriptors", start, len(got))
	}
	for i, k := range got {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", k.File.Fd()))
		if err != nil || k.Name != fmt.Sprintf("%08x.state", i) || string(b) != fmt.Sprint(i) {
			t.Fatalf("descriptor %s: got contents %q, %v", k.Name, b, err)
		}
		k.File.Close()
	}
	if m, _, err := s.Receive(); err != nil || m[Waiting] == "" || m[Version] != "v1" {
		t.Errorf("message of the worker: got %v, %v", m, err)
	}
}

func TestKeeperThatIsGoneIsFollowedByAnother(t *testing.T) {
	s, w := pair(t)
	w.Keep("a", memory(t, "A"))
	w.Keep("b", memory(t, "B"))
	s.Close()
	if err := errors.Join(w.Keep("c", memory(t, "C")), w.Drop("b")); err != nil {
		t.Errorf("Keep and Drop after the supervisor has ended: got %v", err)
	}
	if _, _, err := w.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("Receive after the supervisor has ended: got %v, want EOF", err)
	}
	for _, takes := range []bool{false, true} {
		next, to := pair(t)
		got := make(chan map[string]string, 1)
		go func() {
			all := map[string]string{}
			for {
				m, fds, err := next.Receive()
				if err != nil {
					break
				}
				if m[Store] != "" {
					all[m[Name]] = contents(t, fds[0])
				}
				if m[StartServing] != "" && takes {
					next.SendKey(Adopted, "1")
					break
				}
				if m[StartServing] != "" {
					next.Close()
				}
			}
			got <- all
		}()
		if err := w.HandOver(to, Start{Count: 2}); (err == nil) != takes {
			t.Errorf("worker takes over: %v, descriptors handed over: %v", takes, err)
		}
		if all := <-got; !maps.Equal(all, map[string]string{"a": "A", "c": "C"}) {
			t.Errorf("descriptors handed over: got %v", all)
		}
	}
}

func TestFlagsOfFilesStay(t *testing.T) {
	_, w := pair(t)
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[1])
	f := os.NewFile(uintptr(p[0]), "pipe")
	defer f.Close()
	if err := w.Keep("p", f); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags of the descriptor: got %#x, %v", flags, err)
	}
}

func TestNames(t *testing.T) {
	s, w := pair(t)
	for _, bad := range []string{"", "a:b", "a b", "a\nb", "ä", strings.Repeat("x", 256)} {
		if err := w.Keep(bad, memory(t, "")); err == nil {
			t.Errorf("invalid name %q was accepted", bad)
		}
	}
	if err := w.Keep(strings.Repeat("x", 255), memory(t, "")); err != nil {
		t.Error(err)
	}
	if m, fds, err := s.Receive(); err != nil || len(m[Name]) != 255 {
		t.Errorf("receive a message with a long name: got %v, %v", m, err)
	} else {
		CloseAll(fds)
	}
	if err := s.Send(Message{Status: strings.Repeat("x", maxMessage)}); err == nil {
		t.Error("a message that is too long was sent")
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range []Message{
		{Store: "1", Name: "0a1b2c3d.device"}, {Ready: "1"}, {Status: "a=b"}, {},
		Start{Reason: "killed", Count: 3, Managed: true, UpgradeFailed: "no"}.Message(),
	} {
		b, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("X"))
	f.Add([]byte("=\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		StartOf(m)
		again, err := m.Encode()
		if err != nil {
			t.Skip("grew over the limit")
		}
		if n, err := Parse(again); err != nil || !maps.Equal(m, n) {
			t.Errorf("message %q was read as %v, then as %v (%v)", b, m, n, err)
		}
	})
}
