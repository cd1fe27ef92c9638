package cli

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// shownPaths is the maximum number of paths that a line names.
const shownPaths = 3

// carriedText describes in one line which ignored files a fork has, and which it should have but has not.
func carriedText(c *control.Carried) string {
	if c.Failed != "" {
		return "the fork does not have the ignored files: " + c.Failed
	}
	text := fmt.Sprintf("carried: %s (%s, shared)", Plural(c.Files, "ignored file"), BytesOf(c.Bytes))
	if n := int64(len(c.Secrets)); n > 0 {
		text += fmt.Sprintf(", among them %s that %s on this host (%s)", Plural(n, "secret"), map[bool]string{true: "stays",
			false: "stay"}[n == 1], firstOf(c.Secrets, n))
	}
	var left []string
	for _, l := range c.Left {
		left = append(left, l.Path+": "+l.Why)
	}
	if n := int64(len(left)) + c.Others; n > 0 {
		text += "; not carried: " + firstOf(left, n)
	}
	return text
}

// firstOf joins the first of n paths, of which names has the first ones.
func firstOf(names []string, n int64) string {
	text := strings.Join(names[:min(len(names), shownPaths)], ", ")
	if more := n - shownPaths; more > 0 {
		text += " and " + Count(more) + " more"
	}
	return text
}
