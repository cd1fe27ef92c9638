package promisor

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
)

// gitDelay is the time for which Wait waits, after git has exited, for other processes that have git's output open.
const gitDelay = time.Second

// guardedGit runs git commands in a guarded directory of a mount's git directory (package guard). git before 2.45 has
// no other way to prevent requests for missing objects.
type guardedGit struct {
	gitDir  string   // git directory of the mount
	objects []string // alternates of the mount's git directory

	mu   sync.Mutex
	repo gitcmd.Repo // set by update
}

// update copies the current HEAD and settings into the guarded directory, which the first call creates.
func (l *guardedGit) update(ctx context.Context) error {
	repo, err := guard.Alone(ctx, l.gitDir, l.objects)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repo = repo
	return nil
}

// command returns a git command that runs in the guarded directory. Data that other programs have written cannot make
// this command start a program, request a missing object, write, or wait for input.
func (l *guardedGit) command(ctx context.Context, args ...string) *exec.Cmd {
	l.mu.Lock()
	repo := l.repo
	l.mu.Unlock()
	// The working directory, which is repo.Dir, must not be the working tree, because this process serves the mount.
	repo.Base = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		gitcmd.NoFetch, gitcmd.NoLocks, "GIT_ATTR_NOSYSTEM=1"}
	cmd := repo.Command(ctx, args...)
	// The command gets its own process group, so that its child processes are killed together with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = gitDelay
	return cmd
}

// maxOutput is the maximum number of bytes that the method output returns.
const maxOutput = 16 << 20

// output returns the output of a git command. After maxOutput, it ends the command and returns the output so far.
func (l *guardedGit) output(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	err := l.stream(ctx, "", args, func(r *bufio.Reader) error {
		n, err := io.Copy(&out, io.LimitReader(r, maxOutput))
		if err == nil && n == maxOutput {
			return errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out.String(), err
}

// errEnough is returned by a function that reads a listing, to end the listing early. It does not report a failure.
var errEnough = errors.New("listing ended early")

// stream runs a git command with the input in, and calls the function read with the output. read may end the command
// early by returning errEnough. If the command fails, the output before the failure is used, because a command that
// needs a missing object has printed all preceding output.
func (l *guardedGit) stream(ctx context.Context, in string, args []string, read func(r *bufio.Reader) error) error {
	cmd := l.command(ctx, args...)
	if in != "" {
		cmd.Stdin = strings.NewReader(in)
	}
	err := gitcmd.Stream(cmd, func(out io.Reader) error { return read(bufio.NewReaderSize(out, 64<<10)) })
	if errors.Is(err, errEnough) {
		return errEnough
	}
	return err
}

// rev returns the id to which name refers, or "" if name refers to no object.
func (l *guardedGit) rev(ctx context.Context, name string) string {
	if name == "" || strings.HasPrefix(name, "-") {
		return ""
	}
	out, err := l.output(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// userConfig returns the value of key from the user's configuration. It starts git and no other program.
func (l *guardedGit) userConfig(ctx context.Context, key string) (string, error) {
	cmd := l.command(ctx, "config", "--get", key)
	cmd.Env = append(gitcmd.Environ(nil), "GIT_DIR="+l.gitDir, gitcmd.PlainText)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
