// Package convert computes the changes that `git checkout` makes to the contents of a blob when it writes the file, so
// that programs read the same bytes in a mount as in a checkout.
//
// It does no I/O: Parse parses the contents of .gitattributes files, Decide returns the Rule for a path, and Rule.Apply
// converts bytes. Files and Rules are immutable, so goroutines may share them. Some conversions need other programs:
// the user's filter drivers, and iconv for encodings that need its tables. A Rule does not run these programs, but
// returns which of them the caller must run.
//
// Terms: an attribute is unspecified, set ("text"), unset ("-text") or has a value ("text=auto"). A macro is an
// attribute that sets other attributes when it is set; in a tree only the file in the root directory may define macros.
// A driver is the user's configuration `filter.<name>.*`; to smudge a file is to convert it when it is checked out. The
// syntax is that of gitattributes(5), and the patterns are those of gitignore(5), both as git 2.39 reads them from the
// index while it checks out a commit. Where git differs from its manual, this package does the same as git.
//
// The conversions are applied in git's order: $Id$, line endings, encoding, driver.
package convert

import (
	"strconv"
	"strings"
)

// Settings is the part of the user's git configuration that affects conversion. Values are spelled as in git's
// configuration; upper and lower case are equivalent.
type Settings struct {
	AutoCRLF   string // core.autocrlf: "" (not configured), "input" or a boolean
	EOL        string // core.eol: "" (not configured), "lf", "crlf", or "native", which means lf here
	IgnoreCase bool   // the value of core.ignoreCase

	Drivers map[string]Driver // filter drivers, by name
	Outside *Outside          // attributes from files outside the tree; nil if there are none
}

// Driver is a filter driver of the user's configuration. The zero Driver converts nothing.
type Driver struct {
	Name     string // the name NAME in "filter=NAME"
	Smudge   string // command run for each file; "%f" stands for the path
	Process  string // command of a long-running process, used instead of Smudge
	Clean    bool   // whether a clean command is configured
	Required bool   // whether git refuses to check out a file that the driver fails to filter
	// Shared names the program and its settings if these determine which contents replace a git-lfs pointer. It is "" if
	// the results of the driver may depend on anything else, so that they belong to one mount.
	Shared string
}

// autoCRLF is the parsed value of core.autocrlf.
type autoCRLF uint8

const (
	autoFalse autoCRLF = iota
	autoTrue
	autoInput
)

// auto parses AutoCRLF, which is "input" or a boolean, in the same way as git.
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

// textIsCRLF reports whether text files without an eol attribute have CRLF line ends. core.autocrlf takes precedence
// over core.eol.
func (s Settings) textIsCRLF() bool {
	switch s.auto() {
	case autoTrue:
		return true
	case autoInput:
		return false
	}
	return strings.EqualFold(s.EOL, "crlf")
}

// action is the combined meaning of the attributes text, crlf and eol.
//
// The names follow git's crlf_action (convert.c). Binary files are never converted, text files always, auto files
// only if their contents look like text. The suffix LF or CRLF states the line ends in the working tree; without a
// suffix, the settings decide.
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

// Decide returns the rule for the regular file at path, which is relative to the root of the tree and uses '/'. The
// slice files has one element for each directory from the root down to the directory of the file: the .gitattributes of
// the directory, or nil if the directory has none. Missing elements at the end count as nil. git never converts
// symbolic links, so callers must not pass the path of a symbolic link.
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
	// git converts such a file in memory; it streams other files to disk
	whole := act == actAuto || act == actAutoCRLF || r.encoding != ""
	if d, ok := s.Drivers[w[attrFilter].text]; ok && w[attrFilter].state == valued {
		runs := d.Smudge != "" || d.Process != ""
		whole = whole || runs || d.Clean
		if runs || whole && d.Required {
			r.driver = d
		}
	}
	// git expands $Id$ with different code in files that it converts in memory (see identMode).
	if r.ident != identNone && whole {
		r.ident = identWhole
	}
	return r
}

// Returns reports whether git would convert the file at path when the file is added to the repository (git's function
// would_convert_to_git). The result does not depend on the contents of the file. The parameters are the same as those
// of Decide.
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

// action returns the conversion of line endings that follows from the attributes of a path and the settings.
//
// The attribute text takes precedence over its older name crlf. The attribute eol selects the line ends, and turns an
// undefined action into text. If none of the three is present, core.autocrlf decides.
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

// encoding returns the encoding that git derives from a value of working-tree-encoding. It returns "" for UTF-8, and
// badEncoding if the attribute has no value.
func (v value) encoding() string {
	switch {
	case v.state == set:
		return badEncoding
	case v.state != valued || sameEncoding(v.text, "UTF-8"):
		return ""
	}
	return v.text
}

// action returns the action that git derives from a value of the attribute text, or of its older name crlf.
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
