// Package convert knows what `git checkout` does to a blob's content on its way to the working tree, as far as
// line endings and `$Id$` go, so that a reader of a mount sees the very bytes of a checkout.
//
// It is pure: contents of .gitattributes files in (Parse), a Rule for a path out (Decide), bytes in and bytes
// out (Rule.Apply). Files and Rules do not change once made and may be shared by goroutines.
//
// Terms: an attribute is unspecified, set ("text"), unset ("-text") or has a value ("text=auto"); a macro is an
// attribute that, where set, brings others along; only the root's .gitattributes may define them. The syntax is
// that of gitattributes(5) and the patterns those of gitignore(5), both as git 2.39 reads them from the index
// while it checks out a commit. Where git's manual and git differ, git is right here.
//
// Not known here: core.ignoreCase, attributes from outside the tree ($GIT_DIR/info/attributes,
// core.attributesFile), and the conversions that Unsupported names.
package convert

import (
	"strconv"
	"strings"
)

// Settings is what matters of the user's git configuration. Spellings are git's, in any case.
type Settings struct {
	AutoCRLF string // core.autocrlf: "" (not configured), "input" or a boolean
	EOL      string // core.eol: "" (not configured), "lf", "crlf" or "native", which is lf here
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

// textIsCRLF says what a text file ends its lines with where no attribute says it; autocrlf outranks eol.
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

// Decide gives the rule for the regular file at path, which is relative to the root of the tree and uses '/'.
// files are the .gitattributes from the root directory down to the file's own, nil where there is none; a list
// cut short counts as nil from there. Symlinks are never converted: callers do not ask for them.
func Decide(s Settings, files []*File, path string) Rule {
	w := collect(files, path, 1<<attrText|1<<attrCRLF|1<<attrEOL|1<<attrIdent)
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
		if r.ident != identNone {
			r.ident = identWhole
		}
	}
	return r
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

// Unsupported names the attribute that asks for a conversion of path beyond this package, such as "filter=lfs"
// or "working-tree-encoding=UTF-16"; "" if none does. A filter counts even where the user has configured none of
// that name and git would leave the file as it is.
func Unsupported(files []*File, path string) string {
	w := collect(files, path, 1<<attrFilter|1<<attrEncoding)
	if v := w[attrFilter]; v.state == valued && v.text != "" {
		return "filter=" + v.text
	}
	switch v := w[attrEncoding]; {
	case v.state == set: // git refuses to check such a file out
		return "working-tree-encoding"
	case v.state == unset:
		return "-working-tree-encoding"
	case v.state == valued && v.text != "" && !strings.EqualFold(v.text, "utf-8") && !strings.EqualFold(v.text, "utf8"):
		return "working-tree-encoding=" + v.text
	}
	return ""
}
