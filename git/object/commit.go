package object

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MaxCommitSize is the maximum size of a commit or tag, in bytes.
const MaxCommitSize = 64 << 20

// CommitInfo is the part of a commit that artifactfs uses.
type CommitInfo struct {
	Tree      ID
	Parents   []ID
	Committed time.Time // time in the committer header
}

// ParseCommit parses the headers of a commit: tree, parents, author and committer, in git's order. It returns an error
// if the tree or the committer is missing, or if an id does not have the format f.
func ParseCommit(f Format, content []byte) (CommitInfo, error) {
	var c CommitInfo
	if len(content) > MaxCommitSize {
		return c, fmt.Errorf("parse commit: %d bytes, limit is %d", len(content), MaxCommitSize)
	}
	for i, rest := 0, content; ; i++ {
		// The headers end at an empty line; the message follows.
		line, tail, ok := bytes.Cut(rest, []byte("\n"))
		if !ok || len(line) == 0 {
			break
		}
		rest = tail
		key, value, _ := strings.Cut(string(line), " ")
		var err error
		switch {
		// git writes exactly one tree, in the first line.
		case i == 0 && key != "tree", i > 0 && key == "tree":
			return c, fmt.Errorf("parse commit: header line %d is %.20q, but \"tree\" must be in line 0 and in no other line", i,
				key)
		case key == "tree":
			c.Tree, err = ParseIDOf(f, value)
		case key == "parent" && c.Committed.IsZero():
			var p ID
			p, err = ParseIDOf(f, value)
			c.Parents = append(c.Parents, p)
		case key == "committer" && c.Committed.IsZero():
			c.Committed = parseDate(value)
		}
		if err != nil {
			return c, fmt.Errorf("parse commit: header %s: %w", key, err)
		}
	}
	if c.Tree.IsZero() {
		return c, fmt.Errorf("parse commit: no tree header")
	}
	if c.Committed.IsZero() {
		return c, fmt.Errorf("parse commit: no committer header")
	}
	return c, nil
}

// ParseTagTarget returns the object that an annotated tag points to.
func ParseTagTarget(f Format, content []byte) (ID, Type, error) {
	// The headers "object" and "type" are at the start of the tag. Only the start is parsed, because a tag may be large.
	head, rest, _ := strings.Cut(string(content[:min(len(content), 256)]), "\n")
	kind, _, _ := strings.Cut(rest, "\n")
	value, ok := strings.CutPrefix(head, "object ")
	name, ok2 := strings.CutPrefix(kind, "type ")
	if !ok || !ok2 {
		return ID{}, 0, fmt.Errorf("parse tag: no object or type header")
	}
	id, err := ParseIDOf(f, value)
	if err != nil {
		return ID{}, 0, fmt.Errorf("parse tag: object header: %w", err)
	}
	for _, t := range []Type{Commit, Tree, Blob, Tag} {
		if t.String() == name {
			return id, t, nil
		}
	}
	return ID{}, 0, fmt.Errorf("parse tag: unknown object type %.20q", name)
}

// parseDate returns the time in the value of a committer header, "Name <mail> SECONDS ZONE". Old histories contain
// odd dates, and names without a mail address. Like git, parseDate returns the epoch for a date that it cannot parse,
// so that the commit remains usable.
func parseDate(ident string) time.Time {
	fields := strings.Fields(ident[strings.LastIndexByte(ident, '>')+1:])
	if len(fields) == 0 {
		return time.Unix(0, 0)
	}
	sec, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || sec < 0 || sec > 1<<40 {
		return time.Unix(0, 0)
	}
	return time.Unix(sec, 0)
}
