package locks

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/git/refname"
)

// maxPattern is the maximum size of a pattern in bytes.
const maxPattern = 1024

// CheckPattern returns an error that wraps ErrInvalid unless pattern is valid and is in the form that path.Clean
// returns. A pattern is a path relative to the root of the working tree, or a glob of such paths with the syntax of
// refname.Match: the syntax of path.Match and, as the last component, "**" for everything below a directory. A pattern
// that matches a directory also covers everything below it.
func CheckPattern(pattern string) error {
	why := ""
	switch first, _, _ := strings.Cut(pattern, "/"); {
	case len(pattern) > maxPattern:
		why = "pattern is longer than 1024 bytes"
	case pattern == "" || path.Clean(pattern) != pattern || strings.HasPrefix(pattern, "/") ||
		first == ".." || first == ".":
		why = "pattern is not a path relative to the root of the working tree"
	case first == ".git":
		why = "files of git cannot be locked"
	case !printable(pattern):
		why = "pattern is not UTF-8 or has control characters"
	default:
		for component := range strings.SplitSeq(pattern, "/") {
			// Components are matched one by one, so brackets must end in the component in which they begin.
			if _, err := path.Match(component, ""); err != nil {
				why = "syntax of the glob is wrong"
			}
		}
		if refname.CheckGlob(pattern) != nil {
			why = "** must be the last component"
		}
	}
	if why != "" {
		return fmt.Errorf("%w: pattern %.100q: %s", ErrInvalid, pattern, why)
	}
	return nil
}

// split returns how many components of a path the pattern matches. If deep is true, because the pattern ends in "**",
// the path must have more components than that.
func split(pattern string) (components int, deep bool) {
	n := strings.Count(pattern, "/") + 1
	if pattern == "**" || strings.HasSuffix(pattern, "/**") {
		return n - 1, true
	}
	return n, false
}

// first returns the first n components of the path p. It returns false if p has fewer components.
func first(p string, n int) (string, bool) {
	end := 0
	for i := range n {
		if i > 0 {
			end++ // the slash
		}
		if end >= len(p) {
			return "", false
		}
		if slash := strings.IndexByte(p[end:], '/'); slash >= 0 {
			end += slash
		} else {
			end = len(p)
		}
	}
	return p[:end], true
}

// Covers reports whether the pattern matches the path name, or a directory above it. The pattern must be valid.
func Covers(pattern, name string) bool {
	n, deep := split(pattern)
	head, ok := first(name, n)
	if !ok || deep && len(head) == len(name) {
		return false
	}
	return matchAll(strings.TrimSuffix(strings.TrimSuffix(pattern, "**"), "/"), head)
}

// CoversBelow reports whether the pattern covers the path dir, or can cover a path below it. The pattern must be valid.
func CoversBelow(pattern, dir string) bool {
	n, _ := split(pattern)
	depth := strings.Count(dir, "/") + 1
	if depth >= n && Covers(pattern, dir) {
		return true
	}
	if n == 0 || depth > n { // "**" covers everything, and was handled above
		return false
	}
	head, ok := first(pattern, depth)
	return ok && matchAll(head, dir)
}

// matchAll reports whether each component of the glob matches the corresponding component of the path.
func matchAll(glob, name string) bool {
	for {
		g, globs, more := strings.Cut(glob, "/")
		n, names, left := strings.Cut(name, "/")
		if g != n || strings.ContainsAny(g, `*?[\`) {
			if ok, err := path.Match(g, n); !ok || err != nil {
				return false
			}
		}
		if !more || !left {
			return more == left
		}
		glob, name = globs, names
	}
}

// Overlap reports whether a path can exist that both patterns cover. The patterns must be valid.
func Overlap(a, b string) bool {
	n, _ := split(a)
	m, _ := split(b)
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(n, m) {
		if !meet(as[i], bs[i]) {
			return false
		}
	}
	return true
}

// token is a part of a glob for one component of a path: "*", which matches any number of characters, or a literal, "?"
// or a set in brackets, which match one character.
type token struct {
	star   bool
	ranges [][2]rune // characters that match; sorted, without overlaps
}

// every contains every character except the slash.
var every = [][2]rune{{0, '/' - 1}, {'/' + 1, utf8.MaxRune}}

// tokens returns the parts of a valid glob of one component.
func tokens(glob string) (list []token) {
	for glob != "" {
		c, size := utf8.DecodeRuneInString(glob)
		glob = glob[size:]
		switch c {
		case '*':
			list = append(list, token{star: true})
		case '?':
			list = append(list, token{ranges: every})
		case '[':
			var t token
			t, glob = class(glob)
			list = append(list, t)
		case '\\':
			c, size = utf8.DecodeRuneInString(glob)
			glob = glob[size:]
			fallthrough
		default:
			list = append(list, token{ranges: [][2]rune{{c, c}}})
		}
	}
	return list
}

// class parses a character class of a glob. glob begins after the opening bracket, and rest begins after the closing
// bracket.
func class(glob string) (t token, rest string) {
	glob, negated := strings.CutPrefix(glob, "^")
	char := func() (c rune) {
		glob = strings.TrimPrefix(glob, `\`)
		c, size := utf8.DecodeRuneInString(glob)
		glob = glob[size:]
		return c
	}
	for len(t.ranges) == 0 || glob != "" && glob[0] != ']' {
		if glob == "" {
			break
		}
		low := char()
		high := low
		if after, ok := strings.CutPrefix(glob, "-"); ok {
			glob = after
			high = char()
		}
		t.ranges = append(t.ranges, [2]rune{low, high})
	}
	if negated {
		t.ranges = complement(t.ranges)
	}
	return t, strings.TrimPrefix(glob, "]")
}

// complement returns the characters that are in none of the ranges, except the slash.
func complement(ranges [][2]rune) (rest [][2]rune) {
	sorted := append(slices.Clone(ranges), [2]rune{'/', '/'})
	slices.SortFunc(sorted, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	next := rune(0)
	for _, r := range sorted {
		if r[0] > next {
			rest = append(rest, [2]rune{next, r[0] - 1})
		}
		next = max(next, r[1]+1)
	}
	if next <= utf8.MaxRune {
		rest = append(rest, [2]rune{next, utf8.MaxRune})
	}
	return rest
}

// common reports whether a character is in both lists of ranges.
func common(a, b [][2]rune) bool {
	return slices.ContainsFunc(a, func(r [2]rune) bool {
		return slices.ContainsFunc(b, func(s [2]rune) bool { return max(r[0], s[0]) <= min(r[1], s[1]) })
	})
}

// meet reports whether a file name can exist that matches both globs. Neither glob contains a slash.
func meet(a, b string) bool {
	if a == b {
		return true
	}
	as, bs := tokens(a), tokens(b)
	// row[j] states whether the tokens of a from i on, and those of b from j on, can match the same text. It is computed
	// from the end.
	row := make([]bool, len(bs)+1)
	for i := len(as); i >= 0; i-- {
		before := row // the row of i+1
		row = make([]bool, len(bs)+1)
		for j := len(bs); j >= 0; j-- {
			switch {
			case i == len(as) && j == len(bs):
				row[j] = true
			case j < len(bs) && bs[j].star: // the star matches nothing, or the next token of a
				row[j] = row[j+1] || i < len(as) && before[j]
			case i < len(as) && as[i].star:
				row[j] = before[j] || j < len(bs) && row[j+1]
			case i < len(as) && j < len(bs):
				row[j] = common(as[i].ranges, bs[j].ranges) && before[j+1]
			}
		}
	}
	return row[0]
}
