package resume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestLinkedObjectsShareTheirFiles(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "objects")
	for _, name := range []string{"pack/pack-1.pack", "pack/pack-1.idx", "pack/pack-1.promisor", "pack/tmp_pack_2",
		"pack/pack-3.keep", "ab/cd", "ab/tmp_obj_1", "info/alternates"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := LinkObjects(from, to); err != nil {
		t.Fatal(err)
	}
	if err := LinkObjects(from, to); err != nil {
		t.Errorf("link files that are linked already: %v", err)
	}
	for name, want := range map[string]bool{
		"pack/pack-1.pack": true, "pack/pack-1.idx": true, "pack/pack-1.promisor": true, "ab/cd": true,
		"pack/tmp_pack_2": false, "pack/pack-3.keep": false, "ab/tmp_obj_1": false, "info/alternates": false,
	} {
		a, aErr := os.Stat(filepath.Join(from, name))
		b, bErr := os.Stat(filepath.Join(to, name))
		if got := aErr == nil && bErr == nil && os.SameFile(a, b); got != want {
			t.Errorf("file %s is linked: got %v, want %v", name, got, want)
		}
	}
	if err := LinkObjects(filepath.Join(from, "none"), to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("link a missing directory: got %v", err)
	}
}

func TestIDsAreReadFromLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shallow")
	if ids, err := readIDs(path); err != nil || len(ids) != 0 {
		t.Errorf("read a missing file: got %v, %v", ids, err)
	}
	one, two := object.EmptyTree(object.SHA1), object.EmptyTree(object.SHA256)
	if err := os.WriteFile(path, []byte(one.String()+"\n"+two.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, err := readIDs(path); err != nil || len(ids) != 2 || ids[0] != one || ids[1] != two {
		t.Errorf("read a file of two lines: got %v, %v", ids, err)
	}
	if err := os.WriteFile(path, []byte("no id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readIDs(path); err == nil {
		t.Error("an invalid id was accepted")
	}
}
