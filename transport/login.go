package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Login is the token, or the file with a token, that a user named for one host. All remotes of that
// host share it, so that Renew applies to all of them at once. A nil Login is empty.
type Login struct {
	mu      sync.Mutex
	token   string
	file    string
	renewed int // number of calls of Renew
}

// NewLogin returns a Login with a token, or with the path of a file that holds one; without either
// it is empty.
func NewLogin(token, file string) *Login { return &Login{token: token, file: file} }

// Renew replaces the token. It then also takes precedence over a password in a remote's URL.
func (l *Login) Renew(token, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.file = token, file
	l.renewed++
}

// Given returns the token or file of the Login, and how often it was renewed.
func (l *Login) Given() (token, file string, renewed int) {
	if l == nil {
		return "", "", 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.file, l.renewed
}

// errNoToken means that a token file has no usable token.
var errNoToken = errors.New("no token")

// Token returns the token, "" for none. It reads the file each time, since short-lived tokens are
// replaced there. An empty file is an error, since the user expects a token in it.
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
