package integration

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
