// Package refname checks whether git accepts a name as the name of a ref, and matches names with globs.
package refname

import (
	"fmt"
	"path"
	"strings"
)

// Valid reports whether git accepts name as the full name of a ref: "HEAD", or a name below "refs/" that follows the
// rules of git-check-ref-format(1). Names from remotes and repositories must be checked, because programs use the name
// of a ref as the path of a file.
func Valid(name string) bool {
	if name == "HEAD" {
		return true
	}
	if !strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") ||
		strings.Contains(name, "@{") {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == 0x7f || strings.IndexByte(`~^:?*[\`, c) >= 0 {
			return false
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// Plain reports whether name consists of ASCII letters, digits, dots, dashes and underscores, with a letter or digit
// first. Every file system can have a file of this name.
func Plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || strings.IndexByte("._-", c) < 0) {
			return false
		}
	}
	return name != ""
}

// PlainComponent reports whether name is plain and can also be a component of the name of a ref.
func PlainComponent(name string) bool { return Plain(name) && Valid("refs/"+name) }

// These are the limits of new names. In file systems, a component of a path has at most 255 bytes, and git appends
// ".lock" to the last component. A path has at most 4095 bytes, and a clone needs a part of them for its directory and
// for the name of the remote.
const (
	MaxComponent = 255 - len(".lock")
	MaxName      = 1024
)

// Fits reports whether every clone can store a ref with this name in a file.
func Fits(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > MaxComponent {
			return false
		}
	}
	return len(name) <= MaxName
}

// Match reports whether a glob matches the full name of a ref, or another path with slashes. Globs are those of
// path.Match; in addition "**" as the last component matches one or more components. An invalid glob matches nothing.
func Match(glob, name string) bool {
	head, deep := strings.CutSuffix(glob, "**")
	switch {
	case strings.Contains(head, "**"), deep && head != "" && !strings.HasSuffix(head, "/"):
		return false
	case !deep:
		ok, err := path.Match(glob, name)
		return ok && err == nil
	}
	end := 0 // index of the end of the part of name that head must match
	for range strings.Count(head, "/") {
		i := strings.IndexByte(name[end:], '/')
		if i < 0 {
			return false
		}
		end += i + 1
	}
	ok, err := path.Match(head, name[:end])
	return ok && err == nil && end < len(name)
}

// CheckGlob returns an error unless glob is valid for Match.
func CheckGlob(glob string) error {
	if glob == "" || len(glob) > 1024 {
		return fmt.Errorf("glob of refs has %d bytes, want 1 to 1024", len(glob))
	}
	head, deep := strings.CutSuffix(glob, "**")
	_, err := path.Match(head, "")
	if err != nil || strings.Contains(head, "**") || deep && head != "" && !strings.HasSuffix(head, "/") {
		return fmt.Errorf("invalid glob of refs %.100q", glob)
	}
	return nil
}
