package convert

// Pattern is a pattern with wildcards as git's files of attributes and of what is ignored have it, without the signs that
// only the latter know: a leading "!" and a trailing "/". It does not change and may be shared.
type Pattern struct{ p pattern }

// NewPattern reads a pattern; false: it matches nothing. fold makes it one for paths in lower case.
func NewPattern(text string, fold bool) (Pattern, bool) {
	p, ok := compile(text, fold)
	return Pattern{p}, ok
}

// Match reports whether the pattern, in a file of the directory that path is relative to, is for path, whose last element is
// base.
func (p *Pattern) Match(path, base string) bool { return p.p.match(path, base) }

// Below reports whether the pattern could match something below a directory.
func (p *Pattern) Below(dir string) bool {
	switch p.p.kind {
	case kindPath, kindDeep:
		dir += "/"
		n := min(len(dir), len(p.p.literal))
		return dir[:n] == p.p.literal[:n]
	}
	return true
}
