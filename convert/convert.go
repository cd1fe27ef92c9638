// Package convert knows what `git checkout` does to a blob's content on its way to the working tree, so that a reader
// of a mount sees the very bytes of a checkout.
//
// It is pure: contents of .gitattributes files in (Parse), a Rule for a path out (Decide), bytes in and bytes
// out (Rule.Apply). Files and Rules do not change once made and may be shared by goroutines. What takes programs, the
// user's filter drivers and iconv's tables, a Rule only names.
//
// Terms: an attribute is unspecified, set ("text"), unset ("-text") or has a value ("text=auto"); a macro is an
// attribute that, where set, brings others along; of the files in a tree only the root's may define them. A driver is
// what the user has configured as `filter.<name>.*`; smudging is what it does to a content that is checked out. The
// syntax is that of gitattributes(5) and the patterns those of gitignore(5), both as git 2.39 reads them from the index
// while it checks out a commit. Where git's manual and git differ, git is right here.
//
// The order is git's: $Id$, line endings, encoding, driver.
package convert

import (
	"strconv"
	"strings"
)

// Settings is what matters of the user's git configuration. Spellings are git's, in any case.
type Settings struct {
	AutoCRLF   string // core.autocrlf: "" (not configured), "input" or a boolean
	EOL        string // core.eol: "" (not configured), "lf", "crlf" or "native", which is lf here
	IgnoreCase bool   // core.ignoreCase

	Drivers map[string]Driver // the user's filters, by name
	Outside *Outside          // nil: there are attributes in the tree only
}

// Driver is a filter as the user has configured it. The zero one does nothing, though git knows its name.
type Driver struct {
	Name     string // of "filter=name"
	Smudge   string // command run for each content; "%f" is the path
	Process  string // command of a program that is kept and outranks Smudge
	Clean    bool   // there is a command for the way back
	Required bool   // a content that is not filtered must not be checked out
}

type autoCRLF uint8

const (
	autoFalse autoCRLF = iota
	autoTrue
	autoInput
)

func (s Settings) auto() autoCRLF {
	switch v := s.AutoCRLF; {
	case v == "" || v == "false":
		return autoFalse
	case v == "true" || strings.EqualFold(v, "true") || strings.EqualFold(v, "yes") || strings.EqualFold(v, "on"):
		return autoTrue
	case strings.EqualFold(v, "input"):
		return autoInput
	default:
		n, err := strconv.Atoi(v)
		if err == nil && n != 0 {
			return autoTrue
		}
		return autoFalse
	}
}

// textIsCRLF returns what a text file ends its lines with where no attribute says it; autocrlf outranks eol.
func (s Settings) textIsCRLF() bool {
	switch s.auto() {
	case autoTrue:
		return true
	case autoInput:
		return false
	}
	return strings.EqualFold(s.EOL, "crlf")
}

// action is what the attributes text, crlf and eol say together.
type action uint8

const (
	actUndefined action = iota
	actBinary
	actText
	actTextLF
	actTextCRLF
	actAuto
	actAutoLF
	actAutoCRLF
)

// Decide returns the rule for the regular file at path, which is relative to the root of the tree and uses '/'.
// files are the .gitattributes from the root directory down to the file's own, nil where there is none; a list
// cut short counts as nil from there. Symlinks are never converted: callers do not ask for them.
func Decide(s Settings, files []*File, path string) Rule {
	w := s.collect(files, path, 1<<numValues-1)
	act := s.action(&w)
	var r Rule
	if w[attrIdent].state == set {
		r.ident = identStream
	}
	switch act {
	case actText:
		if s.textIsCRLF() {
			r.eol = eolCRLF
		}
	case actTextCRLF:
		r.eol = eolCRLF
	case actAuto, actAutoCRLF:
		if act == actAutoCRLF || s.textIsCRLF() {
			r.eol = eolAuto
		}
	}
	r.encoding = w[attrEncoding].encoding()
	whole := act == actAuto || act == actAutoCRLF || r.encoding != "" // as git converts it: not while it streams to disk
	if d, ok := s.Drivers[w[attrFilter].text]; ok && w[attrFilter].state == valued {
		runs := d.Smudge != "" || d.Process != ""
		whole = whole || runs || d.Clean
		if runs || whole && d.Required {
			r.driver = d
		}
	}
	if r.ident != identNone && whole {
		r.ident = identWhole
	}
	return r
}

// Returns reports whether git would convert the file at path on its way back into the repository, whatever its content:
// what git calls would_convert_to_git. The arguments are those of Decide.
func Returns(s Settings, files []*File, path string) bool {
	w := s.collect(files, path, 1<<numValues-1)
	_, driver := s.Drivers[w[attrFilter].text]
	switch act := s.action(&w); {
	case act != actUndefined && act != actBinary, w[attrIdent].state == set, w[attrEncoding].encoding() != "":
		return true
	default:
		return driver && w[attrFilter].state == valued
	}
}

// action is what the attributes and the settings say of line endings.
func (s Settings) action(w *[numValues]value) action {
	act := w[attrText].action()
	if act == actUndefined {
		act = w[attrCRLF].action()
	}
	if eol := w[attrEOL]; act != actBinary && eol.state == valued {
		switch {
		case act == actAuto && eol.text == "lf":
			act = actAutoLF
		case act == actAuto && eol.text == "crlf":
			act = actAutoCRLF
		case eol.text == "lf":
			act = actTextLF
		case eol.text == "crlf":
			act = actTextCRLF
		}
	}
	if act == actUndefined {
		switch s.auto() {
		case autoTrue:
			act = actAutoCRLF
		case autoInput:
			act = actAutoLF
		}
	}
	return act
}

// encoding is how git reads the value of working-tree-encoding; "" leaves UTF-8.
func (v value) encoding() string {
	switch {
	case v.state == set:
		return badEncoding
	case v.state != valued || sameEncoding(v.text, "UTF-8"):
		return ""
	}
	return v.text
}

// action is how git reads the value of text and of its older name, crlf.
func (v value) action() action {
	switch {
	case v.state == set:
		return actText
	case v.state == unset:
		return actBinary
	case v.state == valued && v.text == "input":
		return actTextLF
	case v.state == valued && v.text == "auto":
		return actAuto
	}
	return actUndefined
}
