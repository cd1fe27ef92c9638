// Package namespace starts a command in a mount namespace of its own, in which a mount is also shown at another path.
// Programs find files there whose absolute paths they have stored, such as those of a Python virtual environment.
//
// The program starts itself again in the new namespace. This second process changes the namespace, and then executes
// the command, so that the command has the process ID that the first process has started.
package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// processName is the program name (the first argument) of the process that changes the namespace.
const processName = "artifactfs-run-at"

// exitNoNamespace is the exit code of shells for a command that cannot be executed.
const exitNoNamespace = 126

// View states what a command sees.
type View struct {
	Dir  string // directory of the mount
	At   string // directory at which the command sees the mount, without symbolic links
	Cwd  string // working directory of the command, below At
	Link []Link // links that have other targets in the namespace
}

// Link is a symbolic link that is alone in its directory.
type Link struct {
	Dir    string // directory that contains the link
	Name   string
	Target string // target that the link has in the namespace
}

// message is what the second process receives as an argument.
type message struct {
	View
	// Ready is the file descriptor of a pipe. The command is executed once the pipe has a byte.
	Ready int
}

// Start starts command with the standard files, and the environment env, in a new mount namespace. If this process may
// not create one, Start also creates a user namespace, in which the user keeps its user and group ID. It returns
// ErrNotAllowed if neither is permitted. It calls ready once the namespace exists, and before command is executed. If
// ready returns an error, Start returns this error, and command is not executed.
func Start(v View, command, env []string, files [3]*os.File, ready func() error) (*os.Process, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(pipe[1])
	// The process inherits the pipe under its number, because other numbers may be files of the user.
	_, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_SETFD, 0)
	var p *os.Process
	if err == nil {
		p, err = start(message{v, pipe[0]}, command, env, files)
	}
	unix.Close(pipe[0])
	if err != nil {
		return nil, err
	}
	if err := ready(); err != nil {
		p.Kill()
		p.Wait()
		return nil, err
	}
	unix.Write(pipe[1], []byte{0}) // it fails if the process has failed, and has printed why
	return p, nil
}

// start is Start without waiting for ready.
func start(v message, command, env []string, files [3]*os.File) (*os.Process, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { // those of a namespace in which this process runs
		return strings.HasPrefix(v, cli.ShownDirVariable+"=") || strings.HasPrefix(v, cli.ShownAtVariable+"=")
	})
	env = append(env, cli.ShownDirVariable+"="+v.Dir, cli.ShownAtVariable+"="+v.At)
	try := func(user bool) (*os.Process, error) {
		attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if user {
			attr.Cloneflags |= unix.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		}
		return os.StartProcess(string(proc.Self)+"/exe", append([]string{processName, string(text)}, command...),
			&os.ProcAttr{Dir: "/", Env: env, Files: files[:], Sys: attr})
	}
	p, err := try(false)
	if errors.Is(err, fs.ErrPermission) {
		p, err = try(true)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EUSERS) {
		err = fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	return p, err
}

// ErrNotAllowed means that the user may create neither a mount namespace nor a user namespace.
var ErrNotAllowed = errors.New("creating a mount namespace is not permitted")

// IsProcess reports whether a program with these arguments has to change its namespace. It must then call Run.
func IsProcess(args []string) bool { return len(args) > 2 && args[0] == processName }

// Run shows the mount at the other path, and executes the command. It returns only if this fails: a *control.Error if
// the namespace could not be set up, otherwise the error with which the command could not be executed.
func Run(args []string) error {
	var v message
	if err := json.Unmarshal([]byte(args[1]), &v); err != nil {
		return err
	}
	err := v.show()
	if err == nil {
		err = v.wait()
	}
	if err != nil {
		return &control.Error{Code: exitNoNamespace, Verb: "run", Object: "--at " + v.At, Cause: err.Error()}
	}
	command := args[2:]
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) { // a relative directory in PATH is relative to the directory of CMD
		return err
	}
	err = unix.Exec(path, command, os.Environ())
	return &os.PathError{Op: "exec", Path: command[0], Err: err}
}

// wait waits until the first process is ready, and closes the pipe.
func (v message) wait() error {
	f := os.NewFile(uintptr(v.Ready), "pipe")
	_, err := f.Read(make([]byte, 1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("wait for the process that has started this one: %w", err)
	}
	return nil
}

// show changes the mount namespace, and the working directory of this process.
func (v View) show() error {
	tree, err := os.Stat(v.Dir)
	if err != nil {
		return err
	}
	// Mounts and unmounts of other namespaces still arrive here, so that this namespace keeps no mount that its daemon has
	// unmounted. Changes of this namespace do not leave it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return &os.PathError{Op: "separate the mounts of", Path: "/", Err: err}
	}
	// Submodules and redirected directories are mounts below the directory.
	if err := unix.Mount(v.Dir, v.At, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "show the mount at", Path: v.At, Err: err}
	}
	for _, l := range v.Link {
		if err := unix.Mount("tmpfs", l.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0755"); err != nil {
			return &os.PathError{Op: "mount a file system at", Path: l.Dir, Err: err}
		}
		if err := os.Symlink(l.Target, filepath.Join(l.Dir, l.Name)); err != nil {
			return err
		}
	}
	if err := os.Chdir(v.Cwd); err != nil {
		return err
	}
	// A directory such as / shows to this process what it has shown before.
	if at, err := os.Stat(v.At); err != nil {
		return err
	} else if !os.SameFile(tree, at) {
		return fmt.Errorf("the directory still shows other files than %s", v.Dir)
	}
	return nil
}
