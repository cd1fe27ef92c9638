package convert

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// badEncoding is the encoding of a file whose attribute working-tree-encoding has no value. No real encoding can have
// this name.
const badEncoding = "\x00"

// encoder converts UTF-8 to another encoding. It returns false if the contents are not valid UTF-8 or have characters
// that the other encoding cannot express; git leaves such contents unchanged.
type encoder func(content []byte) ([]byte, bool)

// Iconv returns the name of an encoding to which the caller must convert the result of Apply, with package filter,
// because the conversion needs iconv's tables. It returns "" if no such conversion is needed. Like Apply, the caller
// must leave contents unchanged that are empty or cannot be encoded.
func (r Rule) Iconv() string {
	if r.encoding == "" || r.encoding == badEncoding || encoderOf(r.encoding) != nil {
		return ""
	}
	return r.encoding
}

// IconvNames returns the names under which git looks for an encoding, in the order in which it tries them.
func IconvNames(encoding string) []string {
	if strings.EqualFold(encoding, "latin-1") {
		return []string{encoding, "ISO-8859-1"}
	}
	return []string{encoding}
}

// encoderOf returns the encoder for an encoding that needs no tables, and nil for any other name. Encoders return the
// same bytes as glibc: for the names UTF-16 and UTF-32, the output starts with a byte order mark and has the byte order
// of the machine; for other names, the output has no mark. For names that end in "-BOM" git itself adds the mark.
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

// sameEncoding reports whether git treats two names as the same encoding. Upper and lower case are equivalent, and a
// hyphen after "UTF" is ignored: "UTF-16" and "utf16" are the same.
func sameEncoding(a, b string) bool {
	if ua, ok := afterUTF(a); ok {
		if ub, ok := afterUTF(b); ok && strings.EqualFold(ua, ub) {
			return true
		}
	}
	return strings.EqualFold(a, b)
}

// afterUTF returns the part of a name after "utf" or "utf-", in upper or lower case. It returns false for other
// names.
func afterUTF(name string) (string, bool) {
	if len(name) < 3 || !strings.EqualFold(name[:3], "utf") {
		return "", false
	}
	return strings.TrimPrefix(name[3:], "-"), true
}

// byteOrder has the methods of binary.AppendByteOrder that the encoders need.
type byteOrder interface {
	AppendUint16(b []byte, v uint16) []byte
	AppendUint32(b []byte, v uint32) []byte
}

// byteOrderMark is the code point U+FEFF, which states the byte order at the start of a text.
const byteOrderMark = 0xfeff

// utf16Encoder returns an encoder for UTF-16. If mark is true, the output starts with a byte order mark.
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

// utf32Encoder returns an encoder for UTF-32. If mark is true, the output starts with a byte order mark.
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

// belowEncoder returns an encoder for contents in which every character is below limit. The encoder writes each
// character as one byte, and returns false if the contents have other characters.
func belowEncoder(limit rune) encoder {
	return func(content []byte) ([]byte, bool) {
		if bytes.IndexFunc(content, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
			// the contents are ASCII, because IndexFunc decodes an invalid byte as U+FFFD and would have found it
			return content, true
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
