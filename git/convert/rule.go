package convert

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/artifactfs/artifactfs/git/object"
)

// eolMode is the conversion of line endings.
type eolMode uint8

const (
	eolAsIs eolMode = iota
	eolCRLF         // every LF becomes CRLF
	eolAuto         // every LF becomes CRLF if the contents look like text and have no CR
)

// identMode selects one of git's two ways to expand $Id$, which have different results for unusual contents. git
// converts a file in memory if the conversion of its line ends depends on its contents, or if the file has an encoding
// or a driver. It streams other files to disk.
type identMode uint8

const (
	identNone   identMode = iota // $Id$ is not expanded
	identStream                  // $Id$ is expanded as in files that git streams
	identWhole                   // $Id$ is expanded as in files that git converts in memory
)

// Rule is the conversion of one file, as Decide returns it. Callers must first call Apply, then convert to the
// encoding that Iconv returns, and then run the driver that Driver returns. Rules can be compared with ==. The zero
// Rule leaves contents unchanged.
type Rule struct {
	eol      eolMode
	ident    identMode
	encoding string // value of the attribute working-tree-encoding; "" if there is none
	driver   Driver // the zero Driver if there is none
}

// IsZero reports whether the rule leaves all contents unchanged.
func (r Rule) IsZero() bool { return r == Rule{} }

// ErrRefused means that git refuses to check out a file, so that a mount cannot show its contents.
var ErrRefused = errors.New("git refuses to check out the file")

// Check returns an error that wraps ErrRefused if git does not check out files with this rule, and nil otherwise. The
// possible causes are a working-tree-encoding without a value, and a required driver without a command.
func (r Rule) Check() error {
	switch {
	case r.encoding == badEncoding:
		return fmt.Errorf("%w: attribute working-tree-encoding has no value", ErrRefused)
	case r.driver.Required && r.driver.Smudge == "" && r.driver.Process == "":
		return fmt.Errorf("%w: filter %s is required but has no smudge command", ErrRefused, r.driver.Name)
	}
	return nil
}

// Driver returns the driver that must convert the file after Apply and Iconv. It returns false if there is none.
func (r Rule) Driver() (Driver, bool) {
	return r.driver, r.driver.Smudge != "" || r.driver.Process != ""
}

// Unfiltered returns the rule without its driver. It is used for contents that the driver has refused to convert.
func (r Rule) Unfiltered() Rule {
	r.driver = Driver{}
	return r
}

// Streams reports whether the driver receives the contents of the blob unchanged, because the rule has no other
// conversion.
func (r Rule) Streams() bool { return r.eol == eolAsIs && r.ident == identNone && r.encoding == "" }

// Private returns the rule with a driver whose results belong to one mount (see Driver.Shared).
func (r Rule) Private() Rule {
	r.driver.Shared = ""
	return r
}

// Key returns a string that identifies the conversion, for use in the keys of caches. If the rule has a driver, the key
// does not determine the result, because the driver may read the path, its environment and its settings.
func (r Rule) Key() string {
	key := r.String()
	if r.encoding != "" {
		key += "\x00encoding\x00" + r.encoding
	}
	if d, ok := r.Driver(); ok {
		key += "\x00driver\x00" + d.Name + "\x00" + d.Smudge + "\x00" + d.Process + "\x00" + strconv.FormatBool(d.Required)
	}
	return key
}

// String returns a name for the conversion of line endings and $Id$, such as "ident+crlf" or "raw". The names are
// part of the keys of caches, so they must not change.
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

// Apply converts the contents of the blob id. It leaves the conversions that Iconv and Driver return to the caller. If
// nothing changes, it returns the slice content itself.
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

// toCRLF inserts a CR before each LF that is not preceded by a CR.
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

// isPlainText reports whether contents look like text with LF line ends, by git's heuristic: they contain no NUL and
// no CR, and at most one control character per 128 printable ones. Bytes above 127 count as printable. A Control-Z at
// the end, which marks the end of a file in DOS, is not counted.
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

// control is 1 for the control characters that make contents look binary. Backspace, tab, line feed, escape and form
// feed do not.
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
