package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/object"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [DIR]",
		Short: "Tell how mounts are doing",
		Long: `Status tells of the mount at DIR, or of all: what is mounted, how much of it is on this host, what went over the
network, what is still wanted, and what was changed. DIR may also be a directory inside a mount. Sessions whose work is
kept while they are not mounted are told of, too; DIR is then where they were mounted last.

With --json it prints {"mounts":[...]}, or with DIR that one mount's object.`,
		Example: `  artifactfs status
  artifactfs status git
  artifactfs status git --json | jq .blobs`,
		Args:              arguments(0, 1, "[DIR]"),
		RunE:              func(cmd *cobra.Command, args []string) error { return a.status(cmd.Context(), args) },
		ValidArgsFunction: a.completeMounts(1),
	}
}

func (a *app) status(ctx context.Context, args []string) error {
	all, asked := a.mounts(ctx)
	if len(args) > 0 {
		m, err := find(all, asked, "status", args[0])
		if err != nil {
			kept, ok := findKept(all, args[0])
			if !ok {
				return err
			}
			m = kept
		}
		if a.json {
			return printJSON(a.stdout, m.MountStatus)
		}
		printStatus(a.stdout, m.MountStatus, time.Now())
		return nil
	}
	if a.json {
		if err := printAll(a.stdout, all); err != nil {
			return err
		}
		return asked
	}
	for i, m := range all {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		printStatus(a.stdout, m.MountStatus, time.Now())
	}
	if len(all) == 0 && asked == nil {
		fmt.Fprintln(a.stdout, "nothing is mounted")
	}
	return asked
}

// printAll writes the status of all mounts, whichever process serves them, as one control.Status.
func printAll(w io.Writer, all []served) error {
	s := control.Status{Mounts: make([]control.MountStatus, len(all))}
	for i, m := range all {
		s.Mounts[i] = m.MountStatus
	}
	return printJSON(w, s)
}

// printStatus writes a block for people: what matters first, and nothing that says nothing.
func printStatus(w io.Writer, m control.MountStatus, now time.Time) {
	fmt.Fprintln(w, m.Dir)
	line := func(label, format string, args ...any) {
		fmt.Fprintf(w, "  %-8s  %s\n", label, (&control.Error{Cause: fmt.Sprintf(format, args...)}).Error())
	}
	state := []string{string(m.State)}
	if m.ReadOnly {
		state = append(state, "read-only")
	}
	if !m.Since.IsZero() {
		state = append(state, "for "+age(now.Sub(m.Since)))
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
	if m.State == control.StatePreparing {
		return // nothing else is known yet
	}
	line("remote", "%s", m.Remote)
	line("ref", "%s", refAndCommit(m))
	if m.Head != "" && m.Head != m.Ref && m.Head != m.Commit {
		head := m.Head
		if _, err := object.ParseID(head); err == nil {
			head = refName("", head)
		}
		line("head", "%s", head)
	}
	if m.State == control.StateUnmounted {
		changedLines(m, line)
		return
	}
	line("history", "%s", historyText(m))
	files := plural(m.Tree.Files, "file")
	if !m.Tree.Complete {
		files += " so far"
	}
	line("tree", "%s", files)
	line("blobs", "%s of %s hydrated%s, %s", count(m.Blobs.Hydrated), count(m.Blobs.Total), share(m.Blobs), bytesOf(m.Blobs.Bytes))
	n := m.Network
	line("network", "%s in %s, %s, %s received", plural(n.Requests, "request"), plural(n.RoundTrips, "round trip"), plural(n.Blobs, "blob"), bytesOf(n.Bytes))
	if m.Queue != (control.QueueStatus{}) {
		line("queue", "%s waited for, %s in the background", count(m.Queue.Foreground), count(m.Queue.Background))
	}
	changedLines(m, line)
	for _, r := range m.Redirects {
		arrow := "->"
		if !r.Active {
			arrow = "not yet ->"
		}
		line("redirect", "%s %s %s", r.Path, arrow, r.Target)
	}
}

// changedLines tell of the work.
func changedLines(m control.MountStatus, line func(label, format string, args ...any)) {
	switch {
	case m.Overlay.Changed < 0:
		line("changed", "cannot be told; artifactfs doctor tells more")
	case m.Overlay.Changed > 0:
		line("changed", "%s, %s", plural(m.Overlay.Changed, "path"), bytesOf(m.Overlay.Bytes))
	}
	switch s := m.Session; {
	case s.Name != "" && s.Remote != "":
		line("session", "%s on %s, %d pending", s.Name, s.Remote, s.Pending)
	case s.Name != "":
		line("session", "%s", s.Name)
	}
}

func refAndCommit(m control.MountStatus) string {
	name := refName(m.Ref, m.Commit)
	if m.Ref == "" || m.Commit == "" {
		return name
	}
	return name + " at " + m.Commit[:min(12, len(m.Commit))]
}

func historyText(m control.MountStatus) string {
	if m.GitReady {
		return string(m.History)
	}
	return string(m.History) + ", git is not ready yet"
}

// share is how much of the blobs is here, never rounded up to everything.
func share(b control.BlobStatus) string {
	if b.Total == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d %%)", b.Hydrated*100/b.Total)
}
