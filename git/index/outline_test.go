package index_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// checkOutline compares the outline of an index with the result of Read.
func checkOutline(t *testing.T, f object.Format, data []byte, x *index.Index) {
	t.Helper()
	special := slices.ContainsFunc(x.Entries, func(e index.Entry) bool {
		return e.Stage != 0 || e.AssumeValid || e.SkipWorktree || e.IntentToAdd || e.Mode == object.ModeDir
	})
	o, err := index.ReadOutline(f, data)
	if errors.Is(err, index.ErrNoOutline) {
		if !special {
			// The extended flags of an entry may be zero.
			if !bytes.Equal(data[4:8], []byte{0, 0, 0, 2}) {
				return
			}
			t.Fatal("no outline of an ordinary index")
		}
		return
	}
	if err != nil || special {
		t.Fatalf("outline of an ordinary index: got special %v, error %v", special, err)
	}
	if o.Len() != len(x.Entries) || !reflect.DeepEqual(o.Tree, x.Tree) {
		t.Fatalf("got %d entries, want %d; tree %+v, want %+v", o.Len(), len(x.Entries), o.Tree, x.Tree)
	}
	for i, want := range x.Entries {
		want.Valid = false
		if got, err := o.Entry(i); err != nil || got != want {
			t.Fatalf("entry %d: got %+v, %v, want %+v", i, got, err, want)
		}
		for _, path := range []string{want.Path, want.Path + "0", want.Path[:len(want.Path)/2]} {
			first, _ := slices.BinarySearchFunc(x.Entries, path,
				func(e index.Entry, p string) int { return strings.Compare(e.Path, p) })
			if got := o.Search(0, o.Len(), path); got != first {
				t.Fatalf("position of %q: got %d, want %d", path, got, first)
			}
		}
	}
}

func TestOutline(t *testing.T) {
	many := func(r *gittest.Repo, f object.Format) error {
		files := map[string]gittest.File{}
		for i := range 500 {
			files[fmt.Sprintf("d%d/e%d/%s%d", i%7, i%3, strings.Repeat("long", i%40), i)] = gittest.File{Data: []byte("x\n")}
		}
		files[strings.Repeat(strings.Repeat("l", 200)+"/", 19)+strings.Repeat("m", 200)] = gittest.File{Data: []byte("x\n")}
		_, err := r.Commit("main", files, "many")
		return err
	}
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		for _, version := range []string{"2", "4"} {
			w := clone(t, f, many)
			read := func() []byte {
				t.Helper()
				data, err := os.ReadFile(w.indexFile())
				if err != nil {
					t.Fatal(err)
				}
				x, err := index.Read(f, data)
				if err != nil {
					t.Fatal(err)
				}
				checkOutline(t, f, data, x)
				return data
			}
			w.git("update-index", "--index-version", version)
			if err := os.WriteFile(filepath.Join(w.dir, "d1", "new"), []byte("new\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			w.git("add", "d1/new")
			data := read()
			if _, err := index.ReadOutline(f, data); err != nil {
				t.Errorf("version %s: %v", version, err)
			}
			w.git("update-index", "--assume-unchanged", "d1/new")
			if _, err := index.ReadOutline(f, read()); !errors.Is(err, index.ErrNoOutline) {
				t.Errorf("version %s, with a flag: %v", version, err)
			}
			for i := range min(len(data), 3000) { // truncated or changed data must cause an error and not a panic
				_, _ = index.ReadOutline(f, data[:i])
				bad := bytes.Clone(data)
				bad[i] ^= 0xff
				if o, err := index.ReadOutline(f, bad); err == nil && o.Len() > 0 {
					_, _ = o.Entry(o.Len() - 1)
				}
			}
		}
	}
}
