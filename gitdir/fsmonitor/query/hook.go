package query

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// HookName is the name under which a program is git's hook, and CarefulName the one for a git from 2.32 to 2.42: between
// a commit and the working tree (`git diff HEAD`, `git diff-index HEAD`) such a git looks at stat data that it has never
// read of files that the monitor vouches for, and calls some of them deleted (mended by git's commit 6a044a2048). To these
// commands the careful hook gives no answer, so that git looks at the files.
const (
	HookName    = "artifactfs-fsmonitor"
	CarefulName = HookName + "-careful"
)

// IsHook says whether a program that was started by this name is to be the hook.
func IsHook(name string) bool {
	name = filepath.Base(name)
	return name == HookName || name == CarefulName
}

// Hook is the hook program (githooks, fsmonitor-watchman): started by its name in the git directory, with the protocol's
// version, which is 2, and a token. It gives the exit code.
func Hook(args []string, stdout io.Writer) int {
	if len(args) != 3 || args[1] != "2" {
		return 2
	}
	dir, name := filepath.Split(args[0])
	if name == CarefulName && misread(gitCommand(os.Getppid())) {
		return 1
	}
	if Changes(dir, args[2], stdout) != nil {
		return 1
	}
	return 0
}

// gitCommand returns the arguments of the git that started the hook, perhaps through a shell; nil if there is none.
func gitCommand(pid int) []string {
	for range 2 {
		p := proc.Of(pid)
		args, err := p.Args()
		if err != nil {
			return nil
		}
		if len(args) > 0 && strings.HasPrefix(filepath.Base(args[0]), "git") {
			return args
		}
		stat, err := p.Stat()
		if err != nil {
			return nil
		}
		pid = stat.Parent
	}
	return nil
}

// misread says whether git compares a commit with the working tree. What cannot be told is not taken for it but where
// an argument may be a commit.
func misread(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	command, dashed := strings.CutPrefix(filepath.Base(argv[0]), "git-")
	args := argv[1:]
	if !dashed {
		args = skipOptions(args)
		if len(args) == 0 {
			return false
		}
		command, args = args[0], args[1:]
	}
	if command != "diff" && command != "diff-index" {
		return false
	}
	end := slices.Index(args, "--")
	commits := args
	if end >= 0 {
		commits = args[:end]
	}
	for _, o := range []string{"--cached", "--staged", "--no-index"} {
		if slices.Contains(commits, o) {
			return false
		}
	}
	return slices.ContainsFunc(commits, func(a string) bool {
		return !strings.HasPrefix(a, "-") && (end >= 0 || !isPath(a))
	})
}

// skipOptions skips git's own options.
func skipOptions(args []string) []string {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if slices.Contains([]string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env", "--exec-path"}, args[0]) {
			args = args[1:]
		}
		args = args[min(1, len(args)):]
	}
	return args
}

// isPath says whether git can mean nothing but a file: one of that name is there, in the root, where the hook is started,
// or where the user is.
func isPath(arg string) bool {
	if _, err := os.Lstat(arg); err == nil {
		return true
	}
	_, err := os.Lstat(filepath.Join(os.Getenv("PWD"), arg))
	return err == nil
}
