// Package running finds the server that uses a data directory, for commands on the same host. It needs no part of the
// server itself.
package running

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// DefaultListen is the address at which a server listens unless its options name another one.
const DefaultListen = "127.0.0.1:8790"

// Server describes the server that uses a data directory. It contains no secret.
type Server struct {
	URL       string `json:"url"`              // address for this host
	Listen    string `json:"listen"`           // host:port at which it listens
	Public    string `json:"public,omitempty"` // address for clients
	Account   string `json:"account"`
	TokenFile string `json:"token_file"` // file with the admin token, which only its user can read
	PID       int    `json:"pid"`
}

// file is the name of the file with the Server in a data directory.
const file = "server.json"

// Read returns the description of the server that uses a data directory, or has used it last.
func Read(dir string) (Server, error) {
	var s Server
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// Write stores the description in the data directory.
func (s Server) Write(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, file)
	if err := disk.WriteFileUnsynced(name, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// ReadToken returns the token in a file, whose only line it is.
func ReadToken(file string) (control.Secret, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text = bytes.TrimSpace(text)
	switch {
	case len(text) == 0:
		return "", errors.New("file is empty")
	case bytes.ContainsAny(text, "\r\n\x00"):
		return "", errors.New("file has more than one line")
	}
	return control.Secret(text), nil
}

// Lock returns the path of the file in a data directory that a server has locked while it runs.
func Lock(dir string) string { return filepath.Join(dir, "lock") }

// Stop sends SIGTERM to the server of a data directory, and waits until the server has ended. It returns false if no
// server is running.
func Stop(ctx context.Context, dir string) (bool, error) {
	lock := Lock(dir)
	if _, err := os.Stat(lock); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for asked := false; ; {
		unlock, err := disk.TryLock(lock)
		if err == nil {
			unlock()
			return asked, nil
		}
		if !errors.Is(err, disk.ErrLocked) {
			return asked, fmt.Errorf("lock %s: %w", dir, err)
		}
		if !asked {
			s, err := Read(dir)
			if err == nil {
				err = syscall.Kill(s.PID, syscall.SIGTERM)
			}
			if err != nil {
				return false, fmt.Errorf("stop server of %s: %w", dir, err)
			}
			asked = true
		}
		if !clock.Wait(ctx, 20*time.Millisecond) {
			return asked, context.Cause(ctx)
		}
	}
}
