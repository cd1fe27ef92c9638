package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
)

func (a *app) prefetchCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "prefetch DIR [PATHSPEC...]",
		Short: "Hydrate files before they are read",
		Long: `Prefetch moves what matches to the front of what is brought in the background. A PATHSPEC is a path relative to DIR:
a file, a directory with all below it, or a pattern with * and ?. None means everything below DIR, which may also be a
directory inside a mount.`,
		Example: `  artifactfs prefetch git --wait
  artifactfs prefetch git Documentation 't/*.sh'
  artifactfs prefetch git/builtin`,
		Args: arguments(1, -1, "DIR [PATHSPEC...]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.prefetch(cmd.Context(), args[0], args[1:], wait)
		},
		ValidArgsFunction: a.completeMounts(1),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "return when all of it is hydrated")
	return cmd
}

func (a *app) prefetch(ctx context.Context, dir string, specs []string, wait bool) error {
	all, asked := a.mounts(ctx)
	m, err := find(all, asked, "prefetch", dir)
	if err != nil {
		return err
	}
	paths, err := pathsInMount(m.Dir, dir, specs)
	if err != nil {
		return err
	}
	start := time.Now()
	p := a.newProgress()
	reply, err := m.client.Prefetch(ctx, control.PrefetchRequest{Dir: m.Dir, Paths: paths, Wait: wait}, p.show)
	p.stop()
	if err != nil {
		return failure("prefetch", m.Dir, err)
	}
	if reply.Matched == 0 && len(paths) > 0 {
		fmt.Fprintf(a.stderr, "artifactfs: nothing that the commit has matches %s\n", strings.Join(paths, " "))
	}
	if a.json {
		return printJSON(a.stdout, reply)
	}
	_, err = fmt.Fprintf(a.stdout, "%s of %s hydrated, %s (%s)\n", count(reply.Hydrated), plural(reply.Matched, "blob"), bytesOf(reply.Bytes), seconds(time.Since(start)))
	return err
}

// pathsInMount makes the pathspecs relative to the mount's root; dir is the root or lies below it.
func pathsInMount(root, dir string, specs []string) ([]string, error) {
	below := ""
	for _, spelling := range spellings(dir) {
		if inside(root, spelling) {
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
			return nil, &control.Error{Code: control.ExitUsage, Verb: "prefetch", Object: spec, Cause: "not inside the mount",
				Hint: "a PATHSPEC is relative to DIR"}
		}
		if joined == "." {
			return nil, nil // everything
		}
		paths = append(paths, joined)
	}
	return paths, nil
}
