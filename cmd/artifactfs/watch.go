package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/agents"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// leastInterval is the shortest interval of --watch. A shorter interval would be useless, because a daemon needs about
// this time to count the fetched files.
const leastInterval = 100 * time.Millisecond

// interval is the value of a flag for a number of seconds.
type interval time.Duration

// String implements pflag.Value.
func (i *interval) String() string {
	if *i == 0 {
		return ""
	}
	return strconv.FormatFloat(time.Duration(*i).Seconds(), 'g', -1, 64)
}

// Type implements pflag.Value.
func (i *interval) Type() string { return "SECONDS" }

// Set implements pflag.Value.
func (i *interval) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	d := time.Duration(n * float64(time.Second))
	if err != nil || !(n > 0) || n > 86400 {
		return errors.New("want a number of seconds")
	}
	if d < leastInterval {
		return fmt.Errorf("want at least %g", leastInterval.Seconds())
	}
	*i = interval(d)
	return nil
}

// take uses the first argument that is a number as the value of the flag, and returns the other arguments. It is needed
// because the value of --watch is optional: pflag parses "--watch 5" as a flag and a directory. An argument that is the
// path of an existing file is not used as a number.
func (i *interval) take(args []string) []string {
	for n, arg := range args {
		if *i == 0 {
			break
		}
		if _, err := os.Lstat(arg); err != nil && i.Set(arg) == nil {
			return slices.Delete(slices.Clone(args), n, n+1)
		}
	}
	return args
}

// watcher remembers the previous status of each mount, by directory, to compute rates. The zero watcher is ready to
// use.
type watcher struct {
	at     time.Time                      // time of the previous status
	before map[string]control.MountStatus // previous status of each mount, by directory
}

// watchStatus prints the status at the interval every until ctx ends. If the named mount is missing at first, the
// command ends with an error. Later errors are displayed and do not end the command, because a daemon may be
// restarting.
func watchStatus(ctx context.Context, a *cli.App, args []string, every time.Duration) error {
	screen := cli.IsTerminal(a.Stdout) && os.Getenv("TERM") != "dumb"
	var w watcher
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		all, asked := a.Survey(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if len(args) > 0 {
			m, err := findAny(all.Mounts, asked, args[0])
			if err != nil && first {
				return err
			}
			all.Mounts, asked = nil, err
			if err == nil {
				all.Mounts = []cli.Served{m}
			}
		}
		if err := showAll(a, &w, all, asked, first, screen); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// showAll prints the status once: as JSON, as a screen, or as lines.
func showAll(a *cli.App, w *watcher, all cli.Survey, asked error, first, screen bool) error {
	var b bytes.Buffer
	now := time.Now()
	switch {
	case a.JSON:
		if err := printAll(&b, all, agents.Look(a, all.Mounts)); err != nil {
			return err
		}
	case screen:
		var text bytes.Buffer
		w.head(&text, all, asked, now)
		w.table(&text, all.Mounts, now, true)
		overwrite(&b, a.Stdout, text.String())
	default:
		if asked != nil {
			cli.PrintError(a.Stderr, control.AsError(asked))
		}
		w.table(&b, all.Mounts, now, first)
	}
	_, err := a.Stdout.Write(b.Bytes())
	return cli.Printed(err)
}

// head writes the lines about all mounts and the daemons.
func (w *watcher) head(out io.Writer, all cli.Survey, asked error, now time.Time) {
	fmt.Fprintf(out, "artifactfs  %s  %s\n", now.Format("15:04:05"), cli.Plural(int64(len(all.Mounts)), "mount"))
	for _, d := range all.Daemons {
		if d.PID != 0 {
			printDaemon(out, d, now)
		}
	}
	if asked != nil {
		fmt.Fprintln(out, control.AsError(asked).Error())
	}
	fmt.Fprintln(out)
}

// table writes a line for each mount. The rates are averages since the previous call. After a takeover, the counters
// start at zero.
func (w *watcher) table(out io.Writer, mounts []cli.Served, now time.Time, header bool) {
	var t bytes.Buffer
	columns := tabwriter.NewWriter(&t, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(columns, "TIME\tOPS/S\tWAIT\tMISS/S\tREQ/S\tRECV/S\tQUEUE\tFETCHED\tCHANGED\tPENDING\tSTATE\t  DIR")
	before := map[string]control.MountStatus{}
	for _, m := range mounts {
		last, known := w.before[m.Dir]
		before[m.Dir] = m.MountStatus
		// The counters of a new worker start at 0, so compute the rates as if the previous values were 0.
		if known && last.PID != m.PID {
			last = control.MountStatus{}
		}
		rate := func(value func(control.MountStatus) int64, write func(int64) string) string {
			if seconds := now.Sub(w.at).Seconds(); known && m.Mounted() {
				return write(int64(float64(max(0, value(m.MountStatus)-value(last))) / seconds))
			}
			return "-"
		}
		hydrated := "-"
		if m.Blobs.Total > 0 {
			hydrated = fmt.Sprintf("%d %%", m.Blobs.Fetched*100/m.Blobs.Total)
		}
		pending := "-"
		if m.Session.SessionRemote != "" {
			pending = cli.Count(m.Session.Pending)
		}
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", now.Format("15:04:05"),
			rate(func(s control.MountStatus) int64 { return s.Operations.Total }, cli.Count), cli.Count(m.Operations.Pending),
			rate(func(s control.MountStatus) int64 { return s.Operations.Fetched }, cli.Count),
			rate(func(s control.MountStatus) int64 { return s.Network.Requests }, cli.Count),
			rate(func(s control.MountStatus) int64 { return s.Network.Bytes }, cli.BytesOf),
			cli.Count(m.Queue.Foreground)+"+"+cli.Count(m.Queue.Background), hydrated, cli.Count(m.Overlay.Changed),
			pending, m.State,
			cli.OneLine(m.Dir))
	}
	columns.Flush()
	w.at, w.before = now, before
	text := t.String()
	if !header {
		_, text, _ = strings.Cut(text, "\n")
	}
	io.WriteString(out, text)
}

// overwrite writes a text that fills the screen of a terminal.
func overwrite(out io.Writer, terminal *os.File, text string) {
	io.WriteString(out, "\x1b[H") // overwrite the screen, because clearing the screen first would make it flicker
	width, height := 0, 0
	if size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ); err == nil {
		width, height = int(size.Col), int(size.Row)
	}
	fit(out, text, width, height)
	io.WriteString(out, "\x1b[J")
}

// fit writes as much of text as the terminal can show. A longer or wider text would make the terminal scroll.
func fit(out io.Writer, text string, width, height int) {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if height > 2 && i == height-2 && len(lines) > height-1 {
			fmt.Fprintf(out, "... and %s more\x1b[K\n", cli.Plural(int64(len(lines)-i), "line"))
			return
		}
		line = strings.TrimSuffix(line, "\n")
		if r := []rune(line); width > 0 && len(r) > width {
			line = string(r[:width])
		}
		fmt.Fprintf(out, "%s\x1b[K\n", line)
	}
}
