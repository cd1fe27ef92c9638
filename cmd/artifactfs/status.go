package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/agents"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// statusCommand returns the command "status". With --watch the command runs until it receives a signal.
func statusCommand(a *cli.App) *cobra.Command {
	var watch interval
	cmd := &cobra.Command{
		Use:   "status [DIR]",
		Short: "Show the state of mounts",
		Long: `Status prints the state of the mount at DIR, or of all mounts: the mounted commit, how much of the tree is on this host,
the network traffic, the contents that are waited for, and the local changes. Without DIR, it also prints the state of
the daemon. DIR may be a directory inside a mount. Sessions that have changes but are not mounted are included; their
DIR is the directory where they were mounted last.

With --watch, status prints rates repeatedly until Ctrl-C. It redraws a terminal; to any other output it writes one line
for each mount. The columns:
  OPS/S         requests of the kernel per second
  WAIT          requests of the kernel that are not answered yet
  MISS/S        requests of the kernel per second that had to wait for the remote
  REQ/S RECV/S  requests to the remote, and bytes received from it, per second
  QUEUE         number of contents that a read waits for, plus number of contents queued in the background
  FETCHED       part of the tree's contents that is on this host
  PENDING       number of refs that are not on the session remote yet

If hooks of coding agents were installed in a mount (artifactfs agent), the lines "agents" print when each agent has run
them last. Hooks that have never fired record nothing: the line says what to do.

With --json, status prints {"mounts":[...],"daemon":{...},"cache":{...}}, or with DIR the object of that mount. With
--watch and --json it prints one such line at each interval.`,
		Example: `  artifactfs status
  artifactfs status git
  artifactfs status --watch
  artifactfs status git --json | jq .blobs`,
		Args: func(cmd *cobra.Command, args []string) error {
			return cli.Arguments(0, 1, "[DIR]")(cmd, watch.take(args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args = watch.take(args); watch > 0 {
				return watchStatus(cmd.Context(), a, args, time.Duration(watch))
			}
			return showStatus(cmd.Context(), a, args)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	cmd.Flags().Var(&watch, "watch", "print rates at this interval in `SECONDS` (2 if no number follows)")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2"
	return cmd
}

// showStatus prints the status of the mount that args names, or of all mounts and daemons. If a daemon does not reply,
// showStatus prints the status of the other daemons and then returns the error.
func showStatus(ctx context.Context, a *cli.App, args []string) error {
	all, asked := a.Survey(ctx)
	if len(args) > 0 {
		m, err := findAny(all.Mounts, asked, args[0])
		if err != nil {
			return err
		}
		states := agents.Look(a, []cli.Served{m})[0]
		if a.JSON {
			return cli.PrintJSON(a.Stdout, shownMount{m.MountStatus, states})
		}
		printStatus(a.Stdout, m.MountStatus, time.Now())
		printAgents(a.Stdout, states, time.Now())
		return nil
	}
	if a.JSON {
		if err := printAll(a.Stdout, all, agents.Look(a, all.Mounts)); err != nil {
			return err
		}
		return asked
	}
	states, now := agents.Look(a, all.Mounts), time.Now()
	for i, m := range all.Mounts {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		printStatus(a.Stdout, m.MountStatus, now)
		printAgents(a.Stdout, states[i], now)
	}
	if len(all.Mounts) == 0 && asked == nil {
		fmt.Fprintln(a.Stdout, "nothing is mounted")
	}
	for _, d := range all.Daemons {
		if d.PID != 0 {
			fmt.Fprintln(a.Stdout)
			printDaemon(a.Stdout, d, now)
		}
	}
	return asked
}

// findAny returns the mount that contains dir, or else the session that was last mounted at dir. If neither exists,
// findAny returns the error of cli.Find. The parameter asked is the error that the survey of the daemons has returned.
func findAny(all []cli.Served, asked error, dir string) (cli.Served, error) {
	m, err := cli.Find(all, asked, "status", dir)
	if err != nil {
		if session, ok := cli.FindUnmounted(all, dir); ok {
			return session, nil
		}
	}
	return m, err
}

// shownMount is the status of a mount in the output of --json.
type shownMount struct {
	control.MountStatus
	Agents []agents.AgentState `json:"agents,omitempty"` // agents whose hooks are installed in the mount or have fired
}

// printAll writes the status of all mounts of all daemons as one control.Status, with the states of the hooks in each
// mount. Its fields for the daemon and the cache have the values of the shared daemon, if that daemon is running.
func printAll(w io.Writer, all cli.Survey, states [][]agents.AgentState) error {
	var s struct {
		Mounts []shownMount `json:"mounts"` // replaces the field of control.Status
		control.Status
	}
	s.Mounts = make([]shownMount, len(all.Mounts))
	for i, m := range all.Mounts {
		s.Mounts[i] = shownMount{m.MountStatus, states[i]}
	}
	if len(all.Daemons) > 0 { // the shared daemon is first in the list
		s.Daemon, s.Cache = all.Daemons[0].DaemonStatus, all.Daemons[0].Cache
	}
	return cli.PrintJSON(w, s)
}

// printAgents writes a line for each agent whose hooks are installed in a mount, or have fired there.
func printAgents(w io.Writer, all []agents.AgentState, now time.Time) {
	for _, s := range all {
		text := s.Text(now)
		if s.Hint != "" {
			text += ": " + s.Hint
		}
		cli.PrintLine(w, "agents", "%s: %s", s.Agent, text)
	}
	if text := agents.Sharing(all, now); text != "" {
		cli.PrintLine(w, "agents", "%s", text)
	}
}

// printDaemon writes a block of lines about a daemon.
func printDaemon(w io.Writer, d cli.Serving, now time.Time) {
	fmt.Fprintln(w, "daemon")
	line := func(label, format string, args ...any) { cli.PrintLine(w, label, format, args...) }
	state := "serves " + cli.Plural(int64(d.Mounts), "mount")
	if !d.Since.IsZero() {
		state += ", for " + cli.Age(now.Sub(d.Since))
	}
	state += fmt.Sprintf(" (pid %d", d.PID)
	if d.Supervisor != 0 {
		state += fmt.Sprintf(", supervisor %d", d.Supervisor)
	}
	line("state", "%s)", state)
	if d.Takeovers > 0 {
		why := ""
		if d.Reason != "" {
			why = ", the last time because: " + d.Reason
		}
		line("takeover", "%s%s", cli.Plural(int64(d.Takeovers), "time"), why)
	}
	switch own := versionText(); {
	case d.Version != "" && d.Version != own:
		line("version", "%s; this program is %s (artifactfs daemon --upgrade)", d.Version, own)
	case d.Version != "":
		line("version", "%s", d.Version)
	}
	if d.UpgradeFailed != "" {
		line("upgrade", "undone: %s", d.UpgradeFailed)
	}
	if d.Cache.Quota > 0 {
		line("cache", "%s, %s of %s", cli.Plural(d.Cache.Blobs, "blob"), cli.BytesOf(d.Cache.Bytes),
			cli.BytesOf(d.Cache.Quota))
	}
}

// printStatus writes a block of lines about a mount, with the most important line first. It omits lines without
// information.
func printStatus(w io.Writer, m control.MountStatus, now time.Time) {
	fmt.Fprintln(w, m.Dir)
	line := func(label, format string, args ...any) { cli.PrintLine(w, label, format, args...) }
	state := []string{string(m.State)}
	if m.ReadOnly {
		state = append(state, "read-only")
	}
	if !m.Since.IsZero() {
		state = append(state, "for "+cli.Age(now.Sub(m.Since)))
	}
	if m.PID != 0 {
		state[len(state)-1] += fmt.Sprintf(" (pid %d)", m.PID)
	}
	line("state", "%s", strings.Join(state, ", "))
	for _, note := range m.Notes {
		line("note", "%s", note)
	}
	if m.Error != "" {
		line("error", "%s", m.Error)
	}
	for _, r := range m.Refused[:min(len(m.Refused), maxRefused)] {
		line("refused", "%s", refusedText(r, now))
	}
	if n := len(m.Refused) - maxRefused; n > 0 {
		line("refused", "and %s more (--json shows all)", cli.Count(int64(n)))
	}
	if m.State == control.StatePreparing {
		return // The daemon does not know yet the values that are printed below.
	}
	line("remote", "%s", m.Remote)
	line("ref", "%s", refAndCommit(m))
	if m.Head != "" && m.Head != m.Ref && m.Head != m.Commit {
		line("head", "%s", cli.HeadName(m.Head, m.Ref, m.Commit))
	}
	// No daemon serves such a mount, so the values that are printed below are unknown.
	if m.State == control.StateUnmounted || m.State == control.StateFailed {
		changedLines(m, now, line)
		return
	}
	if f := m.Follow; f != nil {
		line("follow", "%s", followText(*f, now))
	}
	line("history", "%s", historyText(m))
	files := cli.Plural(m.Tree.Files, "file")
	if !m.Tree.Complete {
		files += " so far"
	}
	line("tree", "%s", files)
	line("blobs", "%s of %s fetched%s, %s", cli.Count(m.Blobs.Fetched), cli.Count(m.Blobs.Total), share(m.Blobs),
		cli.BytesOf(m.Blobs.Bytes))
	n := m.Network
	line("network", "%s in %s, %s, %s received", cli.Plural(n.Requests, "request"), cli.Plural(n.RoundTrips, "round trip"),
		cli.Plural(n.Blobs, "blob"), cli.BytesOf(n.Bytes))
	if n.Relay != nil {
		line("relay", "%s", relayText(*n.Relay, now))
	}
	if m.Queue != (control.QueueStatus{}) {
		line("queue", "%s waited for, %s in the background", cli.Count(m.Queue.Foreground), cli.Count(m.Queue.Background))
	}
	if o := m.Operations; o.Pending > 0 {
		line("waiting", "%s not answered yet", cli.Plural(o.Pending, "request"))
	}
	changedLines(m, now, line)
	for _, r := range m.Redirects {
		arrow := "->"
		if !r.Active {
			arrow = "not yet ->"
		}
		line("redirect", "%s %s %s", r.Path, arrow, r.Target)
	}
}

// changedLines prints the lines about changes and the session.
func changedLines(m control.MountStatus, now time.Time, line func(label, format string, args ...any)) {
	switch {
	case m.Overlay.Changed < 0:
		line("changed", "unknown; run artifactfs doctor")
	case m.Overlay.Changed > 0:
		line("changed", "%s, %s", cli.Plural(m.Overlay.Changed, "path"), cli.BytesOf(m.Overlay.Bytes))
	}
	if m.Session.Name != "" {
		sessionLines(m.Session, now, line)
	}
}

// sessionLines prints the lines about the session, its checkpoints, and the state of its push.
func sessionLines(s control.SessionStatus, now time.Time, line func(label, format string, args ...any)) {
	what := s.Name
	if s.State != "" && s.State != string(session.Active) {
		what += ", " + s.State
	}
	if s.Lane != "" && s.Lane != session.MainLane {
		what += ", lane " + s.Lane
	}
	line("session", "%s", what)
	if s.Checkpoints > 0 {
		what := ""
		if s.LastCheckpointAt != nil {
			what = fmt.Sprintf("checkpoint %s, %s", s.LastCheckpoint, cli.Ago(*s.LastCheckpointAt, now))
			if s.Dirty {
				what += ", changed since"
			}
			what += "; "
		}
		line("latest", "%s%s", what, cli.Plural(s.Checkpoints, "checkpoint"))
	}
	if s.SessionRemote != "" {
		line("pushed", "%s", cli.PushedText(s, now))
	}
	if s.Sent+s.Received > 0 {
		line("traffic", "%s", cli.TrafficText(s))
	}
	if s.Error != "" {
		line("push", "%s", sentence(s.Error))
	}
	if s.Branches != "" && s.Branches != "{branch}" {
		line("branches", "%s on the session remote", s.Branches)
	}
	for _, d := range s.DivergedRefs {
		cause, hint := divergedText(d, s.SessionRemote)
		line("diverged", "%s; %s", cause, hint)
	}
}

// refAndCommit returns the mounted ref with its abbreviated commit.
func refAndCommit(m control.MountStatus) string {
	name := cli.RefName(m.Ref, m.Commit)
	if m.Ref == "" || m.Commit == "" {
		return name
	}
	return name + " at " + m.Commit[:min(12, len(m.Commit))]
}

// historyText returns the mount's history mode, and whether git can be used yet.
func historyText(m control.MountStatus) string {
	if m.GitReady {
		return string(m.History)
	}
	return string(m.History) + ", git is not ready yet"
}

// share returns the percentage of blobs that were fetched, rounded down so that 100 % means all.
func share(b control.BlobStatus) string {
	if b.Total == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d %%)", b.Fetched*100/b.Total)
}

// relayText describes how a remote is reached through a relay.
func relayText(r control.RelayStatus, now time.Time) string {
	text := fmt.Sprintf("%s, %s", r.URL, cli.Plural(r.Answers, "answer"))
	if r.FallThroughs > 0 {
		text += fmt.Sprintf(", %s sent to the git server instead", cli.Plural(r.FallThroughs, "request"))
	}
	if r.FailedAt != nil {
		text += fmt.Sprintf("; failed %s: %s", cli.Ago(*r.FailedAt, now), r.LastFailure)
	}
	if r.Paused {
		text += "; not used at the moment"
	}
	return text
}

// maxRefused is the maximum number of refused objects in a status text.
const maxRefused = 5

// refusedText describes a refused object and when it is requested again.
func refusedText(r control.RefusedObject, now time.Time) string {
	name := "history"
	switch {
	case r.Object != "" && r.Path != "":
		name = fmt.Sprintf("object %s (%s)", r.Object, r.Path)
	case r.Object != "":
		name = "object " + r.Object
	}
	if r.Next == nil {
		return fmt.Sprintf("%s: %s; not requested again (artifactfs prefetch retries)", name, r.Cause)
	}
	return fmt.Sprintf("%s: %s; requested again in %s", name, r.Cause, cli.Age(max(r.Next.Sub(now), 0)))
}

// followText describes the state of a mount that follows its branch.
func followText(f control.FollowStatus, now time.Time) string {
	text := cmp.Or(f.Tracking, f.Branch)
	if f.Commit == "" {
		return text
	}
	text += fmt.Sprintf(" at %.12s, checked %s ago", f.Commit, cli.Age(now.Sub(f.Checked)))
	if f.Why != "" {
		text += "; not moved: " + f.Why
	}
	return text
}
