package convert

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// eolMode is the conversion of line ends.
type eolMode uint8

const (
	eolAsIs eolMode = iota
	eolCRLF         // every LF becomes CRLF
	eolAuto         // the same, if the content looks like text and has no CR
)

// identMode selects one of git's two expansions of $Id$. git converts files in memory if their line ends depend on their
// content or they have an encoding or a driver, and streams others to disk; the two expansions differ on unusual input.
type identMode uint8

const (
	identNone identMode = iota
	identStream
	identWhole
)

// Rule is the conversion of one file. Rules are comparable; the zero Rule leaves content unchanged. Decide returns it;
// callers apply it in the order Apply, Iconv, Driver.
type Rule struct {
	eol      eolMode
	ident    identMode
	encoding string // working-tree-encoding as the attribute spells it
	driver   Driver // zero: no driver
}

// IsZero reports whether the rule leaves every content unchanged.
func (r Rule) IsZero() bool { return r == Rule{} }

// ErrRefused means that git does not check out a file with this rule.
var ErrRefused = errors.New("git refuses to check it out")

// Check returns an ErrRefused if git does not check out a file with this rule, and nil otherwise. The causes are a
// working-tree-encoding without a value, and a required driver without a command.
func (r Rule) Check() error {
	switch {
	case r.encoding == badEncoding:
		return fmt.Errorf("%w: its working-tree-encoding has no value", ErrRefused)
	case r.driver.Required && r.driver.Smudge == "" && r.driver.Process == "":
		return fmt.Errorf("%w: filter %s is required and has no command for it", ErrRefused, r.driver.Name)
	}
	return nil
}

// Driver returns the driver to run after Apply and Iconv; false if there is none.
func (r Rule) Driver() (Driver, bool) {
	return r.driver, r.driver.Smudge != "" || r.driver.Process != ""
}

// Unfiltered returns the rule without its driver, for content that the driver refused.
func (r Rule) Unfiltered() Rule {
	r.driver = Driver{}
	return r
}

// Streams reports whether the driver receives the content as it is stored.
func (r Rule) Streams() bool { return r.eol == eolAsIs && r.ident == identNone && r.encoding == "" }

// Key returns a string that identifies the conversion of a file at path, for the keys of caches. It contains path only
// if the driver receives the path.
func (r Rule) Key(path string) string {
	key := r.String()
	if r.encoding != "" {
		key += "\x00encoding\x00" + r.encoding
	}
	if d, ok := r.Driver(); ok {
		key += "\x00driver\x00" + d.Name + "\x00" + d.Smudge + "\x00" + d.Process + "\x00"
		if d.Process != "" || strings.Contains(d.Smudge, "%f") {
			key += path
		}
	}
	return key
}

// String returns a stable name for the conversion of line ends and keywords.
func (r Rule) String() string {
	eol := [...]string{"", "crlf", "auto"}[r.eol]
	ident := [...]string{"", "id", "ident"}[r.ident]
	switch {
	case eol == "" && ident == "":
		return "raw"
	case eol == "" || ident == "":
		return ident + eol
	}
	return ident + "+" + eol
}

// Apply converts the content of blob id, except for the conversions that Iconv and Driver return. It returns content
// itself if nothing changes.
func (r Rule) Apply(id object.ID, content []byte) []byte {
	switch r.ident {
	case identStream:
		content = expandStream(id, content)
	case identWhole:
		content = expandWhole(id, content)
	}
	if r.eol == eolCRLF || r.eol == eolAuto && isPlainText(content) {
		content = toCRLF(content)
	}
	if enc := encoderOf(r.encoding); enc != nil && len(content) > 0 {
		if encoded, ok := enc(content); ok {
			content = encoded
		}
	}
	return content
}

// toCRLF inserts a CR before each LF that does not follow one.
func toCRLF(content []byte) []byte {
	lone := bytes.Count(content, []byte("\n")) - bytes.Count(content, []byte("\r\n"))
	if lone == 0 {
		return content
	}
	out := make([]byte, 0, len(content)+lone)
	for {
		i := bytes.IndexByte(content, '\n')
		if i < 0 {
			return append(out, content...)
		}
		out = append(out, content[:i]...)
		if i == 0 || content[i-1] != '\r' {
			out = append(out, '\r')
		}
		out = append(out, '\n')
		content = content[i+1:]
	}
}

// isPlainText is git's heuristic: no NUL, no CR, and at most one control character per 128 printable ones. Bytes above
// 127 count as printable, and a Control-Z at the end, DOS's end of file, is not counted.
func isPlainText(content []byte) bool {
	if bytes.IndexByte(content, '\r') >= 0 || bytes.IndexByte(content, 0) >= 0 {
		return false
	}
	controls := 0
	for _, c := range content {
		controls += int(control[c])
	}
	printable := len(content) - controls - bytes.Count(content, []byte("\n"))
	if n := len(content); n > 0 && content[n-1] == 0x1a {
		controls--
	}
	return printable>>7 >= controls
}

// control is 1 for the bytes that make content look binary; backspace, tab, escape and form feed do not.
var control = func() (t [256]uint8) {
	for c := range 0x20 {
		t[c] = 1
	}
	t[0x7f] = 1
	for _, c := range []byte("\b\t\n\x1b\f") {
		t[c] = 0
	}
	return t
}()
