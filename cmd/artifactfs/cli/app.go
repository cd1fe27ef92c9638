// Package cli holds the parts that all commands of artifactfs share: the global flags and the streams of one run (App),
// clients of the daemons of a state directory, errors with their exit codes, progress, logs, and the formatting of
// numbers.
//
// It reads the state directory but changes nothing in it, and it starts no process except the shared daemon
// (App.EnsureDaemon).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Version is the version of this build. Command main sets it before it runs a command.
var Version string

// ServerAccess states how to reach a server with a REST API: its URL, and the token for it or the file with the token.
// Each field may be "".
type ServerAccess struct {
	URL       string
	Token     control.Secret
	TokenFile string
}

// App is one run of the command line. The flags are valid after the method Init has returned. App has no lock, because
// it runs one command at a time.
type App struct {
	Stdout, Stderr *os.File
	Token          control.Secret // token for the remote, from the environment
	SessionToken   control.Secret // token for the session remote, from the environment
	// file with the token, for a command that does not mount; "": the command uses Token and SessionToken
	TokenFile string
	// scheme and host of the first repository to which this command has sent Token or SessionToken
	TokenPlace string
	ForgeToken control.Secret // token for the REST API of a forge, from the environment
	Server     ServerAccess   // server of the commands that use a REST API, from the environment
	// NewHost creates the Host that serves mounts in this process.
	NewHost func(daemon.Config) (Host, error)

	// The fields below are global flags.
	// State is the absolute path of the state directory. Socket is the value of --socket, or "" for the default socket.
	State, Socket                string
	JSON, Verbose, Quiet         bool
	LogFile, LogLevel, LogFormat string
	Metrics                      metricsAddress // address at which a daemon serves its metrics
	// file with the token that a request for metrics must contain; "": requests need no token
	MetricsTokenFile string

	// Logins maps the URL of a repository to the same URL with the token that this command has made for it.
	Logins map[string]string

	Passing bool // whether the mount must not be mounted again after a restart of the machine
	// path by which this process reaches the mount's directory: /proc/self/fd/N if a caller passed a descriptor
	Through string

	Running bool // whether the arguments were valid and a command runs
	Serving bool // whether this process serves mounts, so that a second signal must not kill the process
}

// Init completes the global flags from the environment and finds the state directory. Cobra calls it after it has
// checked the arguments of a command and before it runs the command.
func (a *App) Init(cmd *cobra.Command, args []string) error {
	if err := onlyForHelp(cmd); err != nil {
		return err
	}
	if err := flagsFromEnvironment(cmd); err != nil {
		return err
	}
	state, err := control.StateDir(a.State)
	if err != nil {
		return err
	}
	a.State, a.Running = state, true
	return nil
}

// CompleteFlag makes the shell complete the flag with these values. It panics if the command does not have the flag.
func CompleteFlag(cmd *cobra.Command, name string, values ...string) {
	// An error means that the flag does not exist. In that case every test of the command line fails.
	if err := cmd.RegisterFlagCompletionFunc(name,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// PrintError writes an error on one line and, if the error has a hint, the hint on a second line.
func PrintError(w io.Writer, e *control.Error) {
	fmt.Fprintf(w, "artifactfs: %s\n", e.Error())
	if e.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", OneLine(e.Hint))
	}
}

// Usage returns err as an error with exit code 2 and a hint that names the help of cmd. An error that already has an
// exit code is returned unchanged.
func Usage(cmd *cobra.Command, err error) error {
	var e *control.Error
	if errors.As(err, &e) {
		return err
	}
	verb := cmd.Name()
	if cmd == cmd.Root() {
		verb = ""
	}
	return &control.Error{Code: control.ExitUsage, Verb: verb, Cause: flagText(err), Hint: helpAbout(cmd, err)}
}

// flagText returns the reason why a flag was refused. It replaces the texts of strconv and time, which name Go's
// functions.
func flagText(err error) string {
	var bad *pflag.InvalidValueError
	var number *strconv.NumError
	if !errors.As(err, &bad) {
		return err.Error()
	}
	why := ""
	switch {
	case errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange):
		why = "out of range"
	case errors.As(err, &number) && bad.GetFlag().Value.Type() == "bool":
		why = "must be true or false"
	case errors.As(err, &number):
		why = "not a number"
	case bad.GetFlag().Value.Type() == "duration":
		why = "invalid duration; examples are 30s and 5m"
	default:
		return err.Error()
	}
	return fmt.Sprintf("invalid argument %q for \"--%s\" flag: %s", bad.GetValue(), bad.GetFlag().Name, why)
}

// Reason returns the text of err. If err is or wraps a *fs.PathError, Reason returns only the text of its cause,
// without the operation and the path.
func Reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// Arguments returns a check of the number of arguments. This number must be at least the parameter least and at most
// the parameter most; if most is negative, there is no maximum. The error describes the arguments by the text in the
// parameter takes.
func Arguments(least, most int, takes string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("want %s, got %s", takes, Plural(int64(len(args)), "argument"))
		}
		return nil
	}
}

// EnsureDaemon returns a client of the shared daemon. If no shared daemon is running, EnsureDaemon starts one with the
// same log settings as this command.
func (a *App) EnsureDaemon(ctx context.Context) (*control.Client, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	client, err := control.Ensure(ctx, control.Launch{State: a.State, Socket: a.Socket, Executable: executable,
		LogFile: a.LogFile, LogLevel: a.LogLevel, LogFormat: a.LogFormat})
	return client, a.OfState(err)
}

// OfState adds a hint to an error that reports that the state directory is not writable. The hint is to choose another
// state directory.
func (a *App) OfState(err error) error {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	e := *control.AsError(err)
	if e.Hint == "" {
		e.Hint = "the state directory is " + a.State + "; --state DIR or $ARTIFACTFS_STATE selects another"
	}
	return &e
}

// DaemonSocket returns the path of the socket of the shared daemon, whether or not a daemon listens there.
func (a *App) DaemonSocket() string {
	if a.Socket != "" {
		return a.Socket
	}
	return control.DaemonSocket(a.State)
}

// ExitCode is an error that determines the exit code. Its text was already printed.
type ExitCode int

// Error implements error.
func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// OwnCommand returns the command with which sh runs this program. If PATH leads to this program, the command is the
// program's name, so that the hooks still work after an upgrade. Otherwise it is the program's path.
func OwnCommand() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if found, err := exec.LookPath("artifactfs"); err == nil {
		x, errX := os.Stat(found)
		y, errY := os.Stat(self)
		if errX == nil && errY == nil && os.SameFile(x, y) {
			return "artifactfs", nil
		}
	}
	return ShellWord(self), nil
}
