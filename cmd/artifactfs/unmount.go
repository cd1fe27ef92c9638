package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
)

func (a *app) unmountCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "unmount [DIR...] [--all]",
		Aliases: []string{"umount"},
		Short:   "End mounts",
		Long: `Unmount ends the mounts at the named directories. A directory that mount made is removed again. What was hydrated
stays in the cache for the next mount.

A mount that a process still uses stays as it is, and the command fails.`,
		Example: `  artifactfs unmount git
  artifactfs unmount /srv/a /srv/b
  artifactfs unmount --all        # and the background daemon ends, too`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return errors.New("takes directories or --all, not both")
			case !all && len(args) == 0:
				return errors.New("needs a directory, or --all")
			}
			return nil
		},
		RunE:              func(cmd *cobra.Command, args []string) error { return a.unmount(cmd.Context(), args, all) },
		ValidArgsFunction: a.completeMounts(1 << 10),
	}
	cmd.Flags().BoolVar(&all, "all", false, "end every mount of the state directory")
	return cmd
}

// unmount goes on after a failure; the first one decides the exit code and the others are printed before it.
func (a *app) unmount(ctx context.Context, dirs []string, all bool) error {
	mounts, asked := a.mounts(ctx)
	var targets []served
	var errs []error
	for _, dir := range dirs {
		m, err := find(mounts, asked, "unmount", dir)
		if err == nil && !isDir(m.Dir, dir) {
			err = notMounted("unmount", dir)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		targets = append(targets, m)
	}
	if all {
		targets = mounts
		errs = append(errs, asked)
	}
	done := []control.UnmountReply{}
	for _, m := range targets {
		reply, err := m.client.Unmount(ctx, control.UnmountRequest{Dir: m.Dir})
		if err != nil {
			errs = append(errs, failure("unmount", m.Dir, err))
			continue
		}
		done = append(done, reply)
		if !a.json {
			fmt.Fprintf(a.stdout, "unmounted %s\n", reply.Dir)
		}
	}
	if all && errors.Join(errs...) == nil {
		errs = append(errs, a.endDaemon(ctx))
	}
	if a.json {
		errs = append(errs, printJSON(a.stdout, map[string]any{"unmounted": done}))
	}
	return a.reportAll(errs)
}

// endDaemon ends the shared daemon, if there is one; those in the foreground end with their mount.
func (a *app) endDaemon(ctx context.Context) error {
	client, err := control.Dial(ctx, a.daemonSocket())
	if err == nil {
		err = client.Shutdown(ctx)
	}
	if errors.Is(err, control.ErrNoServer) {
		return nil
	}
	return err
}

func isDir(mounted, dir string) bool {
	for _, spelling := range spellings(dir) {
		if spelling == mounted {
			return true
		}
	}
	return false
}

// reportAll prints all but the first error and returns that.
func (a *app) reportAll(errs []error) error {
	var first error
	for _, err := range errs {
		switch {
		case err == nil:
		case first == nil:
			first = err
		default:
			printError(a.stderr, control.AsError(err))
		}
	}
	return first
}
