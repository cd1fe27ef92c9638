package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// annotateOptions holds the flags of "session annotate".
type annotateOptions struct {
	of, remote, path       string
	reply, resolve, reopen string // IDs of the threads that the flags --reply, --resolve and --reopen name
	request                control.SessionAnnotateRequest
}

// sessionAnnotateCommand returns the command "session annotate".
func sessionAnnotateCommand(a *cli.App) *cobra.Command {
	var o annotateOptions
	cmd := &cobra.Command{
		Use:   "annotate [POINT] [--path FILE[:LINE[-LINE]]] -m TEXT",
		Short: "Comment on a session, a checkpoint, a commit, a file or lines, and answer comments",
		Long: `Annotate begins a thread of comments and prints its id. The thread is about the checkpoint POINT; with --commit, about a
commit; with --path, about a file or lines of it in that checkpoint or commit; without all of these, about the whole
session. Lines of the working tree are annotated in a new checkpoint. FILE is relative to the current directory, and for
a session that is not mounted, to the root of the working tree.

A thread about lines belongs to the contents of the file. session annotations finds the lines in every other checkpoint,
also after the file was renamed and lines were added above.

--reply, --resolve and --reopen take the id of an annotation, or its beginning, and add to its thread. Annotations are
never changed or removed. They are stored on the session remote, in refs/afs/ann/SESSION, so reviewers need no mount:
several may annotate a session at the same time. Text that looks like a secret is removed.

` + addressHelp,
		Example: `  artifactfs session annotate --path src/login.c:12-14 -m 'is this loop needed?'
  artifactfs session annotate before-rename -m 'good state'
  artifactfs session annotate --commit HEAD~1 --path README.md -m 'mention the port'
  artifactfs session annotate --reply 01M80Q5K -m 'yes: the list may be empty'
  artifactfs session annotate --resolve 01M80Q5K
  artifactfs session annotate https://git.example.org/work.git#session=fix-login --path src/login.c:12 -m 'why?'`,
		Args: cli.Arguments(0, 1, "[POINT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.choose(cmd); err != nil {
				return cli.Usage(cmd, err)
			}
			return sessionAnnotate(cmd.Context(), a, o, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &o.of, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.request.Text, "message", "m", "", "`TEXT` of the annotation; -: read it from stdin")
	f.StringVar(&o.path, "path", "", "annotate `FILE[:LINE[-LINE]]`")
	f.StringVar(&o.request.Commit, "commit", "", "annotate the commit `ID`; on a session remote the full id")
	f.StringVar(&o.reply, "reply", "", "add TEXT to the thread of the annotation `ID`")
	f.StringVar(&o.resolve, "resolve", "", "mark the thread of the annotation `ID` as resolved")
	f.StringVar(&o.reopen, "reopen", "", "mark the thread of the annotation `ID` as open again")
	ofFlag(a, cmd, &o.of)
	farFlag(a, cmd, &o.remote)
	return cmd
}

// choose sets the operation and the text of the request from the flags.
func (o *annotateOptions) choose(cmd *cobra.Command) error {
	r := &o.request
	r.Op, r.Thread = control.AnnotateOpen, cmp.Or(o.reply, o.resolve, o.reopen)
	for _, op := range []string{control.AnnotateReply, control.AnnotateResolve, control.AnnotateReopen} {
		if !cmd.Flags().Changed(op) { // Each flag has the name of its operation.
			continue
		}
		if r.Op != control.AnnotateOpen {
			return errors.New("want one of --reply, --resolve and --reopen, got several")
		}
		r.Op = op
	}
	if r.Op != control.AnnotateOpen {
		if r.Thread == "" {
			return fmt.Errorf("--%s needs the ID of an annotation", r.Op)
		}
		if o.path != "" || r.Commit != "" {
			return fmt.Errorf("--%s adds to a thread: omit --path and --commit", r.Op)
		}
	}
	if r.Text == "-" {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, maxNote+1))
		if err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
		r.Text = strings.TrimSpace(string(text))
	}
	if len(r.Text) > maxNote {
		return errors.New("TEXT is longer than " + cli.BytesOf(maxNote))
	}
	if strings.TrimSpace(r.Text) == "" && (r.Op == control.AnnotateOpen || r.Op == control.AnnotateReply) {
		return errors.New("TEXT is missing: add -m TEXT")
	}
	return nil
}

// sessionAnnotate sends the request and prints the id of the annotation.
func sessionAnnotate(ctx context.Context, a *cli.App, o annotateOptions, point string) error {
	w, id, err := workAt(ctx, a, "annotate", o.of, o.remote, point)
	if err == nil {
		w, err = w.asGiven(ctx, a)
	}
	if err != nil {
		return err
	}
	r := o.request
	r.Of, r.SessionRemote, r.ID, r.Actor = w.of, w.at, id, session.Actor()
	switch {
	case r.Op != control.AnnotateOpen && id == "@": // The argument SESSION@ names the session of the thread.
		r.ID = ""
	case r.Op != control.AnnotateOpen && id != "":
		return &control.Error{Code: control.ExitUsage, Verb: "annotate", Object: point,
			Cause: "--" + r.Op + " adds to a thread, not to a checkpoint", Hint: "use -C SESSION to select the session"}
	case r.Commit != "" && id == "@":
		r.ID = ""
	case r.Commit != "" && id != "":
		return &control.Error{Code: control.ExitUsage, Verb: "annotate", Object: point,
			Cause: "want a checkpoint or --commit, got both",
			Hint:  "use -C SESSION to select the session"}
	}
	if o.path != "" {
		r.Path, r.Line, r.End = splitLines(o.path)
		if r.Path, err = annotatedPath("annotate", w, o.of, point, r.Path); err != nil {
			return err
		}
	}
	reply, err := w.client.SessionAnnotate(ctx, r)
	if err != nil {
		return cli.Failure("annotate", w.name(), err)
	}
	printRedacted(a.Stderr, reply.Redacted)
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	done := map[string]string{control.AnnotateResolve: "resolved ", control.AnnotateReopen: "reopened "}[r.Op]
	if done != "" {
		reply.ID = reply.Thread.ID
	}
	_, err = fmt.Fprintln(a.Stdout, done+reply.ID)
	return err
}

// splitLines splits "FILE:LINE" and "FILE:LINE-LINE". A word of another form is the name of a file.
func splitLines(word string) (file string, first, last int) {
	i := strings.LastIndexByte(word, ':')
	if i <= 0 {
		return word, 0, 0
	}
	low, high, more := strings.Cut(word[i+1:], "-")
	first, err := strconv.Atoi(low)
	last = first
	if more && err == nil {
		last, err = strconv.Atoi(high)
	}
	if err != nil || first < 1 || last < first {
		return word, 0, 0
	}
	return word[:i], first, last
}

// annotatedPath returns a path relative to the root of the working tree of the session w. For a mounted session, the
// given path is relative to the current directory, or to the directory that -C names. Otherwise the given path is
// already relative to the root.
func annotatedPath(verb string, w work, of, point, path string) (string, error) {
	if w.mount == nil || w.remote != "" {
		return strings.TrimPrefix(strings.TrimSuffix(path, "/"), "./"), nil
	}
	from := "."
	switch {
	case of != "" && of != w.mount.Session.Name:
		from = of
	case of != "" || namesSession(point):
		from = w.mount.Dir
	}
	paths, err := cli.PathsIn(verb, w.mount.Dir, from, []string{path})
	if err != nil {
		return "", err
	}
	if len(paths) == 0 {
		return "", &control.Error{Code: control.ExitUsage, Verb: verb, Object: path,
			Cause: "path is the root of the working tree"}
	}
	return paths[0], nil
}

// sessionAnnotationsCommand returns the command "session annotations".
func sessionAnnotationsCommand(a *cli.App) *cobra.Command {
	var of, remote, path string
	var all bool
	cmd := &cobra.Command{
		Use:   "annotations [POINT] [--all] [--path FILE|DIR]",
		Short: "List the comments on a session, with the lines that they are about now",
		Long: `Annotations prints the threads of comments on a session, oldest first, each with its id, its place and its texts. Files
and lines are looked up in the checkpoint POINT (default: the newest): in a file that was renamed or edited since,
lines have other numbers. A thread is outdated if its file or lines do not exist in the checkpoint. Resolved threads are
printed only with --all.

` + addressHelp,
		Example: `  artifactfs session annotations
  artifactfs session annotations @~3 --path src --all
  artifactfs session annotations https://git.example.org/work.git#session=fix-login
  artifactfs session annotations --json | jq -r '.threads[] | select(.now.state == "outdated").id'`,
		Args: cli.Arguments(0, 1, "[POINT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := control.SessionAnnotationsRequest{All: all, Path: path}
			return sessionAnnotations(cmd.Context(), a, r, of, remote, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&all, "all", false, "also print resolved threads")
	f.StringVar(&path, "path", "", "print only threads about `FILE`, or about files in this directory")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// sessionAnnotations requests the threads of a session and prints them.
func sessionAnnotations(ctx context.Context, a *cli.App, r control.SessionAnnotationsRequest,
	of, remote, point string) error {
	w, id, err := workAt(ctx, a, "annotations", of, remote, point)
	if err != nil {
		return err
	}
	r.Of, r.SessionRemote, r.ID = w.of, w.at, id
	if r.Path != "" {
		if r.Path, err = annotatedPath("annotations", w, of, point, r.Path); err != nil {
			return err
		}
	}
	reply, err := w.client.SessionAnnotations(ctx, r)
	if err != nil {
		return cli.Failure("list annotations of", w.name(), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	return printThreads(a.Stdout, reply.Threads, time.Now())
}

// printThreads prints the threads of annotations as text.
func printThreads(out io.Writer, threads []control.AnnotationThread, now time.Time) error {
	var b strings.Builder
	for i, t := range threads {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s  %s  %s\n", t.ID, t.State, cli.OneLine(threadPlace(t)))
		if t.On.Quote != "" {
			for line := range strings.SplitSeq(t.On.Quote, "\n") {
				text := strings.TrimLeft(line, " \t")
				fmt.Fprintf(&b, "  > %s%s\n", line[:len(line)-len(text)], cli.OneLine(text))
			}
		}
		for _, n := range t.Annotations {
			did := map[string]string{control.AnnotateResolve: " resolved", control.AnnotateReopen: " reopened"}[n.Op]
			fmt.Fprintf(&b, "  %s, %s%s", dashed(n.Actor), cli.Ago(n.Time, now), did)
			if n.Text != "" {
				text := strings.Split(strings.TrimRight(n.Text, "\n"), "\n")
				for i := range text {
					text[i] = cli.OneLine(text[i])
				}
				b.WriteString(": " + strings.Join(text, "\n    "))
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// threadPlace describes what a thread is about: "main.go:12-14 (was old.go:10-12)".
func threadPlace(t control.AnnotationThread) string {
	file := func(p control.AnnotationPlace) string {
		switch {
		case p.Line == 0:
			return p.Path
		case p.End == p.Line:
			return fmt.Sprintf("%s:%d", p.Path, p.Line)
		}
		return fmt.Sprintf("%s:%d-%d", p.Path, p.Line, p.End)
	}
	var of string
	switch {
	case t.On.Checkpoint != "":
		of = "checkpoint " + t.On.Checkpoint
	case t.On.Commit != "":
		of = fmt.Sprintf("commit %.12s", t.On.Commit)
	default:
		return "session"
	}
	was := file(t.On)
	switch {
	case t.On.Path == "":
		return of
	case t.Now == nil:
		return was + " in " + of
	case t.Now.State == "moved" && file(*t.Now) != was:
		return file(*t.Now) + " (was " + was + ")"
	case t.Now.State == "moved", t.Now.State == "same":
		return was
	case t.Now.State == "outdated" && t.Now.Path != "":
		return fmt.Sprintf("%s (outdated; was %s in %s)", t.Now.Path, was, of)
	}
	return was + " (" + t.Now.State + "; see " + of + ")"
}
