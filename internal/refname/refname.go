// Package refname checks whether git accepts a name as the name of a ref.
package refname

import "strings"

// Valid reports whether git accepts name as the full name of a ref: "HEAD", or a name below "refs/" that follows the rules of
// git-check-ref-format(1). Names that come from remotes and repositories must be checked, because a program may create a file
// with the name of the ref.
func Valid(name string) bool {
	if name == "HEAD" {
		return true
	}
	if !strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") || strings.Contains(name, "@{") {
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
