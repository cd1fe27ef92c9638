package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/daemons"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
)

// fleetWeight is the sum of the resources that the processes of all daemons use.
type fleetWeight struct {
	processes, threads, descriptors int
	pss, anonymous                  int64 // bytes; PSS divides shared pages among the processes that share them
	inotify                         int   // number of inotify instances; the processes of a daemon share one
	cpu                             time.Duration
	// number of voluntary context switches, which include each wake-up of an idle thread
	wakes      int64
	requests   int64 // number of requests to the git server
	operations int64 // number of requests of the kernel to the daemons
	span       time.Duration
}

// watch measures all processes at the end of the duration span. Counters in the result are the increase during this
// time.
func (f *fleet) watch(span time.Duration) (fleetWeight, error) {
	before, err := f.weigh()
	if err != nil {
		return before, err
	}
	began := time.Now()
	time.Sleep(span)
	took := time.Since(began)
	after, err := f.weigh()
	after.cpu -= before.cpu
	after.wakes -= before.wakes
	after.requests -= before.requests
	after.operations -= before.operations
	after.span = took
	return after, err
}

// weigh measures the resources that the processes of all daemons use now.
func (f *fleet) weigh() (w fleetWeight, err error) {
	w.requests = f.requests.Load()
	watching := map[string]bool{} // state directories of daemons with an inotify instance
	for _, p := range daemons.Below(f.work) {
		one := weigh(p.PID)
		w.processes++
		w.threads += one.threads
		w.descriptors += one.descriptors
		w.anonymous += one.private
		w.cpu += cpu(p.PID)
		w.pss += rollup(p.PID)
		w.wakes += wakes(p.PID)
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		for _, l := range links {
			if target, _ := os.Readlink(l); target == "anon_inode:inotify" {
				watching[p.State] = true
			}
		}
	}
	w.inotify = len(watching)
	for _, m := range f.members {
		n, err := m.operations()
		if err != nil {
			return w, err
		}
		w.operations += n
	}
	return w, nil
}

// rollup returns the proportional set size of a process in bytes.
func rollup(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return kibOf(string(text), "Pss:")
}

// kibOf returns the value of a line "NAME  N kB" in bytes.
func kibOf(text, name string) int64 {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// wakes returns the voluntary context switches of all threads of a process.
func wakes(pid int) (n int64) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, t := range threads {
		text, _ := os.ReadFile(t)
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				switches, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				n += switches
			}
		}
	}
	return n
}

// operations returns the number of requests of the kernel, which it reads from the metrics of a daemon.
func (m *member) operations() (int64, error) {
	client := &http.Client{Timeout: fleetAnswer, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", m.metrics())
		}}}
	r, err := client.Get("http://artifactfs/metrics")
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	all, err := metricstest.Parse(string(text))
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	n, _ := metricstest.Value(all, "artifactfs_operation_duration_seconds_count")
	return int64(n), nil
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// print writes the sums and the averages per daemon.
func (w fleetWeight) print(table *tabwriter.Writer, when string, daemons, mounts int) {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(table, "%d daemons, %d mounts, %s\t\tload %s\n", daemons, mounts, when,
		strings.Join(strings.Fields(string(load))[:3], " "))
	n := int64(max(1, daemons))
	fmt.Fprintf(table, "  memory (PSS)\t%s\t%s a daemon\n", mib(w.pss), mib(w.pss/n))
	fmt.Fprintf(table, "  anonymous memory\t%s\t%s a daemon\n", mib(w.anonymous), mib(w.anonymous/n))
	fmt.Fprintf(table, "  processes, threads\t%d, %d\t%.1f threads a daemon\n", w.processes, w.threads,
		float64(w.threads)/float64(n))
	fmt.Fprintf(table, "  descriptors\t%d\t%.1f a daemon\n", w.descriptors, float64(w.descriptors)/float64(n))
	fmt.Fprintf(table, "  processor time\t%.2f %% of a processor\t%.3f %% a daemon, over %s\n",
		100*w.cpu.Seconds()/w.span.Seconds(),
		100*w.cpu.Seconds()/w.span.Seconds()/float64(n), w.span.Round(time.Second))
	fmt.Fprintf(table, "  wake-ups\t%.0f a second\t%.2f a daemon\n", float64(w.wakes)/w.span.Seconds(),
		float64(w.wakes)/w.span.Seconds()/float64(n))
	fmt.Fprintf(table, "  requests to the git server, of the kernel\t%.1f, %.1f a second\t\n",
		float64(w.requests)/w.span.Seconds(), float64(w.operations)/w.span.Seconds())
}

// since returns w minus before, field by field.
func (w fleetWeight) since(before fleetWeight) fleetWeight {
	w.threads -= before.threads
	w.descriptors -= before.descriptors
	w.pss -= before.pss
	w.anonymous -= before.anonymous
	w.processes -= before.processes
	return w
}

// printEach writes the averages per mount. The resources of spare workers, which start with the first mount, are
// included.
func (w fleetWeight) printEach(table *tabwriter.Writer, mounts int) {
	n := float64(max(1, mounts))
	fmt.Fprintf(table,
		"  a mount (with its part of the spare worker)\tPSS %.2f MiB, anonymous %.2f MiB\t%.1f descriptors, %.1f threads\n",
		float64(w.pss)/n/(1<<20), float64(w.anonymous)/n/(1<<20), float64(w.descriptors)/n, float64(w.threads)/n)
}

// kernelMemory is memory of the kernel, in bytes, that belongs to no process.
type kernelMemory struct{ slab, stacks, tables int64 }

func readKernel() kernelMemory {
	text, _ := os.ReadFile("/proc/meminfo")
	return kernelMemory{kibOf(string(text), "Slab:"), kibOf(string(text), "KernelStack:"),
		kibOf(string(text), "PageTables:")}
}

func (k kernelMemory) since(before kernelMemory) kernelMemory {
	return kernelMemory{k.slab - before.slab, k.stacks - before.stacks, k.tables - before.tables}
}

func (k kernelMemory) print(table *tabwriter.Writer, mounts int) {
	fmt.Fprintf(table,
		"  memory of the kernel, of the whole machine\tslab %s, stacks %s, page tables %s\t%.2f MiB a mount\n", mib(k.slab),
		mib(k.stacks),
		mib(k.tables), float64(k.slab+k.stacks+k.tables)/float64(max(1, mounts))/(1<<20))
}

// printLimits writes the limits of the machine, and how much of each limit the daemons use.
func (f *fleet) printLimits(table *tabwriter.Writer) {
	w, err := f.weigh()
	if err != nil {
		return
	}
	value := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return "unknown"
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
	most := weight{}
	for _, p := range daemons.Below(f.work) {
		if one := weigh(p.PID); one.descriptors > most.descriptors {
			most = one
		}
	}
	fmt.Fprintf(table, "limits\tused by the fleet\tlimit\n")
	for _, l := range []struct {
		what, used, path string
	}{
		{"inotify instances of a user", strconv.Itoa(w.inotify), "/proc/sys/fs/inotify/max_user_instances"},
		{"processes and threads", strconv.Itoa(w.threads), "/proc/sys/kernel/threads-max"},
		{"process ids", strconv.Itoa(w.threads), "/proc/sys/kernel/pid_max"},
		{"open files of the machine", value("/proc/sys/fs/file-nr"), "/proc/sys/fs/file-max"},
		{"descriptors of a process", strconv.Itoa(most.descriptors), "/proc/sys/fs/nr_open"},
		{"mounts of a namespace", strconv.Itoa(f.mounts()), "/proc/sys/fs/mount-max"},
		{"memory maps of a process", "", "/proc/sys/vm/max_map_count"},
	} {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", l.what, l.used, value(l.path))
	}
}

// end ends all daemons.
func (f *fleet) end() error { return daemons.End(f.work) }
