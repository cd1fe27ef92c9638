package review

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxListed = 100 // commits that the message of a new commit lists
	maxLine   = 200 // bytes of the subject of a commit
)

// Commit is a commit of a session, as far as messages and titles need it.
type Commit struct {
	Message string
	Merge   bool // it has several parents
}

// Subject returns the first line of the message, at most 200 bytes.
func (c Commit) Subject() string {
	line, _, _ := strings.Cut(strings.TrimLeft(c.Message, "\n"), "\n")
	return Shorten(line, maxLine)
}

// Title returns a title for the changes of commits, the newest of which is the first: the subject of the oldest commit
// that is neither a merge nor a correction of another commit. It is "" if there is no commit.
func Title(commits []Commit) string {
	for _, c := range slices.Backward(commits) {
		s := c.Subject()
		if !c.Merge && s != "" && !strings.HasPrefix(s, "fixup! ") && !strings.HasPrefix(s, "squash! ") {
			return s
		}
	}
	if len(commits) > 0 {
		return commits[len(commits)-1].Subject()
	}
	return ""
}

// SquashMessage returns the message of a commit that has the changes of commits of a session, the newest of which is
// the first.
func SquashMessage(commits []Commit) string {
	if len(commits) == 1 {
		return commits[0].Message
	}
	return Title(commits) + "\n" + listed(commits)
}

// MergeMessage returns the message of a commit that merges commits of a session into a branch. The newest of them is
// the first.
func MergeMessage(session, branch string, commits []Commit) string {
	return fmt.Sprintf("Merge session %s into %s\n", session, branch) + listed(commits)
}

// listed returns an empty line and the subjects of commits, the oldest of which is the first in the text.
func listed(commits []Commit) string {
	var b strings.Builder
	for i, c := range slices.Backward(commits) {
		switch n := len(commits) - 1 - i; n {
		case 0:
			b.WriteString("\n")
		case maxListed:
			fmt.Fprintf(&b, "... and %d more commits\n", i+1)
			return b.String()
		}
		fmt.Fprintf(&b, "* %s\n", c.Subject())
	}
	return b.String()
}

// Shorten returns the beginning of a text that has at most limit bytes, without a part of a character at its end.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit -= len("..."); limit > 0 && !utf8.RuneStart(text[limit]); limit-- {
	}
	return text[:limit] + "..."
}
