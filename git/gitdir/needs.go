package gitdir

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/promisor"
)

// atOnce lists the git commands that read no commits except HEAD and its parent, and no refs except HEAD's branch,
// unless their arguments name other commits. Their output does not depend on whether the history was fetched.
var atOnce = []string{
	"add", "apply", "cat-file", "check-attr", "check-ignore", "checkout-index", "clean", "commit", "commit-tree",
	"config", "diff",
	"diff-files", "diff-index", "fsmonitor--daemon", "grep", "hash-object", "help", "init", "ls-files", "ls-tree",
	"mv", "read-tree",
	"remote", "restore", "rev-parse", "rm", "show", "sparse-checkout", "stash", "status", "submodule", "symbolic-ref",
	"update-index",
	"update-ref", "var", "version", "write-tree",
}

// takesBranch lists the git commands whose first argument may be a branch or a commit that is not fetched yet.
var takesBranch = []string{"checkout", "switch", "reset"}

// NeedsHistory reports whether a process with the arguments argv may need commits or refs that are fetched only after
// the mount was created. It returns true for a git command that reads the history, names other commits, or is unknown
// to this package. It returns false for programs other than git.
func NeedsHistory(argv []string) bool {
	if len(argv) == 0 || filepath.Base(argv[0]) != "git" {
		return false
	}
	command, args := promisor.Subcommand(argv)
	if command == "" {
		return false
	}
	if slices.ContainsFunc(args, namesAncestor) {
		return true
	}
	switch {
	case slices.Contains(atOnce, command):
		return (command == "show" || command == "diff") && slices.ContainsFunc(beforePaths(args), namesCommit)
	case command == "log":
		return !slices.ContainsFunc(args, isOne)
	case command == "branch":
		return !slices.Contains(args, "--show-current")
	case slices.Contains(takesBranch, command):
		args = beforePaths(args)
		for i, a := range args {
			isNew := i > 0 && slices.Contains([]string{"-b", "-B", "-c", "-C", "--create", "--orphan"}, args[i-1])
			if namesCommit(a) && !isNew {
				return true
			}
		}
		return false
	}
	return true
}

// beforePaths returns the arguments before "--".
func beforePaths(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i]
	}
	return args
}

// namesAncestor reports whether an argument is a revision that is relative to another revision, a range, or an entry of
// a reflog.
func namesAncestor(arg string) bool {
	return !strings.HasPrefix(arg, "-") && (strings.ContainsAny(arg, "~^") ||
		strings.Contains(arg, "..") && !strings.Contains(arg, "../") && arg != ".." || strings.Contains(arg, "@{"))
}

// namesCommit reports whether an argument may name a commit other than HEAD. It may also return true for a path.
func namesCommit(arg string) bool {
	return arg != "" && arg != "HEAD" && arg != "@" && arg != "." && !strings.HasPrefix(arg, "-") &&
		!strings.HasPrefix(arg, "HEAD:") && !strings.HasPrefix(arg, ":")
}

// isOne reports whether an argument limits git log to one commit.
func isOne(arg string) bool { return slices.Contains([]string{"-1", "-n1", "--max-count=1"}, arg) }
