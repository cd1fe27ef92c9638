package control

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

func TestReceipt(t *testing.T) {
	if r := NewReceipt(nil, 0, nil); r != nil || r.Without(nil) != nil {
		t.Errorf("receipt of nothing: got %+v", r)
	}
	paths := []LeftOut{{Path: "a.enc", Why: "filter"}, {Path: "tree/", Why: "worktree"}, {Path: ".env", Why: "secret"},
		{Path: "core", Why: "size", Size: 9},
		{Path: "x", Why: "excluded"}, {Path: "fifo", Why: "type"}, {Path: "dist/", Why: "ignored"},
		{Path: "node_modules/", Why: "ignored"}}
	r := NewReceipt(paths, 8, []string{"lib"})
	got, _ := json.Marshal(r)
	want := `{"ignored":2,"secrets":1,"too_large":1,"excluded":1,"special":1,"worktrees":1,"unfiltered":1,` +
		`"others":0,"paths":[` +
		`{"path":"a.enc","why":"filter"},` +
		`{"path":"tree/","why":"worktree"},{"path":".env","why":"secret"},{"path":"core","why":"size","size":9},` +
		`{"path":"x","why":"excluded"},{"path":"fifo","why":"type"},{"path":"dist/","why":"ignored"},` +
		`{"path":"node_modules/","why":"ignored"}],"submodules":["lib"]}`
	if string(got) != want {
		t.Errorf("receipt: got %s, want %s", got, want)
	}
	rest := r.Without(func(path string) bool { return path == ".env" || path == "dist/" })
	if rest.Secrets != 0 || rest.Ignored != 1 || len(rest.Paths) != 6 || r.Ignored != 2 || len(r.Paths) != 8 {
		t.Errorf("receipt without two paths: got %+v of %+v", rest, r)
	}
	if r := NewReceipt(paths, 8, nil).Without(func(string) bool { return true }); r != nil {
		t.Errorf("receipt without all paths: got %+v", r)
	}
}

// The checkpoint names a hundred of many paths, and the receipt takes no longer for more.
func TestReceiptOfManyPaths(t *testing.T) {
	var paths []LeftOut
	for i := range mostLeftOut {
		paths = append(paths, LeftOut{Path: fmt.Sprint(i), Why: "ignored"})
	}
	fastest := time.Hour // a busy machine may delay some of them
	for range 10 {
		start := time.Now()
		r := NewReceipt(paths, 100_000, nil)
		fastest = min(fastest, time.Since(start))
		if r.Ignored != 100 || r.Others != 99_900 {
			t.Errorf("receipt of 100,000 paths: got %d ignored and %d others", r.Ignored, r.Others)
		}
	}
	if fastest > 100*time.Millisecond {
		t.Errorf("receipt of 100,000 paths took %v", fastest)
	}
}
