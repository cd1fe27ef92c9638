// Package review has the rules of the review of a session: which requests for approval can be made and granted, which
// state they have, where annotations are, and what merges of a session are called. A host, which reads a session
// remote, and a server, which reads its own repository, decide by the same rules. The package reads no repository
// itself (Source).
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

// Problem is the reason why an act is not possible, with a text for the user. Nothing was changed.
type Problem struct {
	Kind   Kind
	Object string // what the problem is about, such as "request 01M8..."; "": the session
	Text   string
	Hint   string   // what the user can do; "" for nothing
	Paths  []string // files with conflicts; nil for all other problems
	Now    string   // present value of what has another value than expected, "" for none
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

// Some returns the first of some paths as a text, and the number of the others.
func Some(paths []string, most int) string {
	text := strings.Join(paths[:min(len(paths), most)], ", ")
	if n := len(paths) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// namedPaths is the maximum number of paths in a text.
const namedPaths = 3

// Short returns the name of a branch without refs/heads/.
func Short(branch string) string { return strings.TrimPrefix(branch, heads) }
