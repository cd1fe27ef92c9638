package convert

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// badEncoding stands for an encoding attribute that is set without a value. It cannot be the name of an encoding.
const badEncoding = "\x00"

// encoder converts UTF-8 to another encoding. It returns false if the content is not UTF-8 or has characters that the
// encoding lacks; git leaves such content unchanged.
type encoder func(content []byte) ([]byte, bool)

// Iconv returns the encoding that Apply does not convert, because it needs iconv's tables; "" for none. As in Apply,
// content that cannot be encoded stays unchanged, and so does empty content. The caller converts the content with
// package filter.
func (r Rule) Iconv() string {
	if r.encoding == "" || r.encoding == badEncoding || encoderOf(r.encoding) != nil {
		return ""
	}
	return r.encoding
}

// IconvNames returns the names of an encoding that git tries, in order.
func IconvNames(encoding string) []string {
	if strings.EqualFold(encoding, "latin-1") {
		return []string{encoding, "ISO-8859-1"}
	}
	return []string{encoding}
}

// encoderOf returns the encoder of an encoding that needs no tables, or nil. The output is that of glibc: UTF-16 and
// UTF-32 have a byte order mark and the machine's byte order, the others have no mark; git itself adds the mark for
// names that end in "-BOM".
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

// sameEncoding compares names as git does: "UTF-16" and "utf16" are equal, other names must be equal except for case.
func sameEncoding(a, b string) bool {
	if ua, ok := afterUTF(a); ok {
		if ub, ok := afterUTF(b); ok && strings.EqualFold(ua, ub) {
			return true
		}
	}
	return strings.EqualFold(a, b)
}

// afterUTF returns the part of a name after "utf" or "utf-"; false: it does not start so.
func afterUTF(name string) (string, bool) {
	if len(name) < 3 || !strings.EqualFold(name[:3], "utf") {
		return "", false
	}
	return strings.TrimPrefix(name[3:], "-"), true
}

// byteOrder is the part of binary.AppendByteOrder that the encoders need.
type byteOrder interface {
	AppendUint16(b []byte, v uint16) []byte
	AppendUint32(b []byte, v uint32) []byte
}

const byteOrderMark = 0xfeff

// utf16Encoder returns an encoder to UTF-16, with a byte order mark if mark is set.
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

// utf32Encoder returns an encoder to UTF-32, with a byte order mark if mark is set.
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

// belowEncoder returns an encoder that writes each character below limit as one byte and refuses others.
func belowEncoder(limit rune) encoder {
	return func(content []byte) ([]byte, bool) {
		if bytes.IndexFunc(content, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
			return content, true // IndexFunc treats invalid UTF-8 as U+FFFD, which is above every limit
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
