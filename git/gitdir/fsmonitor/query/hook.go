package query

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// HookName is the name of the hook program. CarefulName is the name under which git 2.32 to 2.42 start the same
// program. These versions have a bug in `git diff HEAD` and `git diff-index HEAD`: for files that the monitor reports
// as unchanged, they compare stat data that they have not read, and report some of the files as deleted (fixed by git's
// commit 6a044a2048). Under the name CarefulName the hook fails for these commands, so that git examines the files
// without the monitor.
const (
	HookName    = "artifactfs-fsmonitor"
	CarefulName = HookName + "-careful"
)

// InsideDir is the name of the directory in a git directory that has the hook in it.
const InsideDir = "artifactfs"

// Beside returns the path of the hook called name for the git directory at gitDir, which is a symbolic link beside the
// git directory. Some programs refuse a git directory with symbolic links in it.
func Beside(gitDir, name string) string { return filepath.Clean(gitDir) + "-" + name }

// monitored returns the git directory whose monitor the hook asks, from the path under which git has started the hook.
// It also reports whether the hook has the name CarefulName. The directory is "" if the path is not that of a hook.
func monitored(hook string) (gitDir string, careful bool) {
	dir, name := filepath.Split(hook)
	name, careful = strings.CutSuffix(name, strings.TrimPrefix(CarefulName, HookName))
	base, beside := strings.CutSuffix(name, "-"+HookName)
	switch {
	case beside:
		return dir + base, careful
	case name != HookName:
		return "", false
	case filepath.Base(dir) == InsideDir:
		return filepath.Dir(filepath.Clean(dir)), careful
	}
	return dir, careful // earlier versions of artifactfs have put the link into the git directory
}

// IsHook reports whether a program that was started under this name must run as the hook.
func IsHook(name string) bool {
	dir, _ := monitored("/" + name)
	return dir != ""
}

// Hook runs the hook program (githooks(5), fsmonitor-watchman) and returns its exit code. The slice args has three
// elements: the path of the hook, which names the git directory; the version of the protocol, which must be 2, and a
// token.
func Hook(args []string, stdout io.Writer) int {
	if len(args) != 3 || args[1] != "2" {
		return 2
	}
	dir, careful := monitored(args[0])
	if careful && misread(gitCommand(os.Getppid())) {
		return 1
	}
	if Changes(dir, args[2], stdout) != nil {
		return 1
	}
	return 0
}

// gitCommand returns the arguments of the git process pid, or of the git process that has started the hook pid.
func gitCommand(pid int) []string {
	_, argv := gitProcess(pid)
	return argv
}

// gitProcess returns the git process pid, or the git process that has started the hook pid, either directly or through
// a shell, and its arguments. The arguments are nil if it finds no git process.
func gitProcess(pid int) (git int, argv []string) {
	for range 3 {
		p := proc.Of(pid)
		args, err := p.Args()
		if err != nil {
			return 0, nil
		}
		if len(args) > 0 && strings.HasPrefix(filepath.Base(args[0]), "git") && !IsHook(args[0]) {
			return pid, args
		}
		stat, err := p.Stat()
		if err != nil {
			return 0, nil
		}
		pid = stat.Parent
	}
	return 0, nil
}

// parse returns the name of a git command and the arguments that follow it. The name is "" if there is none.
func parse(argv []string) (command string, args []string) {
	if len(argv) == 0 {
		return "", nil
	}
	command, dashed := strings.CutPrefix(filepath.Base(argv[0]), "git-")
	if dashed {
		return command, argv[1:]
	}
	args = skipOptions(argv[1:])
	if len(args) == 0 {
		return "", nil
	}
	return args[0], args[1:]
}

// misread reports whether the git command compares a commit with the working tree, so that the bug described at
// CarefulName may affect it. An argument that may be a commit or a path counts as a commit unless a file of that name
// exists.
func misread(argv []string) bool {
	command, args := parse(argv)
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

// skipOptions returns the arguments that follow the options of git itself.
func skipOptions(args []string) []string {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if slices.Contains([]string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix",
			"--config-env", "--exec-path"}, args[0]) {
			args = args[1:]
		}
		args = args[min(1, len(args)):]
	}
	return args
}

// isPath reports whether an argument is an existing file. A relative path may be relative to the root, in which git
// starts the hook, or to the directory of the user ($PWD).
func isPath(arg string) bool {
	if _, err := os.Lstat(arg); err == nil {
		return true
	}
	_, err := os.Lstat(filepath.Join(os.Getenv("PWD"), arg))
	return err == nil
}
