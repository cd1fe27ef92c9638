package convert

// Pattern is a compiled pattern of an attributes file or an ignore file. A leading "!" and a trailing "/", which are
// special only in ignore files, are not supported. A Pattern is immutable, so goroutines may share it.
type Pattern struct{ p pattern }

// NewPattern compiles a pattern. It returns false if the pattern cannot match any path. If fold is true, the pattern
// must be matched against paths in lower case.
func NewPattern(text string, fold bool) (Pattern, bool) {
	p, ok := compile(text, fold)
	return Pattern{p}, ok
}

// Match reports whether the pattern matches path. The path is relative to the directory of the file that contains the
// pattern, and base must be the last element of path.
func (p *Pattern) Match(path, base string) bool { return p.p.match(path, base) }

// Below reports whether the pattern may match a path below the directory dir. It may return true although no path
// matches.
func (p *Pattern) Below(dir string) bool {
	switch p.p.kind {
	case kindPath, kindDeep:
		dir += "/"
		n := min(len(dir), len(p.p.literal))
		return dir[:n] == p.p.literal[:n]
	}
	return true
}
