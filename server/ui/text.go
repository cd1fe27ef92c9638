package ui

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// shown returns text in a form that is safe to show: invalid UTF-8 is replaced, and characters that change how other
// characters are shown (control characters except tab and newline, and marks of text direction) become visible.
func shown(text string) string {
	if !strings.ContainsFunc(text, hidden) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r < ' ':
			b.WriteRune('\u2400' + r) // the visible symbol for a control character
		case r == 0x7f:
			b.WriteRune('\u2421')
		default:
			fmt.Fprintf(&b, "\u27e8U+%04X\u27e9", r)
		}
	}
	return b.String()
}

// hidden reports whether a character is not visible itself, but may change how other characters are shown.
func hidden(r rune) bool {
	switch {
	case r == '\t', r == '\n':
		return false
	case unicode.IsControl(r):
		return true
	}
	return r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r == 0x061c || r == 0xfeff
}

// line returns the first line of a text, cut to limit characters.
func line(text string, limit int) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return clip(text, limit)
}

// clip returns a text, cut to limit characters.
func clip(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	n := 0
	for i := range text {
		if n++; n > limit {
			return shown(text[:i]) + "…"
		}
	}
	return shown(text)
}

// ago returns the time since t as text, such as "3 min ago".
func ago(t, now time.Time) string {
	switch d := now.Sub(t); {
	case t.IsZero():
		return "never"
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/(24*time.Hour))
	}
}

// lasting returns a duration as text for people.
func lasting(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0:
		return number(int(d/(24*time.Hour)), "day", "days")
	case d%time.Hour == 0:
		return number(int(d/time.Hour), "hour", "hours")
	}
	return d.String()
}

// stamp returns a time in UTC.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// short returns the beginning of an object id, which is unique enough for people.
func short(id string) string { return id[:min(10, len(id))] }

// number returns a number with the singular or plural of a noun.
func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// thousands returns a number as text, with commas between thousands.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// size returns a number of bytes as text for people.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}

// escapedPath escapes each component of a path for a URL.
func escapedPath(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// query returns a URL query from pairs of names and values. Pairs with an empty value are left out.
func query(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		b.WriteByte("?&"[min(1, b.Len())])
		b.WriteString(pairs[i] + "=" + url.QueryEscape(pairs[i+1]))
	}
	return b.String()
}
