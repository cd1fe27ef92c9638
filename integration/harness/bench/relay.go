package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
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

	"github.com/artifactfs/artifactfs/integration/harness/daemons"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The benchmark of the relay starts many hosts that mount the same commit at the same time and read all files, and
// counts the requests to the git server. Each host is a network namespace with its own state directory. The benchmark
// itself runs in another network namespace. The connections to the git server and to the relay have simulated latency.

type relayOptions struct {
	hosts   int
	near    time.Duration
	command string
	only    *regexp.Regexp // names of the rows to measure
}

// relayFlags declares the flags that only the mode -relay has. The result is reports whether the user has passed
// -relay.
func relayFlags() (o *relayOptions, is *bool) {
	o = &relayOptions{}
	is = flag.Bool("relay", false, "measure many hosts that mount the same commit, with and without a relay")
	flag.IntVar(&o.hosts, "hosts", 20, "with -relay: number of hosts")
	flag.DurationVar(&o.near, "near", 2*time.Millisecond, "with -relay: round-trip time between the hosts and the relay")
	flag.StringVar(&o.command, "command", "rg -c --hidden --no-ignore -g '!.git' . >/dev/null",
		"with -relay: shell command that runs in each mount as the build")
	return o, is
}

const (
	relayNet  = "10.77.0."
	relayHub  = relayNet + "1" // address of the git server and of the relay
	insideNet = "AFS_BENCH_NAMESPACE"
	// environment variable of the process that simulates the connection to the relay; contains the address of the relay
	lineTarget = "AFS_BENCH_LINE"
	// ownMachine is the nice value of the git server, of the relay, and of the process that simulates the connection to
	// the relay. In reality these run on other machines than the hosts. With the nice value of the hosts, they would
	// get processor time too late, and hosts stop using a relay that does not answer in time.
	ownMachine = "-15"
	// added to ownMachine, because hosts are children of a process with that nice value; the result is 10
	hostsMachine = "25"
)

// site holds the network, the git server and the table of the benchmark.
type site struct {
	*bench
	o      relayOptions
	server *gittest.Server
	hosts  []string // names of the network namespaces
	url    string
	right  string // checksum of the files of a clone, which every host must have
	table  *tabwriter.Writer
	runs   int
}

// relays runs the benchmark in a new network namespace.
func (b *bench) relays(repos []string, o relayOptions) (err error) {
	if target := os.Getenv(lineTarget); target != "" {
		line, err := gittest.NewLine(relayHub+":0", target, o.near)
		if err != nil {
			return err
		}
		fmt.Println(line.Addr())
		_, err = io.Copy(io.Discard, os.Stdin) // standard input is closed when the benchmark ends
		line.Close()
		return err
	}
	if os.Getenv(insideNet) == "" {
		return inNamespace()
	}
	if len(repos) == 0 {
		repos = []string{filepath.Join(b.work, "middle.git")}
		if err := makeRepository(repos[0], 3000, 50); err != nil {
			return err
		}
	}
	for _, repo := range repos {
		s := &site{bench: b, o: o, table: tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)}
		err = errors.Join(err, s.run(repo))
	}
	return err
}

// run measures one repository with and without a relay.
func (s *site) run(repo string) (err error) {
	end := sync.OnceValue(s.endNetwork)
	defer func() { err = errors.Join(err, end()) }()
	whenInterrupted(end)
	if err := s.network(); err != nil {
		return err
	}
	root, err := filepath.Abs(filepath.Dir(repo))
	if err != nil {
		return err
	}
	if s.server, err = gittest.Serve(gittest.ServerOptions{Root: root, Addr: relayHub + ":0", RTT: s.rtt, Cheap: true,
		Stderr: io.Discard}); err != nil {
		return err
	}
	defer s.server.Close()
	s.url = s.server.URL(filepath.Base(repo))
	clone := filepath.Join(s.work, "clone")
	if out, err := exec.Command("git", "clone", "-q", "--depth=1", "file://"+filepath.Join(root, filepath.Base(repo)),
		clone).CombinedOutput(); err != nil {
		return fmt.Errorf("clone: %w: %s", err, out)
	}
	defer os.RemoveAll(clone)
	if s.right, err = checksum(clone); err != nil {
		return err
	}
	blobs, err := blobsOf(clone)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.table,
		"%s with %d blobs, %d hosts, load %s\tfirst\tmedian\tlast\trequests\tacquisitions\tfetches\tblobs\tsent by git\n",
		repoName(repo), blobs, s.o.hosts, loadAverage())
	if err := s.crowd("without a relay", "", nil); err != nil {
		return err
	}
	r, err := s.startRelay("--cache-size", "20G")
	if err != nil {
		return err
	}
	defer r.end()
	err = errors.Join(s.crowd("with a relay", r.url, nil), s.crowd("later, with the same relay", r.url, nil))
	r.end()
	return errors.Join(err, s.faults())
}

// faults repeats the measurement while the relay or its object store fails. The files of every host must still be
// correct.
func (s *site) faults() (err error) {
	run := func(what string, fault func(*relayProcess, string) error, flags ...string) {
		if err != nil {
			return
		}
		store := filepath.Join(s.work, "objects")
		os.RemoveAll(store)
		var r *relayProcess
		if r, err = s.startRelay(append([]string{"--objects", store}, flags...)...); err != nil {
			return
		}
		defer r.end()
		err = s.crowd(what, r.url, func() error { return fault(r, store) })
	}
	run("the relay is killed", func(r *relayProcess, _ string) error { r.kill(); return nil })
	run("the relay hangs", func(r *relayProcess, _ string) error { return r.cmd.Process.Signal(syscall.SIGSTOP) })
	run("the object store disappears",
		func(_ *relayProcess, store string) error { return os.Rename(store, store+".gone") })
	os.RemoveAll(filepath.Join(s.work, "objects.gone"))
	if err != nil {
		return err
	}
	for _, full := range []struct{ what, flag string }{{"the object store is full", "--objects"},
		{"the disk of the relay is full", "--data"}} {
		if err := s.onSmallDisk(full.what, full.flag); err != nil {
			return err
		}
	}
	// A new relay starts with damaged objects in its store.
	store := filepath.Join(s.work, "objects")
	os.RemoveAll(store)
	r, err := s.startRelay("--objects", store)
	if err != nil {
		return err
	}
	err = s.crowd("a relay with an object store", r.url, nil)
	r.end()
	if err != nil {
		return err
	}
	if r, err = s.startRelay("--objects", store); err != nil {
		return err
	}
	err = s.crowd("another relay on the store", r.url, nil)
	r.end()
	if err == nil {
		err = damage(store)
	}
	if err != nil {
		return err
	}
	if r, err = s.startRelay("--objects", store); err != nil {
		return err
	}
	defer r.end()
	return s.crowd("the object store is corrupt", r.url, nil)
}

// onSmallDisk measures with a relay that has one directory on a full file system. flag is the flag that names this
// directory.
func (s *site) onSmallDisk(what, flag string) (err error) {
	dir := filepath.Join(s.work, "small")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	unmount := sync.OnceValue(func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) })
	defer func() { err = errors.Join(err, unmount()) }()
	whenInterrupted(unmount)
	r, err := s.startRelay(flag, dir)
	if err != nil {
		return err
	}
	defer r.end()
	return s.crowd(what, r.url, nil)
}

// damage inverts a bit in the middle of every file below a directory.
func damage(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[len(data)/2] ^= 1
		if err := os.Remove(path); err != nil { // the file may have another hard link, which must not change
			return err
		}
		return os.WriteFile(path, data, 0o400)
	})
}

// crowd runs the mount and the build on all hosts at the same time, compares their files with the clone, and prints a
// row. Unless fault is nil, crowd calls it when the first host has mounted.
func (s *site) crowd(what, via string, fault func() error) error {
	if s.runs++; !s.o.only.MatchString(what) {
		return nil
	}
	if interrupted.Load() {
		return errInterrupted
	}
	s.server.Log().Reset()
	times, errs := make([]time.Duration, s.o.hosts), make([]error, s.o.hosts)
	states, dirs := make([]string, s.o.hosts), make([]string, s.o.hosts)
	var faulty sync.Once
	var faultErr error
	var all sync.WaitGroup
	start := time.Now()
	for i := range s.o.hosts {
		states[i] = filepath.Join(s.work, fmt.Sprintf("s%d-%d", s.runs, i))
		dirs[i] = states[i] + "-mount"
		all.Go(func() {
			args := []string{filepath.Join(s.bin, "artifactfs"), "mount", s.url, dirs[i], "--history", "none"}
			if via != "" {
				args = append(args, "--via", via)
			}
			if out, err := s.in(i, states[i], args...).CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("mount: %w: %s", err, out)
				return
			}
			if fault != nil {
				faulty.Do(func() { faultErr = fault() })
			}
			build := exec.Command("nice", "-n", hostsMachine, "sh", "-c", s.o.command)
			build.Dir, build.SysProcAttr = dirs[i], &syscall.SysProcAttr{Setsid: true}
			if out, err := build.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("build: %w: %s", err, out)
			}
			times[i] = time.Since(start)
		})
	}
	all.Wait()
	err := errors.Join(append(errs, faultErr)...)
	cost := s.cost()
	for i := range s.o.hosts { // sequentially, because this is not measured
		if errs[i] == nil {
			sum, e := checksum(dirs[i])
			if e == nil && sum != s.right {
				e = errors.New("check files: contents differ from the clone")
			}
			err = errors.Join(err, e)
		}
		err = errors.Join(err, daemons.End(states[i]))
		os.RemoveAll(states[i])
	}
	slices.Sort(times)
	fmt.Fprintf(s.table, "%s\t%s\t%s\t%s\t%s\n", what, seconds(times[0]), seconds(times[len(times)/2]),
		seconds(times[len(times)-1]), cost)
	s.table.Flush()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// cost returns, as text, the numbers of requests, acquisitions, fetches, blobs and bytes at the git server.
func (s *site) cost() string {
	requests, acquisitions, fetches, blobs, sent := 0, 0, 0, 0, int64(0)
	for _, r := range s.server.Log().Requests() {
		requests++
		sent += r.BytesOut
		switch {
		case r.Command != gittest.Fetch || r.Filter == "tree:0": // fetches with the filter tree:0 are proofs of access
			continue
		case r.Filter == "blob:none" && r.Depth > 0:
			acquisitions++
		default:
			blobs += r.Objects
		}
		fetches++
	}
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%.1f MiB", requests, acquisitions, fetches, blobs, float64(sent)/(1<<20))
}

// blobsOf returns the number of different blobs in the checked-out commit of a clone.
func blobsOf(clone string) (int, error) {
	out, err := exec.Command("git", "-C", clone, "ls-tree", "-r", "--format=%(objectname)", "HEAD").Output()
	ids := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		ids[line] = true
	}
	return len(ids), err
}

// checksum returns a hash of the names and contents of all files in a directory, except the git directory.
func checksum(dir string) (string, error) {
	cmd := exec.Command("sh", "-c",
		`find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum`)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		return "", fmt.Errorf("read %s: %v: %.200s", dir, err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// loadAverage returns the load average of the last minute.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return cmp.Or(load, "?")
}
