package replica

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/thin"
)

// TestPacksThatLieAboutTheirSize checks that a container cannot fill the disk by a pack that is larger than its
// description says, that it names many times, or that git cannot complete.
func TestPacksThatLieAboutTheirSize(t *testing.T) {
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "--quiet", "--bare", "--object-format=sha1", "from")
	w := &unpacking{set: &Set{}, format: object.SHA1, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to"),
		packs: map[string]bool{}}
	if err := w.prepare(); err != nil {
		t.Fatal(err)
	}
	// The header of a pack of one object, and a blob of 15 bytes whose contents are not compressed as they should be.
	broken := "PACK\x00\x00\x00\x02\x00\x00\x00\x01\x3f" + strings.Repeat("no zlib", 1000)
	hash := w.command(t.Context(), w.from, "hash-object", "-w", "--stdin")
	hash.Stdin = strings.NewReader(broken)
	text, err := hash.output(100)
	if err != nil {
		t.Fatal(err)
	}
	id, err := object.ParseID(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	packs := distinct([]thin.PackBlob{{ID: id}, {ID: id, Size: 1}, {ID: id}})
	if len(packs) != 1 {
		t.Errorf("packs that are named three times: got %v, want one", packs)
	}
	for limit, want := range map[int64]error{int64(len(broken)): nil, int64(len(broken)) - 1: errTooLarge} {
		if err := w.measure(t.Context(), packs, limit); err != want {
			t.Errorf("pack of %d bytes with limit %d: got %v, want %v", len(broken), limit, err, want)
		}
	}
	if err := w.pack(t.Context(), packs[0]); err == nil {
		t.Error("a broken pack was unpacked")
	}
	if left, err := filepath.Glob(filepath.Join(w.to, "objects/pack/*")); err != nil || len(left) > 0 {
		t.Errorf("files of a broken pack: got %v, %v, want none", left, err)
	}
}
