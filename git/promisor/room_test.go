package promisor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitsocket"
)

// A program that opens many connections makes further ones wait, and one that waits is served as soon as another one ends.
func TestConnectionsAreLimited(t *testing.T) {
	dir := t.TempDir()
	l, err := gitsocket.Listen(dir, socketName, gitsocket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{gitDir: dir, log: zap.NewNop(), listener: l, room: make(chan struct{}, maxConnections)}
	go s.accept(t.Context())
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	for range maxConnections - 1 {
		dial()
	}
	for deadline := time.Now().Add(time.Minute); len(s.room) < maxConnections && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	// A hint that is invalid ends a connection that is served.
	late := dial()
	if _, err := late.Write([]byte("zzzzzzzz")); err != nil {
		t.Fatal(err)
	}
	late.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := late.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read of one connection too many: got %v, want to wait", err)
	}
	first.Close()
	late.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := late.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after another connection has ended: got %v, want the end of the connection", err)
	}
}
