package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

var (
	one = object.MustID("1111111111111111111111111111111111111111")
	two = object.MustID("2222222222222222222222222222222222222222")
)

// message returns lines as packets; "|" stands for a delimiter, and a flush packet follows.
func message(lines ...string) []byte {
	var b []byte
	for _, l := range lines {
		if l == "|" {
			b = pktline.AppendDelim(b)
		} else {
			b = pktline.AppendLine(b, l)
		}
	}
	return pktline.AppendFlush(b)
}

func TestParseRequest(t *testing.T) {
	head := []string{"command=fetch", "agent=git/2.47", "object-format=sha1", "|"}
	for name, c := range map[string]struct {
		lines                []string
		wants, depth         int
		filter               string
		plain, shallow, fail bool
	}{
		"snap": {[]string{"thin-pack", "ofs-delta", "deepen 2", "filter blob:none", "want " + one.String(),
			"want " + one.String(), "done"}, 1, 2, "blob:none", true, false, false},
		"blobs":       {[]string{"want " + one.String(), "want " + two.String(), "done"}, 2, 0, "", true, false, false},
		"shallow":     {[]string{"shallow " + two.String(), "want " + one.String(), "done"}, 1, 0, "", true, true, false},
		"haves":       {[]string{"want " + one.String(), "have " + two.String(), "done"}, 1, 0, "", false, false, false},
		"negotiation": {[]string{"want " + one.String()}, 1, 0, "", false, false, false},
		"by name":     {[]string{"want-ref refs/heads/main", "done"}, 0, 0, "", false, false, false},
		"since":       {[]string{"want " + one.String(), "deepen-since 1", "done"}, 1, 0, "", false, false, false},
		"depth 0":     {[]string{"want " + one.String(), "deepen 0", "done"}, 1, 0, "", false, false, false},
		"new feature": {[]string{"want " + one.String(), "something new", "done"}, 1, 0, "", false, false, false},
		"bad id":      {[]string{"want 12", "done"}, 0, 0, "", false, false, true},
		"bad depth":   {[]string{"deepen x", "done"}, 0, 0, "", false, false, true},
	} {
		r, err := ParseRequest(message(append(head, c.lines...)...))
		if (err != nil) != c.fail {
			t.Errorf("%s: error %v", name, err)
		}
		if err != nil {
			continue
		}
		if len(r.Wants) != c.wants || r.Depth != c.depth || r.Filter != c.filter || r.Plain != c.plain ||
			r.Shallow != c.shallow {
			t.Errorf("%s: got %+v", name, r)
		}
	}
	if r, err := ParseRequest(Fetch(object.SHA1, []object.ID{one, two}, 2, "blob:none")); err != nil || !r.Plain ||
		len(r.Wants) != 2 {
		t.Errorf("own request: got %+v, %v", r, err)
	}
	if r, err := ParseRequest(ObjectInfo(object.SHA1, []object.ID{one})); err != nil || !r.Size || len(r.Sizes) != 1 {
		t.Errorf("own request for sizes: got %+v, %v", r, err)
	}
	if r, err := ParseRequest(message("command=object-info", "|", "size", "type", "oid "+one.String())); err != nil ||
		r.Size {
		t.Errorf("request for sizes and types: got %+v, %v", r, err)
	}
}

// An answer that was written is read as it was, with empty packets in between.
func TestFetchAnswers(t *testing.T) {
	pack := bytes.Repeat([]byte("contents of a pack"), 20_000)
	var b bytes.Buffer
	w := NewFetchWriter(&b, func() {})
	w.KeepAlive() // before the pack, which would be no valid answer
	if err := w.Begin(true, []object.ID{one, two}); err != nil {
		t.Fatal(err)
	}
	w.KeepAlive()
	for rest := pack; len(rest) > 0; rest = rest[min(len(rest), 100_000):] {
		if _, err := w.Write(rest[:min(len(rest), 100_000)]); err != nil {
			t.Fatal(err)
		}
		w.KeepAlive()
		w.KeepAlive()
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	w.KeepAlive()
	var copied bytes.Buffer
	if n, err := NewFetchWriter(&copied, func() {}).Copy(bytes.NewReader(b.Bytes())); err != nil || n != int64(b.Len()) ||
		copied.String() != b.String() {
		t.Errorf("copy of an answer: %d of %d bytes, %v", n, b.Len(), err)
	}
	a, err := ReadFetch(&b, object.SHA1)
	if err != nil || !a.Deepened || len(a.Shallow) != 2 {
		t.Fatalf("start of the answer: got %+v, %v", a, err)
	}
	if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, pack) {
		t.Errorf("pack: got %d of %d bytes, %v", len(got), len(pack), err)
	}
	short := copied.Bytes()[:copied.Len()-4]
	if a, err = ReadFetch(bytes.NewReader(short), object.SHA1); err == nil {
		_, err = io.ReadAll(a)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("answer without its end: got %v", err)
	}
	var refused Refused
	if _, err := ReadFetch(bytes.NewReader(message("ERR upload-pack: not our ref")),
		object.SHA1); !errors.As(err, &refused) {
		t.Errorf("refusal: got %v", err)
	}
	if _, err := ReadCapabilities(bytes.NewReader(message("ERR no access"))); !errors.As(err, &refused) {
		t.Errorf("refused discovery: got %v", err)
	}
	if err := ReadRefs(bytes.NewReader(message("ERR no access")), object.SHA1,
		func(object.ID) {}); !errors.As(err, &refused) {
		t.Errorf("refused listing: got %v", err)
	}
}

func TestReadRefs(t *testing.T) {
	var ids []object.ID
	lines := message(one.String()+" HEAD symref-target:refs/heads/main", "unborn refs/heads/x",
		one.String()+" refs/tags/v1 peeled:"+two.String())
	err := ReadRefs(bytes.NewReader(lines), object.SHA1, func(id object.ID) { ids = append(ids, id) })
	if err != nil || len(ids) != 3 || ids[0] != one || ids[2] != two {
		t.Errorf("refs: got %v, %v", ids, err)
	}
}

func TestSizes(t *testing.T) {
	b := AppendSizes(nil, []object.ID{one, two}, func(id object.ID) (int64, bool) { return 7, id == one })
	got, err := ReadSizes(bytes.NewReader(b), object.SHA1, []object.ID{two, one})
	if err != nil || len(got) != 2 || got[0] != -1 || got[1] != 7 {
		t.Errorf("sizes: got %v, %v", got, err)
	}
	for _, bad := range [][]byte{message("size", one.String()+" -1"), message("size", two.String()+" 1"), message("type"),
		[]byte("0005")} {
		if _, err := ReadSizes(bytes.NewReader(bad), object.SHA1, []object.ID{one}); err == nil {
			t.Errorf("sizes %q were accepted", bad)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(Fetch(object.SHA1, []object.ID{one}, 2, "blob:none"))
	f.Add(ObjectInfo(object.SHA1, []object.ID{one}))
	f.Add(message("command=ls-refs", "|", "peel"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err == nil && r.Command == "fetch" && r.Plain && len(r.Wants) > 0 && !r.Shallow &&
			!strings.Contains(r.Filter, "\n") {
			again, err := ParseRequest(Fetch(r.Format, r.Wants, r.Depth, r.Filter))
			if err != nil || len(again.Wants) != len(r.Wants) || again.Depth != r.Depth || again.Filter != r.Filter {
				t.Errorf("request %+v was written as %+v (%v)", r, again, err)
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(append(message("shallow-info", "shallow "+one.String(), "|", "packfile"), message("\x01PACK")...))
	f.Add(message("version 2", "agent=git", "fetch=shallow filter"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ReadFetch(bytes.NewReader(b), object.SHA1); err == nil {
			io.Copy(io.Discard, a)
		}
		ReadCapabilities(bytes.NewReader(b))
		ReadRefs(bytes.NewReader(b), object.SHA1, func(object.ID) {})
		ReadSizes(bytes.NewReader(b), object.SHA1, []object.ID{one})
		NewFetchWriter(io.Discard, func() {}).Copy(bytes.NewReader(b))
	})
}
