package cli

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// shownPaths is the maximum number of paths that a line names for one reason.
const shownPaths = 3

// printCarried prints on stderr, in one line, which ignored files a new mount has, and which paths it lacks.
func printCarried(a *App, c *control.Carried, missing *control.Receipt) {
	if text := carriedText(c, missing); text != "" {
		fmt.Fprintf(a.Stderr, "artifactfs: %s\n", OneLine(text))
	}
}

// carriedText describes which ignored files a fork has, and which paths it lacks. It returns "" if both are nil.
func carriedText(c *control.Carried, missing *control.Receipt) string {
	var parts []string
	if c != nil && c.Failed == "" {
		text := fmt.Sprintf("carried: %s (%s, shared)", Plural(c.Files, "ignored file"), BytesOf(c.Bytes))
		if n := int64(len(c.Secrets)); n > 0 {
			text += fmt.Sprintf(", among them %s (%s)", Plural(n, "secret"), firstOf(c.Secrets))
		}
		parts = append(parts, text)
	}
	if missing != nil {
		text := "not carried: " + receiptText(missing)
		if c != nil && c.Failed != "" {
			text += ": " + c.Failed
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// firstOf joins the first names.
func firstOf(names []string) string {
	if len(names) > shownPaths {
		names = append(names[:shownPaths:shownPaths], "...")
	}
	return strings.Join(names, ", ")
}
