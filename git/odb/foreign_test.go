package odb

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestForeignIndexIsShortened checks reads while another program shortens the index of an open pack. A read of a mapped
// index would end the process, so the test runs in another process.
func TestForeignIndexIsShortened(t *testing.T) {
	if os.Getenv("ODB_FOREIGN") == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "ODB_FOREIGN=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%.600s", err, out)
		}
		return
	}
	dir, want := fixture(t, object.SHA1)
	copied := newRepo(t, object.SHA1)
	git(t, copied, packOf(t, dir), "index-pack", "--stdin")
	s, err := OpenForeign(filepath.Join(copied, "objects"), object.SHA1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for id := range want {
		if !s.Has(id) {
			t.Fatalf("object %s is missing", id)
		}
	}
	names, err := filepath.Glob(filepath.Join(copied, "objects/pack/*.idx"))
	if err != nil || len(names) != 1 {
		t.Fatalf("indexes: %v, %v", names, err)
	}
	if err := errors.Join(os.Chmod(names[0], 0o644), os.Truncate(names[0], 0)); err != nil {
		t.Fatal(err)
	}
	for id := range want {
		if !s.Has(id) {
			t.Fatalf("object %s is missing after the index was shortened", id)
		}
	}
}

// TestPipesAreNoObjects checks that pipes in place of objects and packs cause errors, without waiting for a program
// that writes to them.
func TestPipesAreNoObjects(t *testing.T) {
	dir := t.TempDir()
	id := idOf(object.SHA1, object.Blob, []byte("x"))
	name := "pack/pack-" + strings.Repeat("1", 40)
	for _, pipe := range []string{filepath.Join(id.String()[:2], id.String()[2:]), name + ".idx", name + ".pack",
		"pack/tmp_afs_1"} {
		at := filepath.Join(dir, pipe)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), unix.Mkfifo(at, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := Open(dir, object.SHA1)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		if _, _, err := OpenDir(dir, s).Get(id, 10); err == nil {
			t.Error("a pipe was read as an object")
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a read waits for a program that writes to a pipe")
	}
}
