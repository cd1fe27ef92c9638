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
	maxHighlight  = 256 << 10              // bytes of a file that is highlighted; larger ones are shown without colours
	highlightTime = 150 * time.Millisecond // after which the rest of a file is shown without colours
	binaryStart   = 8 << 10                // bytes of a file that decide whether it is binary
)

// binary reports whether contents are not text, as git decides it: there is a NUL near the beginning.
func binary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), binaryStart)], 0) >= 0
}

//go:generate sh -c "cd lexers && go run generate.go"

//go:embed lexers/*.xml
var lexerFiles embed.FS

// lexers returns the lexers of the directory lexers. Their rules are compiled when they are used first.
var lexers = sync.OnceValue(func() *chroma.LexerRegistry {
	all := chroma.NewLexerRegistry()
	names, _ := fs.Glob(lexerFiles, "lexers/*.xml") // the pattern is valid
	for _, name := range names {
		all.Register(chroma.MustNewXMLLexer(lexerFiles, name))
	}
	return all
})

// classes are the classes of CSS of kinds of tokens. A kind that is not listed has the class of its category, if that is listed.
var classes = map[chroma.TokenType]string{
	chroma.Keyword: "k", chroma.KeywordType: "t", chroma.LiteralString: "q", chroma.LiteralNumber: "m", chroma.Comment: "c",
	chroma.NameFunction: "f", chroma.NameClass: "t", chroma.NameBuiltin: "t", chroma.NameTag: "k", chroma.NameAttribute: "f",
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

// highlight returns the lines of a text as HTML, without their newlines. The name of the file decides on the language. A text of an
// unknown language, a large text, and what remains after highlightTime, have no colours: the expressions that find tokens can be slow
// for texts that were made for it.
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

// tokens writes the tokens of a text, and returns the part of the text that follows them.
func (w *lineWriter) tokens(ctx context.Context, lexer chroma.Lexer, text string) (rest string) {
	next, err := lexer.Tokenise(&chroma.TokeniseOptions{State: "root"}, text)
	if err != nil {
		return text
	}
	end := time.Now().Add(highlightTime)
	for t := next(); t != chroma.EOF; t = next() {
		// A lexer may add a newline at the end, or change the text; what it does not repeat exactly is written without colours.
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

// lineWriter divides tokens into lines of HTML.
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

// end ends the last line, unless the text ended with a newline.
func (w *lineWriter) end(complete bool) {
	if !complete || w.line.Len() > 0 {
		w.newline()
	}
}
