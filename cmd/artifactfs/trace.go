package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

const (
	// traceAgain is the time for which the command waits for a new worker to serve the mount after the previous worker has
	// ended.
	traceAgain = 10 * time.Second
	// tracePoll is the interval between attempts to connect to the new worker.
	tracePoll = 50 * time.Millisecond
)

// traceCommand returns the command "trace", which follows one mount until a signal or its unmount.
func traceCommand(a *cli.App) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "trace DIR",
		Short: "Print each read as it happens: process, path, source and duration",
		Long: `Trace prints a line for each read that reaches the mount at DIR, and for each other request that has to wait for the
remote. It runs until Ctrl-C or until the directory is unmounted. A line consists of the time, the process id and the
name of the process, the operation, the source of the data, the duration and the path. The sources:
  hit        everything was on this host
  fetched    contents were fetched from the remote; +N: with N other files in the same answer
  listed     directories were fetched from the remote
  sized      sizes of files were fetched from the remote
  converted  a filter program has converted the contents

The kernel answers reads from its page cache without a request to artifactfs, so a second read of a file usually does
not appear. Process 0 is the kernel itself, which writes changed pages back.

Trace never slows the mount down: if the output is read too slowly, events are dropped, and stderr states how many.
With --json, trace prints one object per line.`,
		Example: `  artifactfs trace git
  artifactfs trace git --json | jq -r 'select(.source == "fetched") | .path'`,
		Args: cli.Arguments(1, 1, "DIR"),
		RunE: func(cmd *cobra.Command,
			args []string) error {
			return printTrace(cmd.Context(), a, args[0], all)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	cmd.Flags().BoolVar(&all, "all", false, "print every request of the kernel, also those without a fetch")
	return cmd
}

// printTrace prints the events of the mount at dir until ctx ends or the mount is unmounted. It reconnects after a
// takeover. It fails if no worker serves the mount for traceAgain.
func printTrace(ctx context.Context, a *cli.App, dir string, all bool) error {
	m, err := a.Find(ctx, "trace", dir)
	if err != nil {
		return err
	}
	t := &follower{app: a, out: bufio.NewWriter(a.Stdout)}
	for {
		err := m.Client.Trace(ctx, control.TraceRequest{Dir: m.Dir, All: all}, t.show)
		switch {
		case ctx.Err() != nil, err == nil:
			return nil
		case t.pid != 0 && errors.Is(err, control.ErrNoServer):
			t.broken() // The connection was lost. Another worker may continue to serve the mount.
		case t.again.IsZero():
			return cli.Failure("trace", m.Dir, err)
		}
		if time.Now().After(t.again) {
			return cli.Failure("trace", m.Dir, err)
		}
		select {
		case <-time.After(tracePoll):
		case <-ctx.Done():
			return nil
		}
	}
}

// follower prints the trace streams of successive workers.
type follower struct {
	app *cli.App
	// out is the buffered standard output, which is flushed after each message.
	out   *bufio.Writer
	pid   int       // process ID of the worker that serves the mount; 0 if it is not known yet
	again time.Time // time until which the next worker is awaited; zero while a worker serves
}

// broken starts the wait for the next worker.
func (f *follower) broken() {
	if f.again.IsZero() {
		f.again = time.Now().Add(traceAgain)
		fmt.Fprintf(f.app.Stderr, "artifactfs: process %d, which served the mount, has exited\n", f.pid)
	}
}

// show prints the events of one message.
func (f *follower) show(t control.Trace) error {
	if f.pid != 0 && t.PID != f.pid {
		fmt.Fprintf(f.app.Stderr, "artifactfs: process %d has taken over the mount; events in between were missed\n", t.PID)
	}
	f.pid, f.again = t.PID, time.Time{}
	if t.Lost > 0 {
		fmt.Fprintf(f.app.Stderr, "artifactfs: %s lost, because the output was read too slowly\n",
			cli.Plural(t.Lost, "event"))
	}
	for _, e := range t.Events {
		var err error
		if f.app.JSON {
			err = cli.PrintJSON(f.out, e)
		} else {
			err = printEvent(f.out, e)
		}
		if err != nil {
			return err
		}
	}
	return cli.Printed(f.out.Flush())
}

// printEvent writes a line for one event. The path is the last column, because its length varies.
func printEvent(w io.Writer, e control.TraceEvent) error {
	command := e.Command
	if e.PID == 0 {
		command = "(kernel)"
	}
	how := string(e.Source)
	if e.Blobs > 1 {
		how += fmt.Sprintf(" +%d", e.Blobs-1)
	}
	path := e.Path
	if path == "" {
		path = "."
	}
	if e.To != "" {
		path += " -> " + e.To
	}
	if e.Offset > 0 {
		path += fmt.Sprintf(" at %s", cli.BytesOf(e.Offset))
	}
	if e.Error != "" {
		path += " (" + e.Error + ")"
	}
	line := fmt.Sprintf("%s %7d %-15s %-11s %-14s %10s  %s", e.Time.Local().Format("15:04:05.000"), e.PID,
		command, e.Op, how, waitText(e.Wait), path)
	_, err := fmt.Fprintln(w, cli.OneLine(line))
	return cli.Printed(err)
}

// waitText formats a number of microseconds.
func waitText(us int64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%d us", us)
	case us < 1000_000:
		return fmt.Sprintf("%.1f ms", float64(us)/1e3)
	}
	return fmt.Sprintf("%.2f s", float64(us)/1e6)
}
