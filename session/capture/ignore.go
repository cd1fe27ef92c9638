package capture

import (
	"bytes"
	"strings"

	"github.com/artifactfs/artifactfs/git/convert"
)

// ignoreName is the base name of ignore files.
const ignoreName = ".gitignore"

// maxIgnoreFile is the maximum size in bytes of ignore files and .gitattributes files. Larger files are not read.
const maxIgnoreFile = 16 << 20

// line is one rule in the syntax of gitignore(5).
type line struct {
	pattern convert.Pattern
	negated bool
	dirs    bool // the rule matches only directories
}

// globs is a list of rules, from one ignore file or one option. The last rule that matches a path decides.
type globs []line

// parseIgnore parses the text of an ignore file exactly as git's dir.c does (add_patterns_from_buffer,
// parse_path_pattern). If fold is set, the rules match regardless of case.
func parseIgnore(text []byte, fold bool) globs {
	// git skips a UTF-8 byte order mark.
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var g globs
	for raw := range bytes.SplitSeq(text, []byte("\n")) {
		raw = bytes.TrimSuffix(raw, []byte("\r"))
		if len(raw) == 0 || raw[0] == '#' {
			continue
		}
		// git handles a line as a C string, which ends at a NUL byte.
		if i := bytes.IndexByte(raw, 0); i >= 0 {
			raw = raw[:i]
		}
		g = g.add(trimSpaces(string(raw)), fold)
	}
	return g
}

// add returns g with the rule in text appended. A rule that can match no path is dropped.
func (g globs) add(text string, fold bool) globs {
	var l line
	text, l.negated = strings.CutPrefix(text, "!")
	text, l.dirs = strings.CutSuffix(text, "/")
	if strings.HasPrefix(text, "!") { // only the first ! negates the rule
		text = `\` + text
	}
	if strings.HasSuffix(text, "/") { // a pattern that still ends in a slash, such as "a//", matches nothing
		return g
	}
	var ok bool
	if l.pattern, ok = convert.NewPattern(text, fold); !ok {
		return g
	}
	return append(g, l)
}

// trimSpaces removes trailing spaces that are not escaped by a backslash.
func trimSpaces(s string) string {
	end := -1
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ' ':
			if end < 0 {
				end = i
			}
			continue
		case '\\':
			if i++; i == len(s) {
				return s
			}
		}
		end = -1
	}
	if end >= 0 {
		return s[:end]
	}
	return s
}

// match applies the rules to path, which is relative to the directory of the rules. The result said is true if a rule
// matches. The result ignored is true if the last rule that matches is not negated.
func (g globs) match(path string, dir bool) (said, ignored bool) {
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := len(g) - 1; i >= 0; i-- {
		if l := &g[i]; (dir || !l.dirs) && l.pattern.Match(path, base) {
			return true, !l.negated
		}
	}
	return false, false
}

// covers reports whether the rules match path. This is so if the last rule that matches path, or the last rule that
// matches a directory above path, is not negated.
func (g globs) covers(path string, dir bool) bool {
	if len(g) == 0 {
		return false
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '/' {
			if _, yes := g.match(path[:i], true); yes {
				return true
			}
		}
	}
	_, yes := g.match(path, dir)
	return yes
}

// below reports whether a rule could match a path below the directory dir. Rules that are negated with ! do not count.
func (g globs) below(dir string) bool {
	for i := range g {
		if !g[i].negated && g[i].pattern.Below(dir) {
			return true
		}
	}
	return false
}

// ignores decides which paths git ignores in a working tree.
type ignores struct {
	fold  bool                   // paths are compared regardless of case (core.ignoreCase)
	user  globs                  // rules of core.excludesFile
	own   globs                  // rules of info/exclude
	of    func(dir string) globs // returns the rules of the ignore file in the directory dir
	print string                 // hash of user, own, fold, the capture rules and the linked worktrees
	// roots are the linked worktrees. The rules for a path are those in its worktree. The directory of a worktree is never
	// ignored.
	roots  roots
	cached map[string]bool // results of the method dir, by path
}

// dir reports whether the directory at path is ignored, by a rule for this directory or for a directory above it.
func (x *ignores) dir(path string) bool {
	if path == "" || x.roots.has(path) {
		return false
	}
	// dir is called for each file of a directory, so cache the results.
	if v, ok := x.cached[path]; ok {
		return v
	}
	v := x.dir(parent(path)) || x.here(path, true)
	x.cached[path] = v
	return v
}

// file reports whether a path that is not a directory is ignored.
func (x *ignores) file(path string) bool { return x.dir(parent(path)) || x.here(path, false) }

// here reports whether the rules ignore path itself, regardless of the directories above path. The rules of ignore
// files take precedence, from the nearest directory up to the root of the working tree; info/exclude and
// core.excludesFile follow in this order.
func (x *ignores) here(path string, dir bool) bool {
	folded := path
	if x.fold {
		folded = lower(path)
	}
	top := x.roots.above(path)
	// As in git, the ignore file of a deeper directory overrides the ignore files above that directory.
	for at := parent(path); ; at = parent(at) {
		if said, ignored := x.of(at).match(relative(folded, at), dir); said {
			return ignored
		}
		if at == top {
			break
		}
	}
	folded = relative(folded, top)
	for _, g := range []globs{x.own, x.user} {
		if said, ignored := g.match(folded, dir); said {
			return ignored
		}
	}
	return false
}

// relative returns path relative to the directory dir, which is path itself or above it; "" is the root.
func relative(path, dir string) string {
	if dir == "" {
		return path
	}
	return path[min(len(dir)+1, len(path)):]
}

// parent returns the directory of path; "" is the root.
func parent(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }

// join returns the path of the entry name in directory dir.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// lower returns s in lower case as git folds case: it changes ASCII letters only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
