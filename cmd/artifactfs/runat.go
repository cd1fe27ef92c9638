package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/namespace"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// shown holds the flags of "run" that select an existing mount, and the path at which CMD sees a mount.
type shown struct {
	at string // directory at which CMD sees the mount; "" means that of the mount
	of string // directory in an existing mount, or name of its session; "" means the current directory
}

// addFlags adds the flags of s to a command that has the flags of mount. The flag --at of mount, whose value is a
// checkpoint, also takes a path, which contains a slash.
func (s *shown) addFlags(f *pflag.FlagSet) {
	f.Lookup("at").Usage = "show the mount at the directory `PATH` to CMD; without REMOTE, run CMD in an\n" +
		"existing mount. Without a slash: the ID of a checkpoint of --session, which\n" +
		"is mounted read-only"
	f.StringVarP(&s.of, "of", "C", "",
		"with --at PATH: run in the mount that contains `DIR`, or in that of this session\n(default: current directory)")
}

// takePath sets s.at to the value of --at if that is a path. The flag then has no value any more.
func (s *shown) takePath(cmd *cobra.Command) error {
	f := cmd.Flags().Lookup("at")
	if !strings.Contains(f.Value.String(), "/") {
		return nil
	}
	s.at, f.Changed = f.Value.String(), false
	return f.Value.Set("")
}

// check returns a usage error if the flags contradict each other or the arguments. mounts states that CMD runs in a new
// mount.
func (s *shown) check(cmd *cobra.Command, mounts bool) error {
	switch {
	case s.at == "" && s.of != "":
		return cli.Usage(cmd, errors.New("-C needs --at PATH"))
	case s.at == "":
		return nil
	case mounts && s.of != "":
		return cli.Usage(cmd, errors.New("-C and REMOTE exclude each other"))
	}
	var err error
	if s.at, err = cli.DirectoryFlag("run", "--at", s.at); err == nil {
		// The kernel shows mounts without symbolic links in their paths.
		s.at, err = filepath.EvalSymlinks(s.at)
	}
	if err != nil || mounts {
		return err
	}
	// The other flags are those of the new mount.
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Name != "of" && f.Changed && cmd.InheritedFlags().Lookup(f.Name) == nil {
			err = cli.Usage(cmd, fmt.Errorf("--%s needs REMOTE: --at without REMOTE runs in an existing mount", f.Name))
		}
	})
	return err
}

// runExisting runs the command in an existing mount, and returns its exit code as an error.
func runExisting(ctx context.Context, a *cli.App, o runOptions) error {
	m, err := o.shown.mount(ctx, a)
	if err == nil {
		err = cli.CheckVisible("run", m.Dir)
	}
	if err != nil {
		return err
	}
	within := "."
	if cwd, err := os.Getwd(); err == nil {
		// The current directory is in the mount, unless -C names another one.
		if paths, err := cli.PathsIn("run", m.Dir, cwd, []string{"."}); err == nil && len(paths) > 0 {
			within = paths[0]
		}
	}
	view, err := o.shown.view(ctx, a, m.Dir, within)
	if err != nil {
		return err
	}
	a.Serving = true // from now on, all signals are passed on to the command
	code, err := runChild(a, o.command, m.Dir, &view)
	if err != nil {
		return err
	}
	if code == control.ExitDone {
		return nil
	}
	return cli.ExitCode(code)
}

// mount returns the existing mount in which CMD runs.
func (s shown) mount(ctx context.Context, a *cli.App) (cli.Served, error) {
	name := cmp.Or(s.of, ".")
	if name != "." && name != ".." && !strings.Contains(name, "/") {
		all, err := a.Mounts(ctx)
		for _, m := range all {
			if m.Mounted() && m.Session.Name == name {
				return m, nil
			}
		}
		if err != nil {
			return cli.Served{}, err
		}
	}
	return a.Find(ctx, "run", name)
}

// view returns what CMD sees if the mount at dir is shown at s.at. within is the working directory, relative to the
// mount.
func (s shown) view(ctx context.Context, a *cli.App, dir, within string) (namespace.View, error) {
	v := namespace.View{Dir: dir, At: s.at, Cwd: filepath.Join(s.at, within)}
	fail := func(cause string) (namespace.View, error) {
		return v, &control.Error{Code: control.ExitUsage, Verb: "run", Object: "--at " + s.at, Cause: cause}
	}
	state, err := control.StateDir(a.State)
	if err == nil {
		state, err = filepath.EvalSymlinks(state)
	}
	switch {
	case err != nil:
		return v, err
	case mountinfo.Within(dir, s.at):
		return fail("directory is in the mount that would be shown there")
	case mountinfo.Within(s.at, dir):
		return fail("directory contains the mount, which would be hidden")
	case mountinfo.Within(s.at, state):
		return fail("directory contains the state directory, which would be hidden")
	}
	all, err := a.Mounts(ctx)
	if err != nil {
		return v, err
	}
	trees := []string{dir}
	for _, m := range all { // submodules
		if m.Mounted() && m.Dir != dir && mountinfo.Within(dir, m.Dir) {
			trees = append(trees, m.Dir)
		}
	}
	for _, tree := range trees {
		link, err := linkOf(ctx, tree)
		if err != nil {
			return v, cli.Failure("run", tree, err)
		}
		if rel, err := filepath.Rel(dir, tree); err == nil && link != "" {
			v.Link = append(v.Link, namespace.Link{Dir: link, Name: gitdir.LinkName, Target: filepath.Join(s.at, rel)})
		}
	}
	return v, nil
}

// linkOf returns the directory of the link through which git finds the working tree of the mount at dir; "" if git does
// not need a link, or if the mount has no git directory.
func linkOf(ctx context.Context, dir string) (string, error) {
	out, err := gitcmd.New(ctx, "-C", dir, "rev-parse", "--absolute-git-dir").Output()
	if err != nil {
		return "", ctx.Err()
	}
	return gitdir.LinkWorkTree(ctx, strings.TrimSuffix(string(out), "\n"), dir)
}

// startChild starts the command in the directory dir, with the standard files of this process, and returns its process.
// If view is not nil, the command starts in the mount namespace that view describes.
func startChild(a *cli.App, command []string, dir string, view *namespace.View) (*os.Process, error) {
	if view == nil {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = dir
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.Stdout, a.Stderr
		if errors.Is(cmd.Err, exec.ErrDot) { // a relative directory in PATH is relative to the working directory of CMD
			cmd.Err = nil
		}
		cmd.Env = childEnvironment(dir)
		if err := cmd.Start(); err != nil {
			return nil, cannotRun(command[0], err)
		}
		return cmd.Process, nil
	}
	// The kernel lets no other process set up the namespace of an undumpable process, so KeepMemory comes after the start.
	p, err := namespace.Start(*view, command, childEnvironment(view.Cwd), [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		serving.KeepMemory)
	if errors.Is(err, namespace.ErrNotAllowed) {
		return nil, &control.Error{Code: exitCannotRun, Verb: "run", Object: "--at " + view.At, Cause: err.Error(),
			Hint: "run as root, or allow user namespaces (sysctl user.max_user_namespaces)"}
	}
	if err != nil {
		return nil, cannotRun("--at "+view.At, err)
	}
	return p, nil
}

// runInNamespace shows a mount at another path, and executes a command (package namespace). It returns an exit code if
// this fails.
func runInNamespace(args []string) int {
	err := namespace.Run(args)
	var failed *control.Error
	if !errors.As(err, &failed) {
		failed = control.AsError(cannotRun(args[2], err))
	}
	cli.PrintError(os.Stderr, failed)
	return failed.Code
}
