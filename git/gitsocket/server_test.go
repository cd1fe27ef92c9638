package gitsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestConnectionsAreLimited checks that further connections have to wait if a program opens many, and that a waiting
// connection is served as soon as another one ends.
func TestConnectionsAreLimited(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, "s", Options{})
	if err != nil {
		t.Fatal(err)
	}
	const most = 4
	s := l.Serve(most, zap.NewNop(), func(_ context.Context, c *net.UnixConn) error {
		_, err := c.Read(make([]byte, 1))
		return err
	})
	defer s.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	for range most - 1 {
		dial()
	}
	for deadline := time.Now().Add(time.Minute); len(s.room) < most && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	// When a served connection receives a byte, it ends.
	late := dial()
	if _, err := late.Write([]byte("z")); err != nil {
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
