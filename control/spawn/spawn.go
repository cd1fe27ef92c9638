// Package spawn has the parts of starting a daemon process that need no protocol: the lock that prevents two starts at
// the same time, the environment of the daemon, and the termination of a daemon that does not answer.
package spawn

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	poll    = 5 * time.Millisecond // interval at which Lock tries to acquire the lock
	endTime = 5 * time.Second      // time between SIGTERM and SIGKILL for a daemon that did not answer
)

// Lock acquires the lock that a process holds while it starts the daemon. It waits for the lock until ctx ends.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := disk.TryLock(path)
		if !errors.Is(err, disk.ErrLocked) {
			return unlock, err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// End terminates a daemon that did not answer, and waits until it has ended.
func End(p *os.Process, ended <-chan error) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(endTime):
		p.Kill()
		<-ended
	}
}

// LastLine returns the last line of the log that was written after the offset from, in bytes. If the log cannot be read
// or is shorter than from, LastLine returns a text that refers to the log.
func LastLine(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < from {
		return "see " + path
	}
	text := strings.TrimSpace(string(b[from:]))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
