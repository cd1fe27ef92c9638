package cachevalue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

const (
	exitNotFound  = 127 // the command was not found, as in a shell
	exitCannotRun = 126 // the command cannot be executed
	exitSignal    = 128 // plus the number of the signal that has ended the command
)

// Run prints the value of an entry. If there is no entry, or if it cannot be read, Run runs the command, and stores its output as r says if
// the command succeeds. Run returns the exit code of the command as cli.ExitCode. A failure to read or to store the entry is a warning.
func Run(ctx context.Context, a *cli.App, c *control.Client, r control.CachePutRequest, command []string) error {
	file, remove, err := spool(a)
	if err != nil {
		return cli.Failure("cache run", r.Key, err)
	}
	defer remove()
	cache := control.NewCacheClient(c)
	_, err = cache.Get(ctx, control.CacheGetRequest{Of: r.Of, SessionRemote: r.SessionRemote, Key: r.Key, Output: file.Name()})
	if err == nil {
		if err := deliver(a, file, ""); err != nil {
			return cli.Failure("cache run", r.Key, err)
		}
		return nil
	}
	if failure := control.AsError(err); ctx.Err() != nil {
		return cli.Failure("cache run", r.Key, ctx.Err())
	} else if failure.Kind != control.CodeNotFound {
		warn(a, failure)
	}
	if err := file.Truncate(0); err != nil {
		return cli.Failure("cache run", r.Key, err)
	}
	output := &copied{file: file}
	if err := execute(ctx, a, command, output); err != nil {
		return err
	}
	if err = output.err; err == nil {
		r.File = file.Name()
		_, err = cache.Put(ctx, r)
	}
	if err != nil {
		warn(a, err)
	}
	return nil
}

// warn prints why an entry could not be read or stored.
func warn(a *cli.App, err error) {
	fmt.Fprintf(a.Stderr, "artifactfs: warning: %v\n", err)
}

// execute runs a command whose output goes to stdout and to the parameter output. It returns a cli.ExitCode if the command fails.
func execute(ctx context.Context, a *cli.App, command []string, output io.Writer) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, io.MultiWriter(a.Stdout, output), a.Stderr
	// A terminal sends SIGINT to the command, too. It may need some time to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return cli.ExitCode(exitSignal + int(status.Signal()))
		}
		return cli.ExitCode(exit.ExitCode())
	case cmd.Process != nil: // for example, nobody reads stdout any more
		return cli.Failure("run", command[0], err)
	}
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = exitNotFound
	}
	return &control.Error{Code: code, Verb: "run", Object: command[0], Cause: err.Error()}
}

// copied writes the output of a command to a file. After a failure, or if the output is too large for an entry, it drops the rest, so that
// the command continues.
type copied struct {
	file *os.File
	size int
	err  error
}

func (c *copied) Write(p []byte) (int, error) {
	if c.size += len(p); c.err == nil && c.size > cacheentry.MaxValue {
		c.err = cacheentry.ErrTooLarge
	}
	if c.err == nil {
		_, c.err = c.file.Write(p)
	}
	return len(p), nil
}
