package transport

import (
	"errors"
	"fmt"
	"sync"

	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
)

// Login is the token, or the file with a token, that a user has named for one host. All remotes of that host share the
// Login, so one call of Renew applies to all of them. A nil Login has no token.
type Login struct {
	mu      sync.Mutex
	token   string
	file    string
	source  *tokenfile.File // reads the token from file; nil if there is no file
	renewed int             // number of calls of Renew
}

// NewLogin returns a Login with a token, or with the path of a file that contains one. If both are "", the Login has no
// token.
func NewLogin(token, file string) *Login {
	l := &Login{}
	l.set(token, file)
	return l
}

// set sets the token or the file. The caller holds l.mu, or is the only user of l.
func (l *Login) set(token, file string) {
	l.token, l.file, l.source = token, file, nil
	if file != "" {
		l.source = tokenfile.New(file)
	}
}

// Renew replaces the token. From then on, the token takes precedence over a password in a remote's URL, too.
func (l *Login) Renew(token, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(token, file)
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

// Token returns the token, or "" if the user has named neither a token nor a file. A file that is a program is run with
// the environment env. The error wraps ErrAuth if the file contains no token.
func (l *Login) Token(env Environment) (string, error) {
	if l == nil {
		return "", nil
	}
	l.mu.Lock()
	token, source := l.token, l.source
	l.mu.Unlock()
	if token != "" || source == nil {
		return token, nil
	}
	token, err := source.Token(env.Without())
	if errors.Is(err, tokenfile.ErrNone) {
		err = fmt.Errorf("%w: %w", ErrAuth, err)
	}
	return token, err
}

// program returns the token file if it may be a program, and nil otherwise.
func (l *Login) program() *tokenfile.File {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source
}
