package gittest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// cutUp returns the packets of a stream that is processed in pieces of n bytes.
func cutUp(stream []byte, n int) []string {
	var got []string
	var raw []byte
	p := packets{each: func(kind packetKind, payload []byte) {
		if kind == rawBytes {
			raw = append(raw, payload...) // raw bytes are reported in pieces
			return
		}
		got = append(got, fmt.Sprintf("%d %s", kind, payload))
	}}
	for b := stream; len(b) > 0; {
		m := min(n, len(b))
		p.feed(b[:m])
		b = b[m:]
	}
	if raw != nil {
		got = append(got, "raw "+string(raw))
	}
	return got
}

func TestPackets(t *testing.T) {
	for stream, want := range map[string][]string{
		"":                        nil,
		"0000":                    {"1 "},
		"0001":                    {"2 "},
		"0002":                    {"3 "},
		"0004":                    {"0 "},
		"0006ab0000":              {"0 ab", "1 "},
		"0006ab00010007abc0000":   {"0 ab", "2 ", "0 abc", "1 "},
		"0008NAK\nPACK\x00\x00xx": {"0 NAK\n", "raw PACK\x00\x00xx"},
		"0003":                    {"raw 0003"},
		"fff1":                    {"raw fff1"},
		"000":                     nil,
		"0010cut":                 nil,
	} {
		for n := 1; n <= len(stream)+1; n++ {
			if got := cutUp([]byte(stream), n); !slices.Equal(got, want) {
				t.Errorf("%q in pieces of %d: %q, want %q", stream, n, got, want)
			}
		}
	}
}

func TestAppendPacketIsReadBack(t *testing.T) {
	for _, n := range []int{0, 1, 11, 12, 251, 252, 4091, 4092, maxPacket - 4} {
		payload := bytes.Repeat([]byte{'x'}, n)
		if got := cutUp(appendPacket(nil, payload), 1000); len(got) != 1 || got[0] != "0 "+string(payload) {
			t.Errorf("%d bytes are not read back", n)
		}
	}
}

func TestParseAsk(t *testing.T) {
	id := object.MustID(strings.Repeat("ab", 20))
	other := object.MustID(strings.Repeat("cd", 32))
	lines := func(lines ...string) []byte {
		var b []byte
		for _, l := range lines {
			if l == "flush" {
				b = append(b, "0000"...)
				continue
			}
			b = appendPacket(b, []byte(l))
		}
		return b
	}
	for name, c := range map[string]struct {
		body []byte
		want Request
	}{
		"fetch": {fetchBody(object.SHA1, id), Request{Command: Fetch, Version: 2, Wants: []object.ID{id}}},
		"fetch of all kinds": {body(object.SHA256, "fetch", "want "+other.String(), "have "+other.String(),
			"have "+other.String(), "shallow "+other.String(), "deepen 3", "filter tree:0", "want-ref refs/heads/main"),
			Request{Command: Fetch, Version: 2, Wants: []object.ID{other}, Haves: 2, Shallow: 1, Depth: 3, Filter: "tree:0",
				WantRefs: []string{"refs/heads/main"}, format: object.SHA256}},
		"ls-refs": {body(object.SHA1, "ls-refs", "peel", "ref-prefix HEAD"),
			Request{Command: LsRefs, Version: 2, Prefixes: []string{"HEAD"}}},
		"object-info": {body(object.SHA1, "object-info", "size", "oid "+id.String()),
			Request{Command: ObjectInfo, Version: 2, Wants: []object.ID{id}}},
		"unknown": {body(object.SHA1, "dance"), Request{Command: Other, Version: 2}},
		"v0": {lines("want "+id.String()+" multi_ack side-band-64k\n", "want "+id.String()+"\n", "deepen 1\n",
			"flush", "done\n"), Request{Command: Fetch, Wants: []object.ID{id, id}, Depth: 1}},
		"empty": {nil, Request{Command: Other}},
		"noise": {[]byte("GET / HTTP/1.1"), Request{Command: Other}},
	} {
		if got := parseAsk(c.body); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func FuzzPackets(f *testing.F) {
	f.Add([]byte("0006ab00010007abc0000"), 3)
	f.Add([]byte("0008NAK\nPACKxx"), 5)
	f.Add(fetchBody(object.SHA256, object.MustID(strings.Repeat("ab", 32))), 7)
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		whole := cutUp(stream, len(stream)+1)
		if n = max(1, n&0xff); !slices.Equal(whole, cutUp(stream, n)) {
			t.Errorf("in pieces of %d the packets are others", n)
		}
		r := parseAsk(stream)
		if len(r.Wants)*40 > len(stream) || r.Command == "" {
			t.Errorf("%d wants of command %q from %d bytes", len(r.Wants), r.Command, len(stream))
		}
	})
}
