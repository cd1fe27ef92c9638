// Package tokenfile reads a token from a file. If the file begins with "#!", it is a program that prints a token, and makes a new one
// whenever it runs.
//
// Locks: File.running is locked before File.mu, which is a leaf.
package tokenfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNone means that the file contains no usable token, or that the program has failed.
var ErrNone = errors.New("no usable token")

const (
	programTime = 30 * time.Second // maximum run time of a program
	// renewBefore is the maximum time before the expiry of a token at which another one is made. Requests that are sent with the old
	// token have this time to finish.
	renewBefore = 5 * time.Minute
	// maxSaid is the maximum number of bytes of a program's stderr that an error contains.
	maxSaid = 300
)

// File is a file with a token. The token of a program is kept in memory until Refused is called, or until shortly before the time at
// which it expires. The methods may be called from any goroutine; those of a nil File find no token.
type File struct {
	path string

	running sync.Mutex // held while the program runs, so that goroutines that need a token at the same time share one

	mu      sync.Mutex
	program bool // the file was a program when it was read last
	made    made // by the program; zero: none
}

// made is a token that a program has made.
type made struct {
	token string
	until time.Time // when another token is needed; zero: when the server refuses this one
}

// New returns the file at a path, which need not exist yet.
func New(path string) *File { return &File{path: path} }

// Token returns the token. It reads the file at each call, because short-lived tokens are replaced in the file. An empty file is an
// error, because the user expects the file to contain a token. If the file is a program, Token runs it with the environment env,
// unless it has made a token before that is still good.
func (f *File) Token(env []string) (string, error) {
	b, err := os.ReadFile(f.path)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	program := bytes.HasPrefix(b, []byte("#!"))
	f.mu.Lock()
	f.program = program
	f.mu.Unlock()
	if program {
		return f.run(env)
	}
	return f.only(b, "the file")
}

// only returns the token that is the only line of text. An error calls the text what.
func (f *File) only(text []byte, what string) (string, error) {
	token := string(bytes.TrimSpace(text))
	switch {
	case token == "":
		return "", fmt.Errorf("%w in token file %s: %s is empty", ErrNone, f.path, what)
	case strings.ContainsAny(token, "\r\n\x00"):
		return "", fmt.Errorf("%w in token file %s: %s has more than one line", ErrNone, f.path, what)
	}
	return token, nil
}

// run returns the token that the program has made, and runs the program if there is none.
func (f *File) run(env []string) (string, error) {
	f.running.Lock()
	defer f.running.Unlock()
	f.mu.Lock()
	have := f.made
	f.mu.Unlock()
	if have.token != "" && (have.until.IsZero() || time.Now().Before(have.until)) {
		return have.token, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), programTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.path)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", env, time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		// The output is left out, because it may contain a token.
		text := strings.ToValidUTF8(strings.Join(strings.Fields(said.String()), " "), "?")
		return "", fmt.Errorf("%w from program %s: %w: %s", ErrNone, f.path, err, text[:min(len(text), maxSaid)])
	}
	token, err := f.only(out, "the output of the program")
	if err != nil {
		return "", err
	}
	have = made{token: token}
	if expires, ok := expiry(token); ok {
		have.until = expires.Add(-min(renewBefore, time.Until(expires)/2))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made = have
	return token, nil
}

// expiry returns the time at which a token expires, if its text contains it: TOKEN?expires=UNIX, as in the tokens of Artifacts.
func expiry(token string) (time.Time, bool) {
	_, after, ok := strings.Cut(token, "?expires=")
	unix, err := strconv.ParseInt(after, 10, 64)
	return time.Unix(unix, 0), ok && err == nil
}

// Refused records that the server has refused a token. It reports whether a program makes the tokens, so that another one may
// succeed: the next one, or one that was made for another remote in the meantime.
func (f *File) Refused(token string) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made.token == token {
		f.made = made{}
	}
	return f.program
}

// Old reports whether a token must be replaced because it is about to expire, or because the program has made another one.
func (f *File) Old(token string) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.program && (f.made.token != token || !f.made.until.IsZero() && !time.Now().Before(f.made.until))
}
