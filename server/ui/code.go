package ui

import (
	"bytes"
	"context"
	"embed"
	"html"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/chroma/v2"
)

const (
	// maximum size, in bytes, of a file that is highlighted; larger files have no colours
	maxHighlight  = 256 << 10
	highlightTime = 150 * time.Millisecond // time after which the rest of a file is shown without colours
	// number of bytes at the beginning of a file that determine whether it is binary
	binaryStart = 8 << 10
)

// binary reports whether contents are binary, by git's rule: they have a NUL among the first bytes.
func binary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), binaryStart)], 0) >= 0
}

//go:generate sh -c "cd lexers && go run generate.go"

//go:embed lexers/*.xml
var lexerFiles embed.FS

// lexers returns the lexers in the directory lexers. The rules of a lexer are compiled when it is used first.
var lexers = sync.OnceValue(func() *chroma.LexerRegistry {
	all := chroma.NewLexerRegistry()
	names, _ := fs.Glob(lexerFiles, "lexers/*.xml") // there is no error, because the pattern is valid
	for _, name := range names {
		all.Register(chroma.MustNewXMLLexer(lexerFiles, name))
	}
	return all
})

// classes are the CSS classes of the kinds of tokens. A kind that is not listed has the class of its category, if that
// is listed.
var classes = map[chroma.TokenType]string{
	chroma.Keyword: "k", chroma.KeywordType: "t", chroma.LiteralString: "q", chroma.LiteralNumber: "m",
	chroma.Comment:      "c",
	chroma.NameFunction: "f", chroma.NameClass: "t", chroma.NameBuiltin: "t", chroma.NameTag: "k",
	chroma.NameAttribute: "f",
	chroma.NameDecorator: "f", chroma.LiteralDate: "m",
}

func classOf(t chroma.TokenType) string {
	for _, kind := range []chroma.TokenType{t, t.SubCategory(), t.Category()} {
		if c, ok := classes[kind]; ok {
			return c
		}
	}
	return ""
}

// highlight returns the lines of a text as HTML, without their newlines. The name of the file determines the language.
// A text in an unknown language, a large text, and the part of a text that remains after highlightTime get no colours,
// because the expressions that find tokens are slow for some texts, which an attacker could choose.
func highlight(ctx context.Context, name string, content []byte) []string {
	if len(content) == 0 {
		return nil
	}
	text := strings.ToValidUTF8(string(content), "\ufffd")
	w := lineWriter{}
	rest := text
	if lexer := lexers().Match(path.Base(name)); lexer != nil && len(text) <= maxHighlight {
		rest = w.tokens(ctx, lexer, text)
	}
	w.write("", rest)
	w.end(strings.HasSuffix(text, "\n"))
	return w.lines
}

// tokens writes tokens as HTML, and returns the rest of the text, which has no tokens yet.
func (w *lineWriter) tokens(ctx context.Context, lexer chroma.Lexer, text string) (rest string) {
	next, err := lexer.Tokenise(&chroma.TokeniseOptions{State: "root"}, text)
	if err != nil {
		return text
	}
	end := time.Now().Add(highlightTime)
	for t := next(); t != chroma.EOF; t = next() {
		// A lexer may add a newline at the end, or change the text; the part that the tokens do not repeat exactly is
		// written without colours.
		after, ok := strings.CutPrefix(text, t.Value)
		if !ok {
			break
		}
		w.write(classOf(t.Type), t.Value)
		text = after
		if time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	return text
}

// lineWriter writes tokens as lines of HTML.
type lineWriter struct {
	lines []string
	line  strings.Builder
}

func (w *lineWriter) write(class, text string) {
	for {
		part, rest, more := strings.Cut(text, "\n")
		if part = html.EscapeString(shown(strings.TrimSuffix(part, "\r"))); class != "" && part != "" {
			part = `<b class="` + class + `">` + part + "</b>"
		}
		w.line.WriteString(part)
		if !more {
			return
		}
		w.newline()
		text = rest
	}
}

func (w *lineWriter) newline() {
	w.lines = append(w.lines, w.line.String())
	w.line.Reset()
}

// end ends the last line. complete is true if the text ended with a newline, so that no line is open.
func (w *lineWriter) end(complete bool) {
	if !complete || w.line.Len() > 0 {
		w.newline()
	}
}
