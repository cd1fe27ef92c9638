package convert

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// badEncoding is no encoding's name: the attribute is set, but has no value.
const badEncoding = "\x00"

// encoder writes UTF-8 in another encoding; false: there are bytes that are no UTF-8 or no characters of that encoding,
// and git leaves such a content as it is.
type encoder func(content []byte) ([]byte, bool)

// Iconv names the encoding that Apply has left to iconv's tables; "" for none. As with Apply, a content that cannot be
// encoded stays as it is, and so does an empty one.
func (r Rule) Iconv() string {
	if r.encoding == "" || r.encoding == badEncoding || encoderOf(r.encoding) != nil {
		return ""
	}
	return r.encoding
}

// IconvNames are the names to try of an encoding, as git tries them.
func IconvNames(encoding string) []string {
	if strings.EqualFold(encoding, "latin-1") {
		return []string{encoding, "ISO-8859-1"}
	}
	return []string{encoding}
}

// encoderOf finds the encodings that need no tables; nil for all others. What glibc writes for them is known: UTF-16
// and UTF-32 have a byte order mark and the machine's byte order, the others none, and git itself adds the one that
// "-BOM" asks for.
func encoderOf(name string) encoder {
	if name == "" || name == badEncoding {
		return nil
	}
	switch {
	case sameEncoding(name, "UTF-16LE-BOM"):
		return utf16Encoder(binary.LittleEndian, true)
	case sameEncoding(name, "UTF-16BE-BOM"):
		return utf16Encoder(binary.BigEndian, true)
	}
	switch strings.ToUpper(name) {
	case "UTF-16", "UTF16":
		return utf16Encoder(binary.NativeEndian, true)
	case "UTF-16LE", "UTF16LE":
		return utf16Encoder(binary.LittleEndian, false)
	case "UTF-16BE", "UTF16BE":
		return utf16Encoder(binary.BigEndian, false)
	case "UTF-32", "UTF32":
		return utf32Encoder(binary.NativeEndian, true)
	case "UTF-32LE", "UTF32LE":
		return utf32Encoder(binary.LittleEndian, false)
	case "UTF-32BE", "UTF32BE":
		return utf32Encoder(binary.BigEndian, false)
	case "ISO-8859-1", "ISO8859-1", "ISO88591", "LATIN1":
		return belowEncoder(0x100)
	case "US-ASCII", "ASCII":
		return belowEncoder(0x80)
	}
	return nil
}

// sameEncoding is git's comparison: "UTF-16" and "utf16" are the same, other names differ at most in case.
func sameEncoding(a, b string) bool {
	if ua, ok := afterUTF(a); ok {
		if ub, ok := afterUTF(b); ok && strings.EqualFold(ua, ub) {
			return true
		}
	}
	return strings.EqualFold(a, b)
}

func afterUTF(name string) (string, bool) {
	if len(name) < 3 || !strings.EqualFold(name[:3], "utf") {
		return "", false
	}
	return strings.TrimPrefix(name[3:], "-"), true
}

// byteOrder can append, which binary.NativeEndian's methods do as well.
type byteOrder interface {
	AppendUint16(b []byte, v uint16) []byte
	AppendUint32(b []byte, v uint32) []byte
}

const byteOrderMark = 0xfeff

func utf16Encoder(order byteOrder, mark bool) encoder {
	return func(content []byte) ([]byte, bool) {
		out := make([]byte, 0, 2*len(content)+2)
		if mark {
			out = order.AppendUint16(out, byteOrderMark)
		}
		for len(content) > 0 {
			r, n := utf8.DecodeRune(content)
			if r == utf8.RuneError && n == 1 {
				return nil, false
			}
			content = content[n:]
			if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
				out = order.AppendUint16(order.AppendUint16(out, uint16(hi)), uint16(lo))
			} else {
				out = order.AppendUint16(out, uint16(r))
			}
		}
		return out, true
	}
}

func utf32Encoder(order byteOrder, mark bool) encoder {
	return func(content []byte) ([]byte, bool) {
		out := make([]byte, 0, 4*len(content)+4)
		if mark {
			out = order.AppendUint32(out, byteOrderMark)
		}
		for len(content) > 0 {
			r, n := utf8.DecodeRune(content)
			if r == utf8.RuneError && n == 1 {
				return nil, false
			}
			content = content[n:]
			out = order.AppendUint32(out, uint32(r))
		}
		return out, true
	}
}

// belowEncoder writes characters below limit as one byte each.
func belowEncoder(limit rune) encoder {
	return func(content []byte) ([]byte, bool) {
		if bytes.IndexFunc(content, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
			return content, true // what is no UTF-8 counts as a character above all limits
		}
		out := make([]byte, 0, len(content))
		for len(content) > 0 {
			r, n := utf8.DecodeRune(content)
			if r == utf8.RuneError && n == 1 || r >= limit {
				return nil, false
			}
			content = content[n:]
			out = append(out, byte(r))
		}
		return out, true
	}
}
