package convert

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

type eolMode uint8

const (
	eolAsIs eolMode = iota
	eolCRLF         // every LF gets a CR
	eolAuto         // the same, if the content looks like text and has no CR at all
)

// identMode tells git's two expansions of $Id$ apart. Files whose line endings depend on their content are
// converted as a whole, all others while they stream to disk, and the two differ on odd input.
type identMode uint8

const (
	identNone identMode = iota
	identStream
	identWhole
)

// Rule is what happens to a file's content. Rules are comparable; the zero Rule is "as it is".
type Rule struct {
	eol      eolMode
	ident    identMode
	encoding string // as the attribute spells it
	driver   Driver // without a name: none
}

// IsZero reports whether content stays as it is, whatever it is.
func (r Rule) IsZero() bool { return r == Rule{} }

// ErrRefused means that git does not check such a file out.
var ErrRefused = errors.New("git refuses to check it out")

// Check tells what keeps git from checking such a file out: nil or an ErrRefused.
func (r Rule) Check() error {
	switch {
	case r.encoding == badEncoding:
		return fmt.Errorf("%w: its working-tree-encoding has no value", ErrRefused)
	case r.driver.Required && r.driver.Smudge == "" && r.driver.Process == "":
		return fmt.Errorf("%w: filter %s is required and has no command for it", ErrRefused, r.driver.Name)
	}
	return nil
}

// Driver is what the content goes through after Apply and Iconv; false if nothing.
func (r Rule) Driver() (Driver, bool) {
	return r.driver, r.driver.Smudge != "" || r.driver.Process != ""
}

// Unfiltered is the rule for a content that the driver has refused.
func (r Rule) Unfiltered() Rule {
	r.driver = Driver{}
	return r
}

// Streams reports whether a content goes to the driver as it is stored.
func (r Rule) Streams() bool { return r.eol == eolAsIs && r.ident == identNone && r.encoding == "" }

// Key names all that decides what becomes of a content at path: part of the keys of caches. path counts where a driver
// is told of it.
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

// String is a stable name for what happens to lines and keywords.
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

// Apply converts the content of blob id; it returns content itself where nothing changes. It leaves to do what Iconv
// and Driver name.
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

// toCRLF puts a CR before each LF that has none.
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

// isPlainText is git's guess: no NUL, no CR, and at most one control character in 128 printable ones. Bytes
// above 127 count as printable, and a Control-Z at the end, DOS's end of file, does not count.
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

// control has 1 for the bytes that make content look binary: backspace, tab, escape and form feed do not.
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
