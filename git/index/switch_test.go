package index_test

import (
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
)

// switched returns an index with a few paths, and an untracked cache for their directories.
func switched() *index.Index {
	x := &index.Index{Format: object.SHA1, Version: 2, Token: "before"}
	for _, path := range []string{".gitignore", "a/b/one", "a/b/two", "a/three", "c/.gitignore", "c/d/four", "top"} {
		x.Entries = append(x.Entries, index.Entry{Path: path, Mode: object.ModeFile, ID: id(path), Valid: true})
	}
	valid := func(name string, sub ...*index.Directory) *index.Directory {
		return &index.Directory{Name: name, Valid: true, Sub: sub}
	}
	c := valid("c", valid("d"))
	c.Ignore = id("c/.gitignore")
	x.Untracked = &index.Untracked{PerDirectory: ".gitignore", Flags: index.ShowNormal,
		Root: valid("", valid("a", valid("b")), c)}
	return x
}

func id(s string) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, []byte(s))
	if err != nil {
		panic(err)
	}
	return id
}

func TestSwitch(t *testing.T) {
	none := func(string) bool { return false }
	change := func(path string) index.Change {
		return index.Change{Entry: index.Entry{Path: path, Mode: object.ModeFile, ID: id("new " + path), Valid: true}}
	}
	gone := func(path string) index.Change { return index.Change{Entry: index.Entry{Path: path}, Gone: true} }

	x := switched()
	x.Switch([]index.Change{change("a/b/five"), gone("c/d/four"), change("c/.gitignore"), change("top")}, none, true)
	u := x.Untracked.Root
	if !u.Valid || !u.Sub[0].Valid || !u.Sub[0].Sub[0].Valid || !u.Sub[1].Valid {
		t.Errorf("directories without untracked files were invalidated: %+v", u)
	}
	if len(u.Sub[1].Sub) != 0 {
		t.Error("a directory without entries is still in the untracked cache")
	}
	if u.Sub[1].Ignore != id("new c/.gitignore") {
		t.Errorf("blob of the ignore rules: got %s", u.Sub[1].Ignore)
	}

	x = switched()
	x.Switch([]index.Change{change("c/.gitignore")}, none, false)
	if c := x.Untracked.Root.Sub[1]; !c.Valid || !c.Ignore.IsZero() {
		t.Errorf("git has to read ignore rules without an effect: %+v", c)
	}
	x = switched()
	x.Switch([]index.Change{change("c/.gitignore")}, func(dir string) bool { return dir == "c" }, true)
	if c := x.Untracked.Root.Sub[1]; c.Valid || c.Sub[0].Valid || !x.Untracked.Root.Valid {
		t.Errorf("changed ignore rules do not invalidate the cache: %+v", c)
	}

	x = switched()
	x.Untracked.Root.Sub[0].Files = []string{"mine"}
	x.Switch([]index.Change{gone("a/three")}, none, true)
	if u := x.Untracked.Root; u.Valid || u.Sub[0].Valid || !u.Sub[1].Valid {
		t.Errorf("the directory of a/mine was not invalidated: %+v", u)
	}
}

func TestApplyMonitor(t *testing.T) {
	x := switched()
	x.ApplyMonitor("after", []string{"a/", "top", "c/d/four", "nowhere"},
		func(path string) bool { return path == "c/d/four" })
	var invalid []string
	for _, e := range x.Entries {
		if !e.Valid {
			invalid = append(invalid, e.Path)
		}
	}
	if want := []string{"a/b/one", "a/b/two", "a/three", "top"}; !slices.Equal(invalid, want) || x.Token != "after" {
		t.Errorf("fsmonitor token %q, invalid paths: got %q, want %q", x.Token, invalid, want)
	}
	x = switched()
	x.Token = ""
	x.ApplyMonitor("after", []string{"top"}, func(string) bool { return false })
	if x.Token != "" {
		t.Error("an index without a monitor got an fsmonitor extension")
	}
}
