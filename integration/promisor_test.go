package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// long is a repository with a history: log.txt has 600 versions on main; branch `other` changes 1,000 files of an older
// commit, and branch `topic` has ten commits of its own.
func (w *world) long() *gittest.Repo {
	w.Helper()
	r := w.repo("long.git", object.SHA1)
	must[object.ID](w)(r.Sized(12, 100))
	must[[]object.ID](w)(r.History(600))
	w.git(r.Path, "update-ref", "refs/heads/other", "main~20")
	files := map[string]gittest.File{}
	for i := range 1000 {
		files[fmt.Sprintf("d%04d/.gitattributes", i/100)] = gittest.File{Data: fmt.Appendf(nil, "f%04d.* text\n", i/100)}
		files[fmt.Sprintf("d%04d/f%04d.txt", i/100, i%100)] = gittest.File{Data: fmt.Appendf(nil, "another text %d\n", i)}
	}
	must[object.ID](w)(r.Commit("other", files, "Change everything"))
	w.git(r.Path, "update-ref", "refs/heads/topic", "main~30")
	for i := range 10 {
		must[object.ID](w)(r.Commit("topic", map[string]gittest.File{
			fmt.Sprintf("d0011/f%04d.txt", i): {Data: fmt.Appendf(nil, "topic %d\n", i)},
			fmt.Sprintf("topic/%d.txt", i):    {Data: fmt.Appendf(nil, "new %d\n", i)},
		}, fmt.Sprintf("Topic %d", i)))
	}
	return r
}

// asked is the number of objects and requests that a git command caused.
type asked struct {
	questions, requests, blobs int
	out                        string
}

// faulting runs stock git in a mount and counts.
func (w *world) faulting(s served, dir, in string, args ...string) asked {
	w.Helper()
	s.forget()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(in)
	cmd.Env = append(gittest.Env(), "GIT_TRACE=2", "GIT_EDITOR=true")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		w.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, &errs)
	}
	f := asked{out: out.String()}
	for line := range strings.Lines(errs.String()) {
		if strings.Contains(line, "run_command:") && strings.Contains(line, " fetch artifactfs ") {
			f.questions++
		}
		if strings.Contains(line, " fetch origin ") {
			w.Errorf("git %s asked the origin itself: %s", strings.Join(args, " "), line)
		}
	}
	for _, r := range s.quiet() {
		if r.Command == gittest.Fetch {
			f.requests++
			f.blobs += r.Blobs
		}
	}
	return f
}

// TestGitAsksOnce limits the cost of git commands: queries to the daemon, requests to the remote, and blobs. The test
// fails if a command requests one blob after the other.
func TestGitAsksOnce(t *testing.T) {
	t.Parallel()
	build := newWorld(t)
	repo := build.long()
	ids := build.git(repo.Path, "rev-list", "--objects", "--no-object-names", "--filter=object:type=blob",
		"--filter-provided-objects", "main")
	ids = strings.Join(strings.Split(ids, "\n")[:200], "\n") + "\n"
	for _, c := range []struct {
		name                       string
		questions, requests, blobs int // at most
		in                         string
		args                       []string
	}{
		// Commands that write trees only check that the other files exist.
		{"first commit", 0, 0, 0, "", []string{"-c", "alias.do=!echo new >new && git add new && git commit -q -m New", "do"}},
		{"stash and pop", 0, 0, 0, "",
			[]string{"-c", "alias.do=!echo new >new && git add new && git stash -q && git stash pop -q", "do"}},
		{"write-tree without cached trees", 0, 0, 0, "",
			[]string{"-c", "alias.do=!export GIT_INDEX_FILE=$PWD/../all.index && " +
				"git ls-tree -r HEAD | git update-index --index-info && git write-tree", "do"}},
		{"log", 1, 1, 60, "", []string{"log", "-p", "-20"}},
		{"log --stat", 1, 1, 60, "", []string{"log", "--stat", "-20"}},
		{"log without contents", 0, 0, 0, "", []string{"log", "--oneline", "--name-status"}},
		{"log of a file", 1, 1, 601, "", []string{"log", "-p", "--", "log.txt"}},
		{"log --follow", 2, 2, 1811, "", []string{"log", "-p", "--follow", "log.txt"}},
		{"log -S", 1, 1, 61, "", []string{"log", "-Schange", "--", "files/3.txt"}},
		{"log -L", 1, 1, 601, "", []string{"log", "-L1,3:log.txt"}},
		{"blame", 1, 1, 601, "", []string{"blame", "log.txt"}},
		{"blame of an older commit", 1, 1, 601, "", []string{"blame", "main~5", "--", "log.txt"}},
		{"show", 1, 1, 4, "", []string{"show", "main~3"}},
		{"format-patch", 1, 1, 45, "", []string{"format-patch", "--stdout", "main~15"}},
		{"diff", 1, 1, 2100, "", []string{"diff", "main", "origin/other"}},
		{"diff --stat", 1, 1, 2100, "", []string{"diff", "--stat", "main", "origin/other"}},
		{"grep", 1, 1, 1300, "", []string{"grep", "-c", "e", "origin/other"}},
		{"grep below", 1, 1, 101, "", []string{"grep", "-c", "e", "origin/other", "--", "d0003"}},
		{"archive", 1, 1, 1300, "", []string{"archive", "--format=tar", "-o", "/dev/null", "origin/other"}},
		{"ls-tree -l", 1, 1, 1300, "", []string{"ls-tree", "-r", "-l", "origin/other"}},
		{"checkout", 2, 2, 2300, "", []string{"checkout", "-q", "origin/other"}},
		{"merge", 2, 2, 2300, "", []string{"merge", "-q", "origin/other"}},
		{"cherry-pick", 2, 2, 1230, "", []string{"cherry-pick", "origin/topic"}},
		{"rebase", 3, 3, 1260, "", []string{"rebase", "-q", "main", "origin/topic"}},
		{"worktree add", 2, 2, 1300, "", []string{"worktree", "add", "-q", "../linked", "origin/other"}},
		{"cat-file one by one", 4, 4, 3000, ids, []string{"cat-file", "--batch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.repos = build.repos
			s := w.serve(gittest.ServerOptions{})
			// The push of a commit to the session remote happens after the command, at any time, and is not a request of git.
			m := w.mount(s.URL(repo.Path), "--history", "full", "--prefetch", "none", "--session-remote", "none",
				"--log-level", "debug")
			f := w.faulting(s, m.Dir, c.in, c.args...)
			t.Logf("%d questions, %d requests, %d blobs", f.questions, f.requests, f.blobs)
			if f.questions > c.questions || f.requests > c.requests || f.blobs > c.blobs {
				t.Errorf("git %s: %d queries, %d requests, %d blobs, want at most %d, %d, %d\n%s", strings.Join(c.args, " "),
					f.questions, f.requests, f.blobs, c.questions, c.requests, c.blobs, s.Log())
			}
			if c.args[0] == "worktree" {
				w.git(m.Dir, "worktree", "remove", "--force", filepath.Join(filepath.Dir(m.Dir), "linked"))
			}
		})
	}
}

// TestDiffWithoutContents runs commands that make git 2.27 to 2.52 crash in a partial clone: git finds that some files
// have changed only in their times, and then needs the size of a blob that is missing.
func TestDiffWithoutContents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	repo := w.repo("diff.git", object.SHA1)
	files, names := map[string]gittest.File{}, []string{}
	for i := range 40 {
		name := fmt.Sprintf("z%02d/file", i)
		files[name] = gittest.File{Data: fmt.Appendf(nil, "text %d\n", i)}
		names = append(names, name)
	}
	w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{})
	m := w.mount(s.URL(repo.Path), "--history", "full", "--prefetch", "none", "--session-remote", "none", "--log-level",
		"debug")
	own := []string{"a1", "a2", "a3", "a4"}
	for _, name := range own {
		w.check(os.WriteFile(filepath.Join(m.Dir, name), []byte("own\n"), 0o644))
	}
	w.git(m.Dir, "add", ".")
	w.git(m.Dir, "commit", "-q", "-m", "Own files")
	changed := []string{}
	for i, args := range [][]string{{"--name-only"}, {"--name-status"}, {"--raw"}, {"--name-only", "HEAD"}} {
		for _, name := range own {
			path := filepath.Join(m.Dir, name)
			w.check(os.WriteFile(path, []byte("own\n"), 0o644))
			old := time.Unix(1_500_000_000+int64(i), 0)
			w.check(os.Chtimes(path, old, old))
		}
		for _, name := range names[:4] {
			w.check(os.WriteFile(filepath.Join(m.Dir, name), []byte("new\n"), 0o644))
		}
		changed, names = append(changed, names[:4]...), names[4:]
		f := w.faulting(s, m.Dir, "", append([]string{"diff"}, args...)...)
		var got []string
		for line := range strings.Lines(f.out) {
			fields := strings.Fields(line)
			got = append(got, fields[len(fields)-1])
		}
		if !slices.Equal(got, changed) {
			t.Errorf("git diff %v: got %q, want %q", args, got, changed)
		}
		t.Logf("git diff %v: %d queries, %d requests, %d blobs", args, f.questions, f.requests, f.blobs)
		// Without a commit, git compares only the changed files.
		if f.questions > 0 || f.requests > 2 || f.blobs > 4 && i < 3 {
			t.Errorf("git diff %v: %d queries, %d requests, %d blobs\n%s", args, f.questions, f.requests, f.blobs, s.Log())
		}
	}
}
