package odb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestLookAndCheck(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		to := newRepo(t, f)
		git(t, to, nil, "fetch", "-q", dir, "refs/*:refs/*")
		git(t, to, nil, "repack", "-q", "-a", "-d")
		git(t, to, []byte("nowhere else"), "hash-object", "-w", "--stdin")
		objects := filepath.Join(to, "objects")
		s, err := Look(objects, f)
		if err != nil || s.Packs != 1 || s.Objects != int64(len(want)) || s.Loose != 1 || s.Bytes == 0 {
			t.Errorf("survey: got %+v of %d objects, %v", s, len(want), err)
		}
		check := func(deep bool) (what string) {
			t.Helper()
			problems, err := Check(objects, f, deep)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				what += filepath.Ext(p.Path) + ": " + p.What + "\n"
			}
			return what
		}
		if what := check(true); what != "" {
			t.Errorf("check of a sound repository: %s", what)
		}
		packs, _ := filepath.Glob(filepath.Join(objects, "pack", "*.pack"))
		idx := strings.TrimSuffix(packs[0], ".pack") + ".idx"
		flip := func(path string, at int64, want string, deep bool) {
			t.Helper()
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if at < 0 {
				at += int64(len(data))
			}
			bad := append([]byte(nil), data...)
			bad[at] ^= 1
			if err := os.WriteFile(path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			if got := check(deep); !strings.Contains(got, want) {
				t.Errorf("check with a flipped byte in the %s file at %d: got %q, want %q", filepath.Ext(path), at, got, want)
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		flip(packs[0], -1, "pack does not match its index", false)
		flip(packs[0], 11, "header does not match the index", false)
		flip(packs[0], 100, "", false)
		flip(packs[0], 100, "checksum of the pack is wrong", true)
		flip(idx, 2000, "checksum of the index is wrong", false)
		flip(idx, 0, "index does not have version 2", false)
		if err := os.Rename(packs[0], packs[0]+".away"); err != nil {
			t.Fatal(err)
		}
		if what := check(false); !strings.Contains(what, ".idx: pack of this file is missing") {
			t.Errorf("unexpected result of the check: %s", what)
		}
		os.Rename(packs[0]+".away", packs[0])
		os.Remove(idx)
		if what := check(false); !strings.Contains(what, ".pack: pack has no index") {
			t.Errorf("unexpected result of the check: %s", what)
		}
		if s, err := Look(filepath.Join(to, "nothing"), f); err != nil || s != (Survey{}) {
			t.Errorf("survey of a missing directory: got %+v, %v, want zero", s, err)
		}
	})
}
