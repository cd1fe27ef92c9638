package convert

import "strings"

// kind selects how a pattern is matched. The kinds are ordered by cost.
type kind uint8

const (
	kindBase   kind = iota // the base name equals literal
	kindSuffix             // the base name ends in literal: "*.ext", and "*" itself
	kindGlob               // the base name matches program
	kindPath               // literal equals the path, relative to the directory of the attributes file
	kindDeep               // literal is the start of that path, and program matches the rest of the path
)

// pattern is a compiled pattern. The field kind determines which of the fields literal and program are used. Patterns
// match bytes, not characters.
type pattern struct {
	kind    kind
	literal string
	program []token
}

// op is the kind of a token.
type op uint8

const (
	opLiteral op = iota // the bytes of token.literal
	opAny               // one byte except '/'
	opSet               // one byte of a set
	opStar              // any number of bytes except '/'
	opAll               // any number of bytes
	opDirs              // no bytes, or any bytes of which the last is '/'
)

// token is one element of a pattern with wildcards.
type token struct {
	op      op
	literal string
	set     *byteSet
}

// special has the characters with which a wildcard or an escape sequence starts.
const special = `*?[\`

// compile compiles a pattern. The result ok is false for a pattern that matches no file: a negative pattern, which git
// refuses in attributes files, a pattern that matches only directories, or a malformed pattern. If fold is true, the
// pattern must be matched against paths in lower case.
func compile(s string, fold bool) (p pattern, ok bool) {
	if s == "" || s[0] == '!' || s[len(s)-1] == '/' {
		return p, false
	}
	s = strings.Clone(s) // copy s, so that the text of the whole file is not kept in memory
	wild := strings.IndexAny(s, special)
	if strings.IndexByte(s, '/') < 0 {
		switch {
		case wild < 0:
			return pattern{kind: kindBase, literal: folded(s, fold)}, true
		case s[0] == '*' && !strings.ContainsAny(s[1:], special):
			return pattern{kind: kindSuffix, literal: folded(s[1:], fold)}, true
		}
		p.kind = kindGlob
		p.program, ok = program(s, false, fold)
		return p, ok
	}
	s, wild = strings.TrimPrefix(s, "/"), wild-(len(s)-len(strings.TrimPrefix(s, "/")))
	if wild < 0 {
		return pattern{kind: kindPath, literal: folded(s, fold)}, true
	}
	// git compares the part before the first wildcard literally, and matches only the rest as a pattern. Therefore
	// "a/b**" matches "a/b" followed by any bytes, including slashes, although "**" is not a whole path component
	// there.
	p.kind, p.literal = kindDeep, folded(s[:wild], fold)
	p.program, ok = program(s[wild:], true, fold)
	return p, ok
}

// program compiles a pattern with wildcards. The parameter dirs is true if the pattern will be matched against a path,
// and false if it will be matched against a base name. program returns false if the pattern is malformed.
func program(s string, dirs, fold bool) ([]token, bool) {
	var prog []token
	var lit []byte
	flush := func() {
		if len(lit) > 0 {
			prog = append(prog, token{op: opLiteral, literal: folded(string(lit), fold)})
			lit = lit[:0]
		}
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
			if i == len(s) {
				return nil, false
			}
			lit = append(lit, s[i])
		case '?':
			flush()
			prog = append(prog, token{op: opAny})
		case '[':
			set, end := parseSet(s, i, fold)
			if set == nil {
				return nil, false
			}
			flush()
			prog = append(prog, token{op: opSet, set: set})
			i = end
		case '*':
			flush()
			end := i + 1
			for end < len(s) && s[end] == '*' {
				end++
			}
			rest := s[end:]
			t := token{op: opStar}
			if dirs && end-i > 1 && (i == 0 || s[i-1] == '/') {
				switch {
				case rest == "" || strings.HasPrefix(rest, `\/`):
					t.op = opAll
				case rest[0] == '/':
					t.op = opDirs
					end++
				}
			}
			prog = append(prog, t)
			i = end - 1
		default:
			lit = append(lit, s[i])
		}
	}
	flush()
	return prog, true
}

// folded returns s in lower case if fold is true, otherwise s.
func folded(s string, fold bool) string {
	if fold {
		return lower(s)
	}
	return s
}

// lower returns s with ASCII letters in lower case. As in git, the result does not depend on the locale.
func lower(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r >= 'A' && r <= 'Z' }) < 0 {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// match reports whether the pattern matches path. The parameter base must be the last element of path.
func (p *pattern) match(path, base string) bool {
	switch p.kind {
	case kindBase:
		return base == p.literal
	case kindSuffix:
		return strings.HasSuffix(base, p.literal)
	case kindGlob:
		return run(p.program, base)
	case kindPath:
		return path == p.literal
	case kindDeep:
		return strings.HasPrefix(path, p.literal) && run(p.program, path[len(p.literal):])
	}
	return false
}

// run reports whether the tokens prog match the whole of s. Each wildcard first matches as few bytes as possible. After
// a mismatch, run extends the match of the last opStar; if that is impossible, it extends the match of the last opAll
// or opDirs. Earlier wildcards need not be extended, because the later wildcard reaches every position that an earlier
// one could reach. So the running time is polynomial, whereas git's backtracking may take exponential time.
func run(prog []token, s string) bool {
	at, i := 0, 0
	star, starAt := -1, 0
	deep, deepAt := -1, 0
	for {
		if at == len(prog) {
			if i == len(s) {
				return true
			}
		} else {
			t := &prog[at]
			n := -1 // number of bytes of s that t matches; -1 if t does not match
			switch t.op {
			case opLiteral:
				if strings.HasPrefix(s[i:], t.literal) {
					n = len(t.literal)
				}
			case opAny:
				if i < len(s) && s[i] != '/' {
					n = 1
				}
			case opSet:
				if i < len(s) && t.set.has(s[i]) {
					n = 1
				}
			case opStar:
				star, starAt, n = at, i, 0
			case opAll, opDirs:
				if t.op == opAll && at == len(prog)-1 {
					return true
				}
				star, deep, deepAt, n = -1, at, i, 0
			}
			if n >= 0 {
				at, i = at+1, i+n
				continue
			}
		}
		switch {
		case star >= 0 && starAt < len(s) && s[starAt] != '/':
			starAt++
			at, i = star+1, starAt
			continue
		case deep < 0 || deepAt == len(s):
			return false
		case prog[deep].op == opAll:
			deepAt++
		default:
			next := strings.IndexByte(s[deepAt:], '/')
			if next < 0 {
				return false
			}
			deepAt += next + 1
		}
		star, at, i = -1, deep+1, deepAt
	}
}
