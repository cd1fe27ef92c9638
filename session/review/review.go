// Package review implements the rules of the review of a session: which requests for approval can be made and granted,
// which state requests have, and which messages merge commits get. A host, which reads a session remote, and a server,
// which reads its own repository, use the same rules. Both pass a Source, by which the package reads the repository.
package review

import (
	"fmt"
	"strings"
)

const heads = "refs/heads/"

// Kind is the kind of a Problem.
type Kind int

const (
	Invalid   Kind = iota // the request contains something that is not valid
	Missing               // something does not exist
	Forbidden             // the user may not make the act
	Conflict              // the state of the repository does not allow the act
	Refused               // the policy of the repository does not allow the act
)

// Problem is the error that a request of a user is not possible, with a text for the user. Nothing was changed.
type Problem struct {
	Kind   Kind
	Object string // object of the problem, such as "request 01M8..."; "" stands for the session
	Text   string
	Hint   string   // advice for the user; "" for none
	Paths  []string // files with conflicts; nil for all other problems
	Now    string   // present value, if another value was expected; else ""
}

func (p *Problem) Error() string {
	if p.Hint == "" {
		return p.Text
	}
	return p.Text + "; " + p.Hint
}

// conflict returns a Problem of the kind Conflict.
func conflict(hint, format string, args ...any) error {
	return &Problem{Kind: Conflict, Text: fmt.Sprintf(format, args...), Hint: hint}
}

// Some returns the first limit paths as a text, and the number of the other paths.
func Some(paths []string, limit int) string {
	text := strings.Join(paths[:min(len(paths), limit)], ", ")
	if n := len(paths) - limit; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// namedPaths is the maximum number of paths that a message names.
const namedPaths = 3

// Short returns the name of a branch without refs/heads/.
func Short(branch string) string { return strings.TrimPrefix(branch, heads) }
