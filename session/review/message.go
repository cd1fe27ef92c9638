package review

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxListed = 100 // maximum number of commits that the message of a squash or merge lists
	maxLine   = 200 // maximum number of bytes of a subject that is copied into a message
)

// Commit contains the data of a commit of a session that are needed for messages and titles.
type Commit struct {
	Message string
	Merge   bool // the commit has several parents
}

// Subject returns the first line of the message, at most 200 bytes.
func (c Commit) Subject() string {
	line, _, _ := strings.Cut(strings.TrimLeft(c.Message, "\n"), "\n")
	return Shorten(line, maxLine)
}

// Title returns a title for the changes of several commits, which are sorted from the newest to the oldest. It is the
// subject of the oldest commit that is neither a merge nor a fixup or squash commit, otherwise of the oldest commit. It
// is "" if there is no commit.
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

// SquashMessage returns the message of one commit that replaces several commits of a session. The commits are sorted
// from the newest to the oldest.
func SquashMessage(commits []Commit) string {
	if len(commits) == 1 {
		return commits[0].Message
	}
	return Title(commits) + "\n" + listed(commits)
}

// MergeMessage returns the message of a commit that merges commits of a session into a branch. The commits are sorted
// from the newest to the oldest.
func MergeMessage(session, branch string, commits []Commit) string {
	return fmt.Sprintf("Merge session %s into %s\n", session, branch) + listed(commits)
}

// listed returns an empty line and a list of the subjects of commits, the oldest first. The parameter commits is sorted
// from the newest to the oldest.
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

// Shorten returns text if it has at most limit bytes. Otherwise it returns the beginning of text and "...", together at
// most limit bytes, and does not split a UTF-8 character.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit -= len("..."); limit > 0 && !utf8.RuneStart(text[limit]); limit-- {
	}
	return text[:limit] + "..."
}
