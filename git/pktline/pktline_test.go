package pktline

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestNext(t *testing.T) {
	big := strings.Repeat("x", MaxData)
	in := "0006a\n" + "0000" + "0001" + "0002" + "0004" + "fff0" + big + "000Ab\nERR c"
	type packet struct {
		kind Kind
		data string
	}
	want := []packet{{Data, "a\n"}, {Flush, ""}, {Delim, ""}, {End, ""}, {Data, ""}, {Data, big}, {Data, "b\nERR "}}
	for name, r := range map[string]io.Reader{
		"whole":         strings.NewReader(in),
		"bytes":         iotest.OneByteReader(strings.NewReader(in)),
		"data with EOF": iotest.DataErrReader(strings.NewReader(in)),
	} {
		for _, size := range []int{0, 100, 2 * MaxPacket} {
			if name != "whole" && size != 0 {
				continue // readers can be read only once
			}
			if name == "whole" {
				r = strings.NewReader(in)
			}
			p := NewReader(r, size)
			for i, w := range want {
				kind, b, err := p.Next()
				if err != nil || kind != w.kind || string(b) != w.data || kind == Data && b == nil {
					t.Errorf("%s, buffer of %d bytes: packet %d is %v %.20q, %v", name, size, i, kind, b, err)
				}
			}
			if _, _, err := p.Next(); err != io.ErrUnexpectedEOF {
				t.Errorf("%s, buffer of %d bytes: error behind one more byte: got %v, want %v", name, size, err,
					io.ErrUnexpectedEOF)
			}
		}
	}
}

func TestNextFails(t *testing.T) {
	for in, want := range map[string]error{
		"": io.EOF, "00": io.ErrUnexpectedEOF, "0008abc": io.ErrUnexpectedEOF, "0008": io.ErrUnexpectedEOF,
		"0003": ErrLength, "fff1": ErrLength, "00g0": ErrLength, "-001": ErrLength,
	} {
		if _, _, err := NewReader(strings.NewReader(in), 100).Next(); !errors.Is(err, want) {
			t.Errorf("%q: got error %v, want %v", in, err, want)
		}
	}
}

func TestReady(t *testing.T) {
	for in, want := range map[string]bool{"0005a": true, "0005": false, "0000": false, "0004": false, "zzzz": false,
		"000": false} {
		p := NewReader(strings.NewReader(in), 100)
		_ = p.Fill(1)
		if got := p.Ready(); got != want {
			t.Errorf("%q is ready: got %t, want %t", in, got, want)
		}
	}
}

// FuzzReader compares the packets of a stream that is read as a whole with those of one that is read in pieces, and
// writes them again.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"", "0000", "0006a\n", "0004", "fff0", "0003", "0009ERR x", "0001000200000", "000Aabcdef"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, pieces := NewReader(bytes.NewReader(in), 128<<10), NewReader(iotest.HalfReader(bytes.NewReader(in)), 0)
		var again []byte
		for {
			kind, b, err := whole.Next()
			kind2, b2, err2 := pieces.Next()
			if kind != kind2 || !bytes.Equal(b, b2) || (err == nil) != (err2 == nil) {
				t.Fatalf("%v %q %v, in pieces %v %q %v", kind, b, err, kind2, b2, err2)
			}
			if err != nil {
				break
			}
			switch kind {
			case Data:
				again = Append(again, b)
			case Flush:
				again = AppendFlush(again)
			case Delim:
				again = AppendDelim(again)
			case End:
				again = append(again, "0002"...)
			}
		}
		if len(again) > len(in) || !bytes.EqualFold(again, in[:len(again)]) {
			t.Errorf("packets of %q were written as %q", in, again)
		}
	})
}
