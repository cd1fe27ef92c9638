package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
)

// longPending is the time after which a session with refs that are not pushed counts as a problem, so that its host is
// listed first. The alert ArtifactfsSessionNotPushed uses the same time.
const longPending = 5 * time.Minute

// topOptions holds the flags of the command "top".
type topOptions struct {
	hosts     string
	allHosts  bool
	tokenFile string
	every     interval
	once      bool
}

// topCommand returns the command "top".
func topCommand(a *cli.App) *cobra.Command {
	o := topOptions{every: interval(2 * time.Second)}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the mounts of this host, or of many hosts, live",
		Long: `Top shows the mounts of this host, as status --watch does: what programs request, what is fetched, and what is not
pushed.

With --hosts or --all-hosts, it shows a line for each host, and reads the metrics that the daemons there serve (daemon
--metrics). LIST has items separated by commas:
  HOST:PORT        a daemon with daemon --metrics HOST:PORT
  FILE             a file whose path has a slash or ends in .json: [{"targets": ["HOST:PORT", ...]}, ...], as
                   Prometheus reads it (file_sd_configs)
  dns:NAME:PORT    every address of a name, such as that of a headless service of Kubernetes
  srv:NAME         every target of an SRV record
  unix:PATH        a daemon of this host with daemon --metrics unix:PATH
The list is read again at each interval. Hosts that do not answer come first, then those with failed or degraded mounts,
and those with work that has not been pushed for 5 minutes. The columns:
  OPS/S         requests of the kernel per second
  HIT           part of these requests that needed no remote
  REQ/S RECV/S  requests to remotes, and bytes received from them, per second
  PENDING       sessions with refs that are not on the session remote yet, and the longest time for which this is so
  ERRORS        requests of programs that failed because of the host or the remote, since the daemon's worker started
  MEMORY CPU    of the daemon's worker

Top redraws a terminal; to any other output it writes lines at each interval. With --json, it prints one object at each
interval: {"hosts":[...]}, or the same as status --json without --hosts. With --once, it prints one interval and ends;
the exit code is 1 if a host does not answer.`,
		Example: `  artifactfs top
  artifactfs top --hosts 10.0.0.1:9464,10.0.0.2:9464 --metrics-token-file token
  artifactfs top --hosts dns:artifactfs.example.svc.cluster.local:9464 --once --json`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.allHosts:
				list, err := hosts.DefaultList()
				if err != nil {
					return &control.Error{
						Code: control.ExitUsage, Verb: "top", Cause: err.Error(), Hint: "name the hosts: artifactfs top --hosts LIST",
					}
				}
				o.hosts = list
			case o.hosts == "" && o.tokenFile != "":
				return cli.Usage(cmd, errors.New("--metrics-token-file needs --hosts or --all-hosts"))
			case o.hosts == "":
				return watchMounts(cmd.Context(), a, time.Duration(o.every), o.once)
			}
			return topHosts(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.hosts, "hosts", "", "show these hosts, a `LIST` of addresses, files and names")
	f.BoolVar(&o.allHosts, "all-hosts", false,
		"show the hosts in artifactfs/hosts.json in the user's configuration directory,\nelse in /etc/artifactfs/hosts.json")
	f.StringVar(&o.tokenFile, "metrics-token-file", "", "send the token in `FILE` to the hosts")
	f.Var(&o.every, "interval", "refresh at this interval in `SECONDS` (default: 2)")
	f.Lookup("interval").DefValue = ""
	f.BoolVar(&o.once, "once", false, "print one interval and end")
	cmd.MarkFlagsMutuallyExclusive("hosts", "all-hosts")
	return cmd
}

// watchMounts shows the mounts of this host until ctx ends or, if once is set, one time.
func watchMounts(ctx context.Context, a *cli.App, every time.Duration, once bool) error {
	if !once {
		return watchStatus(ctx, a, nil, every)
	}
	var w watcher
	all, asked := a.Survey(ctx)
	if !a.JSON { // Rates need two samples, so take the first one now.
		w.table(io.Discard, all.Mounts, time.Now(), false)
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return nil
		}
		all, asked = a.Survey(ctx)
	}
	return errors.Join(showAll(a, &w, all, nil, true, false), asked)
}

// topHosts shows a line for each host until ctx ends.
func topHosts(ctx context.Context, a *cli.App, o topOptions) error {
	var s hosts.Sampler
	screen := cli.IsTerminal(a.Stdout) && os.Getenv("TERM") != "dumb" && !o.once
	tick := time.NewTicker(time.Duration(o.every))
	defer tick.Stop()
	for first := true; ; first = false {
		targets, err := hosts.Resolve(ctx, o.hosts)
		if err == nil && o.tokenFile != "" {
			// Read the token each time, because the file may be replaced while top runs.
			s.Token, err = tokenfile.New(o.tokenFile).Token(nil)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			e := &control.Error{Code: control.ExitFailed, Verb: "top", Cause: err.Error()}
			if first || o.once {
				return e
			}
			cli.PrintError(a.Stderr, e) // Continue: the name server may answer at the next attempt.
		} else {
			all := s.Sample(ctx, targets)
			if ctx.Err() != nil {
				return nil
			}
			// The first sample has no rates, so with --once it is not shown.
			if !o.once || !first {
				if err := printHosts(a, all, screen, first || o.once); err != nil {
					return err
				}
			}
			if o.once && !first {
				return unanswered(all)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// unanswered returns an error if at least one host did not answer.
func unanswered(all []hosts.Host) error {
	down := 0
	for _, h := range all {
		if !h.Up {
			down++
		}
	}
	if down == 0 {
		return nil
	}
	return &control.Error{
		Code: control.ExitFailed, Verb: "top",
		Cause: fmt.Sprintf("%d of %s did not answer", down, cli.Plural(int64(len(all)), "host")),
		Hint:  "artifactfs daemon --metrics ADDRESS serves the metrics of a host",
	}
}

// printHosts prints the hosts once: as JSON, as a screen, or as lines.
func printHosts(a *cli.App, all []hosts.Host, screen, header bool) error {
	var b bytes.Buffer
	now := time.Now()
	switch {
	case a.JSON:
		if err := cli.PrintJSON(&b, struct {
			Hosts []hosts.Host `json:"hosts"`
		}{all}); err != nil {
			return err
		}
	case screen:
		var text bytes.Buffer
		hostsHead(&text, all, now)
		hostsTable(&text, all, now, true)
		overwrite(&b, a.Stdout, text.String())
	default:
		hostsTable(&b, all, now, header)
	}
	_, err := a.Stdout.Write(b.Bytes())
	return cli.Printed(err)
}

// hostsHead writes the sums over all hosts.
func hostsHead(out io.Writer, all []hosts.Host, now time.Time) {
	var up, mounts, degraded, failed, pending int64
	for _, h := range all {
		if h.Up {
			up++
		}
		mounts, degraded, failed, pending = mounts+h.Mounts, degraded+h.Degraded, failed+h.Failed, pending+h.PendingSessions
	}
	fmt.Fprintf(out, "artifactfs  %s  %d of %s answer, %s, %d degraded, %d failed, %s not pushed\n\n",
		now.Format("15:04:05"), up,
		cli.Plural(int64(len(all)), "host"), cli.Plural(mounts, "mount"), degraded, failed, cli.Plural(pending, "session"))
}

// urgency returns the position of a host in the list: 0 for the hosts that need attention most, and a higher number for
// others.
func urgency(h hosts.Host) int {
	switch {
	case !h.Up:
		return 0
	case h.Failed > 0:
		return 1
	case h.Degraded > 0:
		return 2
	case h.PendingSeconds >= longPending.Seconds():
		return 3
	}
	return 4
}

// hostsTable writes a line for each host, beginning with those that need attention.
func hostsTable(out io.Writer, all []hosts.Host, now time.Time, header bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y hosts.Host) int { return cmp.Compare(urgency(x), urgency(y)) })
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer columns.Flush()
	if header {
		fmt.Fprintln(columns,
			"TIME\tMOUNTS\tDEGRADED\tFAILED\tOPS/S\tHIT\tREQ/S\tRECV/S\tPENDING\tERRORS\tMEMORY\tCPU\t  HOST")
	}
	for _, h := range all {
		name := cli.OneLine(h.Target)
		if !h.Up {
			fmt.Fprintf(columns, "%s\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t  %s: %s\n", now.Format("15:04:05"), name,
				cli.OneLine(h.Error))
			continue
		}
		requests, hit, remote, received, processor := "-", "-", "-", "-", "-"
		if r := h.Rates; r != nil {
			requests, remote = cli.Count(int64(r.Requests)), cli.Count(int64(r.RemoteRequests))
			received = cli.BytesOf(int64(r.ReceivedBytes))
			processor = fmt.Sprintf("%.1f %%", 100*r.Processor)
			if r.Hits != nil {
				hit = fmt.Sprintf("%.1f %%", 100**r.Hits)
			}
		}
		pending := cli.Count(h.PendingSessions)
		if h.PendingSeconds >= 1 {
			pending += " " + cli.Age(time.Duration(h.PendingSeconds)*time.Second)
		}
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", now.Format("15:04:05"),
			cli.Count(h.Mounts), cli.Count(h.Degraded), cli.Count(h.Failed), requests, hit, remote, received,
			pending, cli.Count(h.Errors), cli.BytesOf(h.MemoryBytes), processor, name)
	}
}
