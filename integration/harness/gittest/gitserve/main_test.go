package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestMain runs the tests, or the program gitserve if $GITSERVE_TEST is set.
func TestMain(m *testing.M) {
	if os.Getenv("GITSERVE_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// serving is a running gitserve that has printed its URLs.
type serving struct {
	*exec.Cmd
	urls   []string
	stdin  io.WriteCloser // standard input of the process; nil if it is /dev/null
	stderr bytes.Buffer
	rest   *bufio.Reader
}

func serve(t *testing.T, pipe bool, repos int, args ...string) *serving {
	t.Helper()
	s := &serving{Cmd: exec.Command(os.Args[0], args...)}
	s.Env = append(os.Environ(), "GITSERVE_TEST=1")
	s.Stderr = &s.stderr
	var err error
	if pipe {
		if s.stdin, err = s.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Process.Kill() })
	s.rest = bufio.NewReader(out)
	for range repos {
		line, err := s.rest.ReadString('\n')
		if err != nil {
			t.Fatalf("printed %q, then %v: %s", s.urls, err, &s.stderr)
		}
		s.urls = append(s.urls, strings.TrimSpace(line))
	}
	return s
}

// root creates a directory with two repositories, one of them behind a symbolic link.
func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "a.git"), filepath.Join(t.TempDir(), "b.git")} {
		r, err := gittest.New(path, gittest.RepoOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.History(3); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(path) != dir {
			if err := os.Symlink(path, filepath.Join(dir, "b.git")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestServesUntilToldToEnd(t *testing.T) {
	dir := root(t)
	for name, end := range map[string]func(s *serving) error{
		"standard input": func(s *serving) error { return s.stdin.Close() },
		"interrupt":      func(s *serving) error { return s.Process.Signal(os.Interrupt) },
		"terminate":      func(s *serving) error { return s.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, name == "standard input", 2, "-root", dir, "-rtt", "0s", "-log")
			for i, repo := range []string{"/a.git", "/b.git"} {
				if !strings.HasPrefix(s.urls[i], "http://127.0.0.1:") || !strings.HasSuffix(s.urls[i], repo) {
					t.Errorf("printed %q for %s", s.urls[i], repo)
				}
				if _, err := gittest.Git(t.Context(), "", "clone", "-q", s.urls[i], filepath.Join(t.TempDir(), "c")); err != nil {
					t.Error(err)
				}
			}
			if err := end(s); err != nil {
				t.Fatal(err)
			}
			if more, err := io.ReadAll(s.rest); len(more) > 0 || err != nil {
				t.Errorf("printed %q as well, %v", more, err)
			}
			if err := s.Wait(); err != nil {
				t.Errorf("ended with %v: %s", err, &s.stderr)
			}
			if !strings.Contains(s.stderr.String(), "requests on 2 connections") {
				t.Errorf("the log is not at its end: %s", &s.stderr)
			}
		})
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-root", "/nonexistent"}, {"-root", t.TempDir()}, {"-root", root(t), "more"},
		{"-root", root(t), "-addr", "nowhere"}} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "GITSERVE_TEST=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "gitserve: ") || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%q: %v, printed %q", args, err, out)
		}
	}
}
