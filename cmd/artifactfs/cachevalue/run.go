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
	exitSignal    = 128 // exit code of a command that a signal has ended, minus the number of the signal
)

// Run prints the value of a cache entry. If there is no entry, or if it cannot be read, Run runs the command. If the
// command succeeds, Run stores its output as an entry, with the key and the lifetime in r. Run returns the exit code of
// the command as cli.ExitCode. If the entry cannot be read or stored, Run only prints a warning.
func Run(ctx context.Context, a *cli.App, c *control.Client, r control.CachePutRequest, command []string) error {
	file, remove, err := spool(a)
	if err != nil {
		return cli.Failure("cache run", r.Key, err)
	}
	defer remove()
	cache := control.NewCacheClient(c)
	_, err = cache.Get(ctx, control.CacheGetRequest{Of: r.Of, SessionRemote: r.SessionRemote, Key: r.Key,
		Output: file.Name()})
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

// execute runs a command. It writes the stdout of the command to its own stdout and to the parameter output. It returns
// a cli.ExitCode if the command fails.
func execute(ctx context.Context, a *cli.App, command []string, output io.Writer) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, io.MultiWriter(a.Stdout, output), a.Stderr
	// A terminal sends SIGINT to the command as well as to this process. The command may need some time to end, so it
	// is not killed.
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
	// the command was started, and copying its output has failed: for example, nobody reads stdout any more
	case cmd.Process != nil:
		return cli.Failure("run", command[0], err)
	}
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = exitNotFound
	}
	return &control.Error{Code: code, Verb: "run", Object: command[0], Cause: err.Error()}
}

// copied writes the output of a command to a file. After a failed write, or if the output is too large for an entry,
// copied drops the rest of the output and returns no error, so that the command continues.
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
