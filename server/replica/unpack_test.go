package replica

import (
	"crypto/sha1"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/thin"
)

// startUnpacking returns an unpacking of an empty repository.
func startUnpacking(t *testing.T) *unpacking {
	t.Helper()
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "--quiet", "--bare", "--object-format=sha1", "from")
	w := &unpacking{set: &Set{}, format: object.SHA1, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to"),
		packs: map[string]bool{}, end: time.Now().Add(time.Hour), failed: map[string]attempts{}}
	if err := w.prepare(); err != nil {
		t.Fatal(err)
	}
	return w
}

// blobOf writes a blob into the repository and returns its id.
func blobOf(t *testing.T, w *unpacking, contents string) object.ID {
	t.Helper()
	hash := w.command(t.Context(), w.from, "hash-object", "-w", "--stdin")
	hash.Stdin = strings.NewReader(contents)
	text, err := hash.output(100)
	if err != nil {
		t.Fatal(err)
	}
	id, err := object.ParseID(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// brokenPack has the header of a pack of one object, and a blob of 15 bytes whose contents are not compressed as they
// should be.
var brokenPack = "PACK\x00\x00\x00\x02\x00\x00\x00\x01\x3f" + strings.Repeat("no zlib", 1000)

// emptyPack returns a pack without objects.
func emptyPack() string {
	head := "PACK\x00\x00\x00\x02\x00\x00\x00\x00"
	sum := sha1.Sum([]byte(head))
	return head + string(sum[:])
}

// TestPackThatTakesTooLong checks that all attempts to unpack a pack together have a limit of time, after which it is
// not tried again, that other packs are unpacked, and that it gets another chance later.
func TestPackThatTakesTooLong(t *testing.T) {
	w := startUnpacking(t)
	slow, good := thin.PackBlob{ID: blobOf(t, w, brokenPack)}, thin.PackBlob{ID: blobOf(t, w, emptyPack())}
	if err := w.pack(t.Context(), slow); err == nil || errors.Is(err, errSlow) {
		t.Errorf("invalid pack: got %v, want an error other than %v", err, errSlow)
	}
	id := slow.ID.String()
	if spent := w.failed[id].spent; spent <= 0 {
		t.Errorf("time of the failed attempt: got %s, want more than none", spent)
	}
	// One nanosecond is left, so git is killed.
	w.failed[id] = attempts{w.failed[id].first, allowedFor(0) - 1}
	if err := w.pack(t.Context(), slow); !errors.Is(err, errSlow) {
		t.Errorf("pack without time: got %v, want %v", err, errSlow)
	}
	before := w.failed[id]
	if err := w.pack(t.Context(), slow); !errors.Is(err, errSlow) || w.failed[id] != before {
		t.Errorf("next attempt: got %v and %v, want no attempt after %v", err, w.failed[id], before)
	}
	if err := w.pack(t.Context(), good); err != nil {
		t.Errorf("other pack: %v", err)
	}
	w.failed[id] = attempts{time.Now().Add(-retryFailed - time.Minute), before.spent}
	if err := w.pack(t.Context(), slow); err == nil || errors.Is(err, errSlow) {
		t.Errorf("attempt after %s: got %v, want an error other than %v", retryFailed, err, errSlow)
	}
	w.forget()
	if len(w.failed) > 0 {
		t.Errorf("failures of packs that no container has: got %v", w.failed)
	}
}

// TestUnpackingContinues checks that a call that has no time left unpacks no further pack, and that packs that were
// unpacked are not unpacked again, even if they were found unused in between.
func TestUnpackingContinues(t *testing.T) {
	w := startUnpacking(t)
	p := thin.PackBlob{ID: blobOf(t, w, emptyPack())}
	end := w.end
	w.end = time.Now().Add(-time.Second)
	if err := w.pack(t.Context(), p); !errors.Is(err, errLater) {
		t.Errorf("pack after the end: got %v, want %v", err, errLater)
	}
	w.end = end
	if err := w.pack(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.packs = map[string]bool{}
	if err := w.sweep(); err != nil {
		t.Fatal(err)
	}
	w.end = time.Now().Add(-time.Second)
	if err := w.pack(t.Context(), p); err != nil {
		t.Errorf("pack that was unpacked before: %v", err)
	}
}

// TestPacksThatLieAboutTheirSize checks that a container cannot fill the disk by a pack that is larger than its
// description says, that it names many times, or that git cannot complete.
func TestPacksThatLieAboutTheirSize(t *testing.T) {
	w := startUnpacking(t)
	id := blobOf(t, w, brokenPack)
	packs := distinct([]thin.PackBlob{{ID: id}, {ID: id, Size: 1}, {ID: id}})
	if len(packs) != 1 {
		t.Errorf("packs that are named three times: got %v, want one", packs)
	}
	for limit, want := range map[int64]error{int64(len(brokenPack)): nil, int64(len(brokenPack)) - 1: errTooLarge} {
		if err := w.measure(t.Context(), packs, limit); err != want {
			t.Errorf("pack of %d bytes with limit %d: got %v, want %v", len(brokenPack), limit, err, want)
		}
	}
	if err := w.pack(t.Context(), packs[0]); err == nil {
		t.Error("a broken pack was unpacked")
	}
	if left, err := filepath.Glob(filepath.Join(w.to, "objects/pack/*")); err != nil || len(left) > 0 {
		t.Errorf("files of a broken pack: got %v, %v, want none", left, err)
	}
}
