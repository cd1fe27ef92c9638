package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Login is the token, or the file with a token, that a user gave for one host. All remotes of that host share it, so that
// Renew takes effect in all of them at once. A nil Login holds nothing.
type Login struct {
	mu      sync.Mutex
	token   string
	file    string
	renewed int // how often
}

// NewLogin returns a Login with a token, or with the path of a file that holds one; with neither, it holds nothing yet.
func NewLogin(token, file string) *Login { return &Login{token: token, file: file} }

// Renew replaces the token. From now on it also takes precedence over a password in a remote's URL.
func (l *Login) Renew(token, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.file = token, file
	l.renewed++
}

// Given returns what the Login holds, and how often it was renewed.
func (l *Login) Given() (token, file string, renewed int) {
	if l == nil {
		return "", "", 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.file, l.renewed
}

// errNoToken says that there is a token file without a usable token.
var errNoToken = errors.New("no token")

// Token returns the token, "" for none. The file is read each time: short-lived tokens are replaced there. An empty file is
// an error, since the user meant it to hold a token.
func (l *Login) Token() (string, error) {
	token, file, _ := l.Given()
	if token != "" || file == "" {
		return token, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	token = string(bytes.TrimSpace(b))
	switch {
	case token == "":
		return "", fmt.Errorf("%w: %w in token file %s: it is empty", ErrAuth, errNoToken, file)
	case strings.ContainsAny(token, "\r\n\x00"):
		return "", fmt.Errorf("%w: %w in token file %s: it has more than one line", ErrAuth, errNoToken, file)
	}
	return token, nil
}
