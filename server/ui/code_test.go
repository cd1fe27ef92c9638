package ui

import (
	"html"
	"regexp"
	"strings"
	"testing"
	"time"
)

var tag = regexp.MustCompile(`</?b( class="[a-z]")?>`)

// plain returns the text of lines of highlighted code.
func plain(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(html.UnescapeString(tag.ReplaceAllString(l, "")) + "\n")
	}
	return b.String()
}

func TestHighlightKeepsLines(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.go", "package a\r\n\r\n// <b>\r\nvar s = `one\ntwo`\n", `<b class="k">package</b> `},
		{"a.py", "def f():\n    return \"x\"", `<b class="q">`},
		{"a.unknown", "<script>&\n\n", "&lt;script&gt;&amp;"},
		{"Makefile", "all:\n\techo $(X)\n", "all"},
		{"a.ts", "const x: number = 1; // one\n", `<b class="c">// one</b>`},
		{"a.json", "{\"a\": [1, true, null]}", "<b "},
		{"a.c", "\n\n\n", ""},
		{"a.yaml", "", ""},
	} {
		got := highlight(t.Context(), c.name, []byte(c.text))
		want := shown(strings.ReplaceAll(c.text, "\r\n", "\n"))
		if want != "" && !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if plain(got) != want {
			t.Errorf("%s: got the text %q, want %q", c.name, plain(got), want)
		}
		if !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s: got %q, want %q in it", c.name, got, c.want)
		}
	}
}

// TestHighlightEnds checks that text that takes long to highlight is shown within a time limit.
func TestHighlightEnds(t *testing.T) {
	for name, text := range map[string]string{"a.go": strings.Repeat("\"", maxHighlight),
		"a.js": strings.Repeat("/*", maxHighlight/2), "a.cs": strings.Repeat("((((", maxHighlight/4),
		"a.rb": strings.Repeat("%w{", maxHighlight/3), "a.pl": strings.Repeat("<<A;", maxHighlight/4),
		"a.html": strings.Repeat("<a ", maxHighlight/3)} {
		begin := time.Now()
		if got := plain(highlight(t.Context(), name, []byte(text))); got != text+"\n" {
			t.Errorf("%s: got another text of %d bytes, want %d", name, len(got), len(text)+1)
		}
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("%s: took %v", name, d)
		} else {
			t.Logf("%s: %v", name, d)
		}
	}
}

func FuzzHighlight(f *testing.F) {
	f.Add("a.go", "package a\n\nfunc f() {}\n")
	f.Add("a.html", "<p class=x>&amp;</p><script>x = '<'</script>")
	f.Add("a.py", "'''\n\x00\xff")
	f.Fuzz(func(t *testing.T, name, text string) {
		lines := highlight(t.Context(), name, []byte(text))
		for _, l := range lines {
			if rest := tag.ReplaceAllString(l, ""); strings.ContainsAny(rest, "<>\"") {
				t.Errorf("line is not escaped: %q", l)
			}
		}
		if strings.Count(text, "\n") > len(lines) {
			t.Errorf("%d lines, want at least %d", len(lines), strings.Count(text, "\n"))
		}
	})
}
