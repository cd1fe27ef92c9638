package convert

import "strings"

// byteSet is the set of bytes that a "[...]" in a pattern matches, as a bit set.
type byteSet [4]uint64

// has reports whether the set contains c.
func (s *byteSet) has(c byte) bool { return s[c/64]&(1<<(c%64)) != 0 }

// add adds c to the set.
func (s *byteSet) add(c byte) { s[c/64] |= 1 << (c % 64) }

// addRange adds the bytes from lo to hi, inclusively.
func (s *byteSet) addRange(lo, hi byte) {
	for c := int(lo); c <= int(hi); c++ {
		s.add(byte(c))
	}
}

// parseSet parses a "[...]" whose '[' is s[at]. The result end is the index of the matching ']'. The result set is nil
// if the "[...]" is malformed; a pattern with a malformed set matches nothing. No set contains '/', because wildcards
// never match '/'. If fold is true, paths are matched in lower case, and parseSet adds the lower-case letters for
// ranges and for the class "upper". As in git, it adds none for a single upper-case letter, so "[A]" then matches
// nothing.
func parseSet(s string, at int, fold bool) (set *byteSet, end int) {
	set = new(byteSet)
	i := at + 1
	negated := i < len(s) && (s[i] == '!' || s[i] == '^')
	if negated {
		i++
	}
	var prev byte // the preceding byte; 0 if it cannot start a range
	for first := true; ; first = false {
		if i >= len(s) {
			return nil, 0
		}
		c := s[i]
		switch {
		case c == ']' && !first:
			if negated {
				for j := range set {
					set[j] = ^set[j]
				}
			}
			set['/'/64] &^= 1 << ('/' % 64)
			return set, i
		case c == '\\':
			i++
			if i >= len(s) {
				return nil, 0
			}
			set.add(s[i])
			prev = s[i]
		case c == '-' && prev != 0 && i+1 < len(s) && s[i+1] != ']':
			i++
			if s[i] == '\\' {
				i++
				if i >= len(s) {
					return nil, 0
				}
			}
			set.addRange(prev, s[i])
			if fold {
				for c := max(int(prev), 'A'); c <= min(int(s[i]), 'Z'); c++ {
					set.add(byte(c) + 'a' - 'A')
				}
			}
			prev = 0
		case c == '[' && i+1 < len(s) && s[i+1] == ':':
			n := strings.IndexByte(s[i+2:], ']')
			if n < 0 {
				return nil, 0
			}
			name, closed := strings.CutSuffix(s[i+2:i+2+n], ":")
			if !closed { // "[:" without ":]" stands for the character '['
				set.add('[')
				prev = '['
				break
			}
			if !set.addClass(name) {
				return nil, 0
			}
			if fold && name == "upper" {
				set.addRange('a', 'z')
			}
			i += 2 + n
			prev = 0
		default:
			set.add(c)
			prev = c
		}
		i++
	}
}

// addClass adds the bytes of a named class, such as "alnum", as git defines it: only ASCII, independent of the
// locale, and without \v and \f in "space". It returns false if the name is unknown.
func (s *byteSet) addClass(name string) bool {
	switch name {
	case "alnum":
		s.addRange('a', 'z')
		s.addRange('A', 'Z')
		s.addRange('0', '9')
	case "alpha":
		s.addRange('a', 'z')
		s.addRange('A', 'Z')
	case "blank":
		s.add(' ')
		s.add('\t')
	case "cntrl":
		s.addRange(0, 0x1f)
		s.add(0x7f)
	case "digit":
		s.addRange('0', '9')
	case "graph":
		s.addRange('!', '~')
	case "lower":
		s.addRange('a', 'z')
	case "print":
		s.addRange(' ', '~')
	case "punct":
		s.addRange('!', '/')
		s.addRange(':', '@')
		s.addRange('[', '`')
		s.addRange('{', '~')
	case "space":
		for _, c := range []byte(" \t\r\n") {
			s.add(c)
		}
	case "upper":
		s.addRange('A', 'Z')
	case "xdigit":
		s.addRange('0', '9')
		s.addRange('a', 'f')
		s.addRange('A', 'F')
	default:
		return false
	}
	return true
}
