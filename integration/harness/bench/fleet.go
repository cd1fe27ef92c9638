package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The benchmark -fleet starts many daemons on one machine, each with its own state directory, as if each daemon were on
// the host of some sandboxes. It measures the resources of the daemons without mounts, with idle mounts, and while some
// mounts are used.

type fleetOptions struct {
	daemons, each, active, repos, files int
	rest, work, pause                   time.Duration
}

// fleetFlags declares the flags that only the mode -fleet has. The result is reports whether the user has passed
// -fleet.
func fleetFlags() (o *fleetOptions, is *bool) {
	o = &fleetOptions{}
	is = flag.Bool("fleet", false, "measure many daemons with a few mounts each")
	flag.IntVar(&o.daemons, "daemons", 100, "with -fleet: number of daemons")
	flag.IntVar(&o.each, "mounts-each", 10, "with -fleet: number of mounts of each daemon")
	flag.IntVar(&o.active, "active", 50, "with -fleet: number of used mounts, each of a different daemon")
	flag.IntVar(&o.repos, "fleet-repositories", 10, "with -fleet: number of repositories, which are mounted in turn")
	flag.IntVar(&o.files, "fleet-files", 1000, "with -fleet: number of files of each repository")
	flag.DurationVar(&o.rest, "at-rest", time.Minute, "with -fleet: time during which idle daemons are measured")
	flag.DurationVar(&o.work, "at-work", time.Minute, "with -fleet: time during which mounts are used")
	flag.DurationVar(&o.pause, "every", 5*time.Second, "with -fleet: interval at which a mount is used")
	return o, is
}

const (
	fleetStarts  = 4                // number of daemons or mounts that are started at the same time
	fleetAnswer  = time.Minute      // timeout for a daemon to answer
	fleetSettled = 20 * time.Minute // timeout for all mounts to become idle
)

// fleet holds the daemons of the benchmark and the git server that they use.
type fleet struct {
	*bench
	o        fleetOptions
	server   *gittest.Server
	requests atomic.Int64 // requests that the git server has received
	members  []*member
}

// member is one daemon of the fleet.
type member struct {
	state string
	dirs  []string // mount points of the daemon
}

// fleets runs the benchmark -fleet.
func (b *bench) fleets(o fleetOptions) (err error) {
	f := &fleet{bench: b, o: o}
	root := filepath.Join(b.work, "fleet")
	for i := range o.repos {
		if err := makeRepository(filepath.Join(root, f.repo(i)), o.files+i, 20); err != nil {
			return err
		}
	}
	f.server, err = gittest.Serve(gittest.ServerOptions{
		Root: root, RTT: b.rtt, Cheap: true, Stderr: os.Stderr, Each: func(gittest.Request) { f.requests.Add(1) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.server.Close()) }()
	f.server.Inject(gittest.Fault{Kind: gittest.NoObjectInfo})
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	defer table.Flush()
	kernel := readKernel()
	start := time.Now()
	if err := f.start(); err != nil {
		return err
	}
	fmt.Fprintf(table, "%d daemons started\t%s\n", o.daemons, seconds(time.Since(start)))
	empty, err := f.watch(min(o.rest, 30*time.Second))
	if err != nil {
		return err
	}
	empty.print(table, "without mounts", o.daemons, 0)

	start = time.Now()
	if err := f.mountAll(); err != nil {
		return err
	}
	fmt.Fprintf(table, "%d mounts\t%s, %d at the same time\n", f.mounts(), seconds(time.Since(start)), fleetStarts)
	if err := f.settle(); err != nil {
		return err
	}
	fmt.Fprintf(table, "until they are idle\t%s\t%d requests to the git server\n", seconds(time.Since(start)),
		f.requests.Load())
	rest, err := f.watch(o.rest)
	if err != nil {
		return err
	}
	rest.print(table, "at rest", o.daemons, f.mounts())
	rest.since(empty).printEach(table, f.mounts())
	readKernel().since(kernel).print(table, f.mounts())
	f.printLimits(table)
	table.Flush()

	used := make(chan error, 1)
	var load fleetLoad
	ctx, cancel := context.WithTimeout(context.Background(), o.work+o.pause)
	defer cancel()
	go func() { used <- f.use(ctx, &load) }()
	work, err := f.watch(o.work)
	cancel()
	if err = errors.Join(err, <-used); err != nil {
		return err
	}
	work.print(table, fmt.Sprintf("%d mounts in use", o.active), o.daemons, f.mounts())
	load.print(table, o)
	start = time.Now()
	if err := f.end(); err != nil {
		return err
	}
	fmt.Fprintf(table, "unmount all, end all\t%s\n", seconds(time.Since(start)))
	return nil
}

// repo returns the name of the i-th repository.
func (f *fleet) repo(i int) string { return fmt.Sprintf("repo%d.git", i) }

// mounts returns the total number of mounts of all daemons.
func (f *fleet) mounts() (n int) {
	for _, m := range f.members {
		n += len(m.dirs)
	}
	return n
}

// command returns an artifactfs command for the state directory of a member.
func (f *fleet) command(m *member, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(f.bin, "artifactfs"), append(args, "--state", m.state)...)
	cmd.Dir, cmd.Env = f.work, gittest.Env()
	return cmd
}

// parallel calls do with the numbers from 0 to n-1, at most fleetStarts calls at the same time, and returns the first
// error.
func parallel(n int, do func(i int) error) error {
	var next atomic.Int64
	failed := make(chan error, fleetStarts)
	var all sync.WaitGroup
	for range fleetStarts {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					failed <- err
					next.Store(int64(n))
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// start starts the daemons, and waits until all of them answer.
func (f *fleet) start() error {
	for i := range f.o.daemons {
		f.members = append(f.members, &member{state: filepath.Join(f.work, fmt.Sprintf("d%d", i))})
	}
	return parallel(len(f.members), func(i int) error {
		m := f.members[i]
		daemon := f.command(m, "daemon", "--metrics", "unix:"+m.metrics(), "--log-file", m.state+".log")
		daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := daemon.Start(); err != nil {
			return err
		}
		go daemon.Wait()
		for deadline := time.Now().Add(fleetAnswer); ; time.Sleep(10 * time.Millisecond) {
			if f.command(m, "status").Run() == nil && exists(m.metrics()) {
				return nil
			}
			if time.Now().After(deadline) {
				log, _ := os.ReadFile(m.state + ".log")
				return fmt.Errorf("start daemon %d: no answer: %.2000s", i, log)
			}
		}
	})
}

// metrics returns the path of the socket at which the daemon serves its metrics.
func (m *member) metrics() string { return m.state + ".sock" }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// mountAll makes the mounts of all daemons.
func (f *fleet) mountAll() error {
	for i, m := range f.members {
		for j := range f.o.each {
			m.dirs = append(m.dirs, filepath.Join(f.work, fmt.Sprintf("m%d-%d", i, j)))
		}
	}
	return parallel(f.mounts(), func(n int) error {
		// The order gives every daemon its first mount before any daemon gets its second one, as on hosts whose
		// sandboxes start one after the other.
		i, j := n%len(f.members), n/len(f.members)
		m := f.members[i]
		if out, err := f.command(m, "mount", f.server.URL(f.repo((i+j)%f.o.repos)), m.dirs[j]).CombinedOutput(); err != nil {
			return fmt.Errorf("mount %s: %w: %s", m.dirs[j], err, out)
		}
		return nil
	})
}

// settle waits until all mounts are idle (see allIdle).
func (f *fleet) settle() error {
	return parallel(len(f.members), func(i int) error {
		for deadline := time.Now().Add(fleetSettled); time.Now().Before(deadline); time.Sleep(time.Second) {
			out, err := f.command(f.members[i], "status", "--json").Output()
			if err != nil {
				return fmt.Errorf("read status: %w", err)
			}
			idle, err := allIdle(out)
			if err != nil || idle {
				return err
			}
		}
		return fmt.Errorf("wait for daemon %d: its mounts are still fetching", i)
	})
}

// allIdle reports whether all mounts in out have all trees and the history and fetch nothing. out is the JSON output of
// artifactfs status.
func allIdle(out []byte) (bool, error) {
	var st struct {
		Mounts []struct {
			State, History string
			Tree           struct{ Complete bool }
			Queue          struct{ Foreground, Background int }
		}
	}
	if err := json.Unmarshal(out, &st); err != nil {
		return false, fmt.Errorf("read status: %w", err)
	}
	for _, m := range st.Mounts {
		if m.State != "mounted" || m.Queue.Foreground+m.Queue.Background > 0 || !m.Tree.Complete || m.History == "deepening" {
			return false, nil
		}
	}
	return true, nil
}

// fleetLoad counts and times the operations on the used mounts.
type fleetLoad struct {
	mu      sync.Mutex
	status  []time.Duration // durations of git status
	reads   []time.Duration // durations of reading the files of one round
	commits int
}

func (l *fleetLoad) print(table *tabwriter.Writer, o fleetOptions) {
	for _, times := range [][]time.Duration{l.status, l.reads} {
		slices.Sort(times)
	}
	fmt.Fprintf(table, "  work done\t%d rounds of %d\t%d commits\n", len(l.status),
		o.active*int(o.work/o.pause), l.commits)
	for what, times := range map[string][]time.Duration{"git status": l.status, "reading 20 files": l.reads} {
		if len(times) > 0 {
			fmt.Fprintf(table, "  %s\t%s\t99 %% %s\n", what, seconds(percentile(times, 50)), seconds(percentile(times, 99)))
		}
	}
}

// use works in one mount of each of the first daemons until ctx ends. Each round reads 20 files, writes one file and
// calls git status; every sixth round also commits.
func (f *fleet) use(ctx context.Context, load *fleetLoad) error {
	failed := make(chan error, f.o.active)
	var all sync.WaitGroup
	for i := range min(f.o.active, len(f.members)) {
		all.Go(func() {
			dir := f.members[i].dirs[0]
			// The goroutines start at different times, so that the mounts are not used at the same moment.
			wait := time.NewTimer(f.o.pause * time.Duration(i) / time.Duration(f.o.active))
			defer wait.Stop()
			for round := range int(f.o.work / f.o.pause) {
				select {
				case <-wait.C:
				case <-ctx.Done():
					return
				}
				began := time.Now()
				if err := f.round(dir, i, round, load); err != nil {
					failed <- fmt.Errorf("%s: %w", dir, err)
					return
				}
				wait.Reset(max(0, f.o.pause-time.Since(began)))
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// round does one round of work in a mount. It runs other programs for this, because the server of this process must not
// wait for a mount.
func (f *fleet) round(dir string, member, round int, load *fleetLoad) error {
	read := []string{"cat"}
	for i := range 20 {
		read = append(read, filePath((member*7+round*20+i)%f.o.files))
	}
	reading, err := timedIn(dir, "sh", "-c", strings.Join(read, " ")+" >/dev/null")
	if err != nil {
		return err
	}
	if _, err := timedIn(dir, "sh", "-c", fmt.Sprintf("echo round %d >> notes && echo %d > %s", round, round,
		filePath((member+round)%f.o.files))); err != nil {
		return err
	}
	status, err := timedIn(dir, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	commits := 0
	if round%6 == 5 {
		if _, err := timedIn(dir, "git", "-c", "user.name=bench", "-c", "user.email=bench@example.invalid", "commit", "-qam",
			"round"); err != nil {
			return err
		}
		commits++
	}
	load.mu.Lock()
	defer load.mu.Unlock()
	load.status, load.reads, load.commits = append(load.status, status), append(load.reads, reading), load.commits+commits
	return nil
}
