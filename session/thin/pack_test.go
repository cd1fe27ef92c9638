package thin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestJoin checks that packs are joined if there are many, and that each object is then in exactly one pack. Large
// packs, and packs whose objects this host does not know, remain unchanged.
func TestJoin(t *testing.T) {
	r := New(nil, "work", nil)
	r.Keep(t.TempDir())
	var packs []packEntry
	known := map[string][]object.ID{}
	for i := range joinAt + 2 {
		name := packName(i)
		entry := packEntry{name, id(1), 100}
		if i == 3 {
			entry.Size = fullPack
		}
		if i != joinAt-1 { // another host has pushed this pack
			o, err := object.Hash(object.SHA1, object.Blob, []byte(name))
			if err != nil {
				t.Fatal(err)
			}
			known[name] = []object.ID{o}
		}
		packs = append(packs, entry)
	}
	if err := r.writeIDs(manifest{Packs: packs}, known); err != nil {
		t.Fatal(err)
	}
	if ids, rest := r.join(packs[:joinAt]); len(ids) != 0 || len(rest) != joinAt {
		t.Errorf("join with %d small packs: got %d objects and %d packs that stay, want none and %d",
			joinAt-1, len(ids), len(rest), joinAt)
	}
	ids, rest := r.join(packs)
	again := map[object.ID]bool{}
	for _, id := range ids {
		again[id] = true
	}
	stay := map[string]bool{}
	for _, p := range rest {
		stay[p.Name] = true
	}
	if len(ids) < minJoin || len(again) != len(ids) {
		t.Errorf("join: got %d objects, %d of them different, want at least %d", len(ids), len(again), minJoin)
	}
	for _, p := range packs {
		list := known[p.Name]
		if sent := len(list) == 1 && again[list[0]]; sent == stay[p.Name] {
			t.Errorf("pack %s: got objects that are sent again: %v, a pack that stays: %v; want one of the two",
				p.Name, sent, stay[p.Name])
		}
	}
	if !stay[packName(3)] || !stay[packName(joinAt-1)] {
		t.Errorf("packs that stay: got %v, want the large pack and the unknown pack among them", stay)
	}
	// An old pack that is much larger than the new ones together is not joined, so that its bytes are not sent again
	// and again.
	packs[0].Size = fullPack - 1
	if _, rest = r.join(packs); rest[0].Name != packName(0) {
		t.Errorf("join: the first pack that stays is %s, want the larger one", rest[0].Name)
	}
}

// TestRecordedObjectsOfRemovedPacks checks that the stored object ids of packs are removed when the container no longer
// contains the packs.
func TestRecordedObjectsOfRemovedPacks(t *testing.T) {
	r := New(nil, "work", nil)
	r.Keep(t.TempDir())
	ids := map[string][]object.ID{packName(0): {id(1)}, packName(1): {id(2), id(3)}}
	if err := r.writeIDs(manifest{Packs: []packEntry{{Name: packName(0)}, {Name: packName(1)}}}, ids); err != nil {
		t.Fatal(err)
	}
	if err := r.writeIDs(manifest{Packs: []packEntry{{Name: packName(1)}}}, nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.readIDs(packName(0)); ok {
		t.Error("the objects of a removed pack are still recorded")
	}
	if got, ok := r.readIDs(packName(1)); !ok || len(got) != 2 || got[1] != id(3) {
		t.Errorf("objects of a pack that stays: got %v, %v, want %v", got, ok, ids[packName(1)])
	}
	dir, err := r.stateDir()
	if err != nil {
		t.Fatal(err)
	}
	cut := id(2).String() + "\n" + id(3).String()[:20]
	if err := os.WriteFile(filepath.Join(dir, packName(1)+".ids"), []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, ok := r.readIDs(packName(1)); ok {
		t.Errorf("objects of a record that was cut off: got %v, want them unknown", got)
	}
}

// TestKeep checks that Keep removes the unfinished containers of a killed process, and nothing else.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{nextPrefix + "1", nextPrefix + "2", "objects"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{nextPrefix + "1/0.pack", stateName, packName(0) + ".ids"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	withdraw, err := Rewrite(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := New(nil, "work", nil)
	r.Keep(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), "000000.pack.ids container.json objects rewrite"; got != want {
		t.Errorf("files after Keep: got %s, want %s", got, want)
	}
	if withdraw(); r.rewriting() {
		t.Error("the request for rewriting is still there after it was withdrawn")
	}
}

// TestJoinPacks checks that two joined packs are a valid pack, even if one of them contains deltas. If one pack cannot
// be written, an error is returned without waiting for the other pack.
func TestJoinPacks(t *testing.T) {
	t.Parallel()
	from, err := gittest.New(filepath.Join(t.TempDir(), "from.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a line that stays\n", 200)
	for _, more := range []string{"one", "two", "three"} {
		if _, err := from.Commit("main", map[string]gittest.File{"f": {Data: []byte(text + more)}}, more); err != nil {
			t.Fatal(err)
		}
	}
	gittest.Must(t, from.Path, "repack", "-q", "-a", "-d", "-f")
	packs, err := filepath.Glob(filepath.Join(from.Path, "objects/pack/*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs of the repository: got %v, %v, want one", packs, err)
	}
	full, err := os.ReadFile(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	alone, err := session.Outgoing(object.SHA1, object.Blob, []byte("alone"))
	if err != nil {
		t.Fatal(err)
	}
	first := func(_ context.Context, w io.Writer) error {
		// Write the pack in small pieces, so that its checksum is divided.
		for piece := range bytes.Lines(full) {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	}
	second := packOf(object.SHA1, []odb.Outgoing{alone})
	var joined bytes.Buffer
	if err := joinPacks(object.SHA1, first, second)(t.Context(), &joined); err != nil {
		t.Fatal(err)
	}
	into, err := odb.Open(t.TempDir(), object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	n := 0
	count := func(object.ID, object.Type, []byte) { n++ }
	_, err = into.Ingest(t.Context(), &joined, odb.IngestOptions{MaxObjectSize: 1 << 20}, count)
	if err != nil || n != 10 || !into.Has(alone.ID) { // three commits, trees and blobs, and the other blob
		t.Errorf("objects of the joined pack: got %d, %v, want 10 with those of the second pack", n, err)
	}
	broken := errors.New("disk full")
	for what, write := range map[string]func(context.Context, io.Writer) error{
		"at once": func(context.Context, io.Writer) error { return broken },
		"after its header": func(_ context.Context, w io.Writer) error {
			w.Write(full[:packHeader+30])
			return broken
		},
	} {
		if err := joinPacks(object.SHA1, first, write)(t.Context(), io.Discard); !errors.Is(err, broken) {
			t.Errorf("join with a pack that fails %s: got %v, want %v", what, err, broken)
		}
		if err := joinPacks(object.SHA1, write, first)(t.Context(), io.Discard); !errors.Is(err, broken) {
			t.Errorf("join, where the first pack fails %s: got %v, want %v", what, err, broken)
		}
	}
}

// TestDescribe checks that Describe returns an error for the container of another session, or with another object
// format.
func TestDescribe(t *testing.T) {
	m := example()
	m.Bases = []packEntry{{packName(1), id(6), 9}}
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Describe("work", object.SHA1, text)
	packs, bases := []PackBlob{{id(2), 100}, {id(3), 7}}, []PackBlob{{id(6), 9}}
	if err != nil || !slices.Equal(d.Packs, packs) || !slices.Equal(d.Bases, bases) {
		t.Errorf("description: got %+v, %v, want packs %v and base packs %v", d, err, packs, bases)
	}
	if _, err := Describe("play", object.SHA1, text); !errors.Is(err, ErrContainer) {
		t.Errorf("description as another session: got %v, want %v", err, ErrContainer)
	}
	if _, err := Describe("work", object.SHA256, text); !errors.Is(err, ErrContainer) {
		t.Errorf("description with another object format: got %v, want %v", err, ErrContainer)
	}
}

// TestManifestWithForeignRefs checks that a container cannot replace refs that the session remote lists itself, because
// other sessions and hosts rely on these.
func TestManifestWithForeignRefs(t *testing.T) {
	for _, ref := range []string{session.MetaRef("work"), session.AnnotationsRef("work"), session.OwnerRef, Ref("play"),
		TrashPrefix + "play/1/x", "HEAD", "refs/heads/a..b", "main"} {
		m := example()
		m.Refs[ref] = id(4)
		text, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeManifest(text); !errors.Is(err, ErrContainer) {
			t.Errorf("manifest with the ref %s: got %v, want %v", ref, err, ErrContainer)
		}
	}
	for what, text := range map[string]string{
		"data after the JSON":    `{}`,
		"an incomplete manifest": "",
	} {
		whole, err := example().encode()
		if err != nil {
			t.Fatal(err)
		}
		if text == "" {
			whole = whole[:len(whole)-1]
		}
		if _, err := decodeManifest(append(whole, text...)); !errors.Is(err, ErrContainer) {
			t.Errorf("manifest with %s: got %v, want %v", what, err, ErrContainer)
		}
	}
	// Names of packs are sorted by their numbers, even if these have more than six digits.
	m := example()
	m.Next = 2e6
	m.Packs = []packEntry{{packName(999999), id(2), 1}, {packName(1e6), id(3), 1}}
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeManifest(text); err != nil {
		t.Errorf("packs %v in the order of their age: got %v", m.Packs, err)
	}
	m.Packs[0], m.Packs[1] = m.Packs[1], m.Packs[0]
	if text, err = m.encode(); err != nil {
		t.Fatal(err)
	}
	if _, err := decodeManifest(text); !errors.Is(err, ErrContainer) {
		t.Errorf("packs %v out of order: got %v, want %v", m.Packs, err, ErrContainer)
	}
}

// TestIsEmpty checks that a session remote counts as empty while it has only refs that sessions without history have
// stored there.
func TestIsEmpty(t *testing.T) {
	p := newPlace(t)
	one := p.blob("one")
	r := p.open("work", p.kept)
	empty := func(what string, want bool) {
		t.Helper()
		if got, err := r.IsEmpty(t.Context()); err != nil || got != want {
			t.Errorf("with %s: empty: got %v, %v, want %v", what, got, err, want)
		}
	}
	empty("no refs", true)
	p.mustPush(r, p.load(one), create("main", one))
	tip := gittest.Must(t, p.dir, "rev-parse", Ref("work"))
	set := func(ref string) { gittest.Must(t, p.dir, "update-ref", ref, tip) }
	for _, ref := range []string{session.MetaRef("play"), session.AnnotationsRef("play"), ReadableRef("work"),
		fmt.Sprintf("%sgone/1/x", TrashPrefix), ReadableRef("gone")} {
		set(ref)
	}
	empty("containers, descriptions and deleted sessions", true)
	set(ReadableRef("somebody"))
	empty("a branch that looks like the readable branch of a session that does not exist", false)
	gittest.Must(t, p.dir, "update-ref", "-d", ReadableRef("somebody"))
	set("refs/heads/main")
	empty("a branch", false)
}
