package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// The benchmarks -takeover kill the worker of a mount while programs use the mount, and measure how long the programs
// were blocked. If a program reports an error, the run fails.

type takeoverOptions struct {
	kills   int
	longest time.Duration
	readers int
	seed    uint64
}

// takeoverFlags declares the flags that only the mode -takeover has. The result is reports whether the user has passed
// -takeover.
func takeoverFlags() (o *takeoverOptions, is *bool) {
	o = &takeoverOptions{}
	is = flag.Bool("takeover", false, "measure how long programs in a mount are blocked when its worker is killed")
	flag.IntVar(&o.kills, "kills", 100, "with -takeover and -session: number of kills")
	flag.DurationVar(&o.longest, "longest", time.Second,
		"with -takeover: maximum time between the end of a takeover and the next kill")
	flag.IntVar(&o.readers, "readers", 50, "with -takeover: number of programs that hold files open and read them")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "with -takeover and -session: of all that is random")
	return o, is
}

// takeoverBench is a mount whose worker is killed, and the settings of the benchmark.
type takeoverBench struct {
	*session
	o      takeoverOptions
	m      *mounted
	plain  string
	victim torture.Victim
	rnd    *rand.Rand
	next   string // path of a second build of artifactfs, for upgrades
	failed bool
}

// takeovers runs the benchmarks -takeover on one repository.
func (b *bench) takeovers(repos []string, o takeoverOptions) error {
	if len(repos) == 0 {
		path := filepath.Join(b.work, "middle.git")
		if err := makeRepository(path, 14_000, 500); err != nil {
			return err
		}
		repos = []string{path}
	}
	served, err := b.withWork(repos[0])
	if err != nil {
		return err
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(served), RTT: b.rtt, Cheap: true,
		Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer server.Close()
	s := &session{bench: b, name: repoName(served), repo: served, url: server.URL(filepath.Base(served))}
	x := &takeoverBench{session: s, o: o, plain: s.path("plain"), rnd: rand.New(rand.NewPCG(o.seed, 1)),
		next: s.path("next")}
	if _, err := s.git("clone", "-q", served, x.plain); err != nil {
		return err
	}
	if x.m, err = s.mount(); err != nil {
		return err
	}
	x.victim = torture.Victim{State: s.state, Command: "worker"}
	exclude := filepath.Join(s.state, "mounts", x.m.reply.ID, "git", "info", "exclude")
	if err := errors.Join(os.MkdirAll(filepath.Dir(exclude), 0o755),
		os.WriteFile(exclude, []byte("/load/\n"), 0o644)); err != nil {
		return err
	}
	fmt.Printf("seed %d, %d files\n", o.seed, x.m.reply.Files)
	err = x.measure()
	if err2 := x.m.unmount(); err == nil {
		err = err2
	}
	if err == nil && x.failed {
		err = errors.New("check takeover: programs in the mount reported errors")
	}
	if err != nil {
		text, _ := os.ReadFile(filepath.Join(s.state, "log", "daemon.log"))
		log.Printf("the daemon's log:\n%s", text[max(0, len(text)-256<<10):])
	}
	return err
}

// withWork copies a repository and adds the directory whose files the programs change. It returns the path of the copy.
func (b *bench) withWork(repo string) (string, error) {
	dir := filepath.Join(b.work, "takeover")
	served, tree := filepath.Join(dir, repoName(repo)+".git"), filepath.Join(dir, "tree")
	script :=
		`set -e; mkdir -p "$1"; git clone -q --bare "$0" "$1"; git clone -q --no-hardlinks --depth 1 "file://$1" "$2"; cd "$2"; mkdir work
		for i in 1 2 3 4 5 6 7 8 9; do echo "line $i" > work/file$i; git add work; git commit -q -m "work $i"; done
		git push -q origin HEAD; cd /; rm -rf "$2"`
	cmd := exec.Command("sh", "-c", script, repo, served, tree)
	cmd.Env = gittest.Env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy %s: %w: %s", repo, err, out)
	}
	return served, nil
}

func (x *takeoverBench) measure() error {
	if err := x.build(); err != nil {
		return err
	}
	before := x.weigh()
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintf(table, "load\tdone to it\ttimes\tmedian stall\t95 %%\tlongest\terrors\n")
	all := append(torture.Jobs(), slices.Repeat([]string{"reader"}, max(0, x.o.readers-1))...)
	for _, load := range []struct {
		name string
		jobs []string
	}{{"nothing else", []string{"meter"}}, {fmt.Sprintf("all, %d readers", x.o.readers), all}} {
		if err := x.under(table, load.name, load.jobs); err != nil {
			return err
		}
	}
	table.Flush()
	after := x.weigh()
	fmt.Printf("worker %v, was %v\nsupervisor %v, was %v\n", after[0], before[0], after[1], before[1])
	return nil
}

// under measures takeovers while the jobs with the given names run.
func (x *takeoverBench) under(table *tabwriter.Writer, name string, jobs []string) error {
	scratch := x.path("scratch")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return err
	}
	l, err := torture.Start(torture.Options{Mount: x.m.dir, Plain: x.plain, Scratch: scratch, Jobs: jobs, Seed: x.o.seed,
		Env: gittest.Env()})
	if err != nil {
		return err
	}
	defer l.Kill()
	if err := l.Ready(5 * time.Minute); err != nil {
		return err
	}
	seen := 0
	row := func(what string, blows []torture.Blow) {
		stalls := torture.Stalls(l.Gaps(), torture.Moments(blows))
		if len(stalls) == 0 {
			stalls = []time.Duration{0}
		}
		slices.Sort(stalls)
		errs := l.Errors()
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%d\n", name, what, len(blows), seconds(percentile(stalls, 50)),
			seconds(percentile(stalls, 95)), seconds(stalls[len(stalls)-1]), len(errs)-seen)
		for _, e := range errs[seen:] {
			log.Print(e)
			x.failed = true
		}
		seen = len(errs)
	}
	// The last rows are for comparison: the longest gap in each of several seconds without a takeover.
	var none []torture.Blow
	for range 10 {
		none = append(none, torture.Blow{At: torture.Now()})
		time.Sleep(time.Second)
	}
	row("nothing", none)
	for _, s := range []struct {
		what string
		sig  syscall.Signal
		n    int
	}{
		{"SIGKILL", syscall.SIGKILL, x.o.kills}, {"SIGABRT (a trace)", syscall.SIGABRT, max(1, x.o.kills/20)},
		{"SIGSEGV", syscall.SIGSEGV, max(1, x.o.kills/20)}, {"SIGSTOP (watchdog)", syscall.SIGSTOP, max(1, x.o.kills/30)},
	} {
		blows, err := x.victim.Strike(s.n, s.sig, x.o.longest, x.rnd, func() bool { return x.failed })
		if err == nil && len(blows) > 0 {
			_, err = x.victim.Await(time.Minute, blows[len(blows)-1].PID)
		}
		time.Sleep(time.Second) // a gap is reported only when it ends, so wait for the last one
		row(s.what, blows)
		if err != nil {
			return err
		}
	}
	for _, s := range []struct {
		what string
		do   func() error
	}{{"upgrade", x.upgrade}, {"supervisor killed", x.orphan}} {
		var blows []torture.Blow
		for range max(1, x.o.kills/20) {
			blows = append(blows, torture.Blow{At: torture.Now()})
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.what, err)
			}
			time.Sleep(time.Second)
		}
		row(s.what, blows)
	}
	report := l.Stop(2 * time.Minute)
	for _, e := range report.Errors[seen:] {
		log.Print(e)
		x.failed = true
	}
	log.Printf("%s: operations %v", name, report.Done)
	return nil
}

// build builds artifactfs once more at another path, so that an upgrade can replace the running program.
func (x *takeoverBench) build() error {
	_, err := output("cp", filepath.Join(x.bin, "artifactfs"), x.next)
	return err
}

func (x *takeoverBench) upgrade() error {
	old := x.victim.Serving()
	if _, err := output(x.next, "daemon", "--upgrade", "--state", x.state); err != nil {
		return err
	}
	_, err := x.victim.Await(time.Minute, old)
	return err
}

func (x *takeoverBench) orphan() error {
	old := x.victim.Supervisor()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if pid := x.victim.Supervisor(); pid != 0 && pid != old && x.victim.Serving() != 0 {
			return nil
		}
	}
	return errors.New("replace supervisor: no new supervisor found")
}

// weight holds the memory of a process, and the numbers of its descriptors and threads.
type weight struct {
	rss, private         int64 // in bytes; private memory is not shared with files and is mainly the heap
	descriptors, threads int
}

func (w weight) String() string {
	return fmt.Sprintf("%.1f MiB (%.1f private), %d descriptors, %d threads", float64(w.rss)/(1<<20),
		float64(w.private)/(1<<20), w.descriptors, w.threads)
}

func weigh(pid int) weight {
	var w weight
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	w.descriptors, w.threads = len(fds), len(threads)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d", &kib); n == 1 {
			w.rss = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %d", &kib); n == 1 {
			w.private = kib << 10
		}
	}
	return w
}

// weigh returns the resources of the worker and of the supervisor, in this order.
func (x *takeoverBench) weigh() [2]weight {
	return [2]weight{weigh(x.victim.Worker()), weigh(x.victim.Supervisor())}
}
