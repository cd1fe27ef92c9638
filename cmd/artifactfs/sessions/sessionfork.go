package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
)

// forkOptions contains the flags of session fork.
type forkOptions struct {
	mounts.MountOptions
	// of is the parent session, as a name or a directory; "" means the session of the current directory.
	of   string
	head cli.HeadFlags
	// ignored is a value of control.Ignored, and without stands for control.IgnoredNone.
	ignored string
	without bool
	carry   []string
	leave   []string
}

// addCarryFlags adds the flags that state which ignored files are carried.
func (o *forkOptions) addCarryFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.ignored, "ignored", "",
		"`WHICH` ignored files the fork has: all, listed or none (default: those that\n"+
			".worktreeinclude names, or all without that file)")
	f.BoolVar(&o.without, "without-ignored", false, "the fork has no ignored files, as with --ignored none")
	f.StringArrayVar(&o.carry, "carry", nil,
		"`GLOB` of ignored files that the fork has in addition to those that\n.worktreeinclude names (repeatable)")
	f.StringArrayVar(&o.leave, "leave-out", nil, "`GLOB` of ignored files that the fork does not have (repeatable)")
	cmd.MarkFlagsMutuallyExclusive("ignored", "without-ignored")
}

// ignoredFiles returns the choice of the flags.
func (o *forkOptions) ignoredFiles() (control.Ignored, error) {
	if o.without {
		return control.IgnoredNone, nil
	}
	switch i := control.Ignored(o.ignored); i {
	case control.IgnoredDefault, control.IgnoredAll, control.IgnoredListed, control.IgnoredNone:
		return i, nil
	}
	return "", fmt.Errorf("--ignored %s is not possible: want all, listed or none", o.ignored)
}

// sessionForkCommand returns the command "session fork", which has the flags of mount except those that the checkpoint
// determines.
func sessionForkCommand(a *cli.App) *cobra.Command {
	var o forkOptions
	cmd := &cobra.Command{
		Use:   "fork [ID|SESSION[@ID]|LINK] DIR",
		Short: "Create a session from a checkpoint, and mount it",
		Long: `Fork creates a session from a checkpoint (files, index, HEAD, branches and stashes) and mounts it at DIR. Without ID,
fork makes a checkpoint of the present working tree and uses that; of a session that is not mounted, it uses the newest
checkpoint. No file is copied or downloaded. Afterwards the two sessions are independent. A fork of the present working
tree shows the times of its files.

If the session is mounted here, its fork also has the ignored files, such as dependencies, build products and secrets.
Both share their contents on the disk until one changes a file. They are in no checkpoint. If the file .worktreeinclude
exists in the root, the fork has only the ignored files that it names, in the syntax of .gitignore. --ignored, --carry
and --leave-out choose others.

To fork a session of another machine, pass the link that artifactfs session link has printed there, or SESSION[@ID] with
--session-remote URL. The session need not exist on this host, and the original session is not changed. Contents are
fetched when they are read. The transcript up to the checkpoint, and the notes, are copied. The new session has the same
session remote, unless --session-remote is given in addition to a link.

HEAD of the new session is where it was in the checkpoint. -b creates a branch at the same commit, and --detach detaches
HEAD there.

If the mount shows a checkpoint (--at), the fork starts from that checkpoint. --session names the new session. With
--read-only, no session is created: DIR shows the checkpoint. The other flags are those of artifactfs mount.`,
		Example: `  artifactfs session fork /tmp/try
  artifactfs session fork https://git.example.org/work.git#session=fix-login /tmp/try
  artifactfs session fork --session-remote https://git.example.org/work.git fix-login@before-rename /tmp/try
  artifactfs session fork @~3 /tmp/earlier --session try-again
  artifactfs session fork /tmp/fix -b fix-login
  for i in 1 2 3; do artifactfs session fork -C fix-login /tmp/try-$i; done`,
		Annotations: cli.FromEnvironment,
		Args:        cli.Arguments(1, 2, "[ID|SESSION[@ID]|LINK] DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionFork(a, cmd, o, args)
		},
		ValidArgsFunction: completeCheckpoints(a, &o.of, 1),
	}
	o.AddFlags(cmd)
	o.addCarryFlags(cmd)
	// The checkpoint determines the values of these flags, so remove them.
	for _, name := range []string{"ref", "at", "take-over"} {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err)
		}
	}
	o.head.Add(cmd)
	ofFlag(a, cmd, &o.of)
	cli.SetBrief(cmd,
		cli.Brief{Flags: []string{"of", "new-branch", "session", "session-remote", "read-only", "ignored", "redirect", "wait",
			"prefetch", "token-file", "session-token-file"}})
	return cmd
}

// sessionFork creates a session from a checkpoint, mounts it and prints the result. With --read-only it creates no
// session, and mounts the checkpoint itself.
func sessionFork(a *cli.App, cmd *cobra.Command, o forkOptions, args []string) error {
	for _, name := range []string{"ref", "at", "take-over"} {
		if cmd.Flags().Changed(name) {
			return cli.Usage(cmd, fmt.Errorf("--%s is not possible: the new session starts at the checkpoint ID", name))
		}
	}
	if o.Request.ReadOnly && o.Request.Session != "" {
		return cli.Usage(cmd, errors.New("--session and --read-only exclude each other: a read-only mount has no session"))
	}
	head, err := o.head.Head(cmd)
	if err != nil {
		return err
	}
	if o.Request.ReadOnly && head != nil {
		return cli.Usage(cmd, errors.New("--read-only shows the checkpoint: -b, -B and --detach are not possible"))
	}
	ignored, err := o.ignoredFiles()
	if err != nil {
		return cli.Usage(cmd, err)
	}
	// The last argument is always DIR.
	id, dir := "", args[len(args)-1]
	if len(args) > 1 {
		id = args[0]
	} else if cli.NamesCheckpoint(dir) {
		return cli.Usage(cmd, fmt.Errorf("DIR is missing: want [ID] DIR, and %s is a checkpoint", dir))
	}
	ctx := cmd.Context()
	w, id, err := workToFork(ctx, a, o, id)
	if err != nil {
		return err
	}
	origin := w.remote
	if w.remote == "" {
		if origin, err = originOf(ctx, a, w); err != nil {
			return cli.Failure("fork", w.name(), err)
		}
	} else {
		o.Request.SessionOptions.Remote = cmp.Or(o.Request.SessionOptions.Remote, w.remote)
		if a.Token == "" && o.Request.TokenFile == "" {
			if origin, err = hosting.MountedBy(ctx, a, w.remote, w.of); err != nil {
				return cli.Failure("fork", w.name(), err)
			}
			origin = cmp.Or(origin, w.remote)
		}
	}
	if err := o.Complete(cmd, []string{origin, dir}, a); err != nil {
		return err
	}
	if err := o.CompleteMemory(cmd); err != nil {
		return err
	}
	if w.remote != "" { // The session on the session remote determines which remote is mounted.
		o.Request.Remote = ""
	}
	start := time.Now()
	parent := ""
	if w.mount != nil {
		parent = w.mount.Dir
	}
	o.InheritMemory(ctx, parent)
	p := a.NewProgress()
	reply, err := w.client.Fork(ctx, control.ForkRequest{Of: w.of, SessionRemote: w.remote, ID: id, Mount: o.Request,
		Head: head, Ignored: ignored, Carry: o.carry, LeaveOut: o.leave}, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("fork", w.name(), err)
	}
	if reply.Session == "" {
		return printWork(a, "shows "+strings.TrimSpace("checkpoint "+id)+" of "+w.name(), reply, time.Since(start))
	}
	memory := o.CarryMemory(ctx, a, &reply)
	what := "forked session " + reply.Session
	if head != nil && head.Branch != "" {
		what += " on branch " + head.Branch
	}
	return errors.Join(printWork(a, what, reply, time.Since(start)), memory)
}

// workToFork finds the parent session of a fork, and the name of the checkpoint in that session. With --session-remote,
// a word that is not the name of a checkpoint is the name of a session on that remote, unless a session with this name
// is mounted on this host.
func workToFork(ctx context.Context, a *cli.App, o forkOptions, word string) (work, string, error) {
	_, link, err := cli.LinkIn("fork", word)
	if err != nil {
		return work{}, "", err
	}
	if link || word == "" || o.of != "" || cli.NamesCheckpoint(word) {
		return workAt(ctx, a, "fork", o.of, "", word)
	}
	name, checkpoint := sessionlink.Split(word)
	if name == "" {
		name, checkpoint = word, ""
	}
	switch far := o.Request.SessionOptions.Remote; far {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		if checkpoint != "" {
			return workAt(ctx, a, "fork", "", "", word)
		}
		// The word names a checkpoint of the session that is mounted at the current directory.
		if w, err := SessionOf(ctx, a, "fork", ""); err == nil {
			return w, word, nil
		}
		w, err := SessionOf(ctx, a, "fork", name)
		return w, "", err
	default:
		if w, err := SessionOf(ctx, a, "fork", name); err == nil && w.mount != nil && w.mount.Session.Name == name {
			return w, checkpoint, nil
		}
		return workAt(ctx, a, "fork", "", far, word)
	}
}

// originOf returns the mounted remote of a session.
func originOf(ctx context.Context, a *cli.App, w work) (string, error) {
	if w.mount != nil {
		return w.mount.Remote, nil
	}
	all, err := sessions(ctx, a)
	for _, s := range all {
		if s.Name == w.of {
			return s.Remote, nil
		}
	}
	return "", cmp.Or[error](err, noSession("fork", w.of))
}

// noSession returns the error for a name if no session has this name.
func noSession(verb, name string) *control.Error {
	return &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound, Verb: verb,
		Object: "session " + name, Cause: "no such session", Hint: "run artifactfs session list to see the sessions"}
}

// sessionResumeCommand returns the command "session resume", which has the flags of mount except those that the session
// determines.
func sessionResumeCommand(a *cli.App) *cobra.Command {
	var o mounts.MountOptions
	cmd := &cobra.Command{
		Use:   "resume SESSION|LINK [DIR] [--session-remote URL]",
		Short: "Mount a session again, on this or on another machine",
		Long: `Resume mounts SESSION at DIR, with the files, index, HEAD, branches and stashes of its newest checkpoint, and with an
unfinished merge or rebase. Contents are fetched when they are read. For a session of this state directory, the name is
enough, and the default of DIR is the directory where the session was mounted last. For a session of another machine,
add --session-remote, or pass the link that artifactfs session link has printed there. Resume uses the newest checkpoint
even if the link names an older one; artifactfs session fork starts from an older one.

Resume fails while another machine uses the session, or seems to use it: a machine that lost power could not release its
claim. --take-over resumes the session nevertheless. If the other machine still makes checkpoints, they are stored
separately, and nothing is lost. artifactfs session fork creates a copy instead.

The other flags are those of artifactfs mount. artifactfs mount REMOTE --session SESSION has the same effect.`,
		Example: `  artifactfs session resume fix-login
  artifactfs session resume fix-login /srv/fix --session-remote https://git.example.org/work.git
  artifactfs session resume https://git.example.org/work.git#session=fix-login /srv/fix
  artifactfs session resume fix-login fix --session-remote git@example.org:work.git --take-over`,
		Annotations: cli.FromEnvironment,
		Args:        cli.Arguments(1, 2, "SESSION|LINK [DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionResume(a, cmd, o, args)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	o.AddFlags(cmd)
	for _, name := range []string{"ref", "session", "at"} {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err)
		}
	}
	cli.SetBrief(cmd, cli.Brief{Flags: []string{"session-remote", "take-over", "read-only", "redirect", "wait", "prefetch",
		"token-file", "session-token-file"}})
	return cmd
}

// sessionResume mounts the session that the first argument names, and prints the result.
func sessionResume(a *cli.App, cmd *cobra.Command, o mounts.MountOptions, args []string) error {
	name := args[0]
	l, link, err := cli.LinkIn("resume", name)
	if err != nil {
		return err
	}
	if link {
		if cmd.Flags().Changed("session-remote") {
			return cli.Usage(cmd,
				errors.New("link and --session-remote exclude each other: the link already names the session remote"))
		}
		name, o.Request.SessionOptions.Remote = l.Session, l.Remote
	}
	if err := control.ValidSession(name); err != nil {
		return cli.Usage(cmd, errors.New(err.Cause))
	}
	for _, flag := range []string{"ref", "session", "at"} {
		if cmd.Flags().Changed(flag) {
			return cli.Usage(cmd, fmt.Errorf("--%s is not possible: the value is taken from the session", flag))
		}
	}
	if err := o.CompleteMemory(cmd); err != nil {
		return err
	}
	start := time.Now()
	reply, err := resumption{o, name, cli.First(args[1:])}.mount(a, cmd)
	if err != nil {
		return err
	}
	err = o.CarryMemory(cmd.Context(), a, &reply)
	return errors.Join(printWork(a, "resumed session "+reply.Session, reply, time.Since(start)), err)
}

// resumption names a session of this host or of a session remote, and how it is mounted.
type resumption struct {
	mounts.MountOptions
	session string
	// dir is the directory; "" means the session's last directory or, if that is unknown, a new directory with the
	// session's name.
	dir string
}

// mount mounts the session. If it is mounted on this host already, mount returns an error with a hint to fork the
// session. cmd is the command that has the flags of o.MountOptions.
func (o resumption) mount(a *cli.App, cmd *cobra.Command) (reply control.MountReply, err error) {
	ctx, name := cmd.Context(), o.session
	all, asked := sessions(ctx, a)
	known := control.SessionInfo{}
	for _, s := range all {
		if s.Name == name {
			known = s
		}
	}
	switch {
	case known.Mounted:
		return reply, &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "resume",
			Object: "session " + name, Cause: "session is mounted at " + known.Dir,
			Hint: "run artifactfs session fork -C " + name +
				" DIR to start another session from its state, or artifactfs unmount " +
				cli.ShellWord(known.Dir) + " to unmount it"}
	case known.Name == "" && o.Request.SessionOptions.Remote == "":
		return reply, cmp.Or(asked, error(&control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound,
			Verb: "resume", Object: "session " + name, Cause: "no such session on this host",
			Hint: "add --session-remote URL for a session elsewhere; artifactfs session list shows the sessions on this host"}))
	}
	o.Request.Session = name
	if err := o.Complete(cmd, []string{known.Remote, cmp.Or(o.dir, known.Dir, name)}, a); err != nil {
		return reply, err
	}
	p := a.NewProgress()
	reply, err = mounts.MountInBackground(ctx, a, o.Request, p.Show)
	p.Stop()
	if err != nil {
		return reply, cli.Failure("resume", "session "+name, err)
	}
	return reply, nil
}

// printWork prints the text in the parameter what, which describes the change to the session, and then the result of
// the mount.
func printWork(a *cli.App, what string, m control.MountReply, took time.Duration) error {
	if !a.JSON && !a.Quiet {
		if _, err := io.WriteString(a.Stdout, what+": "); err != nil {
			return cli.Printed(err)
		}
	}
	return cli.PrintMount(a, m, took)
}
