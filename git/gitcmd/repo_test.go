package gitcmd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRepo(t *testing.T) {
	dirs := map[string]string{}
	for _, name := range []string{"first", "second", "new"} {
		dirs[name] = filepath.Join(t.TempDir(), name)
		if err := Run(Isolated(t.Context(), "init", "--quiet", "--bare", dirs[name])); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range map[string]Repo{
		"own":      {Dir: dirs["first"], Base: IsolatedEnviron()},
		"confined": Confined{Env: IsolatedEnviron(), Memory: 1 << 30}.In(dirs["first"]),
	} {
		id, err := r.Output(t.Context(), name, "hash-object", "-w", "--stdin")
		if err != nil {
			t.Fatal(err)
		}
		hash := strings.TrimSpace(string(id))
		if out, err := r.Output(t.Context(), "", "cat-file", "blob", hash); err != nil || string(out) != name {
			t.Errorf("%s: got %q, %v, want %q", name, out, err, name)
		}
		other := Repo{Dir: dirs["second"], Objects: []string{filepath.Join(dirs["first"], "objects")}}
		if out, err := other.Output(t.Context(), "", "cat-file", "blob", hash); err != nil || string(out) != name {
			t.Errorf("%s through an alternate: got %q, %v, want %q", name, out, err, name)
		}
		other.Objects = nil
		if _, err := other.Output(t.Context(), "", "cat-file", "blob", hash); !Exited(err, 128) {
			t.Errorf("%s without the alternate: got %v, want exit status 128", name, err)
		}
	}
	r := Repo{Dir: dirs["first"], Writes: filepath.Join(dirs["new"], "objects"), Options: []string{"-c", "a.b=c"},
		Env: []string{"V=w"}}
	id, err := r.Output(t.Context(), "text", "hash-object", "-w", "--stdin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.Writes, string(id[:2]), strings.TrimSpace(string(id[2:])))); err != nil {
		t.Errorf("object in the directory for new objects: %v", err)
	}
	if out, err := r.Output(t.Context(), "", "config", "a.b"); err != nil || string(out) != "c\n" {
		t.Errorf("option: got %q, %v, want c", out, err)
	}
	if out, err := r.Runner(t.Context())("config", "a.b"); err != nil || string(out) != "c\n" {
		t.Errorf("option of a runner: got %q, %v, want c", out, err)
	}
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "d.e")
	t.Setenv("GIT_CONFIG_VALUE_0", "f")
	for want, r := range map[string]Repo{"f\n": r, "": r.WithoutUser()} {
		if out, err := r.Output(t.Context(), "", "config", "d.e"); string(out) != want || (err == nil) != (want != "") {
			t.Errorf("setting of the user: got %q, %v, want %q", out, err, want)
		}
	}
	if cmd := r.Command(t.Context(), "version"); cmd.Dir != r.Dir || !slices.Contains(cmd.Env, "V=w") ||
		!slices.Contains(cmd.Env, NoPrompt) {
		t.Errorf("command: directory %q, environment %q", cmd.Dir, cmd.Env)
	}
}

func TestStream(t *testing.T) {
	enough := errors.New("enough")
	dir := filepath.Join(t.TempDir(), "git")
	if err := Run(Isolated(t.Context(), "init", "--quiet", "--bare", dir)); err != nil {
		t.Fatal(err)
	}
	asks := Repo{Dir: dir}.Command(t.Context(), "cat-file", "--batch-check") // the command waits for a second line
	in, err := asks.StdinPipe()
	if err == nil {
		_, err = io.WriteString(in, "none\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	err = Stream(asks, func(out io.Reader) error {
		if line := make([]byte, 13); read(out, line) != "none missing\n" {
			t.Errorf("output: got %q", line)
		}
		return enough
	})
	if err != enough {
		t.Errorf("command that was ended: got %v, want %v", err, enough)
	}
	all := func(out io.Reader) error { return errors.Join(enough, second(io.Copy(io.Discard, out))) }
	err = Stream(New(t.Context(), "--git-dir=/nonexistent", "cat-file", "-t", "HEAD"), all)
	if !Exited(err, 128) || !errors.Is(err, enough) {
		t.Errorf("command that fails: got %v, want exit status 128 and the error of the reader", err)
	}
	if err := Stream(New(t.Context(), "version"),
		func(out io.Reader) error { return second(io.Copy(io.Discard, out)) }); err != nil {
		t.Errorf("command that succeeds: %v", err)
	}
}

func read(from io.Reader, into []byte) string {
	io.ReadFull(from, into)
	return string(into)
}

func second(_ int64, err error) error { return err }
