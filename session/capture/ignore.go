package capture

import (
	"bytes"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
)

// ignoreName is that of the files with ignore rules.
const ignoreName = ".gitignore"

// maxIgnoreFile is the largest file of rules that counts, in bytes.
const maxIgnoreFile = 16 << 20

// line is one rule of a file as gitignore(5) has them.
type line struct {
	pattern convert.Pattern
	negated bool
	dirs    bool // it is for directories only
}

// globs are the rules of one file, or of an option; the last that matches counts.
type globs []line

// parseIgnore reads a file as git's dir.c does (add_patterns_from_buffer, parse_path_pattern).
func parseIgnore(text []byte, fold bool) globs {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var g globs
	for raw := range bytes.SplitSeq(text, []byte("\n")) {
		raw = bytes.TrimSuffix(raw, []byte("\r"))
		if len(raw) == 0 || raw[0] == '#' {
			continue
		}
		if i := bytes.IndexByte(raw, 0); i >= 0 {
			raw = raw[:i]
		}
		g = g.add(trimSpaces(string(raw)), fold)
	}
	return g
}

func (g globs) add(text string, fold bool) globs {
	var l line
	text, l.negated = strings.CutPrefix(text, "!")
	text, l.dirs = strings.CutSuffix(text, "/")
	if strings.HasPrefix(text, "!") { // the second one stands for itself
		text = `\` + text
	}
	if strings.HasSuffix(text, "/") { // "a//" matches nothing
		return g
	}
	var ok bool
	if l.pattern, ok = convert.NewPattern(text, fold); !ok {
		return g
	}
	return append(g, l)
}

// trimSpaces takes spaces from the end that are not quoted.
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

// match tells what the rules say of a path relative to where they hold.
func (g globs) match(path string, dir bool) (said, ignored bool) {
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := len(g) - 1; i >= 0; i-- {
		if l := &g[i]; (dir || !l.dirs) && l.pattern.Match(path, base) {
			return true, !l.negated
		}
	}
	return false, false
}

// covers says whether the rules say yes to a path, or to a directory that it is in.
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

// below says whether the rules could say yes to something below a directory.
func (g globs) below(dir string) bool {
	for i := range g {
		if !g[i].negated && g[i].pattern.Below(dir) {
			return true
		}
	}
	return false
}

// ignores knows which paths git ignores in one working tree.
type ignores struct {
	fold   bool
	user   globs // core.excludesFile
	own    globs // info/exclude
	of     func(dir string) globs
	print  string          // names the rules that are not in ignore files
	cached map[string]bool // directories that are ignored, or are not
}

// dir says whether a directory is ignored, by itself or by one that it is in.
func (x *ignores) dir(path string) bool {
	if path == "" {
		return false
	}
	if v, ok := x.cached[path]; ok {
		return v
	}
	v := x.dir(parent(path)) || x.here(path, true)
	x.cached[path] = v
	return v
}

// file says the same of what is no directory.
func (x *ignores) file(path string) bool { return x.dir(parent(path)) || x.here(path, false) }

// here asks the rules, those nearest to the path first, then info/exclude, then the user's.
func (x *ignores) here(path string, dir bool) bool {
	folded := path
	if x.fold {
		folded = lower(path)
	}
	for at := parent(path); ; at = parent(at) {
		rel := folded
		if at != "" {
			rel = folded[len(at)+1:]
		}
		if said, ignored := x.of(at).match(rel, dir); said {
			return ignored
		}
		if at == "" {
			break
		}
	}
	for _, g := range []globs{x.own, x.user} {
		if said, ignored := g.match(folded, dir); said {
			return ignored
		}
	}
	return false
}

func parent(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// lower is a path in lower case as git folds it: ASCII only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
