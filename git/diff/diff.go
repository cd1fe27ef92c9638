// Package diff parses the output of git diff.
package diff

import (
	"bytes"
	"strconv"
	"strings"
)

// Hunk is one difference between two texts: Removed lines of the old text, the first of which is line From, were
// replaced by Added lines of the new text, the first of which is line To. Lines are counted from 1. If Removed is 0,
// the new lines follow line From; if Added is 0, the removed lines were after line To.
type Hunk struct{ From, Removed, To, Added int }

// Hunks returns the hunks in the output of git diff for two different contents. The result text is false if the output
// has no hunk, because the contents are not texts.
func Hunks(diff []byte) (hunks []Hunk, text bool) {
	for line := range bytes.Lines(diff) {
		if h, ok := ParseHunk(line); ok {
			hunks = append(hunks, h)
		}
	}
	return hunks, len(hunks) > 0
}

// ParseHunk parses the first line of a hunk, such as "@@ -1,7 +1,8 @@ func f". It returns false for another line.
func ParseHunk(line []byte) (h Hunk, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte("@@ -"))
	if !ok {
		return Hunk{}, false
	}
	if rest, ok = span(rest, &h.From, &h.Removed); !ok {
		return Hunk{}, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(" +")); !ok {
		return Hunk{}, false
	}
	rest, ok = span(rest, &h.To, &h.Added)
	return h, ok && bytes.HasPrefix(rest, []byte(" @@"))
}

// span parses "LINE" or "LINE,COUNT" at the beginning of text, and returns the rest. Without a count, it is 1.
func span(text []byte, line, n *int) (rest []byte, ok bool) {
	if rest, ok = number(text, line); !ok {
		return rest, false
	}
	*n = 1
	if after, more := bytes.CutPrefix(rest, []byte(",")); more {
		return number(after, n)
	}
	return rest, true
}

// number parses decimal digits at the beginning of text, and returns the rest. It returns false if there is none, or if
// the number is too large for a line.
func number(text []byte, n *int) (rest []byte, ok bool) {
	const most = 1 << 31
	*n = 0
	for len(text) > 0 && text[0] >= '0' && text[0] <= '9' && *n < most {
		*n = *n*10 + int(text[0]-'0')
		text, ok = text[1:], true
	}
	return text, ok && *n < most
}

// Count has the numbers of lines that were added to a file and removed from it; -1 for a binary file.
type Count struct {
	Path           string
	From           string // path before a rename, or ""
	Added, Removed int64
}

// Counts parses the output of git diff-tree --numstat -z. A record is "ADDED\tREMOVED\tPATH\0", and
// "ADDED\tREMOVED\t\0FROM\0PATH\0" for a renamed file, with dashes instead of numbers for a binary file. Other records
// are left out.
func Counts(out []byte) (list []Count) {
	fields := strings.Split(string(out), "\x00")
	for i := 0; i < len(fields); i++ {
		added, rest, ok1 := strings.Cut(fields[i], "\t")
		removed, path, ok2 := strings.Cut(rest, "\t")
		if !ok1 || !ok2 {
			continue
		}
		c := Count{Path: path, Added: lines(added), Removed: lines(removed)}
		if path == "" && i+2 < len(fields) {
			c.From, c.Path = fields[i+1], fields[i+2]
			i += 2
		}
		list = append(list, c)
	}
	return list
}

// lines returns the number of lines that is written in text, or -1 for a dash.
func lines(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
