package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// sessionEraseCommand returns the command "session erase". It also erases the records in forks on this host.
func sessionEraseCommand(a *cli.App) *cobra.Command {
	var of, before, why string
	var records []string
	cmd := &cobra.Command{
		Use:   "erase [DIR|SESSION] --before TIME|--record ID",
		Short: "Erase records of a transcript permanently",
		Long: `Erase removes records from the transcript of a session: those that are older than TIME (30d, 14:05, 2025-11-22, as in
names of checkpoints), and those that --record names. It replaces each record by a tombstone, which contains the id of
the record, the time and author of the erasure, and the text of --why. From the memory of agents (--agent-memory), it
removes the lines that are older than TIME, and the whole conversation of each record that --record names. The agents'
own files stay. The objects that contained the records are deleted on this host. The next push replaces the transcript
on the session remote, which may keep the unreferenced objects until its own gc.

Forks of the session on this host lose the same records at once. The session remote stores which records were erased, so
that a fork on another machine erases them too: within 30 seconds if it is mounted, else at its next mount. A machine
that has mounted the session itself erases them before it pushes the next time. Checkpoints, commits, notes, facts and
the handoff are not changed.`,
		Example: `  artifactfs session erase --before 30d
  artifactfs session erase fix-login --record 01M80Q4Z50EZKC5YR3HTMPRYYQ --why 'a customer asked for it'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if before == "" && len(records) == 0 {
				return errors.New("want --before TIME or --record ID")
			}
			return atMostOne(cmd, args, of)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r := control.SessionEraseRequest{Records: records, Why: why}
			if before != "" {
				at, ok := session.ParseTime(before, time.Now())
				if !ok {
					return cli.Usage(cmd,
						fmt.Errorf("--before: invalid time %q; examples are 30d, 14:05, 2025-11-22 and a time as in RFC 3339", before))
				}
				r.Before = at.UTC()
			}
			return sessionErase(cmd.Context(), a, cmp.Or(of, cli.First(args)), r)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&before, "before", "", "erase records older than `TIME`")
	f.StringArrayVar(&records, "record", nil, "erase the record with this `ID`; may be repeated")
	f.StringVar(&why, "why", "", "`REASON` that is stored in the tombstone")
	ofFlag(a, cmd, &of)
	return cmd
}

// sessionErase erases records of a session and of its forks on this host, and prints the numbers.
func sessionErase(ctx context.Context, a *cli.App, of string, r control.SessionEraseRequest) error {
	w, err := SessionOf(ctx, a, "erase", of)
	if err != nil {
		return err
	}
	r.Of = w.of
	reply, err := w.client.SessionErase(ctx, r)
	if err != nil {
		return cli.Failure("erase", w.name(), err)
	}
	forks, err := eraseForks(ctx, a, reply.Session, r, reply.Erased)
	if a.JSON {
		if reply.Erased == nil {
			reply.Erased = []string{}
		}
		return errors.Join(cli.PrintJSON(a.Stdout, reply), err)
	}
	fmt.Fprintf(a.Stdout, "erased %s of session %s\n", erasedText(reply), reply.Session)
	for _, f := range forks {
		fmt.Fprintf(a.Stdout, "erased %s of its fork %s\n", erasedText(f), f.Session)
	}
	return err
}

// erasedText describes what was erased.
func erasedText(r control.SessionEraseReply) string {
	text := cli.Plural(int64(len(r.Erased)), "record")
	if r.Memory > 0 {
		text += " and " + cli.Plural(r.Memory, "line") + " of the agents' memory"
	}
	return text
}

// eraseForks erases the records that the request selects from all sessions on this host that were forked, directly or
// indirectly, from the session origin, but none that were made in these forks. erased contains the ids of those that
// origin had. It continues after an error.
func eraseForks(ctx context.Context, a *cli.App, origin string, r control.SessionEraseRequest,
	erased []string) (done []control.SessionEraseReply, err error) {
	all, err := sessions(ctx, a)
	if err != nil {
		return nil, err
	}
	from := map[string]bool{origin: true}
	// The list is not ordered by ancestry, so a fork of a fork may be found only in a later iteration of this loop.
	for again := true; again; {
		again = false
		for _, s := range all {
			parent, _, _ := strings.Cut(s.Parent, " ")
			if from[s.Name] || !from[parent] {
				continue
			}
			from[s.Name], again = true, true
			if !r.Before.IsZero() {
				r.Except = append(r.Except, s.Name)
			}
			w, e := SessionOf(ctx, a, "erase", s.Name)
			if e == nil {
				var reply control.SessionEraseReply
				r.Of = w.of
				reply, e = w.client.SessionErase(ctx, r)
				f := control.AsError(e)
				if f != nil && f.ErrorCode() == control.CodeUnsupported && len(erased) > 0 { // an earlier version has no memory
					reply, e = w.client.SessionErase(ctx, control.SessionEraseRequest{Of: w.of,
						Records: append(slices.Clone(r.Records), erased...), Why: r.Why})
				}
				if e == nil && int64(len(reply.Erased))+reply.Memory > 0 {
					done = append(done, reply)
				}
			}
			if e != nil {
				err = errors.Join(err, cli.Failure("erase", "session "+s.Name, e))
			}
		}
	}
	return done, err
}
