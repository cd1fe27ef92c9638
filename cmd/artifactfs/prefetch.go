package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// prefetchCommand returns the command "prefetch". Without --wait the command returns when the daemon has queued the
// contents.
func prefetchCommand(a *cli.App) *cobra.Command {
	var wait bool
	var commits []string
	cmd := &cobra.Command{
		Use:   "prefetch DIR [PATHSPEC...]",
		Short: "Fetch file contents before they are read",
		Long: `Prefetch moves the contents of matching files to the front of the queue of background fetches. A PATHSPEC is a path
relative to DIR: a file, a directory (all files below it), or a pattern with * and ?. Without PATHSPEC, all files below
DIR match. DIR may be a directory inside a mount. The command returns at once; with --wait, it returns when all matching
files have been fetched.

With --commit, prefetch writes contents to git's object store instead. This is for programs that read the object store
directly and will read much of it: jj, and programs built on libgit2, gitoxide, JGit or go-git. (They and git also fetch
the objects that they need, a part at a time.) COMMIT is one commit, for all files of its tree, or a range A..B, for
both versions of each file that the commits of the range have changed. The command returns when the contents have been
written.`,
		Example: `  artifactfs prefetch git --wait
  artifactfs prefetch git Documentation 't/*.sh'
  artifactfs prefetch git/builtin
  artifactfs prefetch git --commit HEAD --commit main~50..main && cd git && jj git init --colocate`,
		Args: cli.Arguments(1, -1, "DIR [PATHSPEC...]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return prefetchPaths(cmd.Context(), a, args[0], args[1:], wait, commits)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all matching files have been fetched")
	cmd.Flags().StringArrayVar(&commits, "commit", nil,
		"write the contents of this `COMMIT` or range of commits to git's object store; may be repeated")
	return cmd
}

// prefetchPaths asks the daemon of the mount at dir to prefetch contents, and prints the result. If the parameter
// commits is not empty, the daemon also writes the contents of these commits to git's object store.
func prefetchPaths(ctx context.Context, a *cli.App, dir string, specs []string, wait bool, commits []string) error {
	m, err := a.Find(ctx, "prefetch", dir)
	if err != nil {
		return err
	}
	paths, err := pathsInMount(m.Dir, dir, specs)
	if err != nil {
		return err
	}
	start := time.Now()
	p := a.NewProgress()
	reply, err := m.Client.Prefetch(ctx, control.PrefetchRequest{Dir: m.Dir, Paths: paths, Wait: wait, Commits: commits},
		p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("prefetch", m.Dir, err)
	}
	if reply.Matched == 0 && len(paths) > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: no path of the commit matches %s\n", strings.Join(paths, " "))
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	if len(commits) > 0 {
		_, err = fmt.Fprintf(a.Stdout, "%s of %s in git's object store (%s)\n", cli.Count(reply.Fetched),
			cli.Plural(reply.Matched, "version"), cli.Seconds(time.Since(start)))
		return err
	}
	_, err = fmt.Fprintf(a.Stdout, "%s of %s fetched, %s (%s)\n", cli.Count(reply.Fetched),
		cli.Plural(reply.Matched, "blob"),
		cli.BytesOf(reply.Bytes), cli.Seconds(time.Since(start)))
	return err
}

// pathsInMount converts pathspecs that are relative to dir to paths relative to the mount's root. The directory dir is
// the root or a directory below it. If the pathspecs select the whole mount, pathsInMount returns no paths.
func pathsInMount(root, dir string, specs []string) ([]string, error) {
	below := ""
	// The path dir may contain symbolic links, but the path root does not.
	for _, spelling := range cli.Spellings(dir) {
		if mountinfo.Within(root, spelling) {
			below, _ = filepath.Rel(root, spelling)
			break
		}
	}
	if below == "." {
		below = ""
	}
	if len(specs) == 0 && below != "" {
		return []string{below}, nil
	}
	paths := []string{}
	for _, spec := range specs {
		joined := filepath.Join(below, spec)
		if filepath.IsAbs(spec) || !filepath.IsLocal(joined) {
			return nil, &control.Error{Code: control.ExitUsage, Verb: "prefetch", Object: spec,
				Cause: "path is not inside the mount",
				Hint:  "type a PATHSPEC relative to DIR"}
		}
		if joined == "." {
			return nil, nil // the pathspecs select the whole mount
		}
		paths = append(paths, joined)
	}
	return paths, nil
}
