package convert

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var patternSeeds = []string{
	"*", "**", "***", "*.c", "*.tar.gz", "a", "a.c", "/a", "/a.c", "a/b", "/a/b", "a/", "/", "a/b/", "//", "a//b",
	"**/a", "**/a.c", "**/a/b", "a/**", "a/**/b", "a/**/b/**", "a**", "a/b**", "a**/b", "a/b**/c.c", "*/a", "*/*", "*/*/*",
	"*/b/*.c", "a/*", "a/*/c.c",
	"a/*.c", "?", "?.c", "a?c", "a/?", "[ab]", "[ab].c", "[!a]", "[^a]*", "[a-c]*", "[]a]", "[]-a]", "[a-]", "[-a]",
	"[!]a]", "[a", "[", "[]", "[!]", "a[",
	`[\]]`, `[\a]`, `[a\-c]`, `[a-\c]`, `[a\`, `[a-\`, "[[:alpha:]]", "[[:alpha:]", "[[:digit:]a]*", "[[:bogus:]a]",
	"[[:alpha]", "[[:a]", "[[:]", "[[:alpha:]-z]", "[a-c-e]", "[a-[:alpha:]]", "[/]", "a[/]b", "a[!x]b", "a[.-0]b",
	`\a`, `a\`, `\`, `\*`, `\?x`, `\!a`, "!a", `\#a`, `a\/b`, `**\/b`, `a/**\/b`, `\[a]`, `*\.c`, `*.\c`, "*a*", "*a*b*",
	"a*b", "a*b*c", "**a", "**a/b", "a**b", "*/**", "**/*", "**/**", "**/**/a", "**/*.c", "a/**/*.c",
	"\xff*", "*\xff", "[\x80-\xff]*", "?\xff", "é", "[é]", "a.*", ".*", "*.", ".gitattributes", `"a b"`, `"a\tb"`,
	`"\141"`, `"a`, `""`, `"a\"b"`, `"\\*"`, `"a/"`, `"\400"`, `"a\000b"`, `"[attr]x"`, `"!a"`, "x[attr]y", "[attr]",
	"a=b", "-a", `"[:alpha:]"`,
	"[[:alnum:]]", "[[:blank:]]", "[[:cntrl:]]", "[[:graph:]]", "[[:lower:]]", "[[:print:]]", "[[:punct:]]", "[[:space:]]",
	"[[:upper:]]", "[[:xdigit:]]",
}

var pathSeeds = []string{
	"a", "b", "c", "z", "a.c", "b.c", "aXc", "abc", "axbxc", "ab", "a/b", "a/b/c", "a/c.c", "a/b/c.c", "a/x/b", "a/x/y/b",
	"a/x/y/b/z", "a/bx/c.c", "a/bx/y/c.c", "ax/b", "ax/y/b", "x/a", "x/a.c", "x/y/a", "x/y/a/b", "x.tar.gz",
	"sub/a", "sub/a.c", "sub/a/b", "sub/a/b/c.c", "sub/x/a/b", "sub/b", "]", "[", "-", "!", "!a", "#a", "*", "?x", `\`,
	`a\`, `\a`, "[a", "[a]", "[]", "a[", "[attr]", "[attr]x", "x[attr]y", "attr", ":", "[:", "\xff", "\xffa", "a\xff", "é",
	"\xc3", ".a", "a.", "a b", "a\tb", `"a`, `a"b`, `""`,
	"\x01", "\x0b", "\x0c", "\r", "\x7f", "\x80", "_", "~", "0", "9", "A", "Z", "F", "g", " ", "a=b", "-a", "d", "e",
	"*.c", ".gitattributes", "a/.gitattributes", "a.b", "a/b.c/d", "aab", "aabb/a", "xbay",
}

func randomPattern(r *rand.Rand) string {
	const atoms = "a b c / / * * ** **/ /** ? . [ab] [!a] [a-c] [ [: ] - \\ \\/ \\* [[:alpha:]] [^/] a/ /b x *.c \xff"
	words := strings.Fields(atoms)
	var b strings.Builder
	for range 1 + r.IntN(6) {
		b.WriteString(words[r.IntN(len(words))])
	}
	return b.String()
}

func randomPath(r *rand.Rand) string {
	words := []string{"a", "b", "c", "ab", "x", "a.c", "b.c", "aXb", "[", "]", "-", `\`, "*", "\xff", "cab"}
	parts := make([]string, 1+r.IntN(4))
	for i := range parts {
		for range 1 + r.IntN(2) {
			parts[i] += words[r.IntN(len(words))]
		}
	}
	return strings.Join(parts, "/")
}

// TestPatternsLikeGit compares the matches of many patterns and paths with those of git. Each line of the attributes
// file sets another attribute.
func TestPatternsLikeGit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	patterns, paths := slices.Clone(patternSeeds), slices.Clone(pathSeeds)
	for range 900 {
		patterns = append(patterns, randomPattern(r))
	}
	for range 150 {
		paths = append(paths, randomPath(r))
	}
	for _, dir := range []string{"", "sub/"} {
		var b strings.Builder
		for i, p := range patterns {
			fmt.Fprintf(&b, "%s\tn%d\n", p, i)
		}
		content := []byte(b.String())
		repo := newRepo(t)
		repo.commit(map[string][]byte{dir + ".gitattributes": content})
		repo.git(nil, "read-tree", "main")
		all := make([]string, len(paths))
		for i, p := range paths {
			all[i] = dir + p
		}
		out := repo.git(strings.NewReader(strings.Join(all, "\x00")+"\x00"), "check-attr", "--cached", "-z", "--stdin", "-a")
		want := map[string]bool{} // keys are "PATH\x00ATTRIBUTE"
		for f := strings.Split(string(out), "\x00"); len(f) >= 3; f = f[3:] {
			if strings.HasPrefix(f[1], "n") {
				want[f[0]+"\x00"+f[1]] = true
			}
		}
		if len(want) < 1000 {
			t.Fatalf("git found only %d matches", len(want))
		}
		f := Parse(content, false) // not the file of the root, so that attributes with unknown names are kept
		for _, path := range all {
			got := map[string]bool{}
			rel := strings.TrimPrefix(path, dir)
			for _, rule := range f.rules {
				if rule.pattern.match(rel, rel[strings.LastIndexByte(rel, '/')+1:]) {
					got[rule.assigns[0].name] = true
				}
			}
			for i, p := range patterns {
				name := fmt.Sprintf("n%d", i)
				if w := want[path+"\x00"+name]; got[name] != w {
					t.Errorf("pattern %q in %q, path %q: got match %v, git has %v", p, dir, path, got[name], w)
				}
			}
		}
		t.Logf("%d patterns x %d paths: %d matches", len(patterns), len(all), len(want))
	}
}

// reference matches a path by a regular expression that is made from the pattern. Bytes are represented as runes.
func reference(s, path string) bool {
	if s == "" || s[0] == '!' || strings.HasSuffix(s, "/") {
		return false
	}
	dirs := strings.Contains(s, "/")
	if !dirs {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	s = strings.TrimPrefix(s, "/")
	start := 0 // "**" counts as being at the start here, too
	if dirs {
		start = strings.IndexAny(s, special)
	}
	var b strings.Builder
	b.WriteString("(?s)^")
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			if i++; i == len(s) {
				return false
			}
			b.WriteString(regexp.QuoteMeta(string(rune(s[i]))))
		case '?':
			b.WriteString("[^/]")
		case '[':
			set, end := parseSet(s, i, false)
			if set == nil {
				return false
			}
			b.WriteString("(?:[^\\x{0}-\\x{ff}]")
			for c := range 256 {
				if set.has(byte(c)) {
					fmt.Fprintf(&b, "|\\x{%x}", c)
				}
			}
			b.WriteString(")")
			i = end
		case '*':
			n := len(s[i:]) - len(strings.TrimLeft(s[i:], "*"))
			whole := dirs && n > 1 && (i == start || s[i-1] == '/')
			end := i + n
			switch {
			case whole && end < len(s) && s[end] == '/':
				b.WriteString("(?:.*/)?")
				end++
			case whole && (end == len(s) || strings.HasPrefix(s[end:], `\/`)):
				b.WriteString(".*")
			default:
				b.WriteString("[^/]*")
			}
			i = end - 1
		default:
			b.WriteString(regexp.QuoteMeta(string(rune(c))))
		}
	}
	runes := make([]rune, len(path))
	for i := range path {
		runes[i] = rune(path[i])
	}
	for i := 0; i < len(path); i++ {
		runes[i] = rune(path[i])
	}
	return regexp.MustCompile(b.String() + "$").MatchString(string(runes))
}

func FuzzMatch(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, p := range patternSeeds {
		f.Add(p, pathSeeds[r.IntN(len(pathSeeds))])
		f.Add(randomPattern(r), randomPath(r))
	}
	f.Fuzz(func(t *testing.T, s, path string) {
		if strings.IndexByte(s+path, 0) >= 0 || path == "" || len(s) > 200 {
			t.Skip()
		}
		p, ok := compile(s, false)
		got := ok && p.match(path, path[strings.LastIndexByte(path, '/')+1:])
		if want := reference(s, path); got != want {
			t.Errorf("pattern %q, path %q: got %v, want %v", s, path, got, want)
		}
	})
}

// TestPatternOfManyStars matches a pattern with which a matcher that backtracks would take nearly forever.
func TestPatternOfManyStars(t *testing.T) {
	for _, s := range []string{strings.Repeat("**/", 600) + "x", strings.Repeat("*a", 900) + "b",
		strings.Repeat("**/*a*/", 250) + "b"} {
		p, ok := compile(s, false)
		if !ok {
			t.Fatalf("pattern %.20q... was refused", s)
		}
		path := strings.Repeat("aaaaaaa/", 120) + strings.Repeat("a", 250)
		if p.match(path, path[strings.LastIndexByte(path, '/')+1:]) {
			t.Errorf("pattern %.20q... matches", s)
		}
	}
}
