package convert

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// contents returns contents of files by name. The names of chosen contents begin with f, those of random contents with
// r.
func contents() map[string][]byte {
	m := map[string][]byte{}
	kind := "f"
	add := func(s string) { m[fmt.Sprintf("%s%03d.txt", kind, len(m))] = []byte(s) }
	old := strings.Repeat("0", 40)
	for _, s := range []string{
		"", "\n", "\r\n", "\r", "a", "a\n", "a\nb\n", "a\nb", "a\r\nb\r\n", "a\r\nb\n", "a\nb\r\n", "a\rb\n", "a\rb\r\nc\n",
		"\r\r\n", "a\r\r\nb\n", "\n\n\r\n\n", "a\n\r", "a\n\x00b\n", "\x00", "a\x00\r\n\n",
		"\x01\x02\n", strings.Repeat("x", 127) + "\x01\n", strings.Repeat("x", 128) + "\x01\n",
		strings.Repeat("x", 255) + "\x01\x02\n", strings.Repeat("x", 256) + "\x01\x02\n",
		"a\n\x1a", strings.Repeat("x", 128) + "\x01\n\x1a", "\x1a", "\x1a\n", "\b\t\x1b\f\n", "a\x7f\n", "\x0b\n",
		"\xff\xfe\n", "\xef\xbb\xbfa\n", "\xfea\x00\n\x00",
		"$Id$", "$Id$\n", "x $Id$ y\n", "$Id: $\n", "$Id:$\n", "$Id: " + old + " $\n", "$Id:" + old + "$\n", "$Id: a b $\n",
		"$Id: a b$\n", "$Id: a $\n", "$Id: a  $\n", "$Id:a b$\n", "$Id:\ta b$\n", "$Id: a\tb $\n", "$Id: a\rb $\n",
		"$Id:  $\n", "$Id:   $\n", "$Id: a\n$Id$\n", "$Id: a\nb $\n",
		"$Id", "$Id:", "$Id: a", "$I", "$", "$Id\n$Id$\n", "$$Id$\n", "$$$Id$\n", "$I$Id$\n", "$Id$Id$\n", "$Id$$Id$\n",
		"$Id$$Id$$Id$", "$Id: a b $Id$\n", "$Id: a b $Id: c $\n", "$Idx$Id$\n", "$Idx$Id: c $\n", "$Idx$Id: a b $\n",
		"$Idx$Idy$Id: c $\n", "$Idx $Id: c $\n", "$Idx$", "$Idx$I", "$Idx", "$Idx$Id", "$Id\x00$Id$\n", "$Id\x00",
		"$Id: a\x00 b $\n", "$Id: a \x00$\n",
		"$ID$ $id$ $Id $\n", "$Id$\r\n$Id$\n", "$Id$\n\x00", "$Id:\r\n$\n", "$Id: \xff $\n", "a\n$Id$", "$Id$\x1a",
	} {
		add(s)
	}
	// Git's filters process pieces of 16 KiB, or of 1 KiB if two filters are combined.
	for _, size := range []int{1024, 16384, 32768} {
		for d := -6; d <= 2; d++ {
			pad := strings.Repeat("0123456789abcde\n", size/16)
			pad = (pad + "0123456789")[:size+d]
			add(pad + "$Id$\n" + pad)
			add(pad + "\r\n" + pad + "\r")
		}
		add(strings.Repeat("$Id$\n", size/4))
		add(strings.Repeat("\n", size))
		add(strings.Repeat("$Idx", size/4-1) + "$Id: c $\n")
		add("$Id: " + strings.Repeat("x", size) + " $\n$Id: " + strings.Repeat("y", size) + "\n")
	}
	kind = "r"
	r := rand.New(rand.NewPCG(7, 8))
	words := []string{"$", "$", "$Id", "$Id$", "$Id:", "$Id: ", "Id", "I", "d", ":", " ", " $", "x", "\n", "\n", "\r\n",
		"\r", "\t", "\x00", "\xff", "0123456789abcdef", "\x01"}
	for range 160 {
		var b strings.Builder
		n := len(words) - r.IntN(8) // often leaves out CR, NUL and other bytes of binary files
		for range 1 + r.IntN(14) {
			b.WriteString(words[r.IntN(n)])
		}
		add(b.String())
	}
	return m
}

// checkoutTree returns a tree that has all contents below directories with all combinations of attributes, some of them
// nested.
func checkoutTree() map[string][]byte {
	files := map[string][]byte{}
	root :=
		"[attr]m1 text eol=crlf\n[attr]m2 m1 ident\n[attr]m3 text=auto ident -eol\n/deep/*.txt m3\n/deep/x/*.txt text\n/deep/x/y/*5.txt ident\n"
	files[".gitattributes"] = []byte(root)
	combos := []string{"", "binary", "binary ident", "m1", "m2", "m3", "m3 eol=crlf", "m2 !text", "binary text",
		"text=foo eol=crlf", "crlf", "-crlf", "crlf=input ident", "crlf=auto eol=crlf ident", "crlf -text",
		"text=input eol=crlf", "eol=crlf", "eol=lf ident", "text -crlf ident"}
	for _, text := range []string{"text", "-text", "text=auto"} {
		for _, eol := range []string{"", " eol=lf", " eol=crlf"} {
			for _, ident := range []string{"", " ident"} {
				combos = append(combos, text+eol+ident)
			}
		}
	}
	all := contents()
	put := func(dir, attributes string, every, at int) {
		files[dir+".gitattributes"] = []byte(attributes)
		i, ident := 0, strings.Contains(attributes, "ident")
		for _, name := range slices.Sorted(maps.Keys(all)) {
			content := all[name]
			if i++; i%every == at%every || len(content) < 800 && name[0] == 'f' && (ident || bytes.IndexByte(content, '$') < 0) {
				files[dir+name] = content
			}
		}
	}
	for i, combo := range combos {
		put(fmt.Sprintf("c%02d/", i), "*.txt "+combo+"\n", 6, i)
	}
	put("ident/", "* ident\n", 1, 0)
	put("both/", "* ident text eol=crlf\n", 1, 0)
	put("whole/", "* ident text=auto eol=crlf\n", 1, 0)
	put("deep/", "f00* -text\n", 3, 0)
	put("deep/x/", "f01* eol=crlf\n", 3, 0)
	put("deep/x/y/", "\xef\xbb\xbf* ident\nf01* !eol text=auto\n f02* binary\n\"f0\\063*\" crlf ident\n", 3, 0)
	return files
}

// TestCheckout compares the converted contents with the files of a clone.
func TestCheckout(t *testing.T) {
	files := checkoutTree()
	r := newRepo(t)
	r.commit(files)
	settings := []Settings{{}, {AutoCRLF: "true", EOL: "lf"}, {EOL: "crlf"}, {AutoCRLF: "input", EOL: "crlf"},
		{EOL: "native"}}
	if testing.Short() {
		settings = settings[:2]
	}
	for _, s := range settings {
		compareClone(t, r, s, files)
	}
}

// TestCheckoutOfRandomAttributes compares files below several directories with random attributes, in unusual spellings,
// with those of a clone.
func TestCheckoutOfRandomAttributes(t *testing.T) {
	rounds := uint64(40)
	if testing.Short() {
		rounds = 8
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(seed, 9))
		files := randomAttributes(r)
		for dir, content := range files {
			// git fails to check out files with these attributes
			content = bytes.ReplaceAll(content, []byte("working-tree-encoding"), []byte("filter"))
			files[dir] = content
		}
		for _, dir := range []string{"", "d/", "d/e/", "d/e/g/", "f/"} {
			for i, s := range []string{"a\nb\n", "$Id$\n", "a\r\nb\n$Id: x $", "\x00\n", "$$Id$\n"} {
				for _, name := range []string{"a.c", "b.txt", "x"} {
					files[fmt.Sprintf("%s%d/%s", dir, i, name)] = []byte(s)
					files[dir+name] = []byte(s)
				}
			}
		}
		s := Settings{
			AutoCRLF: []string{"", "true", "input", "false", "yes", "INPUT", "0", "1"}[r.IntN(8)],
			EOL:      []string{"", "lf", "crlf", "native", "CRLF"}[r.IntN(5)],
		}
		compareCheckout(t, s, files)
	}
}

func TestRuleString(t *testing.T) {
	seen := map[string]Rule{}
	for eol := range eolAuto + 1 {
		for ident := range identWhole + 1 {
			r := Rule{eol: eol, ident: ident}
			if other, ok := seen[r.String()]; ok {
				t.Errorf("rules %#v and %#v have the same string %q", r, other, r)
			}
			seen[r.String()] = r
			if r.IsZero() != (r.String() == "raw") {
				t.Errorf("rule %#v has the string %q", r, r)
			}
		}
	}
}

func FuzzApply(f *testing.F) {
	for _, content := range contents() {
		if len(content) < 300 {
			f.Add(content)
		}
	}
	id := object.MustID(strings.Repeat("a1", 20))
	unix := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }
	f.Fuzz(func(t *testing.T, content []byte) {
		before := bytes.Clone(content)
		crlf := Rule{eol: eolCRLF}.Apply(id, content)
		if !bytes.Equal(unix(crlf), unix(content)) || bytes.Count(crlf, []byte("\n")) != bytes.Count(crlf, []byte("\r\n")) {
			t.Errorf("conversion of %q to CRLF: got %q", content, crlf)
		}
		if auto := (Rule{eol: eolAuto}).Apply(id, content); !bytes.Equal(auto, crlf) && !bytes.Equal(auto, content) {
			t.Errorf("automatic conversion of %q to CRLF: got %q", content, auto)
		}
		for _, mode := range []identMode{identStream, identWhole} {
			once := Rule{ident: mode}.Apply(id, content)
			if !bytes.Contains(content, []byte("$Id")) && !bytes.Equal(once, content) {
				t.Errorf("ident conversion of %q, which has no keyword: got %q", content, once)
			}
			if n := bytes.Count(content, []byte("$Id")); len(once) > len(content)+n*(len(id.String())+3) {
				t.Errorf("ident conversion of %q is too long: got %q", content, once)
			}
		}
		if !bytes.Equal(before, content) {
			t.Errorf("the input %q was overwritten", before)
		}
	})
}
