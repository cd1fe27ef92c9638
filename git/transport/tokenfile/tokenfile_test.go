package tokenfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
)

// write writes a token file or a program.
func write(t *testing.T, path, text string) {
	t.Helper()
	// Replace the file instead of writing to it, because a running program cannot be written.
	next := path + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o700), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
}

// counter returns a program that prints a token, in which N is the number of its runs, and a function that returns this
// number.
func counter(t *testing.T, token string) (path string, runs func() int) {
	t.Helper()
	dir := t.TempDir()
	path, log := filepath.Join(dir, "token"), filepath.Join(dir, "log")
	token = strings.ReplaceAll(token, "N", "$(wc -l <"+log+" | tr -d ' ')")
	write(t, path, fmt.Sprintf("#!/bin/sh\necho x >>%s\necho \"%s\"\n", log, token))
	return path, func() int {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
}

func want(t *testing.T, f *tokenfile.File, token string) {
	t.Helper()
	if got, err := f.Token(os.Environ()); err != nil || got != token {
		t.Errorf("token: got %q, %v, want %q", got, err, token)
	}
}

func TestFileIsReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	f := tokenfile.New(path)
	if _, err := f.Token(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("token of a file that does not exist: got %v, want fs.ErrNotExist", err)
	}
	for text, token := range map[string]string{"one\n": "one", "  two \r\n\n": "two"} {
		write(t, path, text)
		want(t, f, token)
	}
	for _, text := range []string{"", " \n", "one\ntwo\n", "one\rtwo", "one\x00two"} {
		write(t, path, text)
		_, err := f.Token(nil)
		if !errors.Is(err, tokenfile.ErrNone) || !strings.Contains(err.Error(), path) ||
			strings.Contains(err.Error(), "two") {
			t.Errorf("token of a file with %q: got %v, want ErrNone with the path and without the text", text, err)
		}
	}
	if f.Refused("one") || f.Old("one") {
		t.Error("a file that is no program has another token after a refusal")
	}
}

// TestProgramRunsWhenNeeded checks that a program runs once for all requests, and again when the server has refused its
// token.
func TestProgramRunsWhenNeeded(t *testing.T) {
	t.Parallel()
	path, runs := counter(t, "token-N")
	f := tokenfile.New(path)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got, err := f.Token(os.Environ()); err != nil || got != "token-1" {
				t.Errorf("token for one of several requests: got %q, %v, want token-1", got, err)
			}
		})
	}
	wg.Wait()
	if runs() != 1 || f.Old("token-1") || !f.Old("token-0") {
		t.Errorf("after the requests: got %d runs, want 1, and only another token is old", runs())
	}
	if !f.Refused("token-0") {
		t.Error("refusal of an older token: got no other token")
	}
	want(t, f, "token-1") // the program has printed this token in the meantime
	if !f.Refused("token-1") || !f.Old("token-1") {
		t.Error("refusal of the token: got no other token")
	}
	want(t, f, "token-2")
	if runs() != 2 {
		t.Errorf("runs after the refusal: got %d, want 2", runs())
	}
}

func TestTokenIsRenewedBeforeItExpires(t *testing.T) {
	t.Parallel()
	for left, again := range map[time.Duration]bool{time.Hour: false, -time.Second: true} {
		path, runs := counter(t, fmt.Sprintf("token-N?expires=%d", time.Now().Add(left).Unix()))
		f := tokenfile.New(path)
		first, err := f.Token(os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		if f.Old(first) != again {
			t.Errorf("token that expires in %v is old: got %v, want %v", left, f.Old(first), again)
		}
		next, err := f.Token(os.Environ())
		if err != nil || (next != first) != again || (runs() == 2) != again {
			t.Errorf("token after one that expires in %v: got %q after %q, %v, with %d runs", left, next, first, err, runs())
		}
	}
}

func TestProgramFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	f := tokenfile.New(path)
	write(t, path, "#!/bin/sh\necho secret-token\necho 'log in first' >&2\nexit 3\n")
	_, err := f.Token(os.Environ())
	if !errors.Is(err, tokenfile.ErrNone) || !strings.Contains(err.Error(), "log in first") ||
		strings.Contains(err.Error(), "secret-token") {
		t.Errorf("program that fails: got %v, want ErrNone with its stderr and without its output", err)
	}
	write(t, path, "#!/bin/sh\nyes long | head -c 100000 >&2\nexit 1\n")
	if _, err := f.Token(os.Environ()); !errors.Is(err, tokenfile.ErrNone) || len(err.Error()) > 1000 {
		t.Errorf("program with a long message: got an error of %d bytes", len(fmt.Sprint(err)))
	}
	write(t, path, "#!/bin/sh\necho one\necho two\n")
	if _, err := f.Token(os.Environ()); !errors.Is(err, tokenfile.ErrNone) {
		t.Errorf("program that prints two lines: got %v, want ErrNone", err)
	}
	write(t, path, "#!/bin/sh\necho $WHO $(pwd)\n")
	if got, err := f.Token(append(os.Environ(), "WHO=me")); err != nil || got != "me /" {
		t.Errorf("environment and directory of the program: got %q, %v, want those of the mount and /", got, err)
	}
}

func TestNoFile(t *testing.T) {
	t.Parallel()
	var none *tokenfile.File
	if none.Refused("x") || none.Old("x") {
		t.Error("without a file: got another token")
	}
}
