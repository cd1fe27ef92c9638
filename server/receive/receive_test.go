package receive

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/records"
)

var (
	zeros = strings.Repeat("0", 40)
	ones  = strings.Repeat("1", 40)
)

// body returns packets with these lines, a flush packet, and then the bytes rest.
func body(rest string, lines ...string) []byte {
	var b []byte
	for _, line := range lines {
		b = pktline.AppendLine(b, line)
	}
	return append(pktline.AppendFlush(b), rest...)
}

func TestReadCommands(t *testing.T) {
	in := body("PACK...", "shallow "+ones, zeros+" "+ones+" refs/heads/a\x00 report-status atomic agent=x",
		ones+" "+zeros+" refs/heads/b")
	c, r, err := ReadCommands(bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	want := []records.RefUpdate{{Name: "refs/heads/a", Old: zeros, New: ones},
		{Name: "refs/heads/b", Old: ones, New: zeros}}
	if !c.Atomic || len(c.Updates) != 2 || c.Updates[0] != want[0] || c.Updates[1] != want[1] {
		t.Errorf("commands: got %+v, want %v", c, want)
	}
	if all, err := io.ReadAll(r); err != nil || !bytes.Equal(all, in) {
		t.Errorf("body after commands: got %q, %v, want %q", all, err, in)
	}
	for name, in := range map[string][]byte{
		"nothing": nil, "no flush": body("")[:2], "no length": []byte("zzzz"), "delimiter": []byte("0001"),
		"no ids":             body("", "a b c"),
		"no name":            body("", zeros+" "+ones+" "),
		"ids of two formats": body("", zeros+" "+ones+strings.Repeat("1", 24)+" refs/heads/a"),
		"certificate":        body("", "push-cert\x00"),
		"too much":           bytes.Repeat(body("", "shallow "+strings.Repeat("x", 60000))[:60013], 300),
	} {
		if _, _, err := ReadCommands(bytes.NewReader(in)); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: got %v, want %v", name, err, ErrRequest)
		}
	}
	broken := errors.New("broken")
	if _, _, err := ReadCommands(io.MultiReader(strings.NewReader("00"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("failed read: got %v, want %v", err, broken)
	}
}

func TestFailure(t *testing.T) {
	for capabilities, want := range map[string]string{
		"agent=x":                        "",
		"report-status":                  "000funpack why\n0023ng refs/heads/a unpacker error\n0000",
		"report-status-v2 side-band-64k": "003b\x01000funpack why\n0023ng refs/heads/a unpacker error\n00000000",
	} {
		c, _, err := ReadCommands(bytes.NewReader(body("", zeros+" "+ones+" refs/heads/a\x00 "+capabilities)))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.Failure("why")); got != want {
			t.Errorf("report for a client with %s: got %q, want %q", capabilities, got, want)
		}
	}
	many := Commands{report: true, sideBand: true, Updates: make([]records.RefUpdate, 10_000)}
	packets, size := pktline.NewReader(bytes.NewReader(many.Failure("why")), pktline.MaxPacket), 0
	for {
		kind, data, err := packets.Next()
		if err != nil {
			t.Fatal(err)
		}
		if kind == pktline.Flush {
			break
		}
		size += len(data) - 1
	}
	many.sideBand = false
	if want := len(many.Failure("why")); size != want {
		t.Errorf("long report in packets: got %d bytes, want %d", size, want)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestConverse(t *testing.T) {
	in := append(body("", "version=1\x00push-options atomic"),
		body("", zeros+" "+ones+" refs/heads/a", ones+" "+zeros+" refs/heads/b")...)
	var out bytes.Buffer
	err := converse(bytes.NewReader(in), &out, func(updates []records.RefUpdate, atomic bool) []error {
		if len(updates) != 2 || !atomic {
			t.Errorf("updates %v, atomic %t", updates, atomic)
		}
		return []error{nil, errors.New("no\nway")}
	})
	want := append(body("", "version=1\x00atomic"), body("", "ok refs/heads/a", "ng refs/heads/b no way")...)
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("answer: got %q, %v, want %q", out.Bytes(), err, want)
	}
	for name, in := range map[string][]byte{
		"nothing": nil, "other version": append(body("", "version=2"), body("")...),
		"no version":  append(body(""), body("")...),
		"no commands": body("", "version=1"), "no command": append(body("", "version=1"), body("", "x")...),
		"end in a command": append(body("", "version=1"), body("", zeros+" "+ones+" refs/heads/a")[:20]...),
	} {
		err := converse(bytes.NewReader(in), io.Discard, func([]records.RefUpdate, bool) []error {
			t.Errorf("%s: a decision is requested", name)
			return nil
		})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCheckSize(t *testing.T) {
	for o, refused := range map[odb.ObjectStat]bool{
		{Type: object.Commit, Size: maxCommit}: false, {Type: object.Commit, Size: maxCommit + 1}: true,
		{Type: object.Tag, Size: maxCommit + 1}: true, {Type: object.Tree, Size: maxTree}: false,
		{Type: object.Tree, Size: maxTree + 1}: true, {Type: object.Blob, Size: 1 << 40}: false,
		{Type: object.Blob, Depth: maxDepth}: false, {Type: object.Blob, Depth: maxDepth + 1}: true,
	} {
		if err := checkSize(o); (err != nil) != refused {
			t.Errorf("%s of %d bytes with %d deltas: got %v, want refused: %t", o.Type, o.Size, o.Depth, err, refused)
		}
	}
}

func FuzzReadCommands(f *testing.F) {
	f.Add(body("PACK", zeros+" "+ones+" refs/heads/a\x00atomic"))
	f.Add(body("", "shallow "+ones, ones+" "+zeros+" refs/tags/b"))
	f.Add([]byte("0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, r, err := ReadCommands(bytes.NewReader(in))
		if err != nil {
			return
		}
		if all, err := io.ReadAll(r); err != nil || !bytes.Equal(all, in) {
			t.Errorf("body after commands: got %q, %v, want %q", all, err, in)
		}
		for _, u := range c.Updates {
			if !object.ValidID(u.Old) || !object.ValidID(u.New) || u.Name == "" {
				t.Errorf("invalid update %+v", u)
			}
		}
	})
}

func FuzzConverse(f *testing.F) {
	f.Add(append(body("", "version=1\x00push-options atomic"), body("", zeros+" "+ones+" refs/heads/a")...), "a reason")
	f.Add([]byte("0000"), "")
	f.Fuzz(func(t *testing.T, in []byte, reason string) {
		var out bytes.Buffer
		n := 0
		err := converse(bytes.NewReader(in), &out, func(updates []records.RefUpdate, _ bool) []error {
			n = len(updates)
			results := make([]error, n)
			for i := range results {
				results[i] = errors.New(reason)
			}
			return results
		})
		if err != nil {
			return
		}
		packets, flushes, lines := pktline.NewReader(&out, 100), 0, 0
		for {
			kind, data, err := packets.Next()
			if err == io.EOF {
				break
			}
			switch {
			case err != nil:
				t.Fatalf("answer is not in packets: %v", err)
			case kind == pktline.Flush:
				flushes++
			case flushes == 1 && bytes.IndexByte(data, '\n') == len(data)-1:
				lines++
			}
		}
		if flushes != 2 || lines != n {
			t.Errorf("answer has %d messages with %d results, want 2 with %d", flushes, lines, n)
		}
	})
}
