package moves

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/session"
)

// interrupted returns a Mover and the journal of its mount, which has an intent that a killed process has left.
func interrupted(t *testing.T, gitDir string) (*Mover, *checkout.Journal) {
	t.Helper()
	home := t.TempDir()
	missing := strings.Repeat("1", 40)
	_, err := checkout.OpenJournal(home).Begin(
		checkout.Intent{Switch: &checkout.SwitchIntent{Ref: "main", Forward: missing}})
	if err != nil {
		t.Fatal(err)
	}
	m := &Mover{Log: zap.NewNop(), Mount: &catalog.Mounted{Home: home, GitDir: gitDir, Writable: true,
		Agent: agent.New(agent.Config{Log: zap.NewNop()})}}
	j := checkout.OpenJournal(home)
	m.journal.Store(j)
	return m, j
}

// TestInterruptedSwitchStays checks that a switch whose repetition fails because git cannot be started is repeated by
// the next change, and that it ends with a note when its commit does not exist.
func TestInterruptedSwitchStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "git")
	if err := gitcmd.Run(gitcmd.Isolated(t.Context(), "init", "--quiet", "--initial-branch=main", "--bare",
		dir)); err != nil {
		t.Fatal(err)
	}
	m, _ := interrupted(t, dir)
	git := gitdir.Reopen(dir, gitdir.Options{Format: object.SHA1, WorkTree: t.TempDir()})
	t.Run("without git", func(t *testing.T) {
		t.Setenv("PATH", "")
		m.Finish(t.Context(), git)
		if list := m.Unfinished(); len(list) != 1 || len(checkout.OpenJournal(m.Mount.Home).Pending()) != 1 {
			t.Errorf("unfinished changes after git could not be started: got %q, want one", list)
		}
	})
	if err := m.finishUnfinished(t.Context(), git); err != nil {
		t.Errorf("finish a switch whose commit is missing: %v", err)
	}
	if list := m.journal.Load().Pending(); len(list) != 0 {
		t.Errorf("intents of a switch whose commit is missing: got %d, want none", len(list))
	}
	if notes := m.Mount.Agent.Notices(); len(notes) != 1 || !strings.Contains(notes[0], gitdir.ErrNoCommit.Error()) {
		t.Errorf("notes: got %q, want one with the cause", notes)
	}
}

// TestLeave checks after which failures the journal entry of an interrupted change stays.
func TestLeave(t *testing.T) {
	for _, c := range []struct {
		err  error
		fail int // number of failures after which the entry is removed; 0: it stays
	}{
		{gitdir.ErrLocked, 0},
		{fmt.Errorf("write: %w", syscall.ENOSPC), 0},
		{fmt.Errorf("git: %w", syscall.EMFILE), 0},
		{checkout.UnfinishedError{Err: errors.New("index")}, 0},
		{exec.ErrNotFound, 2},
		{fault.RefusalError{Why: "local changes"}, 1},
		{fault.GitBusyError("merging"), 1},
		{&session.FindError{Name: "x", Err: session.ErrNoCheckpoint}, 1},
	} {
		m, j := interrupted(t, t.TempDir())
		p := j.Pending()[0]
		for n := 1; n <= 3 && len(j.Pending()) > 0; n++ {
			if got, want := m.leave(t.Context(), p, "test", c.err), n == c.fail; got != want {
				t.Errorf("failure %d with %v: entry is removed: %t, want %t", n, c.err, got, want)
			}
		}
		if got, want := len(j.Unfinished()) == 0, c.fail > 0; got != want {
			t.Errorf("after failures with %v: entry is removed: %t, want %t", c.err, got, want)
		}
	}
}
