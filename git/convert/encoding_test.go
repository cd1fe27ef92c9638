package convert

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/git/object"
)

// texts contains texts that have different bytes in different encodings, and texts that are invalid in all of them.
var texts = []string{
	"", "\n", "a", "abc\nd\r\n", "h\u00e9\u00ff\u0100\n", "\u20ac\u00a5\u203e\u2225\u301c\uff5e",
	"\u65e5\u672c\u8a9e\n\u4e2d\u6587\r\n\ud55c\uae00\n", "\U0001f600x\U0010ffff\n", "\ufeffmarked\n", "a\ufeffb",
	"\ufffe\uffff\ufdd0\n", "\x00a\x00\n", "\u0080\u0081\u009f\u00a0\n", "\u2028\u0085\x0c\n", "bad \xff\n", "\xc3",
	"a\xe4\xb8", "\xc0\x80", "\xed\xa0\x80", "\xed\xa0\xbd\xed\xb8\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
	"\xf0\x80\x80\x80", "$Id$ h\u00e9\n", "$$Id$\n", "$Idx$Id: c $\n", "\u0410\u0411\u0401\u0451\u0491\n",
	"~\\\u00a6\u2014\u2015\uff0d\u2212\n", strings.Repeat("\u00e4\u4e00\n", 9000),
	"x" + strings.Repeat("\U0001f600", 5000) + "\xff",
}

func textFiles(attributes []string) map[string][]byte {
	files := map[string][]byte{}
	for i, a := range attributes {
		files[fmt.Sprintf("%d/.gitattributes", i)] = []byte("*.txt " + a + "\n")
		for j, text := range texts {
			files[fmt.Sprintf("%d/%d.txt", i, j)] = []byte(text)
		}
	}
	return files
}

// TestEncodingsLikeGit compares conversions between encodings that need no tables with the working tree of a clone.
func TestEncodingsLikeGit(t *testing.T) {
	var attributes []string
	for _, name := range []string{
		"UTF-16", "utf-16", "UTF16", "utf16", "UTF-16LE", "utf16le", "UTF-16BE", "UTF16BE", "UTF-16LE-BOM", "utf16le-bom",
		"UTF-16BE-BOM", "UTF-16-LE-BOM",
		"UTF-32", "utf32", "UTF-32LE", "UTF32LE", "UTF-32BE", "utf-32be", "UTF-32LE-BOM", "ISO-8859-1", "iso8859-1", "latin1",
		"US-ASCII", "ascii",
		"UTF-8", "utf8", "Utf-8", "no-such-encoding", "", "UTF-",
	} {
		attributes = append(attributes, "working-tree-encoding="+name)
	}
	attributes = append(attributes, "-working-tree-encoding", "text eol=crlf working-tree-encoding=UTF-16LE-BOM",
		"text=auto eol=crlf ident working-tree-encoding=UTF-16",
		"ident working-tree-encoding=UTF-16", "ident eol=crlf working-tree-encoding=latin1",
		"-text ident working-tree-encoding=UTF-32BE", "ident working-tree-encoding=UTF-8",
		"ident working-tree-encoding=bogus")
	files := textFiles(attributes)
	for name := range files { // Apply uses iconv for this encoding, and iconv has no table of this name
		if strings.Contains(name, "UTF-32LE-BOM") {
			delete(files, name)
		}
	}
	compareCheckout(t, Settings{}, files)
}

// TestDriversLikeGit compares the conversions of files with a filter: those that git makes before the filter runs, or
// instead of it.
func TestDriversLikeGit(t *testing.T) {
	drivers := map[string]Driver{
		"cat":  {Name: "cat", Smudge: "cat"},
		"back": {Name: "back", Clean: true},
		"none": {Name: "none"},
		"must": {Name: "must", Required: true},
	}
	r := newRepo(t)
	var attributes []string
	for _, d := range []string{"cat", "back", "none", "unknown"} {
		attributes = append(attributes, "filter="+d+" ident", "filter="+d+" ident text eol=crlf",
			"filter="+d+" ident text=auto eol=crlf", "filter="+d+" ident working-tree-encoding=UTF-16")
	}
	attributes = append(attributes, "filter=must ident", "filter=must text eol=crlf", "filter ident", "-filter ident",
		"filter= ident")
	files := textFiles(attributes)
	r.commit(files)
	r.config = []string{"filter.cat.smudge=cat", "filter.back.clean=cat", "filter.none.other=x",
		"filter.must.required=true"}
	compareClone(t, r, Settings{Drivers: drivers}, files)
}

func TestCheck(t *testing.T) {
	s := Settings{Drivers: map[string]Driver{"must": {Name: "must", Required: true}, "may": {Name: "may"},
		"does": {Name: "does", Required: true, Process: "x"}}}
	root :=
		s.Parse([]byte("*.on working-tree-encoding\n*.stream filter=must\n*.must filter=must text=auto\n*.may filter=may\n*.does filter=does\n*.u filter=unknown\n"), true)
	for path, refused := range map[string]bool{"a.on": true, "a.must": true, "a.stream": false, "a.may": false,
		"a.does": false, "a.u": false, "a": false} {
		r := Decide(s, []*File{root}, path)
		if err := r.Check(); (err != nil) != refused {
			t.Errorf("check the conversion of %s: got %v", path, err)
		}
		if zero := path == "a.may" || path == "a.u" || path == "a.stream" || path == "a"; r.IsZero() != zero {
			t.Errorf("conversion of %s: got %+v, want the opposite of zero or nonzero", path, r)
		}
	}
}

// TestRefusedByGit checks that git refuses to check out the files that Check refuses.
func TestRefusedByGit(t *testing.T) {
	for attributes, config := range map[string]string{
		"working-tree-encoding": "user.name=x", "filter=must text=auto": "filter.must.required=true",
		"filter=back": "filter.back.required=true",
	} {
		r := newRepo(t)
		r.commit(map[string][]byte{".gitattributes": []byte("* " + attributes + "\n"), "a": []byte("a\n")})
		cmd := exec.CommandContext(t.Context(), "git", "-c", "filter.back.clean=cat", "clone", "-q", "-c", config,
			r.dir, t.TempDir())
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("git checked out a file with the attributes %s: %s", attributes, out)
		}
	}
}

func TestReturns(t *testing.T) {
	s := Settings{Drivers: map[string]Driver{"d": {Name: "d"}}}
	root :=
		s.Parse([]byte("*.t text\n*.b -text\n*.l eol=lf\n*.a text=auto\n*.i ident\n*.e working-tree-encoding=UTF-16\n*.u working-tree-encoding=UTF-8\n*.d filter=d\n*.n filter=n\n"), true)
	for path, want := range map[string]bool{"x.t": true, "x.b": false, "x.l": true, "x.a": true, "x.i": true, "x.e": true,
		"x.u": false, "x.d": true, "x.n": false, "x": false} {
		if got := Returns(s, []*File{root}, path); got != want {
			t.Errorf("Returns(%s) = %v", path, got)
		}
	}
	if !Returns(Settings{AutoCRLF: "input"}, nil, "x") || Returns(Settings{AutoCRLF: "false"}, nil, "x") {
		t.Error("core.autocrlf is ignored, or false has an effect")
	}
}

func TestKey(t *testing.T) {
	seen := map[string]string{}
	for name, r := range map[string]Rule{
		"raw": {}, "crlf": {eol: eolCRLF}, "utf16": {encoding: "UTF-16"}, "utf-16": {encoding: "utf-16"},
		"one": {driver: Driver{Name: "d", Smudge: "x"}}, "process": {driver: Driver{Name: "d", Process: "x"}},
		"path":     {driver: Driver{Name: "d", Smudge: "x %f"}},
		"required": {driver: Driver{Name: "d", Smudge: "x", Required: true}},
	} {
		key := r.Key()
		if other, ok := seen[key]; ok {
			t.Errorf("rules %s and %s have the same key", name, other)
		}
		seen[key] = name
	}
}

func FuzzEncode(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	names := []string{"UTF-16", "UTF-16LE", "UTF-16BE", "UTF-16LE-BOM", "UTF-32", "latin1", "ascii"}
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, name := range names {
			out := Rule{encoding: name}.Apply(object.ID{}, content)
			if !utf8.Valid(content) && !bytes.Equal(out, content) {
				t.Errorf("encoding %s: invalid UTF-8 %q was converted to %q", name, content, out)
			}
			if name[:3] == "UTF" && utf8.Valid(content) && len(content) > 0 && len(out) < len(content)/2 {
				t.Errorf("encoding %s: %q was converted to %q", name, content, out)
			}
		}
	})
}
