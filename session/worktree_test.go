package session_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// linkedState returns a State that contains the linked worktree name with the given text.
func linkedState(name, text string) session.State {
	return session.State{Files: map[string]session.File{"artifactfs-worktrees/" + name +
		"/worktree": {Content: []byte(text)}}}
}

// TestWorktreesAreValid checks that linked worktrees with invalid names or paths, which another user may have written,
// are refused.
func TestWorktreesAreValid(t *testing.T) {
	id := object.EmptyTree(object.SHA1).String()
	rest := "\nbranch refs/heads/a\nfiles " + id + "\nindex " + id + "\n"
	for text, want := range map[string]bool{
		`path "a/b"` + rest: true, `path "a \n\xff\"b"` + rest: true, `path "a"` + rest + "later thing\n": true,
		`path ""` + rest: false, `path "/a"` + rest: false, `path "../a"` + rest: false, `path "a/../../b"` + rest: false,
		`path "a/"` + rest:       false,
		`path "a/.git/b"` + rest: false, `path ".GIT"` + rest: false, `path "a\x00"` + rest: false,
		`path a` + rest: false, rest: false,
		`path "a"` + "\nfiles " + id + "\nindex " + id + "\n":              false,
		`path "a"` + strings.Replace(rest, "refs/heads/a", "refs/../a", 1): false,
		`path "a"` + strings.Replace(rest, "refs/heads/a", "../../x", 1):   false,
		`path "a"` + strings.Replace(rest, "index", "other", 1):            false,
		`path "a"` + strings.Replace(rest, id, "1234", 1):                  false,
	} {
		s := linkedState("n", text)
		if list, err := s.Worktrees(object.SHA1); (err == nil) != want {
			t.Errorf("linked worktree %q: got %+v and error %v, want valid %v", text, list, err, want)
		}
	}
	for name, want := range map[string]bool{"a": true, "a b": true, ".git": false, "..": false, ".": false, "": false,
		strings.Repeat("x", 300): false} {
		s := linkedState(name, `path "a"`+rest)
		if _, err := s.Worktrees(object.SHA1); (err == nil) != want {
			t.Errorf("linked worktree with name %q: got error %v, want valid %v", name, err, want)
		}
	}
	two := linkedState("a", `path "x"`+rest)
	two.Files["artifactfs-worktrees/b/worktree"] = two.Files["artifactfs-worktrees/a/worktree"]
	if _, err := two.Worktrees(object.SHA1); err == nil {
		t.Error("two linked worktrees with one path: got no error")
	}
}

func FuzzWorktrees(f *testing.F) {
	id := object.EmptyTree(object.SHA1).String()
	f.Add("n", "path \"a/b\"\nbranch refs/heads/a\ncommit "+id+"\nfiles "+id+"\nindex "+id+"\n",
		`{"path":"YQ==","mode":33188,"id":"`+id+`","stage":2}`+"\n")
	f.Fuzz(func(t *testing.T, name, text, special string) {
		s := linkedState(name, text)
		s.Files["artifactfs-worktrees/"+name+"/special"] = session.File{Content: []byte(special)}
		list, err := s.Worktrees(object.SHA1)
		if err != nil {
			return
		}
		var again session.State
		if err := again.AddWorktrees(list); err != nil {
			t.Fatalf("encode linked worktrees %+v: %v", list, err)
		}
		if got, err := again.Worktrees(object.SHA1); err != nil || !reflect.DeepEqual(got, list) {
			t.Errorf("linked worktrees of %q: got %+v and %v after encoding, want %+v", text, got, err, list)
		}
	})
}
