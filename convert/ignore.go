package convert

// Pattern is a compiled pattern of an attributes or ignore file, without the syntax that only ignore files have: a
// leading "!" and a trailing "/". It is immutable and may be shared by goroutines.
type Pattern struct{ p pattern }

// NewPattern compiles a pattern; it returns false if the pattern matches no path. With fold the pattern expects paths in
// lower case.
func NewPattern(text string, fold bool) (Pattern, bool) {
	p, ok := compile(text, fold)
	return Pattern{p}, ok
}

// Match reports whether the pattern matches path, whose last element is base. path is relative to the directory of the
// file that contains the pattern.
func (p *Pattern) Match(path, base string) bool { return p.p.match(path, base) }

// Below reports whether the pattern could match a path below dir.
func (p *Pattern) Below(dir string) bool {
	switch p.p.kind {
	case kindPath, kindDeep:
		dir += "/"
		n := min(len(dir), len(p.p.literal))
		return dir[:n] == p.p.literal[:n]
	}
	return true
}
