package gitcmd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Repo is a git directory in which this process runs commands. They do not prompt the user.
type Repo struct {
	Dir     string   // path of the git directory
	Objects []string // object directories in which git looks for objects, besides that of the git directory
	Writes  string   // object directory to which git writes new objects; "": that of the git directory
	Cwd     string   // working directory; "": Dir
	Base    []string // environment; nil: Environ(nil)
	Options []string // options of git before the subcommand
	Env     []string // further variables

	confined *Confined // set by Confined.In
}

// In returns a Repo whose commands are confined. They run in the directory "/".
func (c Confined) In(dir string) Repo { return Repo{Dir: dir, Cwd: "/", confined: &c} }

// Command returns a command that runs in the repository. It is killed when ctx ends.
func (r Repo) Command(ctx context.Context, args ...string) *exec.Cmd {
	make := New
	if r.confined != nil {
		make = r.confined.Command
	}
	cmd := make(ctx, slices.Concat(r.Options, args)...)
	if r.Base != nil {
		cmd.Env = slices.Clone(r.Base)
	}
	cmd.Dir = cmp.Or(r.Cwd, r.Dir)
	cmd.Env = append(cmd.Env, "GIT_DIR="+r.Dir, NoPrompt, PlainText)
	if len(r.Objects) > 0 {
		cmd.Env = append(cmd.Env, Alternates(r.Objects...))
	}
	if r.Writes != "" {
		cmd.Env = append(cmd.Env, "GIT_OBJECT_DIRECTORY="+r.Writes)
	}
	cmd.Env = append(cmd.Env, r.Env...)
	return cmd
}

// Output runs a command with the standard input in, and returns its output, like the function Output.
func (r Repo) Output(ctx context.Context, in string, args ...string) ([]byte, error) {
	cmd := r.Command(ctx, args...)
	if in != "" {
		cmd.Stdin = strings.NewReader(in)
	}
	return Output(cmd)
}

// WithoutUser returns the Repo for commands that use neither settings nor attributes of the user and of the system, so
// that their results are the same on every host.
func (r Repo) WithoutUser() Repo {
	r.Options = append(slices.Clone(r.Options), "-c", "core.attributesFile="+os.DevNull)
	r.Env = append(slices.Clone(r.Env), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1",
		"GIT_CONFIG_COUNT=0", "GIT_CONFIG_PARAMETERS=")
	return r
}

// Runner returns the method Output without a standard input, for package merge.
func (r Repo) Runner(ctx context.Context) func(args ...string) ([]byte, error) {
	return func(args ...string) ([]byte, error) { return r.Output(ctx, "", args...) }
}

// Stream runs cmd and calls the function read with its output. If read returns an error, Stream ends the command and
// returns this error. If the command fails by itself, the error is an *Error.
func Stream(cmd *exec.Cmd, read func(out io.Reader) error) error {
	stderr := &Tail{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return Failed(cmd, err, nil)
	}
	err = read(out)
	if err != nil {
		cmd.Cancel()
	}
	failed := Failed(cmd, cmd.Wait(), stderr.Bytes())
	if err != nil && cmd.ProcessState.ExitCode() < 0 { // killed
		return err
	}
	return errors.Join(err, failed)
}
