package disk

import "strings"

// QuoteGlob returns a path in which the characters that have a meaning for filepath.Glob are escaped.
func QuoteGlob(path string) string { return globQuotes.Replace(path) }

var globQuotes = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
