package packs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// objectsOf returns the objects of two commits, between which one line of a file of the given size differs.
func objectsOf(t *testing.T, size int) map[object.ID]odb.Outgoing {
	all := map[object.ID]odb.Outgoing{}
	add := func(kind object.Type, content []byte) object.ID {
		o, err := session.Outgoing(object.SHA1, kind, content)
		if err != nil {
			t.Fatal(err)
		}
		all[o.ID] = o
		return o.ID
	}
	var text strings.Builder
	words := rand.New(rand.NewPCG(1, 2))
	for text.Len() < size {
		fmt.Fprintf(&text, "line %d has %d\n", text.Len(), words.Uint64())
	}
	var parent string
	for i := range 2 {
		blob := add(object.Blob, []byte(text.String()+strings.Repeat("more\n", i)))
		entries := []object.TreeEntry{{Mode: object.ModeFile, Name: "file", ID: blob}}
		for n := range 40 {
			entries = append(entries, object.TreeEntry{Mode: object.ModeFile, Name: fmt.Sprintf("n%d", n),
				ID: add(object.Blob, fmt.Appendf(nil, "%d", n))})
		}
		tree := add(object.Tree, session.EncodeTree(entries))
		id := add(object.Commit, fmt.Appendf(nil, "tree %s\n%sauthor a <a@b> %d +0000\ncommitter a <a@b> 1 +0000\n\ncommit\n",
			tree, parent, i))
		parent = "parent " + id.String() + "\n"
	}
	return all
}

// TestSmall checks that git accepts a small pack as valid, that it is hardly larger than a pack made by git, and that
// Small makes no pack of too large a set of objects.
func TestSmall(t *testing.T) {
	all := objectsOf(t, 20_000)
	get := func(id object.ID, limit int64) (object.Type, []byte, error) {
		o, found := all[id]
		if !found {
			return 0, nil, odb.ErrNotFound
		}
		if o.Size > limit {
			return o.Type, nil, odb.ErrTooLarge
		}
		r, err := o.Open()
		if err != nil {
			return 0, nil, err
		}
		defer r.Close()
		var b bytes.Buffer
		_, err = b.ReadFrom(r)
		return o.Type, b.Bytes(), err
	}
	var ids []object.ID
	for id := range all {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, object.ID.Compare)
	pack, err := Small(object.SHA1, append(ids, ids[0]), get)
	if err != nil || pack == nil {
		t.Fatalf("pack of %d objects: got %d bytes, %v", len(ids), len(pack), err)
	}
	dir := filepath.Join(t.TempDir(), "r.git")
	gittest.Must(t, "/", "init", "-q", "--bare", "--object-format=sha1", dir)
	file := filepath.Join(dir, "objects", "pack", "pack-1.pack")
	if err := os.WriteFile(file, pack, 0o600); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, dir, "index-pack", "--strict", file)
	var list strings.Builder
	for _, id := range ids {
		fmt.Fprintln(&list, id)
	}
	if got := gittest.Must(t, dir, "cat-file", "--batch-all-objects",
		"--batch-check=%(objectname)"); got != strings.TrimSpace(list.String()) {
		t.Errorf("objects of the pack: got\n%s\nwant\n%s", got, list.String())
	}
	gittest.Must(t, dir, "fsck", "--full")
	cmd := exec.Command("git", "pack-objects", "-q", "--no-reuse-delta", "--no-reuse-object", "--stdout")
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(list.String()), gittest.Env()
	byGit, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(pack) > len(byGit)*11/10 {
		t.Errorf("pack: got %d bytes, by git %d", len(pack), len(byGit))
	}

	for what, large := range map[string]struct {
		format object.Format
		ids    []object.ID
	}{
		"too many objects": {object.SHA1, make([]object.ID, maxObjects+1)},
		"other format":     {object.SHA256, ids},
	} {
		if pack, err := Small(large.format, large.ids, get); pack != nil || err != nil {
			t.Errorf("%s: got a pack of %d bytes, %v; want none", what, len(pack), err)
		}
	}
	for size := range map[int]bool{maxBytes / 2: true, maxBytes + 1: true} { // together, or one of them alone
		all = objectsOf(t, size)
		var ids []object.ID
		for id := range all {
			ids = append(ids, id)
		}
		if pack, err := Small(object.SHA1, ids, get); pack != nil || err != nil {
			t.Errorf("two contents of %d bytes: got a pack of %d bytes, %v; want none", size, len(pack), err)
		}
	}
	if _, err := Small(object.SHA1, []object.ID{object.MustID(strings.Repeat("1", 40))}, get); err == nil {
		t.Error("pack of an object that does not exist: got no error")
	}
}
