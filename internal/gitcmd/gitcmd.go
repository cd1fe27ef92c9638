// Package gitcmd starts git. No other package of the product executes it, so that what a command inherits from this process is decided
// here, and its errors have one form: "git VERB: CAUSE: what git wrote".
//
// New is for repositories that the caller names by arguments or variables, Isolated also keeps the user's settings away from them.
// AsUser runs git as the user's own command would run.
package gitcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Variables that callers add to the environment of a command.
const (
	NoPrompt  = "GIT_TERMINAL_PROMPT=0" // fail instead of asking at the terminal
	NoFetch   = "GIT_NO_LAZY_FETCH=1"   // fail instead of asking a promisor remote for a missing object
	NoLocks   = "GIT_OPTIONAL_LOCKS=0"  // do not rewrite the index for the sake of later commands
	PlainText = "LC_ALL=C"              // messages and sorting that do not depend on the user's language
)

// LocalVariables are git's variables that choose a repository, a part of it or its index: `git rev-parse --local-env-vars`, of whose
// variables for configuration only GIT_CONFIG, and GIT_CEILING_DIRECTORIES. Git sets them for hooks and aliases.
var LocalVariables = []string{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_DIR", "GIT_GRAFT_FILE",
	"GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_REPLACE_OBJECTS",
	"GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
}

// IsLocal reports whether name is one of LocalVariables.
func IsLocal(name string) bool { return slices.Contains(LocalVariables, name) }

// Environ returns base, or the environment of this process if base is nil, without LocalVariables.
func Environ(base []string) []string {
	if base == nil {
		base = os.Environ()
	}
	return without(base, IsLocal)
}

// Clear returns the environment of this process without variables of git, except those that keep names.
func Clear(keep ...string) []string {
	return without(os.Environ(), func(name string) bool { return strings.HasPrefix(name, "GIT_") && !slices.Contains(keep, name) })
}

// without returns the variables whose name drop does not report.
func without(env []string, drop func(name string) bool) []string {
	kept := make([]string, 0, len(env)+8)
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); !drop(name) {
			kept = append(kept, v)
		}
	}
	return kept
}

// IsolatedEnviron returns the environment for commands in repositories of the state directory: no variable of git's that the user
// set, except where git's own programs are, and nothing is fetched.
func IsolatedEnviron() []string {
	return append(Clear("GIT_EXEC_PATH"), PlainText, NoFetch, NoPrompt)
}

// Identity returns the variables that make artifactfs the author and committer.
func Identity() (env []string) {
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+role+"_NAME=artifactfs", "GIT_"+role+"_EMAIL=artifactfs@localhost")
	}
	return env
}

// Alternates returns the variable that makes a command read the object directories dirs too. Git reads quoted paths as C strings:
// git(1), GIT_ALTERNATE_OBJECT_DIRECTORIES.
func Alternates(dirs ...string) string {
	quoted := make([]string, len(dirs))
	for i, dir := range dirs {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(dir) + `"`
	}
	return "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + strings.Join(quoted, ":")
}

// LookPath returns the path of the git that commands run; exec.ErrNotFound if there is none.
func LookPath() (string, error) { return exec.LookPath("git") }

// New returns a command in the directory "/" with Environ(nil), where git finds no repository unless args or variables that the
// caller adds name one. It is killed when ctx ends.
func New(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = "/", Environ(nil)
	return cmd
}

// Isolated is New with IsolatedEnviron.
func Isolated(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = "/", IsolatedEnviron()
	return cmd
}

// AsUser returns a command with the environment and the working directory of this process, which is the user's command: git finds
// the repository that it would find there.
func AsUser(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "git", args...)
}

// Error is the failure of a command. It wraps the *exec.ExitError, or the error of starting git.
type Error struct {
	Verb   string // the subcommand
	Err    error
	Stderr string // the end of what git wrote, without surrounding space
}

// Error returns the command, its failure, and git's own message.
func (e *Error) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("git %s: %v", e.Verb, e.Err)
	}
	return fmt.Sprintf("git %s: %v: %s", e.Verb, e.Err, e.Stderr)
}

// Unwrap returns the error of the process.
func (e *Error) Unwrap() error { return e.Err }

// Failed returns the Error of cmd if err, which Run, Start or Wait returned, is not nil.
func Failed(cmd *exec.Cmd, err error, stderr []byte) error {
	if err == nil {
		return nil
	}
	return &Error{verb(cmd.Args), err, strings.TrimSpace(string(stderr))}
}

// verb returns the subcommand among the arguments of git, behind git's own options.
func verb(args []string) string {
	for i := 1; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-c", a == "-C", a == "--git-dir", a == "--work-tree":
			i++
		case !strings.HasPrefix(a, "-"):
			return a
		}
	}
	return ""
}

// Run runs cmd, whose Stderr it sets. The error is an *Error.
func Run(cmd *exec.Cmd) error {
	stderr := &Tail{}
	cmd.Stderr = stderr
	return Failed(cmd, cmd.Run(), stderr.Bytes())
}

// Output runs cmd, whose Stdout and Stderr it sets, and returns what git printed, also if the command failed. The error is an *Error.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	err := Run(cmd)
	return stdout.Bytes(), err
}

// Exited reports whether err says that git ran and exited with this status.
func Exited(err error, status int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == status
}

// Tail is a writer for the error output of a command that keeps its last 16 KiB.
type Tail struct{ kept []byte }

const tailMost = 16 << 10

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b[max(0, len(b)-tailMost):]...)
	if extra := len(t.kept) - tailMost; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(b), nil
}

// Bytes returns what was kept.
func (t *Tail) Bytes() []byte { return t.kept }
