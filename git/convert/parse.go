package convert

import (
	"bytes"
	"strings"
)

// blank has the characters that separate words. A CR is one of them, so a CR at the end of a line is ignored.
const blank = " \t\r\n"

// macroPrefix is the beginning of a line that defines a macro.
const macroPrefix = "[attr]"

// parser collects the rules and macros of one attributes file.
type parser struct {
	macrosMay bool // whether the file may define macros
	fold      bool // whether patterns match without regard to upper and lower case
	rules     []rule
	macros    map[string][]assignment // macros by name; if a name has several definitions, the last one counts
}

// read parses a whole file. As in git, a NUL byte ends the file, and a file of maxFile bytes or more is ignored.
func (p *parser) read(content []byte) {
	if len(content) >= maxFile {
		return
	}
	if i := bytes.IndexByte(content, 0); i >= 0 {
		content = content[:i]
	}
	for len(content) > 0 {
		var line []byte
		line, content, _ = bytes.Cut(content, []byte("\n"))
		p.line(line)
	}
}

// line parses one line, which consists of a pattern or the name of a macro, followed by attributes. As in git, a line
// with an invalid attribute is ignored as a whole.
func (p *parser) line(raw []byte) {
	if len(raw) >= maxLine {
		return
	}
	line := strings.TrimLeft(string(raw), blank)
	if line == "" || line[0] == '#' {
		return
	}
	name, rest, quoted := unquote(line)
	if !quoted {
		end := strings.IndexAny(line, blank)
		if end < 0 {
			return // the line has a pattern but no attributes
		}
		name, rest = line[:end], line[end:]
	}
	macro := len(name) > len(macroPrefix) && strings.HasPrefix(name, macroPrefix)
	if i := strings.IndexByte(name, 0); i >= 0 { // git stores the name as a C string, so a quoted "\000" ends it
		name = name[:i]
	}
	if macro {
		name = strings.TrimLeft(name[len(macroPrefix):], blank)
		if i := strings.IndexAny(name, blank); i >= 0 {
			name = name[:i]
		}
		if !p.macrosMay || !validName(name) {
			return
		}
	}
	assigns, ok := parseAssignments(rest)
	if !ok {
		return
	}
	if macro {
		if p.macros == nil {
			p.macros = map[string][]assignment{}
		}
		p.macros[strings.Clone(name)] = assigns
		return
	}
	if len(assigns) == 0 {
		return
	}
	if pat, ok := compile(name, p.fold); ok {
		p.rules = append(p.rules, rule{pat, assigns})
	}
}

// parseAssignments parses the attributes of a line. It returns false if one of the attributes has an invalid name.
func parseAssignments(s string) ([]assignment, bool) {
	var as []assignment
	for s = strings.TrimLeft(s, blank); s != ""; s = strings.TrimLeft(s, blank) {
		word := s
		if i := strings.IndexAny(s, blank); i >= 0 {
			word = s[:i]
		}
		s = s[len(word):]
		name, text, hasValue := strings.Cut(word, "=")
		v := value{state: set}
		switch {
		case name != "" && name[0] == '-':
			v, name = value{state: unset}, name[1:]
		case name != "" && name[0] == '!':
			v, name = value{state: unspecified}, name[1:]
		case hasValue:
			v = value{valued, strings.Clone(text)}
		}
		if !validName(name) {
			return nil, false
		}
		a := assignment{attr: attrOf(name), value: v}
		if a.attr == attrNamed {
			a.name = strings.Clone(name)
		}
		as = append(as, a)
	}
	return as, true
}

// validName reports whether git accepts the name of an attribute.
func validName(name string) bool {
	if name == "" || name[0] == '-' {
		return false
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '-', c == '.', c == '_', c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		default:
			return false
		}
	}
	return true
}

// unquote parses a C-quoted string at the start of s. The result rest is the part of s after the string. The result ok
// is false if s does not start with a valid quoted string; the caller then takes s literally.
func unquote(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c != '\\':
			b.WriteByte(c)
			continue
		}
		i++
		if i == len(s) {
			break
		}
		if at := strings.IndexByte(`abfnrtv\"`, s[i]); at >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\\""[at])
			continue
		}
		if i+2 >= len(s) || s[i] < '0' || s[i] > '3' || !octal(s[i+1]) || !octal(s[i+2]) {
			break
		}
		b.WriteByte((s[i]-'0')<<6 | (s[i+1]-'0')<<3 | (s[i+2] - '0'))
		i += 2
	}
	return "", "", false
}

// octal reports whether c is an octal digit.
func octal(c byte) bool { return c >= '0' && c <= '7' }
