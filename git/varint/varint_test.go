package varint

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestKnownEncodings(t *testing.T) {
	for v, want := range map[uint64]string{0: "\x00", 127: "\x7f", 128: "\x80\x00", 255: "\x80\x7f", 16511: "\xff\x7f",
		16512: "\x80\x80\x00"} {
		if got := Append(nil, v); string(got) != want {
			t.Errorf("%d: got % x, want % x", v, got, want)
		}
	}
}

func TestInvalid(t *testing.T) {
	for in, want := range map[string]error{"": io.EOF, "\x80": io.EOF,
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00": ErrOverflow} {
		if v, n := Decode([]byte(in)); n != 0 {
			t.Errorf("% x: decoded %d of %d bytes", in, v, n)
		}
		if v, err := Read(bytes.NewReader([]byte(in))); !errors.Is(err, want) {
			t.Errorf("% x: read %d, %v, want %v", in, v, err, want)
		}
	}
}

func FuzzVarint(f *testing.F) {
	for _, v := range []uint64{0, 127, 128, 16511, 16512, 1<<63 - 1} {
		f.Add(Append(nil, v))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, n := Decode(in)
		read, err := Read(bytes.NewReader(in))
		if (n == 0) != (err != nil) || v != read {
			t.Fatalf("% x: decoded %d of %d bytes, read %d, %v", in, v, n, read, err)
		}
		if n > 0 && (v > 1<<63-1 || !bytes.Equal(Append(nil, v), in[:n])) {
			t.Errorf("% x is %d, which is encoded as % x", in[:n], v, Append(nil, v))
		}
	})
}
