package bare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// When the caller is cancelled, git and the processes that it has started end.
func TestCancelledGitLeavesNoProcess(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, dir, "-c", "alias.wait=!sleep 300 & echo $! >'"+note+"'; wait", "wait")
		ended <- err
	}()
	deadline := time.Now().Add(20 * time.Second)
	pid := 0
	for pid == 0 {
		text, _ := os.ReadFile(note)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		if time.Now().After(deadline) {
			t.Fatal("git did not start a process")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("cancelled git succeeded")
	}
	for !isGone(pid) {
		if time.Now().After(deadline) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the process that git started still runs")
		}
		time.Sleep(time.Millisecond)
	}
}

// isGone reports whether a process has ended, also if it is a zombie.
func isGone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z")
}
