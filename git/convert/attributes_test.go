package convert

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

var wordSeeds = []string{
	"text", "-text", "!text", "text=auto", "text=input", "text=", "text=foo", "crlf", "-crlf", "!crlf",
	"crlf=input", "crlf=auto",
	"eol=lf", "eol=crlf", "eol", "-eol", "!eol", "eol=CRLF", "ident", "-ident", "!ident", "ident=x", "binary", "-binary",
	"!binary", "binary=1",
	"filter=lfs", "-filter", "filter", "working-tree-encoding=UTF-16", "-working-tree-encoding=x", "m1", "-m1", "!m1",
	"m1=x", "m2", "m3", "-m3", "m4", "unknown", "diff", "-diff", "diff=c", "linguist-generated", "linguist-generated=true",
	"text=a=b", "-text=auto", "!text=auto",
}

var badWords = []string{"=x", "-", "--text", "!", "!-text", "te/xt", "te\"xt", "text,eol=lf", "\xff"}

func randomLine(r *rand.Rand, root bool) string {
	patterns := []string{"*", "*.c", "*.txt", "a.c", "/a.c", "d/*", "d/**", "**/a.c", "e/*.c", "*/a.c", "[ab].*", "?.txt",
		`"a.c"`, `"b.\164xt"`, "d/", "!*.c", "d/e/a.c"}
	var b strings.Builder
	b.WriteString([]string{"", "", "", " ", "\t", "\r", "# "}[r.IntN(7)])
	switch n := r.IntN(20); {
	case n < 4 && root, n == 0:
		b.WriteString([]string{"[attr]m1", "[attr]m2", "[attr]m3", "[attr]m4", "[attr]binary", "[attr]text", "[attr]ident",
			"[attr]-x", "[attr] m1", `"[attr]m1"`, `"[attr] m2 x"`, "[attr]diff"}[r.IntN(12)])
	default:
		b.WriteString(patterns[r.IntN(len(patterns))])
	}
	for range r.IntN(5) {
		b.WriteString([]string{" ", " ", "\t", "  ", "\r"}[r.IntN(5)])
		if r.IntN(40) == 0 {
			b.WriteString(badWords[r.IntN(len(badWords))])
		} else {
			b.WriteString(wordSeeds[r.IntN(len(wordSeeds))])
		}
	}
	if r.IntN(60) == 0 {
		b.WriteString(strings.Repeat(" ", maxLine-3+r.IntN(6)-b.Len()))
	}
	b.WriteString([]string{"\n", "\n", "\r\n", "\n\n"}[r.IntN(4)])
	return b.String()
}

func randomAttributes(r *rand.Rand) map[string][]byte {
	files := map[string][]byte{}
	for _, dir := range []string{"", "d/", "d/e/", "f/"} {
		if r.IntN(4) == 0 {
			continue
		}
		var b strings.Builder
		if r.IntN(20) == 0 {
			b.WriteString("\xef\xbb\xbf")
		}
		for range 1 + r.IntN(7) {
			b.WriteString(randomLine(r, dir == ""))
		}
		s := b.String()
		switch r.IntN(20) {
		case 0:
			s = strings.TrimRight(s, "\r\n")
		case 1:
			at := r.IntN(len(s))
			s = s[:at] + "\x00" + s[at:]
		}
		files[dir+".gitattributes"] = []byte(s)
	}
	return files
}

// TestAttributesLikeGit compares the attributes of paths in generated trees with those that git finds.
func TestAttributesLikeGit(t *testing.T) {
	rounds := 120
	if testing.Short() {
		rounds = 40
	}
	paths := []string{"a.c", "b.txt", "x", "d/a.c", "d/b.txt", "d/e/a.c", "d/e/g/a.c", "f/a.c", "f/e/b.txt", "e/a.c"}
	repo := newRepo(t)
	for seed := range uint64(rounds) {
		compareAttributes(t, repo, Settings{}, randomAttributes(rand.New(rand.NewPCG(seed, 5))), paths)
	}
}

// TestLongLines tests lines just below and above the longest accepted line.
func TestLongLines(t *testing.T) {
	var b strings.Builder
	var paths []string
	for n := maxLine - 3; n <= maxLine+3; n++ {
		for i, end := range []string{"\n", "\r\n", " eol=lf\n"} {
			path := fmt.Sprintf("n%d-%d", n, i)
			paths = append(paths, path)
			line := path + " text" + strings.Repeat(" ", n)
			b.WriteString(line[:n-len(end)+1] + end)
		}
	}
	compareAttributes(t, newRepo(t), Settings{}, map[string][]byte{".gitattributes": []byte(b.String())}, paths)
}

func TestMatters(t *testing.T) {
	for _, c := range []struct {
		content string
		root    bool
		want    bool
	}{
		{"", true, false},
		{"", false, false},
		{"*.c text\n", true, true},
		{"*.c text\n", false, true},
		{"*.c -crlf\n", false, true},
		{"*.c filter=lfs diff=lfs merge=lfs -text\n", true, true},
		{"*.c filter=x\n", true, true},
		{"*.c diff=cpp linguist-language=C -merge export-ignore\n", true, false},
		{"*.c diff=cpp linguist-language=C -merge export-ignore\n", false, false},
		{"*.c other\n", true, false},
		{"*.c other\n", false, true}, // the file in the root may define a macro of this name
		{"*.c binary\n", true, true},
		{"*.c -binary\n", false, true},
		{"[attr]generated -diff linguist-generated\n*.go generated\n", true, false},
		{"[attr]generated -diff -text\n", true, true},
		{"[attr]generated -text\n", false, false}, // macros are not allowed in this file
		{"[attr]binary -diff -merge -text\n", true, false},
		{"[attr]binary -diff\n", true, true},
		{"[attr]ident text\n", true, true},
		{"d/ text\n!*.c text\n", true, false},
		{"*.c text " + strings.Repeat(" ", maxLine) + "\n", true, false},
	} {
		f := Parse([]byte(c.content), c.root)
		if got := f.Matters(); got != c.want {
			t.Errorf("Parse(%.80q, root %v).Matters() = %v", c.content, c.root, got)
		}
	}
	if (*File)(nil).Matters() {
		t.Error("Matters of a nil File is wrong")
	}
}

// TestMacroChain parses a file with a million macros, each of which sets the next one.
func TestMacroChain(t *testing.T) {
	var b strings.Builder
	const n = 1_000_000
	for i := range n {
		fmt.Fprintf(&b, "[attr]m%d m%d\n", i, i+1)
	}
	fmt.Fprintf(&b, "[attr]m%d eol=crlf\n* m0\n", n)
	files := []*File{Parse([]byte(b.String()), true)}
	if got := Decide(Settings{}, files, "a"); got != (Rule{eol: eolCRLF}) {
		t.Errorf("rule: got %v", got)
	}
}

func TestTooLarge(t *testing.T) {
	content := make([]byte, maxFile)
	for i := range content {
		content[i] = ' '
	}
	copy(content, "* text\n")
	if Parse(content, true).Matters() {
		t.Error("an attributes file of 100 MiB is used")
	}
	if !Parse(content[:maxFile-1], true).Matters() {
		t.Error("an attributes file of just less than 100 MiB is not used")
	}
}

func FuzzParse(f *testing.F) {
	for seed := range uint64(60) {
		for _, content := range randomAttributes(rand.New(rand.NewPCG(seed, 6))) {
			f.Add(content, "* m1 text\n", "d/e/a.c")
		}
	}
	for _, p := range patternSeeds {
		f.Add([]byte(p+" text"), p+" binary", "a/b")
	}
	f.Fuzz(func(t *testing.T, root []byte, deep, path string) {
		files := []*File{Parse(root, true), Parse([]byte(deep), false)}
		s := Settings{AutoCRLF: "input"}
		rule := Decide(s, files, path)
		if again := Decide(s, []*File{Parse(root, true), Parse([]byte(deep), false)}, path); again != rule {
			t.Errorf("rule: got %v, then %v", rule, again)
		}
		if !files[0].Matters() { // a file that does not matter can be left out
			if got := Decide(s, []*File{nil, files[1]}, path); got != rule {
				t.Errorf("rule: got %v without the root's file, %v with it", got, rule)
			}
		}
		if got := Decide(s, []*File{Parse(append(root, '\n'), true), files[1]}, path); got != rule && len(root) < maxFile-1 {
			t.Errorf("rule: got %v with an additional newline, %v without", got, rule)
		}
	})
}
