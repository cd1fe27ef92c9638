package thin

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func id(n int) object.ID { return object.MustID(strings.Repeat(string("0123456789abcdef"[n]), 40)) }

func example() manifest {
	return manifest{
		Session: "work", Format: object.SHA1, Base: Base{URL: "https://git.example/app.git", Commits: []object.ID{id(1)}},
		Next:  3,
		Packs: []packEntry{{packName(0), id(2), 100}, {packName(2), id(3), 7}},
		Refs:  map[string]object.ID{"refs/heads/main": id(4), "refs/afs/j/work/main/000001": id(5)},
	}
}

func TestManifest(t *testing.T) {
	text, err := example().encode()
	if err != nil {
		t.Fatal(err)
	}
	m, err := decodeManifest(text)
	if err != nil || m.Refs["refs/heads/main"] != id(4) || len(m.Packs) != 2 || m.Packs[1] != example().Packs[1] ||
		m.Base.Commits[0] != id(1) {
		t.Errorf("decode the manifest: got %+v, %v", m, err)
	}
	for was, now := range map[string]string{
		`"refs/heads/main"`:           `"refs/heads/../main"`,
		"000002.pack":                 "000003.pack",
		"000000.pack":                 "../pwned.pack",
		`"size": 7`:                   `"size": -7`,
		"https://git.example/app.git": "https://joe:secret@git.example/app.git",
		`"session": "work"`:           `"session": "../work"`,
		`"format": "sha1"`:            `"format": "sha256"`,
		id(4).String():                strings.Repeat("0", 40),
		`"version": 1`:                `"version": 0`,
	} {
		if !bytes.Contains(text, []byte(was)) {
			t.Fatalf("the manifest has no %s: %s", was, text)
		}
		if _, err := decodeManifest(bytes.Replace(text, []byte(was), []byte(now), 1)); !errors.Is(err, ErrContainer) {
			t.Errorf("decode the manifest with %s in place of %s: got %v", now, was, err)
		}
	}
	if _, err := decodeManifest(bytes.Replace(text, []byte(`"version": 1`), []byte(`"version": 2`), 1)); !errors.Is(err,
		ErrNewer) {
		t.Errorf("decode a manifest of a later version: got %v", err)
	}
}

// FuzzManifest checks that a manifest does not change if it is decoded, encoded and decoded again.
func FuzzManifest(f *testing.F) {
	text, err := example().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"session":"a","format":"sha256","base":{"url":"","commits":[]},"next_pack":0,"packs":[],"refs":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeManifest(text)
		if err != nil {
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		same, err := decodeManifest(again)
		if err != nil || same.Session != m.Session || len(same.Packs) != len(m.Packs) || len(same.Refs) != len(m.Refs) ||
			same.Next != m.Next {
			t.Fatalf("manifest: first read as %+v, encoded as %s, then read as %+v, %v", m, again, same, err)
		}
	})
}
