package ui_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// structure checks the requirements of every page: it has a language, one heading of the first level, landmarks, labels
// of fields, names of links and buttons, and unique ids, and it contains no scripts, styles and handlers.
func structure(t testing.TB, path, page string) {
	t.Helper()
	if !strings.HasPrefix(page, "<!doctype html>") { // the text is only a part of a page
		page = "<!doctype html><html lang=en><body><main id=main><h1>part</h1>" + page + "</main></body></html>"
	}
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	counts, ids, labels := map[string]int{}, map[string]bool{}, map[string]bool{}
	var fields []*html.Node
	level := 0
	var walk func(n *html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.ElementNode {
			counts[n.Data]++
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
					t.Errorf("%s: <%s> has the attribute %s=%q, which the policy forbids", path, n.Data, a.Key, a.Val)
				}
				if (a.Key == "href" || a.Key == "src" || a.Key == "action") && !strings.HasPrefix(a.Val, "/") &&
					!strings.HasPrefix(a.Val, "#") {
					t.Errorf("%s: <%s> has %s=%q, which is not a path of this server", path, n.Data, a.Key, a.Val)
				}
			}
			if id := attr(n, "id"); id != "" {
				if ids[id] {
					t.Errorf("%s: the id %s is used twice", path, id)
				}
				ids[id] = true
			}
			switch n.Data {
			case "html":
				if attr(n, "lang") == "" {
					t.Errorf("%s: the language is missing", path)
				}
			case "script":
				if attr(n, "src") == "" || n.FirstChild != nil {
					t.Errorf("%s: a script is part of the page", path)
				}
			case "style", "iframe", "img", "object", "embed", "base":
				t.Errorf("%s: page has <%s>", path, n.Data)
			case "label":
				labels[attr(n, "for")] = true
			case "input":
				if attr(n, "type") != "hidden" {
					fields = append(fields, n)
				}
			case "a", "button", "summary":
				if strings.TrimSpace(textOf(n)) == "" && attr(n, "aria-label") == "" && attr(n, "data-n") == "" {
					t.Errorf("%s: <%s> has no name: %v", path, n.Data, n.Attr)
				}
			case "h1", "h2", "h3":
				at := int(n.Data[1] - '0')
				if at > level+1 {
					t.Errorf("%s: <%s> %q follows a heading of level %d", path, n.Data, textOf(n), level)
				}
				level = at
			case "th":
				if attr(n, "scope") == "" {
					t.Errorf("%s: <th> has no scope", path)
				}
			}
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(doc)
	for _, f := range fields {
		within := f.Parent != nil && f.Parent.Data == "label"
		if !within && !labels[attr(f, "id")] {
			t.Errorf("%s: the field %s has no label", path, attr(f, "name"))
		}
	}
	for _, one := range []string{"main", "h1", "html", "body"} {
		if counts[one] != 1 {
			t.Errorf("%s: page has %d <%s>, want 1", path, counts[one], one)
		}
	}
}

func attr(n *html.Node, name string) string {
	if i := slices.IndexFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name }); i >= 0 {
		return n.Attr[i].Val
	}
	return ""
}

func textOf(n *html.Node) string {
	if n.Type == html.TextNode {
		return n.Data
	}
	var b strings.Builder
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		b.WriteString(textOf(c))
	}
	return b.String()
}
