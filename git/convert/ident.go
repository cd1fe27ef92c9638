package convert

import (
	"bytes"

	"github.com/artifactfs/artifactfs/git/object"
)

// keyword is the start of a "$Id$" or "$Id: ...$", which the attribute ident expands.
const keyword = "$Id"

// mayExpand reports whether content may contain a keyword that has to be expanded. If mayExpand returns false, the
// caller need not make a copy of content.
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

// expandWhole replaces "$Id$" and "$Id: ...$" by "$Id: <id of the blob> $", as git does for files in memory. It does
// not replace a "$Id: ...$" that spans several lines or has a space elsewhere than at the ends of its text, because
// another version control system has written such a text.
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

// expandStream does the same as expandWhole, but with the flaws of git's streaming filter, which examines each byte
// only once. Checkouts have these flaws, so a mount must have them too. In "$$Id$" the filter does not recognize the
// keyword, because the first '$' has already failed to match. If a failed keyword such as "$Idx" is directly followed
// by a keyword that is replaced, the filter loses the text between them, because it buffers both together. One flaw
// is not reproduced: if contents end in 1 KiB of directly adjacent failed keywords and the start of another one, git
// writes that start more than once.
func expandStream(id object.ID, content []byte) []byte {
	if !mayExpand(content) {
		return content
	}
	const head = keyword + "\x00" // as in git, the keyword includes the NUL of the C string
	expansion := ": " + id.String() + " $"
	out, changed := make([]byte, 0, len(content)+256), false
	held := 0    // offset in out from which git's filter would still hold the output in its buffer
	matched := 0 // number of bytes at the start of head that have matched; out does not contain these bytes yet
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
			continue // do not change held, because git's filter keeps this output in its buffer
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

// foreign reports whether another version control system wrote the "$Id: ...$" in held, which is the case if its text
// has white space elsewhere than at the end.
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
