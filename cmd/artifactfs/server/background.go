package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server"
	"github.com/artifactfs/artifactfs/server/running"
)

// stopTime is the maximum time for which --stop waits until the server has ended. It is longer than the time that the
// server gives to requests in progress.
const stopTime = 90 * time.Second

// serveInBackground starts another process that runs the server. It returns when that process has reported that it is
// ready, or that it has failed. The flags are passed in the environment, because a URL may contain a password.
func serveInBackground(cmd *cobra.Command, a *cli.App, o serveOptions) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	child := exec.Command(executable, "serve")
	child.Env = os.Environ()
	set := func(name, value string) {
		child.Env = append(child.Env, "ARTIFACTFS_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+value)
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "background" && f.Name != "json" {
			set(f.Name, f.Value.String())
		}
	})
	set("state", a.State)
	set("data", o.Data) // The path must be absolute, because the process runs in another directory.
	set("detached", "true")
	if cli.IsTerminal(a.Stdout) {
		set("terminal", "true")
	}
	if a.LogFile == "" {
		set("log-file", filepath.Join(o.Data, "server.log"))
	}
	if a.JSON {
		child.Args = append(child.Args, "--json")
	}
	child.Dir, child.Stderr = "/", a.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	// The process closes its stdout when the server is ready, and when it fails.
	text, err := io.ReadAll(out)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if len(text) == 0 {
		var exit *exec.ExitError
		if err := child.Wait(); errors.As(err, &exit) {
			return cli.ExitCode(exit.ExitCode()) // The process has already printed the reason to standard error.
		}
		return errors.New("serve: server process in the background ended without a report")
	}
	if _, err := a.Stdout.Write(text); err != nil {
		return cli.Printed(err)
	}
	return child.Process.Release()
}

// detach closes the stdout of a server process in the background. The parent of the process reads this stdout to its
// end, and then knows that the server is ready.
func detach() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("serve: %w", os.NewSyscallError("dup3", err))
		}
	}
	return nil
}

// stop ends the server that uses the data directory in the options.
func stop(ctx context.Context, a *cli.App, o server.Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTime, fmt.Errorf("server did not end within %s", stopTime))
	defer cancel()
	found, err := running.Stop(ctx, o.Data)
	if err != nil {
		return explainServe(o, err)
	}
	if !found {
		return &control.Error{Code: control.ExitFailed, Verb: "stop server", Object: o.Data,
			Cause: "no server is running with this directory",
			Hint:  "--data DIR selects another directory"}
	}
	return hosting.PrintDone(a, "stopped", "server of "+o.Data)
}
