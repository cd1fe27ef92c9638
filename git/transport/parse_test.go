package transport

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

var (
	hexA = strings.Repeat("a1", 20)
	hexB = strings.Repeat("b2", 20)
	idA  = object.MustID(hexA)
	idB  = object.MustID(hexB)
)

func reader(s string) *pktReader { return newPktReader(strings.NewReader(s)) }

func TestPackets(t *testing.T) {
	big := strings.Repeat("x", pktline.MaxPacket-4)
	in := "0006a\n" + "0000" + "0001" + "0002" + "0004" + "fff0" + big + "000Ab\nERR c"
	for name, r := range map[string]io.Reader{"whole": strings.NewReader(in),
		"bytes": iotest.OneByteReader(strings.NewReader(in)), "data with EOF": iotest.DataErrReader(strings.NewReader(in))} {
		p := newPktReader(r)
		for i, want := range []struct {
			kind pktline.Kind
			data string
		}{{pktline.Data, "a"}, {pktline.Flush, ""}, {pktline.Delim, ""}, {pktline.End, ""}, {pktline.Data, ""},
			{pktline.Data, big}, {pktline.Data, "b\nERR "}} {
			kind, b, err := p.line()
			if err != nil || kind != want.kind || string(b) != want.data {
				t.Errorf("%s: packet %d: %v %.20q, %v", name, i, kind, b, err)
			}
		}
		if _, _, err := p.line(); err != io.ErrUnexpectedEOF {
			t.Errorf("%s: packet that is too long by one byte: got %v", name, err)
		}
	}
	for in, want := range map[string]error{"": io.EOF, "00": io.ErrUnexpectedEOF, "0008abc": io.ErrUnexpectedEOF,
		"0008": io.ErrUnexpectedEOF,
		"0003": errProtocol, "fff1": errProtocol, "00g0": errProtocol, "-001": errProtocol} {
		if _, _, err := reader(in).line(); !errors.Is(err, want) {
			t.Errorf("packet %q: got %v, want %v", in, err, want)
		}
	}
	var said remoteError
	if _, _, err := reader(packets("ERR no\x07")).line(); !errors.As(err, &said) || said.text != "no?" {
		t.Errorf("ERR packet: got %v", err)
	}
}

func TestRefLines(t *testing.T) {
	for line, want := range map[string]Ref{
		hexA + " refs/heads/x":                          {Name: "refs/heads/x", ID: idA},
		hexA + " HEAD symref-target:refs/heads/x":       {Name: "HEAD", ID: idA, Target: "refs/heads/x"},
		hexA + " refs/tags/x peeled:" + hexB:            {Name: "refs/tags/x", ID: idA, Peeled: idB},
		hexA + " refs/tags/x some:thing peeled:" + hexB: {Name: "refs/tags/x", ID: idA, Peeled: idB},
		"unborn HEAD symref-target:refs/heads/x":        {Name: "HEAD", Target: "refs/heads/x"},
	} {
		if got, err := parseRef(object.SHA1, line); err != nil || got != want {
			t.Errorf("parse the ref line %q: got %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", hexA, hexA + " ", hexA + "  x", hexA + " x ", hexA[1:] + " x",
		strings.ToUpper(hexA) + " x", strings.Repeat("0", 40) + " x",
		strings.Repeat("a", 64) + " x", "unborn HEAD", hexA + " x peeled:1", hexA + " HEAD symref-target:../x",
		"unborn x peeled:" + hexA} {
		if got, err := parseRef(object.SHA1, line); err == nil {
			t.Errorf("parse the invalid ref line %q: got %+v, want an error", line, got)
		}
	}
	for name, want := range map[string]bool{"HEAD": true, "refs/heads/a": true, "refs/heads/ä-b.c/d@e": true,
		"heads/a": false, "refs/": false, "refs//a": false, "refs/a/": false,
		"refs/.a": false, "refs/a.lock": false, "refs/a..b": false, "refs/a.": false, "refs/a@{b": false, "refs/a b": false,
		"refs/a\x7f": false, "refs/a*": false, `refs/a\b`: false} {
		if refname.Valid(name) != want {
			t.Errorf("refname.Valid(%q) = %v", name, !want)
		}
	}
	// The result leaves out names that git does not accept, and refs that were not requested.
	got, err := parseRefs(reader(packets(hexA+" refs/heads/../x", hexA+" refs/heads/x", hexB+" refs/tags/x")+"0000"),
		object.SHA1, []string{"refs/heads/"})
	if want := []Ref{{Name: "refs/heads/x", ID: idA}}; err != nil || !reflect.DeepEqual(got.List, want) {
		t.Errorf("parseRefs = %+v, %v", got, err)
	}
}

func TestInfoLines(t *testing.T) {
	ids := []object.ID{idA, idB}
	for in, want := range map[string][]int64{
		packets("size", hexA+" 1", hexB+" 22") + "0000": {1, 22},
		packets("size", hexB+" 22", hexA+" 1") + "0000": {1, 22},
		packets("size", hexB+" ") + "0000":              {-1, -1},
		packets("size", hexB) + "0000":                  {-1, -1},
		packets("size") + "0000":                        {-1, -1},
		"0000":                                          {-1, -1},
	} {
		if got, err := parseInfo(reader(in), object.SHA1, ids); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parse the object sizes %q: got %v, %v", in, got, err)
		}
	}
	other := strings.Repeat("c", 40)
	for _, in := range []string{"", packets("size"), packets("date") + "0000", packets("size", hexA+" -1") + "0000",
		packets("size", hexA+" +1") + "0000", packets("size", other+" 1") + "0000",
		packets("size", hexA+" 9223372036854775808") + "0000", packets("size", hexA+" 1", hexA+" 1", hexA+" 1") + "0000",
		packets("size", "x 1") + "0000", packets("size") + "0001"} {
		if got, err := parseInfo(reader(in), object.SHA1, ids); err == nil {
			t.Errorf("parse the invalid object sizes %q: got %v, want an error", in, got)
		}
	}
}

func TestFetchSections(t *testing.T) {
	for _, in := range []string{"", "0000", packets("acknowledgments"), packets("shallow-info", "shallow "+hexA),
		packets("shallow-info", "shallow x") + "0001",
		packets("shallow-info", "unshallow "+hexA) + "0001", packets("shallow-info") + "0000", packets("wanted-refs"),
		packets("packfile-uris")} {
		if got, err := parseFetch(reader(in), object.SHA1); err == nil {
			t.Errorf("parse the invalid fetch response %q: got %v, want an error", in, got)
		}
	}
}

// packOf returns a reader of the pack in a response of a server.
func packOf(r io.Reader) *pack {
	a := &answer{pktReader: newPktReader(r), keep: func() {}, drop: func() {}}
	return &pack{a: a, remote: &Remote{endpoint: &endpoint.URL{Display: "x"}}}
}

func sideBand(b []byte, data []byte, size int) []byte {
	for len(data) > 0 {
		n := min(size, len(data))
		const digits = "0123456789abcdef"
		l := n + 5
		b = append(b, digits[l>>12&15], digits[l>>8&15], digits[l>>4&15], digits[l&15], bandData)
		b = append(b, data[:n]...)
		data = data[n:]
	}
	return b
}

func TestPackPieces(t *testing.T) {
	data := make([]byte, 400_000)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	for _, size := range []int{1, 999, pktline.MaxPacket - 5} {
		in := append(sideBand(nil, data, size), "0000"...)
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(in),
			"halves": iotest.HalfReader(bytes.NewReader(in)), "bytes": iotest.OneByteReader(bytes.NewReader(in))} {
			if err := iotest.TestReader(packOf(r), data); err != nil {
				t.Errorf("packets of %d bytes, %s: got %v", size, name, err)
			}
		}
	}
}

func TestPackAllocatesNothing(t *testing.T) {
	in := sideBand(nil, make([]byte, 1<<20), 1000)
	buf := make([]byte, 32<<10)
	src := bytes.NewReader(in)
	p := packOf(src)
	if n := testing.AllocsPerRun(100, func() {
		if src.Len() == 0 {
			src.Reset(in)
		}
		if _, err := p.Read(buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("allocations of a Read: got %v", n)
	}
}

func BenchmarkPack(b *testing.B) {
	for _, size := range []int{1000, 8191, pktline.MaxPacket - 5} {
		b.Run("", func(b *testing.B) {
			in := sideBand(nil, make([]byte, 8<<20), size)
			in = append(in, "0000"...)
			b.SetBytes(8 << 20)
			buf := make([]byte, 64<<10)
			for b.Loop() {
				io.CopyBuffer(struct{ io.Writer }{io.Discard}, packOf(bytes.NewReader(in)), buf)
			}
		})
	}
}

func FuzzCapabilities(f *testing.F) {
	f.Add([]byte(v2))
	f.Add([]byte(packets("# service=git-upload-pack") + "0000" + v2))
	f.Add([]byte(packets("version 2", "agent=git/2", "ls-refs=unborn", "fetch=shallow filter ref-in-want",
		"object-format=sha256", "object-info") + "0000"))
	f.Add([]byte(packets("ERR no")))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := parseCapabilities(newPktReader(bytes.NewReader(in)))
		if err == nil && strings.ContainsFunc(c.Agent, func(r rune) bool { return r < ' ' }) {
			t.Errorf("parsed agent: got %q", c.Agent)
		}
		if err == nil && !bytes.Contains(in, []byte("version 2")) {
			t.Error("version 2 was not recognized")
		}
	})
}

func FuzzRefs(f *testing.F) {
	f.Add([]byte(packets(hexA+" HEAD symref-target:refs/heads/x", hexA+" refs/tags/x peeled:"+hexB) + "0000"))
	f.Add([]byte(packets("unborn HEAD symref-target:refs/heads/x") + "0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		refs, err := parseRefs(newPktReader(bytes.NewReader(in)), object.SHA1, nil)
		if err != nil {
			return
		}
		for _, r := range refs.List {
			if !refname.Valid(r.Name) || r.ID.IsZero() || r.Target != "" && !refname.Valid(r.Target) {
				t.Errorf("parsed ref %+v is invalid", r)
			}
		}
	})
}

func FuzzFetchSections(f *testing.F) {
	f.Add([]byte("000dpackfile\n0009\x01PACK0000"))
	f.Add([]byte(packets("shallow-info", "shallow "+hexA) + "0001" + "000dpackfile\n0009\x01PACK0009\x02text0009\x03text"))
	f.Add([]byte(packets("ERR upload-pack: not our ref " + hexA)))
	f.Fuzz(func(t *testing.T, in []byte) {
		p := packOf(bytes.NewReader(in))
		if _, err := parseFetch(p.a.pktReader, object.SHA1); err != nil {
			return
		}
		if n, err := io.Copy(io.Discard, p); n > int64(len(in)) || err == nil && !bytes.Contains(in, []byte("0000")) {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
}

func FuzzObjectInfo(f *testing.F) {
	f.Add([]byte(packets("size", hexA+" 1", hexB+" ") + "0000"))
	f.Add([]byte(packets("size", hexB+" 22", hexA+" 1") + "0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		sizes, err := parseInfo(newPktReader(bytes.NewReader(in)), object.SHA1, []object.ID{idA, idB})
		if err != nil {
			return
		}
		for _, n := range sizes {
			if n < -1 {
				t.Errorf("parsed size: got %d", n)
			}
		}
	})
}
