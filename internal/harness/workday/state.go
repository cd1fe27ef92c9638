// Package workday plays a user who works in a git working tree with shell tools and stock git, keeps a ledger of what
// the tree was after each step, and says whether what was saved of it came back right. It judges a program that saves
// work while all of it may be killed at any moment.
//
// Terms: a State is what stock git and the file system say of a working tree. A step is one command of the worker. The
// ledger is a file outside of the tree that outlives the worker: a line before each step and one with the State after
// it. The oracle makes the steps of a ledger again on a plain file system; a step that was under way is filmed there, and
// what came back has to be of a moment in the film. A promise is a line about a command that returned: from then on
// the State in it must not get lost.
//
// The worker is a process of its own, so that it can be killed with all it has started. A program that uses this package
// calls Main first: the worker is that program again.
package workday

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// State is what stock git and the file system say of a working tree.
type State struct {
	Tree      string   `json:"tree"`      // that a commit of all files would have; those that git ignores are none
	Head      string   `json:"head"`      // commit; "": unborn
	Branch    string   `json:"branch"`    // full name of the ref that HEAD names; "": detached
	Refs      []string `json:"refs"`      // "ID NAME", without those of remotes
	Stashes   []string `json:"stashes"`   // "ID MESSAGE", newest first
	Index     []string `json:"index"`     // as git ls-files --stage -v prints it
	Status    []string `json:"status"`    // as git status --porcelain prints it
	Operation []string `json:"operation"` // files of one under way, "NAME HASH"
}

var errComplaint = errors.New("it complains") // and does not fail

// Look asks stock git for the State of the tree at dir. It changes nothing there, and asks nothing of the program that
// is judged but to read files.
func Look(ctx context.Context, dir string) (State, error) {
	var s State
	var failed error
	git := func(env []string, args ...string) string {
		out, err := run(ctx, dir, env, append([]string{"git", "--no-optional-locks", "-c", "core.fsmonitor=false"}, args...)...)
		if err != nil && failed == nil {
			failed = err
		}
		return out
	}
	gitDir, common := git(nil, "rev-parse", "--absolute-git-dir"), git(nil, "rev-parse", "--path-format=absolute", "--git-common-dir")
	if failed != nil {
		return s, fmt.Errorf("look at %s: %w", dir, failed)
	}
	s.Branch, _ = run(ctx, dir, nil, "git", "symbolic-ref", "-q", "HEAD")
	s.Head, _ = run(ctx, dir, nil, "git", "rev-parse", "-q", "--verify", "HEAD^{commit}")
	for _, line := range lines(git(nil, "for-each-ref", "--format=%(objectname) %(refname)")) {
		if !strings.Contains(line, " refs/remotes/") {
			s.Refs = append(s.Refs, line)
		}
	}
	s.Stashes = lines(git(nil, "stash", "list", "--format=%H %gs"))
	s.Index = lines(git(nil, "ls-files", "--stage", "-v"))
	s.Status = lines(git(nil, "status", "--porcelain", "--untracked-files=all"))
	var err error
	if s.Operation, err = operation(gitDir); err != nil {
		return s, fmt.Errorf("look at %s: %w", dir, err)
	}
	flagged := slices.ContainsFunc(s.Index, func(line string) bool { return line[0] == 'h' || line[0] == 'S' || line[0] == 's' })
	if s.Tree, err = tree(ctx, dir, gitDir, common, flagged); err != nil {
		return s, fmt.Errorf("look at %s: %w", dir, err)
	}
	if failed != nil {
		return s, fmt.Errorf("look at %s: %w", dir, failed)
	}
	return s, nil
}

// tree is what git makes of all files, with an index and a place for objects that are thrown away.
func tree(ctx context.Context, dir, gitDir, common string, flagged bool) (string, error) {
	scratch, err := os.MkdirTemp("", "workday-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	index, objects := filepath.Join(scratch, "index"), filepath.Join(scratch, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join(gitDir, "index"))
	if err == nil {
		err = os.WriteFile(index, content, 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	env := []string{"GIT_INDEX_FILE=" + index, "GIT_OBJECT_DIRECTORY=" + objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(common, "objects")}
	for _, flag := range []string{"assume-unchanged", "skip-worktree"} { // they would hide what the files are
		if !flagged {
			break
		}
		// Without paths in conflict, which git cannot mark.
		mark := `git ls-files --stage -z | sed -z -n 's/^[0-7]* [0-9a-f]* 0\t//p' | git update-index -z --no-` + flag + ` --stdin`
		if _, err := run(ctx, dir, env, "sh", "-c", mark); err != nil {
			return "", err
		}
	}
	if _, err := run(ctx, dir, env, "git", "-c", "core.fsmonitor=false", "-c", "advice.addEmbeddedRepo=false", "add", "--all", "."); err != nil {
		return "", err
	}
	return run(ctx, dir, env, "git", "write-tree", "--missing-ok")
}

// underWay are the files and directories of a git directory that say what is going on.
var underWay = []string{"MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "BISECT_START", "rebase-merge", "rebase-apply", "sequencer"}

func operation(gitDir string) ([]string, error) {
	var found []string
	for _, name := range underWay {
		err := filepath.WalkDir(filepath.Join(gitDir, name), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() || strings.HasSuffix(path, ".lock") {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(gitDir, path)
			found = append(found, fmt.Sprintf("%s %x", rel, sha256.Sum256(content)))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Differs returns how other differs from s, or "" if they are equal.
func (s State) Differs(other State) string {
	var all []string
	for _, c := range []struct{ what, a, b string }{{"tree", s.Tree, other.Tree}, {"HEAD", s.Head, other.Head}, {"branch", s.Branch, other.Branch}} {
		if c.a != c.b {
			all = append(all, fmt.Sprintf("%s was %s, is %s", c.what, c.a, c.b))
		}
	}
	for _, c := range []struct {
		what string
		a, b []string
	}{{"refs", s.Refs, other.Refs}, {"stashes", s.Stashes, other.Stashes}, {"index", s.Index, other.Index}, {"status", s.Status, other.Status}, {"operation", s.Operation, other.Operation}} {
		if !slices.Equal(c.a, c.b) {
			all = append(all, fmt.Sprintf("%s: lost %q, found %q", c.what, short(without(c.a, c.b)), short(without(c.b, c.a))))
		}
	}
	return strings.Join(all, "; ")
}

// short is enough to see what it is about.
func short(lines []string) []string { return lines[:min(len(lines), 8)] }

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// run runs a program in dir under gittest.Env and returns what it printed, without the last newline.
func run(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(gittest.Env(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil && bytes.Contains(stderr.Bytes(), []byte("error: ")) { // a file that cannot be read is one that has changed, to git status
		err = errComplaint
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// exact is a blob to its last byte.
func exact(ctx context.Context, repo, name string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", "--git-dir="+repo, "cat-file", "blob", name)
	cmd.Env = gittest.Env()
	return cmd.Output()
}
