package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
)

// setFlags holds the flags of "session set". A flag that is not on the command line changes nothing.
type setFlags struct {
	of, remote         string
	title, task, owner string
	ttl, hold          string
	tags               []string
	noHold             bool
}

// sessionSetCommand returns the command "session set".
func sessionSetCommand(a *cli.App) *cobra.Command {
	var o setFlags
	cmd := &cobra.Command{
		Use:   "set [SESSION] [FLAGS]",
		Short: "Set title, task, owner, tags, lifetime or hold of a session",
		Long: `Set describes what a session is for: a title of one line, a task of any length, the owner who answers for it, and tags.
session list and session show print them, and so does the page of artifactfs serve. Without flags, set prints them.

--ttl sets when the session expires. The retention of artifactfs serve closes expired sessions (artifactfs namespace
retention); nothing else happens to them.

--hold keeps a session, with a reason: it cannot be deleted or archived, session gc drops none of its checkpoints, and
session erase erases no record. artifactfs serve refuses such pushes, also those of stock git, and only owner and admin
tokens can release a hold there. --no-hold releases it.

SESSION is a name or a directory of a mount (default: the current directory), or a link URL#session=NAME. With
--session-remote URL, or with a link, the session is changed there, and need not be on this host.`,
		Example: `  artifactfs session set --title 'Fix the login' --task 'see issue 17' --owner alice --tag +login --tag -draft
  artifactfs session set fix-login --ttl 30d
  artifactfs session set fix-login --hold 'audit of March' --session-remote https://git.example.org/work.git
  artifactfs session set fix-login --no-hold`,
		Args: func(cmd *cobra.Command, args []string) error { return atMostOne(cmd, args, o.of) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.change(cmd)
			if err != nil {
				return cli.Usage(cmd, err)
			}
			return sessionDescribe(cmd.Context(), a, o, cli.First(args), c)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.title, "title", "", "set the title, `TEXT` of one line; '' removes it")
	f.StringVar(&o.task, "task", "", "set the task, `TEXT` of any length; - reads it from stdin, '' removes it")
	f.StringVar(&o.owner, "owner", "", "set the `USER` who answers for the session; '' removes the owner")
	f.StringArrayVar(&o.tags, "tag", nil, "add a tag (+TAG or `TAG`), or remove it (-TAG)")
	f.StringVar(&o.ttl, "ttl", "", "let the session expire after `AGE`, such as 30d; 0 means never")
	f.StringVar(&o.hold, "hold", "", "keep the session from being deleted, for this `REASON`")
	f.BoolVar(&o.noHold, "no-hold", false, "release the hold")
	cmd.MarkFlagsMutuallyExclusive("hold", "no-hold")
	ofFlag(a, cmd, &o.of)
	farFlag(a, cmd, &o.remote)
	return cmd
}

// change returns the change that the flags request, or nil if no flag requests one.
func (o setFlags) change(cmd *cobra.Command) (*profile.Change, error) {
	var c profile.Change
	set := func(flag string, value *string) *string {
		if !cmd.Flags().Changed(flag) {
			return nil
		}
		return value
	}
	if o.task == "-" {
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1<<20))
		if err != nil {
			return nil, fmt.Errorf("read task: %w", err)
		}
		o.task = strings.TrimSpace(string(text))
	}
	c.Title, c.Task, c.Owner, c.Hold = set("title", &o.title), set("task", &o.task), set("owner", &o.owner),
		set("hold", &o.hold)
	if c.Hold != nil && strings.TrimSpace(o.hold) == "" {
		return nil, errors.New("reason of the hold is empty: use --no-hold to release a hold")
	}
	if o.noHold {
		c.Hold = new(string)
	}
	for _, t := range o.tags {
		if name, ok := strings.CutPrefix(t, "-"); ok {
			c.DelTags = append(c.DelTags, name)
		} else {
			c.AddTags = append(c.AddTags, strings.TrimPrefix(t, "+"))
		}
	}
	if set("ttl", &o.ttl) != nil {
		var age cli.Days
		if err := age.Set(o.ttl); err != nil {
			return nil, fmt.Errorf("--ttl: %w", err)
		}
		if age == 1 { // Days stores a 0 from the command line as 1 ns.
			age = 0
		}
		c.TTL = new(time.Duration)
		*c.TTL = time.Duration(age)
	}
	if c.Title == nil && c.Task == nil && c.Owner == nil && c.Hold == nil && c.TTL == nil && len(o.tags) == 0 {
		return nil, nil
	}
	return &c, c.Validate()
}

// sessionDescribe changes the profile of a session if c is not nil, and prints the profile.
func sessionDescribe(ctx context.Context, a *cli.App, o setFlags, name string, c *profile.Change) error {
	w, err := lifeWork(ctx, a, "set", o.of, o.remote, name)
	if err != nil {
		return err
	}
	r := control.SessionSetRequest{Of: w.of, SessionRemote: w.at, Actor: session.Actor(), Profile: c}
	if c != nil && c.Hold != nil && *c.Hold == "" {
		if err := releaseThere(ctx, a, &r, w); err != nil {
			return cli.Failure("set", w.name(), err)
		}
	}
	info, err := w.client.SessionSet(ctx, r)
	if err != nil {
		return cli.Failure("set", w.name(), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, info)
	}
	fmt.Fprintln(a.Stdout, info.Name)
	printProfile(a.Stdout, info.Profile)
	return nil
}

// releaseThere prepares the release of a hold. A server (artifactfs serve) accepts the release only with a token for
// the REST API. If the request changes the session on its session remote, releaseThere adds this token to the request.
// Otherwise it releases the hold on the session remote at once, and the caller then releases it on this host.
func releaseThere(ctx context.Context, a *cli.App, r *control.SessionSetRequest, w work) (err error) {
	if w.remote != "" {
		r.SessionRemote, err = hosting.WithControlToken(ctx, a, w.remote)
		return err
	}
	all, err := sessions(ctx, a)
	i := slices.IndexFunc(all, func(s control.SessionInfo) bool { return s.Name == w.of || s.Mounted && s.Dir == w.of })
	if err != nil || i < 0 {
		return err
	}
	at, err := hosting.WithControlToken(ctx, a, all[i].SessionRemote)
	if err != nil || at == all[i].SessionRemote {
		return err // no token for the REST API of this remote is known
	}
	there := *r
	there.Of, there.SessionRemote = all[i].Name, at
	_, err = w.client.SessionSet(ctx, there)
	return err
}

// lifeWork returns the session that -C, --session-remote and the argument of a command select: a name, a directory of a
// mount, or a link.
func lifeWork(ctx context.Context, a *cli.App, verb, of, remote, name string) (work, error) {
	_, link, err := cli.LinkIn(verb, name)
	switch {
	case err != nil:
		return work{}, err
	case link, remote != "" && name != "":
		w, _, err := workAt(ctx, a, verb, of, remote, name)
		return w, err
	case remote != "":
		w, _, err := workAt(ctx, a, verb, of, remote, "")
		return w, err
	}
	return SessionOf(ctx, a, verb, of+name)
}

// printProfile prints those fields of a profile that are set.
func printProfile(out io.Writer, p profile.Profile) {
	line := func(label, text string) {
		if text != "" {
			cli.PrintLine(out, label, "%s", cli.OneLine(text))
		}
	}
	line("title", p.Title)
	line("owner", p.Owner)
	line("tags", strings.Join(p.Tags, ", "))
	line("task", p.Task)
	if !p.Expires.IsZero() {
		line("expires", p.Expires.Local().Format(time.DateTime))
	}
	if p.Held() {
		line("hold", fmt.Sprintf("%s (%s, %s)", p.Hold.Reason, p.Hold.By, p.Hold.Since.Local().Format(time.DateTime)))
	}
}

// filter selects sessions for a list.
type filter struct {
	owner string   // owner of the sessions; "": any owner
	tags  []string // tags that a session must have, all of them
}

func (f filter) apply(all []control.SessionInfo) []control.SessionInfo {
	return slices.DeleteFunc(all,
		func(s control.SessionInfo) bool { return f.owner != "" && s.Owner != f.owner || !s.Tagged(f.tags...) })
}

// titleColumns returns the columns with owner and title for a line of "session list". It returns "" if shown is false,
// because no session in the list has either.
func titleColumns(shown bool, owner, title string) string {
	if !shown {
		return ""
	}
	cell := func(text string) string {
		if text == "" {
			return "-"
		}
		return shortened(cli.OneLine(text))
	}
	return cell(owner) + "\t" + cell(title) + "\t"
}
