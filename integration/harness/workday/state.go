// Package workday simulates a user who works in a git working tree with shell tools and stock git. It keeps a ledger of
// the state of the tree after each step, and checks whether a saved state was restored correctly. It is used to test a
// program that must save work even if all processes are killed at any moment.
//
// A State is the state of a working tree as stock git and the file system show it. A step is one command of the worker.
// The ledger is a file outside of the tree that survives the worker: it has a line before each step, and a line with
// the State after the step. The oracle repeats the steps of a ledger on a plain file system. It films the step that was
// in progress, that is, it records the state after each system call. The restored state must be equal to one of these
// states. A promise is a line that the worker writes after a command which saves the tree has returned: the State in
// this line must not be lost.
//
// The worker is a separate process, so that it can be killed with all processes that it has started. A program that
// uses this package must call Main first, because the worker is a process of the same program.
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
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// State is the state of a working tree as stock git and the file system show it.
type State struct {
	// ID of the tree that a commit of all files would have, except files that git ignores
	Tree      string   `json:"tree"`
	Head      string   `json:"head"`      // commit of HEAD; "" if the branch is unborn
	Branch    string   `json:"branch"`    // full name of the ref that HEAD names; "" if HEAD is detached
	Refs      []string `json:"refs"`      // "ID NAME" for each ref, without refs of remotes
	Stashes   []string `json:"stashes"`   // "ID MESSAGE" for each stash, newest first
	Index     []string `json:"index"`     // output of git ls-files --stage -v
	Status    []string `json:"status"`    // output of git status --porcelain
	Operation []string `json:"operation"` // "NAME HASH" for each file of git's operation in progress, such as a merge
}

var errComplaint = errors.New("exit status 0 with error output")

// Look returns the State of the tree at dir, which it determines with stock git. It changes nothing in the tree. It
// uses the tested program only by reading files.
func Look(ctx context.Context, dir string) (State, error) {
	var s State
	var failed error
	git := func(env []string, args ...string) string {
		out, err := run(ctx, dir, env, append([]string{"git", "--no-optional-locks", "-c", "core.fsmonitor=false"},
			args...)...)
		if err != nil && failed == nil {
			failed = err
		}
		return out
	}
	gitDir, common := git(nil, "rev-parse", "--absolute-git-dir"),
		git(nil, "rev-parse", "--path-format=absolute", "--git-common-dir")
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
	flagged := slices.ContainsFunc(s.Index,
		func(line string) bool { return line[0] == 'h' || line[0] == 'S' || line[0] == 's' })
	if s.Tree, err = tree(ctx, dir, gitDir, common, flagged); err != nil {
		return s, fmt.Errorf("look at %s: %w", dir, err)
	}
	if failed != nil {
		return s, fmt.Errorf("look at %s: %w", dir, failed)
	}
	return s, nil
}

// tree returns the ID of the tree that git creates from all files. It uses a temporary index and a temporary object
// directory, so that the repository is not changed.
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
	if err := copyIndex(filepath.Join(gitDir, "index"), index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	env := []string{"GIT_INDEX_FILE=" + index, "GIT_OBJECT_DIRECTORY=" + objects,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(common, "objects")}
	// entries with these flags would hide changes of the files
	for _, flag := range []string{"assume-unchanged", "skip-worktree"} {
		if !flagged {
			break
		}
		// Paths with conflicts are left out, because git cannot set flags for them.
		mark := `git ls-files --stage -z | sed -z -n 's/^[0-7]* [0-9a-f]* 0\t//p' | git update-index -z --no-` +
			flag + ` --stdin`
		if _, err := run(ctx, dir, env, "sh", "-c", mark); err != nil {
			return "", err
		}
	}
	if _, err := run(ctx, dir, env, "git", "-c", "core.fsmonitor=false", "-c", "advice.addEmbeddedRepo=false", "add",
		"--all", "."); err != nil {
		return "", err
	}
	return run(ctx, dir, env, "git", "write-tree", "--missing-ok")
}

// copyIndex copies a git index with its modification time. git compares this time with those of the files to find files
// that may have changed in the second in which the index was written, and reads their contents again. A copy with a
// later time would hide such changes.
func copyIndex(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, content, 0o644); err != nil {
		return err
	}
	return os.Chtimes(to, time.Time{}, info.ModTime())
}

// underWay contains the names of the files and directories of a git directory that describe an operation in progress.
var underWay = []string{"MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG",
	"BISECT_START", "rebase-merge", "rebase-apply", "sequencer"}

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

// Differs returns a description of the differences between s and other, or "" if they are equal.
func (s State) Differs(other State) string {
	var all []string
	for _, c := range []struct{ what, a, b string }{{"tree", s.Tree, other.Tree}, {"HEAD", s.Head, other.Head},
		{"branch", s.Branch, other.Branch}} {
		if c.a != c.b {
			all = append(all, fmt.Sprintf("%s was %s, is %s", c.what, c.a, c.b))
		}
	}
	for _, c := range []struct {
		what string
		a, b []string
	}{{"refs", s.Refs, other.Refs}, {"stashes", s.Stashes, other.Stashes}, {"index", s.Index, other.Index},
		{"status", s.Status, other.Status}, {"operation", s.Operation, other.Operation}} {
		if !slices.Equal(c.a, c.b) {
			all = append(all, fmt.Sprintf("%s: lost %q, found %q", c.what, short(without(c.a, c.b)), short(without(c.b, c.a))))
		}
	}
	return strings.Join(all, "; ")
}

// short returns at most the first 8 lines of a list, for messages.
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

// run runs a program in dir with the environment gittest.Env, and returns its output without the last newline.
func run(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(gittest.Env(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	// such an error must not be ignored: git status treats a file that it cannot read as changed
	if err == nil && bytes.Contains(stderr.Bytes(), []byte("error: ")) {
		err = errComplaint
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// exact returns the contents of a blob. name is a name that git cat-file accepts.
func exact(ctx context.Context, repo, name string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", "--git-dir="+repo, "cat-file", "blob", name)
	cmd.Env = gittest.Env()
	return cmd.Output()
}
