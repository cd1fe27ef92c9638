package remotes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
)

const (
	// createTime is the maximum run time of the command of --session-remote-create.
	createTime = time.Minute
	// createOutput is the maximum number of bytes that an error message contains of the end of the output of the
	// command of --session-remote-create.
	createOutput = 4 << 10

	// shortestSecret is the minimum length, in bytes, of an argument of the command of --session-remote-create that may
	// be a secret, and is therefore removed from the command's output.
	shortestSecret = 8
)

// createByHook runs the command of --session-remote-create if the git server reports that no repository exists at the
// URL of the session remote. If the server cannot be reached or refuses the login, createByHook returns nil, because
// the first push reports that error. createByHook holds Remotes.creating: of several mounts that start with the same
// new session remote, only the first runs the command.
func (c *Creation) createByHook(ctx context.Context, progress func(control.Progress)) error {
	c.Remotes.creating.Lock()
	defer c.Remotes.creating.Unlock()
	url, err := c.lacksRemote(ctx)
	if err != nil || url == "" {
		return err
	}
	failed := func(cause, hint string) error {
		return &control.Error{Code: control.ExitRemote, Kind: control.CodeNotFound, Verb: "create session remote",
			Object: url, Cause: cause, Hint: hint}
	}
	format, err := c.formatOfRemote(ctx)
	if err != nil {
		return fault.Remote(err)
	}
	c.Remotes.log.Info("creating session remote", zap.String("url", url), zap.String("session", c.Request.Session))
	if out, err := c.runHook(ctx, url, format.String()); err != nil {
		cause := err.Error()
		if out != "" {
			cause += ": " + out
		}
		return failed("command of --session-remote-create failed: "+cause,
			"run the command by hand, or create the repository yourself")
	}
	if url, err = c.lacksRemote(ctx); err != nil {
		return err
	} else if url != "" {
		return failed("command of --session-remote-create has succeeded, but the repository does not exist",
			"run git ls-remote URL to see the answer of the server")
	}
	progress(control.Progress{Message: "created session remote " +
		statedir.WithoutSecrets(c.Request.SessionOptions.Remote)})
	return nil
}

// lacksRemote returns the URL of the session remote, without credentials, if the git server reports that the repository
// does not exist. Otherwise, or if the server cannot be reached, it returns "".
func (c *Creation) lacksRemote(ctx context.Context) (url string, err error) {
	remote, _, err := c.Remotes.Session(c.Request)
	if err != nil || remote == nil {
		return "", err
	}
	defer remote.Close()
	if _, err = remote.Capabilities(ctx); errors.Is(err, transport.ErrNotFound) {
		return remote.URL(), nil
	}
	return "", ctx.Err()
}

// runHook runs the command of --session-remote-create, with parameters in environment variables named ARTIFACTFS_*.
// After createTime, it kills the command and its child processes. out has the last createOutput bytes of the command's
// output as one line, in which the secrets of the request are replaced by "***".
func (c *Creation) runHook(ctx context.Context, url, format string) (out string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, fmt.Errorf("command took longer than %s", createTime))
	defer cancel()
	r := c.Now()
	cmd := exec.CommandContext(ctx, r.CreateRemote[0], r.CreateRemote[1:]...)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The command runs in a new process group. The negative process ID sends the signal to the whole group, which includes
	// the child processes.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append(hookEnvironment(r), "ARTIFACTFS_SESSION_REMOTE="+url, "ARTIFACTFS_SESSION="+r.Session,
		"ARTIFACTFS_REMOTE="+c.Store.URL(), "ARTIFACTFS_OBJECT_FORMAT="+format)
	given := GivenForSession(r, r.SessionOptions.Remote)
	if token := given.Token(); token != "" {
		cmd.Env = append(cmd.Env, "ARTIFACTFS_SESSION_TOKEN="+token)
	}
	var text bytes.Buffer
	cmd.Stdout = &text
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	out = text.String()
	// The first three values are secrets, and are always replaced in the output. Short arguments of the command are not
	// replaced, because the output may contain the same characters by chance.
	for i, secret := range append(append(given.Secrets(), string(r.Token)), r.CreateRemote[1:]...) {
		if secret != "" && (i < 3 || len(secret) >= shortestSecret) {
			out = strings.ReplaceAll(out, secret, "***")
		}
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(out[max(0, len(out)-createOutput):], "?")), " "), err
}

// hookEnvironment returns the environment of the command of --session-remote-create, without the parameters. It does
// not have the token for the server, which is only for the program that makes tokens for the mount.
func hookEnvironment(r control.MountRequest) []string {
	return append(os.Environ(), r.Environment.ForPrograms()...)
}
