package bind

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// base is a tree with a file main.go and a directory web that has a directory src.
func base(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() {
		return []object.TreeEntry{{Name: "main.go", Mode: object.ModeFile}, {Name: "web", Mode: object.ModeDir, ID: treeID}},
			nil
	}
	return []object.TreeEntry{{Name: "src", Mode: object.ModeDir, ID: treeID}}, nil
}

var treeID, _ = object.ParseID(strings.Repeat("1", 40))

func plan(paths []string, strict bool) (*Redirects, []statedir.Redirect, error) {
	r := &Redirects{}
	record, err := r.Plan(context.Background(), Options{Dir: "/srv/a", Home: "/state/mounts/w", ID: "w",
		Log: zap.NewNop()},
		Wish{Paths: paths, Strict: strict, Base: base})
	return r, record, err
}

func TestPlan(t *testing.T) {
	r, record, err := plan([]string{"node_modules", "web/dist", "web", "main.go/x", "web/src/build", "node_modules/a"},
		false)
	if err != nil {
		t.Fatal(err)
	}
	want := []statedir.Redirect{{Path: "node_modules", Backing: "0"}, {Path: "web/dist", Backing: "1"},
		{Path: "web/src/build", Backing: "2"}}
	if !slices.Equal(record, want) {
		t.Errorf("planned %v, want %v", record, want)
	}
	notes := []string{
		"web is not redirected: path overlaps the existing redirect web/dist",
		"main.go/x is not redirected: main.go is not a directory",
		"node_modules/a is not redirected: path overlaps the existing redirect node_modules",
	}
	if !slices.Equal(r.Notes(), notes) {
		t.Errorf("notes %q, want %q", r.Notes(), notes)
	}
	if r.Placeholders() != 0 || len(r.Paths()) != 0 || len(r.Status()) != len(want) {
		t.Errorf("before anything is bound: %d placeholders, paths %q, status %v", r.Placeholders(), r.Paths(), r.Status())
	}
	if _, ok := r.Hook("web/dist"); !ok {
		t.Error("the directory web/dist is created and not redirected")
	}
	if _, ok := r.Hook("web/src"); ok {
		t.Error("the directory web/src is created and redirected")
	}
}

func TestStrictPlanRefuses(t *testing.T) {
	var e *control.Error
	if _, _, err := plan([]string{"web/src"}, true); !errors.As(err, &e) || e.Code != control.ExitUsage ||
		e.Object != "web/src" {
		t.Errorf("a tracked path was refused with %v, want a usage error that names it", err)
	}
}

func TestPlacesOfGitDir(t *testing.T) {
	s := Sources{Git: "/h/git", Objects: "/s/objects", Session: "/h/session.git/objects", Program: "/p", Monitor: "/m"}
	for _, p := range places(s) {
		if p.readOnly == (p.source == s.Git) {
			t.Errorf("bind mount of %s has readOnly %v, want that only the git directory is writable", p.source, p.readOnly)
		}
	}
	if first := places(s)[0]; first.at != "" {
		t.Errorf("first bind mount: got %s at .git/%s, want the git directory", first.source, first.at)
	}
	if s.Session = ""; len(places(s)) != 4 {
		t.Errorf("%d places without a session, want 4", len(places(s)))
	}
}

func TestWithoutGitDirInside(t *testing.T) {
	var g *GitDir
	if err := errors.Join(g.Bind(), g.Unbind(false), g.Unbind(true)); err != nil || g.Wanted() || g.Mounts(1) {
		t.Errorf("a mount whose .git is a file: %v, wanted %v", err, g.Wanted())
	}
	g = NewGitDir("/srv/a", 0, 0, nil, nil)
	if g.thread.Store(7); !g.Mounts(7) || g.Mounts(8) || g.Mounts(0) {
		t.Error("a thread other than the one that mounts is not blocked")
	}
}
