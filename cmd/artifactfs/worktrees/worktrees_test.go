package worktrees

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// An error of git is reported also if the tree could not be removed again, and both are printed.
func TestErrorOfAddIsNotHidden(t *testing.T) {
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	err = addition{path: "../x"}.failed(&cli.App{Stderr: stderr}, errors.New("git has failed"),
		&control.Error{Code: control.ExitFailed, Verb: "unmount", Object: "/x", Cause: "busy"})
	if e := control.AsError(err); e.Cause != "git has failed" || e.Verb != "add worktree" || e.Object != "../x" {
		t.Errorf("error: got %+v", e)
	}
	if got, _ := os.ReadFile(stderr.Name()); !strings.Contains(string(got), "unmount /x: busy") {
		t.Errorf("what was not undone: got %q", got)
	}
}

// Only one tree of a clone is added at a time.
func TestLockOfAClone(t *testing.T) {
	c := clone{common: t.TempDir()}
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.lock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: got %v, want that it waits", err)
	}
	unlock()
	again, err := c.lock(t.Context())
	if err != nil {
		t.Fatalf("lock after the first has ended: %v", err)
	}
	again()
}
