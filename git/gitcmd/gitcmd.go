// Package gitcmd runs git. Because no other package of the product runs git, this package determines which variables a
// git command inherits from this process, and all errors have the same form: "git VERB: CAUSE: output of git".
//
// New runs git in a repository that the caller names by arguments or variables. Isolated does the same without the
// user's settings. AsUser runs git in the same way as the user would in a shell.
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

	"github.com/artifactfs/artifactfs/git/object"
)

// Variables that callers add to the environment of a command.
const (
	NoPrompt  = "GIT_TERMINAL_PROMPT=0" // fail instead of prompting at the terminal
	NoFetch   = "GIT_NO_LAZY_FETCH=1"   // fail instead of requesting a missing object from a promisor remote
	NoLocks   = "GIT_OPTIONAL_LOCKS=0"  // do not rewrite the index only to speed up later commands
	PlainText = "LC_ALL=C"              // messages and sort order do not depend on the user's language
	// patterns of paths, such as :(top), keep their meaning although the user may have set this variable
	MagicPaths = "GIT_LITERAL_PATHSPECS=0"
)

// LocalVariables are the variables of git that select a repository, a part of it, or its index. git sets such variables
// for hooks and aliases. The list consists of the variables that `git rev-parse --local-env-vars` prints, without those
// for configuration except GIT_CONFIG, and of GIT_CEILING_DIRECTORIES.
var LocalVariables = []string{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_DIR",
	"GIT_GRAFT_FILE",
	"GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_REPLACE_OBJECTS",
	"GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
}

// IsLocal reports whether name is one of LocalVariables.
func IsLocal(name string) bool { return slices.Contains(LocalVariables, name) }

// Environ returns the variables in base without LocalVariables. If base is nil, Environ uses the environment of this
// process.
func Environ(base []string) []string {
	if base == nil {
		base = os.Environ()
	}
	return without(base, IsLocal)
}

// Variable returns the value of a variable in env, or "". The last entry of a variable counts, as for a process that is
// started with env.
func Variable(env []string, name string) string {
	for _, v := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Clear returns the environment of this process without the variables of git, except those named in keep.
func Clear(keep ...string) []string {
	return without(os.Environ(),
		func(name string) bool { return strings.HasPrefix(name, "GIT_") && !slices.Contains(keep, name) })
}

// without returns the variables in env, except those for whose names the function drop returns true.
func without(env []string, drop func(name string) bool) []string {
	kept := make([]string, 0, len(env)+8)
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); !drop(name) {
			kept = append(kept, v)
		}
	}
	return kept
}

// IsolatedEnviron returns the environment for commands in repositories below the state directory. It contains no git
// variables of the user, except GIT_EXEC_PATH, which states where git's programs are. The commands do not fetch missing
// objects.
func IsolatedEnviron() []string {
	return append(Clear("GIT_EXEC_PATH"), PlainText, NoFetch, NoPrompt)
}

// Identity returns the variables that make artifactfs the author and the committer of commits.
func Identity() (env []string) {
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+role+"_NAME=artifactfs", "GIT_"+role+"_EMAIL=artifactfs@localhost")
	}
	return env
}

// Quote returns a text as a quoted C string, which git reads in its configuration and in lists of object directories.
func Quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text) + `"`
}

// BareConfig returns the contents of the file config of a bare repository with the object format f.
func BareConfig(f object.Format) string {
	if f == object.SHA1 {
		return "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	}
	return "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = " + f.String() + "\n"
}

// Alternates returns the variable that makes a git command also read the object directories dirs.
func Alternates(dirs ...string) string {
	quoted := make([]string, len(dirs))
	for i, dir := range dirs {
		quoted[i] = Quote(dir) // as git(1) specifies for GIT_ALTERNATE_OBJECT_DIRECTORIES
	}
	return "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + strings.Join(quoted, ":")
}

// LookPath returns the path of the git program that commands run. It returns exec.ErrNotFound if there is none.
func LookPath() (string, error) { return exec.LookPath("git") }

// New returns a git command that runs in the directory "/" with the environment Environ(nil). There git finds no
// repository unless args, or variables that the caller adds, name one. The command is killed when ctx ends.
func New(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = "/", Environ(nil)
	return cmd
}

// Isolated returns a command like New, but with the environment IsolatedEnviron.
func Isolated(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = "/", IsolatedEnviron()
	return cmd
}

// AsUser returns a git command with the environment and the working directory of this process, which must be a command
// that the user has started. So git finds the same repository as if the user had started git.
func AsUser(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "git", args...)
}

// Error is the failure of a git command. It wraps the *exec.ExitError, or the error of starting git.
type Error struct {
	Verb   string // the subcommand of git
	Err    error
	Stderr string // the end of git's error output, without surrounding white space
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

// Failed returns an *Error for cmd, or nil if err is nil. err is the result of Run, Start or Wait.
func Failed(cmd *exec.Cmd, err error, stderr []byte) error {
	if err == nil {
		return nil
	}
	return &Error{verb(cmd.Args), err, strings.TrimSpace(string(stderr))}
}

// verb returns the subcommand in the arguments of git. It skips the options of git itself.
func verb(args []string) string {
	if len(args) > 4 && args[2] == limited {
		args = args[4:]
	}
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

// Run runs cmd and sets its Stderr. If the command fails, the error is an *Error.
func Run(cmd *exec.Cmd) error {
	stderr := &Tail{}
	cmd.Stderr = stderr
	return Failed(cmd, cmd.Run(), stderr.Bytes())
}

// Output runs cmd, sets its Stdout and Stderr, and returns what git has printed, even if the command has failed. In
// this case the error is an *Error.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	err := Run(cmd)
	return stdout.Bytes(), err
}

// Exited reports whether err means that git has exited with the given status.
func Exited(err error, status int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == status
}

// Tail is a writer for the error output of a command. It stores the last tailMost bytes.
type Tail struct{ kept []byte }

// tailMost is the maximum number of bytes that a Tail stores.
const tailMost = 16 << 10

// Write stores b, and drops old bytes if there are more than tailMost. It never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b[max(0, len(b)-tailMost):]...)
	if extra := len(t.kept) - tailMost; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(b), nil
}

// Bytes returns the stored bytes.
func (t *Tail) Bytes() []byte { return t.kept }
