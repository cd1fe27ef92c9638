// Package tokenfile reads a token from a file. A file that begins with "#!" is a program: it prints a new token
// whenever it runs.
//
// Lock order: File.running is acquired before File.mu. While File.mu is held, no other lock is acquired.
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
	// renewBefore is the time before the expiry of a token at which the next token is made. Requests that were sent
	// with the old token have this time to finish.
	renewBefore = 5 * time.Minute
	// maxSaid is the maximum number of bytes of a program's stderr that an error contains.
	maxSaid = 300
)

// File is a file with a token. The token that a program has made is kept in memory until Refused is called, or until
// shortly before it expires. The methods may be called from any goroutine. A nil File has no token.
type File struct {
	path string

	running sync.Mutex // held while the program runs, so that goroutines that need a token at the same time share one

	mu      sync.Mutex
	program bool // whether the file was a program when it was read last
	made    made // the token that the program has made; zero if there is none
}

// made is a token that a program has made.
type made struct {
	token string
	until time.Time // time at which the next token is needed; zero if the token is used until the server refuses it
}

// New returns the file at a path, which need not exist yet.
func New(path string) *File { return &File{path: path} }

// Token returns the token. It reads the file at each call, because short-lived tokens are replaced in the file. If the
// file is empty, Token returns an error, because the user expects the file to contain a token. If the file is a
// program, Token runs it with the environment env, unless a token that it has made before is still valid.
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

// only returns the token in text, which must have exactly one line. The parameter what names the text in the error.
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

// run returns the token that the program has made. If there is no such token, run starts the program.
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
		// The error omits the program's output, because it may contain a token.
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

// expiry returns the time at which a token expires. It returns false unless the token states this time in the form
// TOKEN?expires=UNIX, as the tokens of Artifacts do.
func expiry(token string) (time.Time, bool) {
	_, after, ok := strings.Cut(token, "?expires=")
	unix, err := strconv.ParseInt(after, 10, 64)
	return time.Unix(unix, 0), ok && err == nil
}

// Refused records that the server has refused a token. It returns true if a program makes the tokens, because another
// token may then be accepted: a new one, or one that was made for another remote in the meantime.
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

// Old reports whether a token must be replaced: it is about to expire, or the program has made a newer token.
func (f *File) Old(token string) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.program && (f.made.token != token || !f.made.until.IsZero() && !time.Now().Before(f.made.until))
}
