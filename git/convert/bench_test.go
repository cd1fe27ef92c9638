package convert

import (
	"fmt"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// large returns a typical .gitattributes file of the root with 40 lines, and the one of a directory with one line.
func large() []*File {
	var b strings.Builder
	b.WriteString("* text=auto\n[attr]generated -diff linguist-generated -text\n")
	for _, ext := range strings.Fields("c h go rs py rb js ts java kt swift sh pl lua css html xml json yaml toml md txt") {
		fmt.Fprintf(&b, "*.%s text\n", ext)
	}
	b.WriteString("*.bat eol=crlf\n*.png binary\n*.jpg binary\n*.gz binary\nMakefile text eol=lf\n/configure eol=lf\n" +
		"vendor/** -text\n**/testdata/** -text\ndocs/*.md eol=lf\n*.pb.go generated\n*_[0-9]*.snap -text\nthird_party/**/*.c -text\n" +
		"*.min.* -text\n/a/b/c.txt text\n*.s[oa] binary\n*.lock -diff\n")
	return []*File{Parse([]byte(b.String()), true), nil, Parse([]byte("*.in text\n"), false)}
}

var sink Rule

func BenchmarkDecide(b *testing.B) {
	files := large()
	for _, path := range []string{"src/deep/module/file.go", "src/deep/module/file.unknown", "third_party/a/b/c/d/x.c"} {
		b.Run(path[strings.LastIndexByte(path, '.')+1:], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = Decide(Settings{}, files, path)
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	content := []byte(strings.Repeat("a line of text as it is met in sources\n", 1<<20/39))
	for _, r := range []Rule{{eol: eolCRLF}, {eol: eolAuto}, {ident: identStream}} {
		b.Run(r.String(), func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			b.ReportAllocs()
			for b.Loop() {
				r.Apply(object.ID{}, content)
			}
		})
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	files := large()
	for _, path := range []string{"a.unknown", "src/deep/module/file.go", "x/y/gen.pb.go", "img/a.png"} {
		if n := testing.AllocsPerRun(100, func() { sink = Decide(Settings{AutoCRLF: "input"}, files, path) }); n != 0 {
			t.Errorf("Decide(%s) allocates %v times", path, n)
		}
	}
}
