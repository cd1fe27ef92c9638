package namespace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if IsProcess(os.Args) {
		fmt.Fprintln(os.Stderr, Run(os.Args))
		os.Exit(exitNoNamespace)
	}
	os.Exit(m.Run())
}

// begin starts a command that creates the file ran in the directory that it sees at v.At.
func begin(t *testing.T, v View, ready func() error) (*os.Process, error) {
	t.Helper()
	p, err := Start(v, []string{"touch", "ran"}, os.Environ(), [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, ready)
	if errors.Is(err, ErrNotAllowed) {
		t.Skip(err)
	}
	return p, err
}

// The command starts after the function ready has succeeded, and not at all if it fails.
func TestCommandWaitsUntilReady(t *testing.T) {
	dir, at := t.TempDir(), t.TempDir()
	ran := func() bool {
		_, err := os.Stat(filepath.Join(dir, "ran"))
		return err == nil
	}
	never := errors.New("never ready")
	for _, want := range []error{never, nil} {
		p, err := begin(t, View{Dir: dir, At: at, Cwd: at}, func() error {
			time.Sleep(200 * time.Millisecond)
			if ran() {
				t.Error("the command ran before ready has returned")
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Fatalf("start: got %v, want %v", err, want)
		}
		if want != nil {
			continue
		}
		if state, err := p.Wait(); err != nil || !state.Success() {
			t.Errorf("command: got %v, %v", state, err)
		}
	}
	if !ran() {
		t.Error("the command did not run in the directory")
	}
	if entries, err := os.ReadDir(at); err != nil || len(entries) > 0 {
		t.Errorf("directory at which the command saw the other one: got %v, %v", entries, err)
	}
}

// The root directory of a process stays as it is, so that another directory cannot be shown there.
func TestCommandDoesNotRunInOtherFiles(t *testing.T) {
	dir := t.TempDir()
	p, err := begin(t, View{Dir: dir, At: "/", Cwd: "/"}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if state, err := p.Wait(); err != nil || state.ExitCode() != exitNoNamespace {
		t.Errorf("command: got %v, %v, want exit code %d", state, err, exitNoNamespace)
	}
}
