package gitsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSocketGoesOn checks that the socket of a directory with a long path can be connected to, that only its owner has
// access, and that it remains when its listener is closed.
func TestSocketGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var kept *os.File
	first, err := Listen(dir, "s", Options{Keep: func(f *os.File) (err error) {
		file, err := net.FileListener(f)
		if err != nil {
			return err
		}
		defer file.Close()
		kept, err = file.(*net.UnixListener).File()
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "s")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: got %v, %v, want 0600", info.Mode(), err)
	}
	first.UnixListener.Close() // as if the process had died: the name and the queue of connections remain
	asked, err := Dial(t.Context(), dir, "s")
	if err != nil {
		t.Fatalf("connect while no process accepts: %v", err)
	}
	defer asked.Close()
	second, err := Listen(dir, "s", Options{Inherited: kept})
	if err != nil {
		t.Fatal(err)
	}
	c, err := second.AcceptUnix()
	if err != nil {
		t.Fatalf("accept what waited: %v", err)
	}
	c.Close()
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if c, err := Dial(t.Context(), dir, "s"); err == nil {
		c.Close()
		t.Error("a closed socket accepts connections")
	}
}

// TestNextWithoutDescriptors checks that a process that has no free descriptors accepts connections again when it has
// some.
func TestNextWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, "s", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := Dial(t.Context(), dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*acceptPause/2, func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) })
	conn, err := l.Next(t.Context())
	if err != nil {
		t.Fatalf("next connection: %v", err)
	}
	conn.Close()
	l.Close()
	if _, err := l.Next(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: got %v, want %v", err, net.ErrClosed)
	}
}
