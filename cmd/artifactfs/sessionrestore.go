package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

type restoreOptions struct {
	of      string
	request control.RestoreRequest
}

func (a *app) sessionRestoreCommand() *cobra.Command {
	var o restoreOptions
	cmd := &cobra.Command{
		Use:   "restore ID [PATH...] [--staged] [--dry-run]",
		Short: "Bring files back to what they were at a checkpoint",
		Long: `Restore makes the mounted working tree, or just PATHs in it, what it was at a checkpoint: by names alone, nothing is
downloaded. A checkpoint is made first, and restore says how to get back to it, so that nothing is lost.

HEAD and branches stay where they are, and so does the index unless --staged asks for it. What checkpoints do not hold,
such as ignored files, is not touched. --dry-run only says what would change.

PATHs are relative to the current directory, or to that of -C; a directory means all that is in it.`,
		Example: `  artifactfs session restore @~1 --dry-run
  artifactfs session restore 10m
  artifactfs session restore 01J9ZK src/main.c docs
  artifactfs session restore -C /srv/app before-rename --staged`,
		Args: arguments(1, -1, "ID [PATH...]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sessionRestore(cmd.Context(), o, args[0], args[1:])
		},
		ValidArgsFunction: a.completePoints(&o.of, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.request.Staged, "staged", false, "bring the index back, too")
	f.BoolVarP(&o.request.DryRun, "dry-run", "n", false, "only say what would change")
	a.ofFlag(cmd, &o.of)
	return cmd
}

func (a *app) sessionRestore(ctx context.Context, o restoreOptions, id string, paths []string) error {
	w, err := a.sessionOf(ctx, "restore", o.of)
	if err != nil {
		return err
	}
	m, err := w.mounted("restore")
	if err != nil {
		return err
	}
	r := o.request
	r.Dir, r.ID = m.Dir, id
	from := "."
	if o.of != "" && o.of != m.Session.Name {
		from = o.of
	} else if o.of != "" {
		from = m.Dir
	}
	if r.Paths, err = pathsIn(m.Dir, from, paths); err != nil {
		return err
	}
	p := a.newProgress()
	reply, err := m.client.Restore(ctx, r, p.show)
	p.stop()
	if err != nil {
		return failure("restore", m.Dir, err)
	}
	if a.json {
		return printJSON(a.stdout, reply)
	}
	a.printRestore(reply, time.Now())
	return nil
}

// pathsIn gives paths that are relative to a directory, or absolute, as ones that are relative to the mount.
func pathsIn(mount, from string, paths []string) ([]string, error) {
	inMount := []string{}
	for _, p := range paths {
		full := p
		if !filepath.IsAbs(p) {
			full = filepath.Join(from, p)
		}
		rel, found := "", false
		for _, spelling := range spellings(full) {
			if r, err := filepath.Rel(mount, spelling); err == nil && filepath.IsLocal(r) {
				rel, found = r, true
				break
			}
		}
		if real, err := filepath.EvalSymlinks(from); err == nil && !found && !filepath.IsAbs(p) { // the way to the directory leads over links
			if real, err = filepath.Abs(real); err == nil {
				r, err := filepath.Rel(mount, filepath.Join(real, p))
				rel, found = r, err == nil && filepath.IsLocal(r)
			}
		}
		if !found {
			return nil, &control.Error{Code: control.ExitUsage, Verb: "restore", Object: p, Cause: "it is not in the mount at " + mount,
				Hint: "PATHs are relative to the current directory, or to that of -C"}
		}
		if rel == "." {
			return []string{}, nil // all of it
		}
		inMount = append(inMount, rel)
	}
	return inMount, nil
}

func (a *app) printRestore(r control.RestoreReply, now time.Time) {
	changes := plural(int64(len(r.Changes)), "path")
	at := fmt.Sprintf("%s (%s)", r.Point.ID, ago(r.Point.Time, now))
	if r.DryRun {
		printChanges(a.stdout, "would change", r.Changes)
		fmt.Fprintf(a.stdout, "%s would be brought back to %s\n", changes, at)
		return
	}
	if a.verbose {
		printChanges(a.stdout, "changed", r.Changes)
	}
	for _, path := range r.Kept {
		fmt.Fprintf(a.stdout, "changed meanwhile, and left as it is: %s\n", (&control.Error{Cause: path}).Error())
	}
	fmt.Fprintf(a.stdout, "%s brought back to %s\n", changes, at)
	if r.Before != nil && len(r.Changes) > 0 {
		fmt.Fprintf(a.stderr, "artifactfs: kept what was there (artifactfs session restore -C %s %s undoes it)\n", shellWord(r.Dir), r.Before.ID)
	}
}

type forkOptions struct {
	mountOptions
	of string
}

func (a *app) sessionForkCommand() *cobra.Command {
	var o forkOptions
	cmd := &cobra.Command{
		Use:   "fork [ID] DIR",
		Short: "Begin another session at a checkpoint, and mount it",
		Long: `Fork begins a session with what a checkpoint holds, files, index, HEAD, branches and stashes, and mounts it at DIR.
Without ID it begins with the working tree as it is now, or with the newest checkpoint of a session that is not mounted.
It is there at once: both share everything, nothing is copied or downloaded, and from then on they have nothing to do
with each other.

--session names the new one. The other flags are those of artifactfs mount.`,
		Example: `  artifactfs session fork /tmp/try
  artifactfs session fork @~3 /tmp/earlier --session try-again
  for i in 1 2 3; do artifactfs session fork -C fix-login /tmp/try-$i; done`,
		Annotations: fromEnvironment,
		Args:        arguments(1, 2, "[ID] DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sessionFork(cmd, o, args)
		},
		ValidArgsFunction: a.completePoints(&o.of, 1),
	}
	o.addFlags(cmd)
	for _, name := range []string{"ref", "at", "take-over"} { // the checkpoint says it
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err)
		}
	}
	a.ofFlag(cmd, &o.of)
	return cmd
}

func (a *app) sessionFork(cmd *cobra.Command, o forkOptions, args []string) error {
	for _, name := range []string{"ref", "at", "take-over"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, fmt.Errorf("takes no --%s: the new session begins at the checkpoint ID", name))
		}
	}
	id, dir := "", args[len(args)-1]
	if len(args) > 1 {
		id = args[0]
	} else if namesPoint(dir) {
		return usage(cmd, fmt.Errorf("takes [ID] DIR: %s is a checkpoint, and there is no DIR", dir))
	}
	ctx := cmd.Context()
	w, err := a.sessionOf(ctx, "fork", o.of)
	if err != nil {
		return err
	}
	origin, err := a.originOf(ctx, w)
	if err != nil {
		return failure("fork", w.name(), err)
	}
	if err := o.complete(cmd, []string{origin, dir}, a); err != nil {
		return err
	}
	start := time.Now()
	p := a.newProgress()
	reply, err := w.client.Fork(ctx, control.ForkRequest{Of: w.of, ID: id, Mount: o.request}, p.show)
	p.stop()
	if err != nil {
		return failure("fork", w.name(), err)
	}
	return a.printWork("forked session "+reply.Session, reply, time.Since(start))
}

// namesPoint says whether a word can only be meant as a checkpoint.
func namesPoint(word string) bool {
	_, err := session.ParsePointID(word)
	return err == nil || strings.HasPrefix(word, "@")
}

// originOf is the remote that a session is of.
func (a *app) originOf(ctx context.Context, w work) (string, error) {
	if w.mount != nil {
		return w.mount.Remote, nil
	}
	all, err := a.sessions(ctx)
	for _, s := range all {
		if s.Name == w.of {
			return s.Origin, nil
		}
	}
	return "", cmp.Or[error](err, noSession("fork", w.of))
}

func noSession(verb, name string) *control.Error {
	return &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound, Verb: verb, Object: "session " + name, Cause: "there is no such session",
		Hint: "artifactfs session list shows what there is"}
}

func (a *app) sessionResumeCommand() *cobra.Command {
	var o mountOptions
	cmd := &cobra.Command{
		Use:   "resume SESSION [DIR] [--session-remote URL]",
		Short: "Go on with a session, here or on another machine",
		Long: `Resume mounts SESSION at DIR and goes on where it was left: files, index, HEAD, branches, stashes, also an unfinished
merge or rebase. Contents come when they are read. A session of this state directory is known by its name, and DIR is
where it was mounted last if it is left out. One of another machine is found on the session remote that --session-remote
names.

It is refused while somebody else is at work in the session, or seems to be: a machine that was switched off has not
said that it is done. --take-over goes on all the same; what the other one still makes is kept apart then, and nothing
is lost. artifactfs session fork makes a copy instead.

The other flags are those of artifactfs mount, which does the same with the repository's URL and --session.`,
		Example: `  artifactfs session resume fix-login
  artifactfs session resume fix-login /srv/fix --session-remote https://git.example.org/work.git
  artifactfs session resume fix-login fix --session-remote git@example.org:work.git --take-over`,
		Annotations: fromEnvironment,
		Args:        arguments(1, 2, "SESSION [DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sessionResume(cmd, o, args)
		},
		ValidArgsFunction: a.completeSessions(1),
	}
	o.addFlags(cmd)
	for _, name := range []string{"ref", "session", "at"} {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

func (a *app) sessionResume(cmd *cobra.Command, o mountOptions, args []string) error {
	name := args[0]
	if err := control.ValidSession(name); err != nil {
		return usage(cmd, errors.New(err.Cause))
	}
	for _, flag := range []string{"ref", "session", "at"} {
		if cmd.Flags().Changed(flag) {
			return usage(cmd, fmt.Errorf("takes no --%s: the session says it", flag))
		}
	}
	ctx := cmd.Context()
	all, asked := a.sessions(ctx)
	known := control.SessionInfo{}
	for _, s := range all {
		if s.Name == name {
			known = s
		}
	}
	switch {
	case known.Mounted:
		return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "resume", Object: "session " + name, Cause: "it is mounted at " + known.Dir,
			Hint: "artifactfs session fork -C " + name + " DIR begins another session where it is; artifactfs unmount " + shellWord(known.Dir) + " ends it there"}
	case known.Name == "" && o.request.SessionOptions.Remote == "":
		return cmp.Or(asked, error(&control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound, Verb: "resume", Object: "session " + name, Cause: "there is no such session here",
			Hint: "--session-remote URL says where it is; artifactfs session list shows those that are here"}))
	}
	dir := cmp.Or(append(args, known.Dir)[1], name)
	o.request.Session = name
	if err := o.complete(cmd, []string{known.Origin, dir}, a); err != nil {
		return err
	}
	start := time.Now()
	p := a.newProgress()
	reply, err := a.mountInBackground(ctx, o.request, p.show)
	p.stop()
	if err != nil {
		return failure("resume", "session "+name, err)
	}
	return a.printWork("resumed session "+reply.Session, reply, time.Since(start))
}

// printWork is printMount with what became of the session in front.
func (a *app) printWork(what string, m control.MountReply, took time.Duration) error {
	if !a.json && !a.quiet {
		if _, err := io.WriteString(a.stdout, what+": "); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	}
	return a.printMount(m, took)
}
