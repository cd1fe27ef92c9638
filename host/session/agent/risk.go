package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/promisor"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/session"
)

// riskTime is the maximum time for which BeforeGit delays a git command.
const riskTime = 10 * time.Second

// harmless lists git commands that cannot discard uncommitted changes, whatever their arguments are: such a command
// does not change files, index and stashes, or only adds to them, or refuses to overwrite uncommitted changes. A
// command that is not listed may be an alias, so it counts as risky unless the function risky has a rule for it.
var harmless = []string{
	"add", "annotate", "apply", "archive", "blame", "branch", "bundle", "cat-file", "check-attr", "check-ignore",
	"check-mailmap",
	"check-ref-format", "cherry", "commit", "commit-graph", "commit-tree", "config", "count-objects", "credential",
	"describe", "diff",
	"diff-files", "diff-index", "diff-tree", "difftool", "fast-export", "fast-import", "fetch", "fetch-pack",
	"fmt-merge-msg", "for-each-ref",
	"for-each-repo", "format-patch", "fsck", "fsmonitor--daemon", "gc", "get-tar-commit-id", "grep", "hash-object", "help",
	"hook", "init",
	"index-pack", "interpret-trailers", "log", "ls-files", "ls-remote", "ls-tree", "mailinfo", "mailsplit", "maintenance",
	"merge-base", "merge-tree", "mktag", "mktree", "multi-pack-index", "mv", "name-rev", "notes",
	"pack-objects", "pack-refs",
	"patch-id", "prune", "prune-packed", "push", "range-diff", "receive-pack", "reflog", "remote", "repack", "replace",
	"request-pull", "rerere", "rev-list", "rev-parse", "send-email", "send-pack", "shortlog", "show",
	"show-branch", "show-index",
	"show-ref", "status", "stripspace", "symbolic-ref", "tag", "unpack-objects", "update-ref", "update-server-info",
	"upload-archive", "upload-pack", "var", "verify-commit", "verify-pack", "verify-tag", "version",
	"whatchanged", "write-tree",
}

// risky reports whether a process with the arguments argv may discard changes that are only in the working tree, the
// index, or the stashes. For an unknown git command it returns true, because an unnecessary checkpoint does no harm.
func risky(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	if base := filepath.Base(argv[0]); base != "git" && !strings.HasPrefix(base, "git-") {
		return false
	}
	command, args := promisor.Subcommand(argv)
	if command == "" || slices.Contains(harmless, command) {
		return false
	}
	has := func(options ...string) bool { return slices.ContainsFunc(args, option(options...)) }
	switch command {
	case "reset":
		return has("--hard", "--keep", "--merge")
	case "checkout":
		return !has("-b") || has("-f", "--force", "-m", "--merge")
	case "switch":
		return has("-f", "--force", "--discard-changes", "-m", "--merge")
	case "restore":
		return !has("-S", "--staged") || has("-W", "--worktree")
	case "clean":
		return has("-f", "--force", "-i", "--interactive")
	case "stash":
		return len(args) == 0 || !slices.Contains([]string{"list", "show", "create", "store"}, args[0])
	case "rm":
		return !has("--cached")
	case "read-tree":
		return has("-u", "--reset")
	case "checkout-index":
		return has("-f", "--force")
	case "merge", "cherry-pick", "revert", "am":
		return has("--abort", "--skip", "--quit", "--autostash")
	case "pull":
		return has("--autostash", "-r", "--rebase")
	case "worktree":
		return len(args) > 0 && args[0] == "remove" && has("-f", "--force")
	case "submodule":
		return has("update", "deinit")
	case "update-index":
		return has("--force-remove", "--index-info", "--cacheinfo", "--unresolve")
	}
	return true
}

// option returns a function that reports whether an argument of a command is one of the given options. A long option
// may be followed by "=" and a value. A short option may be alone, or combined with other short options after one dash.
func option(options ...string) func(arg string) bool {
	return func(arg string) bool {
		for _, o := range options {
			long := strings.HasPrefix(o, "--")
			switch {
			case arg == o, long && strings.HasPrefix(arg, o+"="):
				return true
			case len(o) == 2 && !long && len(arg) > 2 && arg[0] == '-' && arg[1] != '-' && strings.Contains(arg[1:], o[1:]):
				return true
			}
		}
		return false
	}
}

// errPatience is the cause with which the context of the checkpoint before a git command ends after riskTime.
var errPatience = errors.New("time limit for a checkpoint before a git command was reached")

// Guards reports whether the mount creates a checkpoint before git commands that may discard changes.
func (a *Agent) Guards() bool {
	if !a.Active() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return (a.schedule.kind == control.PolicyIdle || a.schedule.kind == control.PolicyBeforeRisk) && !a.closed
}

// BeforeGit creates a checkpoint if there are changes that the git command argv of process pid may discard. The command
// waits until BeforeGit returns. Because a git command searches for its repository several times, and BeforeGit is
// called each time, only the first call for a process creates a checkpoint.
func (a *Agent) BeforeGit(ctx context.Context, pid uint32, argv []string) {
	if !a.Guards() || !risky(argv) || !a.looked.isFirst(pid) {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, riskTime, errPatience)
	defer cancel()
	if !a.unsaved() {
		return
	}
	_, made, err := a.Checkpoint(ctx, session.BeforeRisk, "")
	a.log.Debug("checkpoint before git command", zap.String("dir", a.config.Dir), zap.Uint32("pid", pid),
		zap.Bool("made", made),
		zap.Error(err))
}

// lastLook identifies the git process that last searched for its repository.
type lastLook struct {
	mu sync.Mutex
	// process is the identity of the process (proc.Identity); protected by mu.
	process string
}

// isFirst reports whether the process pid is another process than in the previous call. It returns true if the process
// cannot be identified.
func (l *lastLook) isFirst(pid uint32) bool {
	process := proc.Identity(int(pid))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.process == process && process != "" {
		return false
	}
	l.process = process
	return true
}
