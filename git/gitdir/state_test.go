package gitdir

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
)

func TestCarries(t *testing.T) {
	for name, want := range map[string]bool{
		"MERGE_HEAD": true, "rebase-merge/git-rebase-todo": true, "rebase-apply/0001": true, "sequencer/todo": true,
		"info/exclude": true, "BISECT_LOG": true,
		"config": false, "hooks/pre-commit": false, "HEAD": false, "index": false, "objects/info/alternates": false,
		"refs/heads/main": false, "packed-refs": false,
		"rebase-merge/../config": false, "rebase-merge/../../x": false, "/MERGE_HEAD": false, "rebase-merge": false,
		"rebase-merge/": false, "rebase-merge//x": false,
		"info/attributes": false, "shallow": false, "commondir": false, "MERGE_HEAD.lock": false, "": false,
	} {
		if Carries(name) != want {
			t.Errorf("Carries(%q) = %t", name, !want)
		}
	}
}

// TestRefsOfAStateAreGits checks that a ref name of a State is refused if git check-ref-format refuses it.
func TestRefsOfAStateAreGits(t *testing.T) {
	for _, name := range []string{
		"refs/heads/main", "refs/heads/a/b", "refs/tags/v1.0", "refs/notes/commits", "refs/remotes/origin/main", "refs/stash",
		"refs/heads/a..b", "refs/heads/.a", "refs/heads/a.lock", "refs/heads/a.lock/b", "refs/heads/a b", "refs/heads/a~1",
		"refs/heads/a^", "refs/heads/a:b", "refs/heads/a?",
		"refs/heads/a*", "refs/heads/a[", "refs/heads/a\\b", "refs/heads/a\x01", "refs/heads/a\x7f", "refs/heads/a@{b",
		"refs/heads/a.", "refs/heads//a", "refs/heads/", "refs/heads/a\nb",
	} {
		if git := exec.Command("git", "check-ref-format", name).Run() == nil; validRef(name) != git {
			t.Errorf("validRef(%q) = %t, unlike git check-ref-format", name, !git)
		}
	}
	for _, name := range []string{"refs/afs/meta/x", "HEAD", "refs/bisect/bad", "refs/stash/x",
		"refs/heads/../../config"} {
		if validRef(name) {
			t.Errorf("invalid name %q is accepted", name)
		}
	}
}

// TestAGitDirectoryLikeAState checks that a git directory that is created from a State has its branches, tags, stashes,
// upstreams, and its operation in progress.
func TestAGitDirectoryLikeAState(t *testing.T) {
	root := t.TempDir()
	git := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q failed: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	from := filepath.Join(root, "from")
	git(root, "init", "-q", "-b", "main", from)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("file", "one\n")
	git(from, "add", ".")
	git(from, "commit", "-q", "-m", "one")
	for _, n := range []string{"first", "second"} {
		write("file", n+"\n")
		git(from, "stash", "push", "-q", "-m", n)
	}
	id := func(name string) object.ID { return object.MustID(git(from, "rev-parse", name)) }
	head := id("HEAD")
	s := &State{
		Branch: "refs/heads/work", Head: head,
		Refs: []packedrefs.Ref{{Name: "refs/heads/main", ID: head}, {Name: "refs/heads/work", ID: head},
			{Name: "refs/stash", ID: id("stash@{0}")}, {Name: "refs/heads/../evil", ID: head}},
		Remote: []packedrefs.Ref{{Name: "refs/remotes/origin/main", ID: head}, {Name: "refs/remotes/origin/HEAD", ID: head}},
		Stashes: []Stash{{Commit: id("stash@{0}"), Message: "On main: second"},
			{Commit: id("stash@{1}"), Message: "On main: first"}},
		Files: map[string]File{
			"MERGE_MSG": {Content: []byte("half done\n")}, "rebase-merge/exec": {Content: []byte("x"), Exec: true},
			"hooks/post-checkout": {Content: []byte("#!/bin/sh\n"), Exec: true},
			"config":              {Content: []byte("[core]\n\tsshCommand = evil\n[user]\n\tname = somebody\n\temail = a@b\n[branch \"work\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\tevil = x\n")},
		},
	}
	path := filepath.Join(root, "git")
	o := Options{
		Format: object.SHA1, WorkTree: from, Remote: "https://example.org/r.git",
		Objects: filepath.Join(from, ".git", "objects"), Ref: "refs/heads/main", Commit: head,
		Default: "refs/heads/main", Git: Version{2, 39}, State: s, Session: filepath.Join(root, "session", "objects"),
		Committer: func(object.ID) string { return "a <a@b> 1700000000 +0000" },
	}
	if err := os.MkdirAll(o.Session, 0o755); err != nil {
		t.Fatal(err)
	}
	// The remote has changed its branch since the checkpoint, and has a tag.
	o.Refs = func() ([]packedrefs.Ref, string, []object.ID) {
		if _, err := os.Stat(filepath.Join(path, "HEAD")); err == nil {
			t.Error("HEAD exists before the refs")
		}
		return []packedrefs.Ref{{Name: "refs/heads/main", ID: id("stash@{0}")}, {Name: "refs/tags/v1", ID: head}},
			"refs/heads/main", []object.ID{head}
	}
	d, err := Create(path, o)
	if err != nil {
		t.Fatal(err)
	}
	gitDir := "--git-dir=" + path
	for args, want := range map[string]string{
		"symbolic-ref HEAD":                                 "refs/heads/work",
		"rev-parse HEAD":                                    head.String(),
		"for-each-ref --format=%(refname)":                  "refs/heads/main\nrefs/heads/work\nrefs/remotes/origin/HEAD\nrefs/remotes/origin/main\nrefs/stash\nrefs/tags/v1",
		"rev-parse refs/remotes/origin/main":                head.String(),
		"rev-parse --is-shallow-repository":                 "true",
		"stash list":                                        "stash@{0}: On main: second\nstash@{1}: On main: first",
		"rev-parse --abbrev-ref work@{upstream}":            "origin/main",
		"config --get-regexp ^(branch|user|core.ssh)":       "user.name somebody\nuser.email a@b\nbranch.work.remote origin\nbranch.work.merge refs/heads/main",
		"show -s --format=%s stash@{1}":                     "On main: first",
		"symbolic-ref refs/remotes/origin/HEAD":             "refs/remotes/origin/main",
		"log -g --format=%gs HEAD":                          "session: went on at a checkpoint",
		"for-each-ref --format=%(upstream) refs/heads/main": "",
	} {
		got := git(root, append([]string{gitDir}, strings.Fields(args)...)...)
		if lines := strings.Split(got, "\n"); strings.HasPrefix(args, "config") {
			slices.Sort(lines)
			wanted := strings.Split(want, "\n")
			slices.Sort(wanted)
			got, want = strings.Join(lines, "\n"), strings.Join(wanted, "\n")
		}
		if got != want {
			t.Errorf("git %s printed %q, want %q", args, got, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(path, "MERGE_MSG")); err != nil || string(text) != "half done\n" {
		t.Errorf("MERGE_MSG: got %q, %v", text, err)
	}
	if st, err := os.Stat(filepath.Join(path, "rebase-merge", "exec")); err != nil || st.Mode()&0o111 == 0 {
		t.Errorf("rebase-merge/exec: got %v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(path, "hooks", "post-checkout")); err == nil {
		t.Error("a hook was taken over")
	}
	if text, err := os.ReadFile(filepath.Join(path, "objects", "info", "alternates")); err != nil ||
		string(text) != o.Objects+"\n"+o.Session+"\n"+o.existing() {
		t.Errorf("alternates: got %q, %v", text, err)
	}
	for range 2 {
		if err := DropNamedObjects(path); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(filepath.Join(path, "objects", "info", "alternates")); err != nil ||
			string(text) != o.Objects+"\n"+o.Session+"\n" {
			t.Errorf("alternates after the end of the mount: got %q, %v", text, err)
		}
	}

	// When history is fetched later, the branches stay unchanged.
	if err := d.SetRefs([]packedrefs.Ref{{Name: "refs/heads/main", ID: head},
		{Name: "refs/heads/other", ID: head}}); err != nil {
		t.Fatal(err)
	}
	git(root, gitDir, "update-ref", "-d", "refs/heads/main")
	o.State, o.Ref = nil, ""
	again, ok, err := Open(path, o)
	if err != nil || !ok {
		t.Fatalf("open the git directory again: %v, %v", ok, err)
	}
	if err := again.SetRefs(nil); err != nil {
		t.Fatal(err)
	}
	if got := git(root, gitDir, "for-each-ref", "--format=%(refname)", "refs/heads"); got != "refs/heads/work" {
		t.Errorf("removed branches exist again: %q", got)
	}
}

// TestStagedIsApplied checks that the index has the staged entries, whatever the working tree contains.
func TestStagedIsApplied(t *testing.T) {
	id := func(n byte) object.ID { return object.MustID(strings.Repeat(string('0'+rune(n)), 40)) }
	b := index.NewBuilder(index.Options{Format: object.SHA1, Version: index.Version, Token: "t"})
	b.Dir("", id(1), index.Stat{})
	for _, path := range []string{"a", "conflict", "only-here", "same"} {
		b.Add(index.Entry{Path: path, Mode: object.ModeFile, ID: id(2), Valid: true})
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	s := &Staged{
		Changes: []index.Change{{Entry: index.Entry{Path: "only-here"}, Gone: true},
			{Entry: index.Entry{Path: "a", Mode: object.ModeFile, ID: id(3)}},
			{Entry: index.Entry{Path: "staged", Mode: object.ModeExec, ID: id(4)}}},
		Others: []index.Entry{{Path: "conflict", Mode: object.ModeFile, ID: id(5), Stage: 1},
			{Path: "conflict", Mode: object.ModeFile, ID: id(6), Stage: 2},
			{Path: "conflict", Mode: object.ModeFile, ID: id(7), Stage: 3}},
		Trees: func(string) (object.ID, bool) { return id(8), true },
	}
	s.Apply(x)
	var out bytes.Buffer
	if _, err := x.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if x, err = index.Read(object.SHA1, out.Bytes()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range x.Entries {
		got = append(got, e.Path+" "+e.ID.String()[:1]+string('0'+rune(e.Stage))+map[bool]string{true: " valid",
			false: ""}[e.Valid])
	}
	if want := "a 30, conflict 51, conflict 62, conflict 73, same 20 valid, staged 40"; strings.Join(got, ", ") != want {
		t.Errorf("entries of the index: got %s, want %s", strings.Join(got, ", "), want)
	}
	if x.Tree != nil && x.Tree.Count >= 0 {
		t.Error("an index with a conflict has a cached tree")
	}
}

// FuzzCarriedSettings checks that of the settings of a State, which are untrusted input, only the permitted ones are
// used.
func FuzzCarriedSettings(f *testing.F) {
	f.Add([]byte("[user]\n\tname = a\n[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/x\n"))
	f.Add([]byte("[core]\n\tfsmonitor = evil\n[branch \"a\\nb\"]\n\tremote = \"x\\ny\"\n[include]\n\tpath = x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := config.New()
		o := Options{State: &State{Files: map[string]File{"config": {Content: text}}}}
		if o.setCarried(c) != nil {
			return
		}
		for _, s := range c.Sections {
			if s.Name != "branch" && s.Name != "user" {
				t.Errorf("section %q was accepted", s.Name)
			}
		}
		var out bytes.Buffer
		if err := config.NewEncoder(&out).Encode(c); err != nil {
			t.Fatal(err)
		}
		again := config.New()
		if err := config.NewDecoder(&out).Decode(again); err != nil {
			t.Fatalf("settings %q were written in an invalid form: %v", text, err)
		}
		for _, s := range again.Sections {
			if s.Name != "branch" && s.Name != "user" {
				t.Errorf("section %q exists in the written settings", s.Name)
			}
		}
	})
}
