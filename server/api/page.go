package api

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// The result_info of a list has one of two forms. It describes pages if the list fits on one page, or if a page was
// requested by its number. All other lists have cursors.

// maxPage is the maximum number of a page, and of commits to skip.
const maxPage = 1 << 30

// pageInfo describes a page by its number.
type pageInfo struct {
	Page       int `json:"page"`
	PerPage    int `json:"per_page"`
	TotalPages int `json:"total_pages"`
	Count      int `json:"count"`
	TotalCount int `json:"total_count"`
}

func pages(page, perPage, count, total int) pageInfo {
	return pageInfo{page, perPage, (total + perPage - 1) / perPage, count, total}
}

// cursorInfo describes a page after which a list continues at a cursor. On the last page, the cursor is "".
type cursorInfo struct {
	Cursor  string `json:"cursor"`
	PerPage int    `json:"per_page"`
	Count   int    `json:"count"`
}

// nameCursor returns a cursor after which a list of namespaces continues: the one with the given name.
func nameCursor(name string) string { return base64.RawURLEncoding.EncodeToString([]byte("n:" + name)) }

// parseNameCursor returns the name in a cursor of nameCursor.
func parseNameCursor(cursor string) (string, *Fault) {
	if cursor == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	name, ok := strings.CutPrefix(string(text), "n:")
	// encode the name again for a comparison, because the decoder ignores newlines
	if err != nil || !ok || validNamespace(name) != nil || nameCursor(name) != cursor {
		return "", invalid("cursor", "Invalid cursor")
	}
	return name, nil
}

// timeFormat is the format of all times in answers, which are in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

func timeText(t time.Time) string { return t.UTC().Format(timeFormat) }

// optional returns nil for "", which is shown as null.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// optionalTime returns nil for the zero time, which is shown as null.
func optionalTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := timeText(t)
	return &s
}

// seqOf returns the number of an event, which is a component of a path.
func seqOf(text string) (int64, *Fault) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid("seq", "Invalid input: expected number, received NaN")
	}
	return n, nil
}
