package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Login is the token, or the file with a token, that a user has named for one host. All remotes of that host share the
// Login, so one call of Renew applies to all of them. A nil Login has no token.
type Login struct {
	mu      sync.Mutex
	token   string
	file    string
	renewed int // number of calls of Renew
}

// NewLogin returns a Login with a token, or with the path of a file that contains one. If both are "", the Login has no token.
func NewLogin(token, file string) *Login { return &Login{token: token, file: file} }

// Renew replaces the token. From then on the token also takes precedence over a password in a remote's URL.
func (l *Login) Renew(token, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.file = token, file
	l.renewed++
}

// Given returns the token or the file that the user has named, and the number of calls of Renew.
func (l *Login) Given() (token, file string, renewed int) {
	if l == nil {
		return "", "", 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.file, l.renewed
}

// errNoToken means that a token file contains no usable token.
var errNoToken = errors.New("no usable token")

// Token returns the token, or "" if the user has named neither a token nor a file. It reads the file at each call, because
// short-lived tokens are replaced in the file. An empty file is an error, because the user expects the file to contain a token.
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
		return "", fmt.Errorf("%w: %w in token file %s: the file is empty", ErrAuth, errNoToken, file)
	case strings.ContainsAny(token, "\r\n\x00"):
		return "", fmt.Errorf("%w: %w in token file %s: the file has more than one line", ErrAuth, errNoToken, file)
	}
	return token, nil
}
