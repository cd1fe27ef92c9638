package convert

import (
	"bytes"

	"github.com/artifactfs/artifactfs/object"
)

// keyword is the start of an identifier that the ident attribute expands.
const keyword = "$Id"

// mayExpand reports whether content may contain an expandable keyword, so that other content is not copied.
func mayExpand(content []byte) bool {
	for {
		i := bytes.Index(content, []byte(keyword))
		if i < 0 || len(content) == i+len(keyword) {
			return false
		}
		content = content[i+len(keyword):]
		if content[0] == '$' || content[0] == ':' {
			return true
		}
	}
}

// expandWhole replaces "$Id$" and "$Id: ...$" by the keyword with the blob's ID. It leaves an expansion that spans lines
// or has a space elsewhere than at its ends: another version control system wrote it.
func expandWhole(id object.ID, content []byte) []byte {
	if !mayExpand(content) {
		return content
	}
	src, out, changed := content, make([]byte, 0, len(content)+256), false
	for {
		i := bytes.IndexByte(src, '$')
		if i < 0 {
			break
		}
		out = append(out, src[:i+1]...)
		src = src[i+1:]
		if len(src) < 3 || src[0] != 'I' || src[1] != 'd' || src[2] != '$' && src[2] != ':' {
			continue
		}
		end := 2
		if src[2] == ':' {
			n := bytes.IndexByte(src[3:], '$')
			if n < 0 {
				break
			}
			end = 3 + n
			text := src[3:end]
			if bytes.IndexByte(text, '\n') >= 0 {
				continue
			}
			if len(text) > 1 {
				if space := 1 + bytes.IndexByte(text[1:], ' '); space > 0 && space < len(text)-1 {
					continue
				}
			}
		}
		out = append(out, "Id: "...)
		out = append(out, id.String()...)
		out = append(out, " $"...)
		src = src[end+1:]
		changed = true
	}
	if !changed {
		return content
	}
	return append(out, src...)
}

// expandStream does the same as expandWhole in the way of git's streaming filter, which examines each byte once. In
// "$$Id$" the filter does not recognize the keyword, because the first '$' already failed to match. Text after a failed
// keyword ("$Idx") that is directly followed by an expandable keyword is buffered with it, and is lost when the keyword
// is replaced. Checkouts have these flaws, so the mount must have them too. One flaw is not reproduced: for content that
// ends in 1 KiB of directly adjacent failed keywords and the start of another one, git writes that start more than once.
func expandStream(id object.ID, content []byte) []byte {
	if !mayExpand(content) {
		return content
	}
	const head = keyword + "\x00" // the filter's keyword includes C's end of string
	expansion := ": " + id.String() + " $"
	out, changed := make([]byte, 0, len(content)+256), false
	held := 0    // offset in out of the bytes that the filter still buffers
	matched := 0 // number of bytes of head that were matched and are not in out yet
	for i := 0; i < len(content); {
		if matched == 0 && held == len(out) {
			n := bytes.IndexByte(content[i:], '$')
			if n < 0 {
				n = len(content) - i
			}
			out = append(out, content[i:i+n]...)
			i, held = i+n, len(out)
			if i == len(content) {
				break
			}
		}
		c := content[i]
		i++
		if matched < len(head) && head[matched] == c {
			matched++
			continue
		}
		out = append(out, head[:matched]...)
		atEnd := matched == len(keyword)
		matched = 0
		switch {
		case atEnd && c == '$':
			out = append(out, expansion...)
			changed = true
		case atEnd && c == ':':
			n := bytes.IndexAny(content[i:], "$\n") + 1
			if n == 0 {
				n = len(content) - i
			}
			out = append(append(out, c), content[i:i+n]...)
			i += n
			if n > 0 && content[i-1] == '$' && !foreign(out[held:]) {
				out = append(out[:held+len(keyword)], expansion...)
				changed = true
			}
		case atEnd:
			out = append(out, c)
			continue // stays buffered
		default:
			out = append(out, c)
		}
		held = len(out)
	}
	if !changed {
		return content
	}
	return append(out, head[:matched]...)
}

// foreign reports whether an expansion, including its '$', is from another system: it has white space elsewhere than at
// its end.
func foreign(held []byte) bool {
	text, ok := bytes.CutPrefix(held, []byte(keyword+": "))
	if !ok {
		return false
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	for i, c := range text {
		if (c == ' ' || c == '\t' || c == '\r' || c == '\n') && (i+1 == len(text) || text[i+1] != '$') {
			return true
		}
	}
	return false
}
