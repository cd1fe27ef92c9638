package gitcmd

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRepositoryOfTheCallerIsNotUsed(t *testing.T) {
	t.Setenv("GIT_DIR", "/elsewhere")
	t.Setenv("GIT_SSH_COMMAND", "ssh -v")
	for name, test := range map[string]struct {
		cmd   *exec.Cmd
		keeps bool
	}{"new": {New(t.Context(), "version"), true}, "isolated": {Isolated(t.Context(), "version"), false}} {
		if slices.Contains(test.cmd.Env, "GIT_DIR=/elsewhere") {
			t.Errorf("%s: the command gets GIT_DIR", name)
		}
		if got := slices.Contains(test.cmd.Env, "GIT_SSH_COMMAND=ssh -v"); got != test.keeps {
			t.Errorf("%s: the command gets GIT_SSH_COMMAND: %t, want %t", name, got, test.keeps)
		}
	}
	if cmd := AsUser(t.Context(), "rev-parse", "--git-dir"); cmd.Env != nil || cmd.Dir != "" {
		t.Errorf("the user's command: directory %q, environment %q", cmd.Dir, cmd.Env)
	}
}

func TestFailureHasOneForm(t *testing.T) {
	dir := t.TempDir()
	cmd := New(t.Context(), "--git-dir="+dir, "-c", "a.b=c", "cat-file", "-p", "HEAD")
	cmd.Env = append(cmd.Env, PlainText)
	out, err := Output(cmd)
	var failed *Error
	if !errors.As(err, &failed) || failed.Verb != "cat-file" || !Exited(err, 128) || Exited(err, 1) || len(out) != 0 {
		t.Fatalf("got %q, %v", out, err)
	}
	if want := "git cat-file: exit status 128: fatal: "; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error: got %q, want %q first", err, want)
	}
	cmd = New(t.Context(), "version")
	cmd.Path, cmd.Err = filepath.Join(dir, "none"), nil
	if err := Run(cmd); err == nil || !strings.HasPrefix(err.Error(), "git version: ") || Exited(err, 0) {
		t.Errorf("error without git: %v", err)
	}
}

func TestAlternates(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), `a:b "c"\d`), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := Output(Isolated(t.Context(), "init", "-q", "--bare", "--template=", d)); err != nil {
			t.Fatal(err)
		}
	}
	hash := Isolated(t.Context(), "--git-dir="+dir, "hash-object", "-w", "--stdin")
	hash.Stdin = strings.NewReader("text")
	id, err := Output(hash)
	if err != nil {
		t.Fatal(err)
	}
	show := Isolated(t.Context(), "--git-dir="+other, "cat-file", "blob", strings.TrimSpace(string(id)))
	show.Env = append(show.Env, Alternates(other, filepath.Join(dir, "objects")))
	if out, err := Output(show); err != nil || string(out) != "text" {
		t.Errorf("blob of the other repository: got %q, %v", out, err)
	}
}

func TestTail(t *testing.T) {
	var tail Tail
	for i := range 3 {
		if n, err := tail.Write(bytes.Repeat([]byte{byte('a' + i)}, tailMost-1)); n != tailMost-1 || err != nil {
			t.Fatalf("Write = %d, %v, want %d", n, err, tailMost-1)
		}
	}
	if got := tail.Bytes(); len(got) != tailMost || got[0] != 'b' || got[1] != 'c' {
		t.Errorf("kept %d bytes that begin with %.3q", len(got), got)
	}
}
