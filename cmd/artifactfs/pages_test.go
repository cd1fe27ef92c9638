package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// largest is the limit for the bytes of a page: one question, and its answer.
const largest = 15 << 10

// anchors returns the anchors of the headings of a Markdown page, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		heading := strings.TrimLeft(line, "#")
		if fenced || heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading))
		anchor := name
		for n := 1; found[anchor]; n++ {
			anchor = fmt.Sprint(name, "-", n)
		}
		found[anchor] = true
	}
	return found
}

// link matches the target of a link or a picture; it may be in a line of its own.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// broken returns the relative links of a page that lead to no file, or to no heading of a page.
func broken(page, text string) (links []string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, ":") { // another server
			continue
		}
		other := text
		if target != "" {
			path := filepath.Join(filepath.Dir(page), target)
			info, err := os.Stat(path)
			if err != nil {
				links = append(links, m[1])
				continue
			}
			if anchor == "" || info.IsDir() {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				links = append(links, m[1])
				continue
			}
			other = string(data)
		}
		if anchor != "" && !anchors(other)[anchor] {
			links = append(links, m[1])
		}
	}
	return links
}

// Each relative link of a document leads to a file, and to a heading if it has an anchor.
func TestLinksOfDocuments(t *testing.T) {
	sample :=
		"# A page\n## Two `words`, dots.\n[a](#a-page) [b](#two-words-dots) [c](#gone) [d](../../README.md) [e](gone.md) [f](https://x/#y)\n"
	if got := fmt.Sprint(broken("sample.md", sample)); got != "[#gone gone.md]" {
		t.Errorf("broken links of a page with two of them: got %s, want [#gone gone.md]", got)
	}
	for _, page := range append(pages(t), "../../CHANGELOG.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range broken(page, string(text)) {
			t.Errorf("%s has a link to %s, which does not exist", page, target)
		}
	}
}

// A page of doc is short enough to be read, and one of a folder of doc/internals says first which question it answers.
func TestPagesOfDocuments(t *testing.T) {
	asks := regexp.MustCompile(`^# .+\n\nThis page answers: [^\n]+\?\n`)
	for _, page := range pages(t) {
		name, ok := strings.CutPrefix(page, "../../doc/")
		if !ok {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > largest {
			t.Errorf("%s has %d bytes, want at most %d: split it by question", page, len(text), largest)
		}
		if strings.HasPrefix(name, "internals/") && strings.Count(name, "/") == 2 && !asks.Match(text) {
			t.Errorf("%s does not begin with a title and a line This page answers: ...?", page)
		}
	}
}
