package gittest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestReceiver checks that pushes through every kind of server and by path are recorded in the same list.
func TestReceiver(t *testing.T) {
	root := t.TempDir()
	r, err := NewReceiver(filepath.Join(root, "r.git"), RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	web, err := Serve(ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { web.Close() })
	ssh, command, err := ServeSSH(ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ssh.Close() })
	work := filepath.Join(t.TempDir(), "w")
	gitIn(t, "", "init", "-q", "-b", "main", work)
	gitIn(t, work, "config", "core.sshCommand", command)
	var tips []string
	for i, to := range []string{web.URL("r.git"), ssh.URL("r.git"), r.Path} {
		gitIn(t, work, "commit", "-q", "--allow-empty", "-m", to)
		gitIn(t, work, "push", "-q", to, "main", fmt.Sprint("main:refs/notes/", i))
		tips = append(tips, gitIn(t, work, "rev-parse", "HEAD"))
	}
	if err := r.Decline("not today"); err != nil {
		t.Fatal(err)
	}
	if _, err := Git(t.Context(), work, "push", "-q", web.URL("r.git"), "main:more"); err == nil ||
		!strings.Contains(err.Error(), "not today") {
		t.Errorf("declined: %v", err)
	}
	if err := r.Accept(); err != nil {
		t.Fatal(err)
	}
	gitIn(t, work, "push", "-q", web.URL("r.git"), ":refs/notes/0")
	all, err := r.Updates()
	if err != nil {
		t.Fatal(err)
	}
	var main []string
	for i, u := range all {
		if u.Ref == "refs/heads/main" {
			main = append(main, u.New.String())
		}
		if i > 0 && (u.At.Before(all[i-1].At) || u.Push < all[i-1].Push) {
			t.Errorf("%+v comes after %+v", u, all[i-1])
		}
	}
	last := all[len(all)-1]
	if strings.Join(main, " ") != strings.Join(tips, " ") || last.Push != 4 || !last.New.IsZero() ||
		last.Old.String() != tips[0] {
		t.Errorf("updates %+v, want %q", all, tips)
	}
	refs, err := r.Refs()
	if err != nil || refs["refs/heads/main"].String() != tips[2] || len(refs) != 3 {
		t.Errorf("refs %v, %v", refs, err)
	}
}
