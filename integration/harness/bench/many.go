package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// The benchmarks -many measure how much memory an idle mount needs, how long one more mount takes, and whether mounts
// whose remotes do not answer slow down other mounts.

type manyOptions struct{ mounts, repos, hung, files int }

// manyFlags declares the flags that only the mode -many has. The result is reports whether the user has passed -many.
func manyFlags() (o *manyOptions, is *bool) {
	o = &manyOptions{}
	is = flag.Bool("many", false, "measure many mounts of one daemon")
	flag.IntVar(&o.mounts, "mounts", 200, "with -many: number of idle mounts")
	flag.IntVar(&o.repos, "repositories", 20, "with -many and -leak: number of repositories, which are mounted in turn")
	flag.IntVar(&o.hung, "hung", 10,
		"with -many: number of remotes that do not answer; the same number of remotes answers")
	flag.IntVar(&o.files, "many-files", 1000, "with -many and -leak: number of files of each repository")
	return o, is
}

// host is a daemon with mounts of many repositories, and the git server of these repositories.
type host struct {
	*bench
	server *gittest.Server
	state  string
	dirs   []string
	victim torture.Victim
	flags  []string // flags of the daemon
}

// host creates repositories with the given names, serves them, and starts a daemon with the given flags.
func (b *bench) host(files int, names []string, flags ...string) (*host, error) {
	root := filepath.Join(b.work, "hosted")
	h := &host{bench: b, state: filepath.Join(b.work, "many-state"), flags: flags}
	h.victim = torture.Victim{State: h.state, Command: "worker"}
	for i, name := range names {
		// the numbers of files differ, so that the trees differ
		if err := makeRepository(filepath.Join(root, name), files+i, 20); err != nil {
			return nil, err
		}
	}
	var err error
	if h.server, err = gittest.Serve(gittest.ServerOptions{Root: root, RTT: b.rtt, Cheap: true,
		Stderr: os.Stderr}); err != nil {
		return nil, err
	}
	h.server.Inject(gittest.Fault{Kind: gittest.NoObjectInfo})
	daemon := h.command(append([]string{"daemon"}, flags...)...)
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := os.Create(h.log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	daemon.Stderr = log
	if err := daemon.Start(); err != nil {
		h.server.Close()
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); !h.answers(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, errors.New("start daemon: no answer")
		}
	}
	go daemon.Wait()
	return h, nil
}

// answers reports whether the daemon answers requests.
func (h *host) answers() bool {
	var st struct{ Daemon struct{ PID int } }
	out, err := h.command("status", "--json").Output()
	return err == nil && json.Unmarshal(out, &st) == nil && st.Daemon.PID != 0
}

func (h *host) log() string { return filepath.Join(h.work, "daemon.log") }

// end unmounts everything and ends the daemon. If something failed, it prints the daemon's log.
func (h *host) end(failed *error) {
	err := *failed
	defer func() {
		if *failed = err; err != nil {
			for _, dir := range h.dirs { // mounts may remain after a failed unmount
				syscall.Unmount(dir, syscall.MNT_DETACH)
			}
			log, _ := os.ReadFile(h.log())
			log = regexp.MustCompile(`(?m)^\S+\sinfo\s.*\n`).ReplaceAll(log, nil)
			os.Stderr.Write(log[:min(len(log), 16<<10)])
		}
	}()
	if out, err2 := h.command("unmount", "--all").CombinedOutput(); err2 != nil {
		err = errors.Join(err, fmt.Errorf("unmount --all: %w: %.200s", err2, out))
	}
	if pid := h.victim.Supervisor(); pid != 0 {
		syscall.Kill(pid, syscall.SIGTERM)
	}
	for deadline := time.Now().Add(time.Minute); len(h.victim.Processes()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			err = errors.Join(err, fmt.Errorf("end daemon: processes still run: %v", h.victim.Processes()))
			return
		}
	}
	err = errors.Join(err, h.server.Close())
}

func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.bin, "artifactfs"), append(args, "--state", h.state)...)
	cmd.Dir, cmd.Env = h.work, gittest.Env()
	return cmd
}

// mount mounts a repository at a new directory.
func (h *host) mount(name string, flags ...string) (dir string, took time.Duration, err error) {
	dir = filepath.Join(h.work, fmt.Sprintf("m%d", len(h.dirs)))
	h.dirs = append(h.dirs, dir)
	start := time.Now()
	out, err := h.command(append([]string{"mount", h.server.URL(name), dir}, flags...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("mount %s: %w: %s", name, err, out)
	}
	return dir, time.Since(start), err
}

// quiet waits until no mount is fetching contents, trees or history.
func (h *host) quiet() error {
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		out, err := h.command("status", "--json").Output()
		if err != nil {
			return fmt.Errorf("read status: %w", err)
		}
		var st struct {
			Mounts []struct {
				History string
				Tree    struct{ Complete bool }
				Queue   map[string]any
			}
		}
		if err := json.Unmarshal(out, &st); err != nil {
			return fmt.Errorf("read status: %w", err)
		}
		busy := 0
		for _, m := range st.Mounts {
			waiting := false
			for _, n := range m.Queue {
				if f, is := n.(float64); is && f > 0 {
					waiting = true
				}
			}
			if waiting || !m.Tree.Complete || m.History == "deepening" {
				busy++
			}
		}
		if busy == 0 {
			return nil
		}
	}
	return errors.New("wait for mounts: still fetching")
}

// manies runs the benchmarks -many.
func (b *bench) manies(o manyOptions) (err error) {
	var names, live, hung []string
	for i := range o.repos {
		names = append(names, fmt.Sprintf("repo%d.git", i))
	}
	for i := range o.hung {
		live, hung = append(live, fmt.Sprintf("live%d.git", i)), append(hung, fmt.Sprintf("hung%d.git", i))
	}
	h, err := b.host(o.files, slices.Concat(names, live, hung))
	if err != nil {
		return err
	}
	defer h.end(&err)
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer table.Flush()
	if err := h.idle(table, o, names); err != nil {
		return err
	}
	return h.crosstalk(table, live, hung)
}

// idle measures the memory of idle mounts, and how long one more mount takes.
func (h *host) idle(table *tabwriter.Writer, o manyOptions, names []string) error {
	var before weight
	start := time.Now()
	for i := range o.mounts + len(names) {
		if i == len(names) { // every repository is mounted once now; the memory of further mounts is measured
			if err := h.quiet(); err != nil {
				return err
			}
			before, start = weigh(h.victim.Worker()), time.Now()
		}
		if _, _, err := h.mount(names[i%len(names)]); err != nil {
			return err
		}
	}
	each := time.Since(start) / time.Duration(o.mounts)
	if err := h.quiet(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	after := weigh(h.victim.Worker())
	fmt.Fprintf(table, "%d mounts of %d repositories\t%s each\n", o.mounts, len(names), seconds(each))
	fmt.Fprintf(table, "memory of the worker\t%.1f MiB, of %d mounts %.1f MiB\t%.2f MiB a mount (private: %.2f)\n",
		float64(after.rss)/(1<<20), len(names), float64(before.rss)/(1<<20),
		float64(after.rss-before.rss)/(1<<20)/float64(o.mounts),
		float64(after.private-before.private)/(1<<20)/float64(o.mounts))
	fmt.Fprintf(table, "descriptors, threads\t%d, %d\t%.1f descriptors a mount\n", after.descriptors, after.threads,
		float64(after.descriptors-before.descriptors)/float64(o.mounts))
	fmt.Fprintf(table, "supervisor\t%s\n", weigh(h.victim.Supervisor()))
	const look = 20 * time.Second
	worker, supervisor := cpu(h.victim.Worker()), cpu(h.victim.Supervisor())
	time.Sleep(look)
	fmt.Fprintf(table, "processor time at rest\tworker %.2f %%, supervisor %.2f %%\tof one processor, over %s\n",
		100*float64(cpu(h.victim.Worker())-worker)/float64(look),
		100*float64(cpu(h.victim.Supervisor())-supervisor)/float64(look), look)
	var times, lists []time.Duration
	for i := range 20 {
		dir, took, err := h.mount(names[i%len(names)])
		if err != nil {
			return err
		}
		ls, err := timed("ls", dir)
		if err != nil {
			return err
		}
		times, lists = append(times, took), append(lists, took+ls)
	}
	slices.Sort(times)
	slices.Sort(lists)
	fmt.Fprintf(table, "the next mount\t%s, longest of 20 %s\twith ls: %s, longest %s\n", seconds(percentile(times, 50)),
		seconds(times[len(times)-1]), seconds(percentile(lists, 50)), seconds(lists[len(lists)-1]))
	return table.Flush()
}

// cpu returns the processor time that a process has used.
func cpu(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	var user, system int64
	fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	return time.Duration(user+system) * 10 * time.Millisecond // the times are in units of 1/USER_HZ, and USER_HZ is 100
}

// crosstalk measures reads of files that are not fetched yet, in mounts whose remotes answer: first without other
// requests, and then while processes wait for remotes that do not answer.
func (h *host) crosstalk(table *tabwriter.Writer, live, hung []string) error {
	lazy := []string{"--prefetch", "none", "--history", "none", "--wait", "git"}
	dirs := map[string]string{}
	for _, name := range slices.Concat(live, hung) {
		dir, _, err := h.mount(name, lazy...)
		if err != nil {
			return err
		}
		dirs[name] = dir
	}
	read := func(from int) ([]time.Duration, error) {
		var times []time.Duration
		for i := range 10 * len(live) { // the files are far apart, because a read also fetches neighbours of a file
			name := live[i%len(live)]
			start := time.Now()
			if _, err := os.ReadFile(filepath.Join(dirs[name], filePath(25*(from+2*(i/len(live)))))); err != nil {
				return nil, err
			}
			times = append(times, time.Since(start))
		}
		slices.Sort(times)
		return times, nil
	}
	row := func(what string, times []time.Duration) {
		fmt.Fprintf(table, "%s\t%s\t99 %% %s\n", what, seconds(percentile(times, 50)), seconds(percentile(times, 99)))
	}
	well, err := read(0)
	if err != nil {
		return err
	}
	row("a cold read, all remotes well", well)
	fault := h.server.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch,
		Match: func(r gittest.Request) bool { return strings.Contains(r.Repo, "hung") }})
	defer fault.Remove()
	var waiting sync.WaitGroup
	failed := make(chan error, 8*len(hung))
	for _, name := range hung {
		for i := range 8 {
			waiting.Go(func() {
				if _, err := os.ReadFile(filepath.Join(dirs[name], filePath(25*i))); err != nil {
					failed <- err
				}
			})
		}
	}
	for deadline := time.Now().Add(time.Minute); fault.Hits() < len(hung); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("hang requests: only %d requests wait for an answer", fault.Hits())
		}
	}
	during, err := read(1)
	if err != nil {
		return err
	}
	row(fmt.Sprintf("while %d remotes hang, with %d readers", len(hung), 8*len(hung)), during)
	var mounts []time.Duration
	for i := range 10 {
		_, took, err := h.mount(live[i%len(live)], lazy...)
		if err != nil {
			return err
		}
		mounts = append(mounts, took)
	}
	slices.Sort(mounts)
	row("the next mount of a remote that is well", mounts)
	start := time.Now()
	if out, err := h.command("list").CombinedOutput(); err != nil {
		return fmt.Errorf("list: %w: %s", err, out)
	}
	fmt.Fprintf(table, "list of all mounts\t%s\n", seconds(time.Since(start)))
	fault.Remove()
	waiting.Wait()
	select {
	case err := <-failed:
		return fmt.Errorf("read from hung remote: %w", err)
	default:
		return table.Flush()
	}
}
