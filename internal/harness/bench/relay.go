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

	"github.com/artifactfs/artifactfs/internal/harness/daemons"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// The benchmark of the relay starts hosts that mount the same commit at the same time and read all of it, and counts the requests to the
// git server. Each host is a network namespace with a state directory of its own. All of them are in a network namespace of the
// benchmark. Lines with latency lead to the git server and to the relay.

type relayOptions struct {
	hosts   int
	near    time.Duration
	command string
	only    *regexp.Regexp // rows to measure
}

// relayFlags declares the flags of -relay.
func relayFlags() (o *relayOptions, is *bool) {
	o = &relayOptions{}
	is = flag.Bool("relay", false, "measure many hosts that mount the same commit, with and without a relay")
	flag.IntVar(&o.hosts, "hosts", 20, "with -relay: hosts")
	flag.DurationVar(&o.near, "near", 2*time.Millisecond, "with -relay: round-trip time between the hosts and the relay")
	flag.StringVar(&o.command, "command", "rg -c --hidden --no-ignore -g '!.git' . >/dev/null", "with -relay: the build, a command in the mount")
	return o, is
}

const (
	relayNet   = "10.77.0."
	relayHub   = relayNet + "1" // address of the git server and of the relay
	insideNet  = "AFS_BENCH_NAMESPACE"
	lineTarget = "AFS_BENCH_LINE" // set in the process that is the line to the relay: the address of the relay
	// ownMachine is the priority of the relay and its line, which have a machine of their own in reality. With the priority of the hosts they
	// would get processor time too late here, and hosts leave a relay that is silent.
	ownMachine = "-15"
)

// site is the network of the benchmark.
type site struct {
	*bench
	o      relayOptions
	server *gittest.Server
	hosts  []string // names of the network namespaces
	url    string
	right  string // checksum of a clone
	table  *tabwriter.Writer
	runs   int
}

// relays runs the benchmark in a network namespace of its own.
func (b *bench) relays(repos []string, o relayOptions) (err error) {
	if target := os.Getenv(lineTarget); target != "" {
		line, err := gittest.NewLine(relayHub+":0", target, o.near)
		if err != nil {
			return err
		}
		fmt.Println(line.Addr())
		_, err = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
		line.Close()
		return err
	}
	if os.Getenv(insideNet) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), insideNet+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
		err := cmd.Run()
		left, _ := filepath.Glob(fmt.Sprintf("/run/netns/afsbench-%d-*", cmd.Process.Pid)) // an interrupt leaves them
		for _, path := range left {
			err = errors.Join(err, exec.Command("ip", "netns", "delete", filepath.Base(path)).Run())
		}
		return err
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

// run measures one repository.
func (s *site) run(repo string) (err error) {
	defer func() { err = errors.Join(err, s.endNetwork()) }()
	if err := s.network(); err != nil {
		return err
	}
	root, err := filepath.Abs(filepath.Dir(repo))
	if err != nil {
		return err
	}
	if s.server, err = gittest.Serve(gittest.ServerOptions{Root: root, Addr: relayHub + ":0", RTT: s.rtt, Cheap: true, Stderr: io.Discard}); err != nil {
		return err
	}
	defer s.server.Close()
	s.url = s.server.URL(filepath.Base(repo))
	clone := filepath.Join(s.work, "clone")
	if out, err := exec.Command("git", "clone", "-q", "--depth=1", "file://"+filepath.Join(root, filepath.Base(repo)), clone).CombinedOutput(); err != nil {
		return fmt.Errorf("clone: %w: %s", err, out)
	}
	defer os.RemoveAll(clone)
	if s.right, err = checksum(clone); err != nil {
		return err
	}
	fmt.Fprintf(s.table, "%s, %d hosts, load %s\tfirst\tmedian\tlast\trequests\tfetches\tsent by git\n", repoName(repo), s.o.hosts, loadAverage())
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

// faults repeats the measurement while the relay or its object store fails. Every host must still have the right contents.
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
	run("the object store disappears", func(_ *relayProcess, store string) error { return os.Rename(store, store+".gone") })
	os.RemoveAll(filepath.Join(s.work, "objects.gone"))
	if err != nil {
		return err
	}
	for _, full := range []struct{ what, flag string }{{"the object store is full", "--objects"}, {"the disk of the relay is full", "--data"}} {
		if err := s.onSmallDisk(full.what, full.flag); err != nil {
			return err
		}
	}
	// Another relay finds damaged objects in the store.
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

// onSmallDisk measures with a relay of which one directory, named by a flag, is on a file system without space.
func (s *site) onSmallDisk(what, flag string) (err error) {
	dir := filepath.Join(s.work, "small")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, syscall.Unmount(dir, 0)) }()
	r, err := s.startRelay(flag, dir)
	if err != nil {
		return err
	}
	defer r.end()
	return s.crowd(what, r.url, nil)
}

// damage changes a byte in the middle of every file.
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
		if err := os.Remove(path); err != nil { // the file may have a second name
			return err
		}
		return os.WriteFile(path, data, 0o400)
	})
}

// network makes the namespaces of the hosts, which are connected by a bridge.
func (s *site) network() error {
	commands := []string{"ip link set lo up", "ip link add hub type bridge", "ip addr add " + relayHub + "/24 dev hub", "ip link set hub up"}
	for i := range s.o.hosts {
		name := fmt.Sprintf("afsbench-%d-%d", os.Getpid(), i)
		s.hosts = append(s.hosts, name)
		commands = append(commands, "ip netns add "+name, fmt.Sprintf("ip link add h%d type veth peer name eth0 netns %s", i, name),
			fmt.Sprintf("ip link set h%d master hub up", i), "ip -n "+name+" link set lo up", "ip -n "+name+" link set eth0 up",
			fmt.Sprintf("ip -n %s addr add %s%d/24 dev eth0", name, relayNet, 10+i))
	}
	for _, c := range commands {
		if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
}

// endNetwork removes the namespaces.
func (s *site) endNetwork() (err error) {
	for _, name := range s.hosts {
		if out, e := exec.Command("ip", "netns", "delete", name).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("delete namespace: %w: %s", e, out))
		}
	}
	return errors.Join(err, exec.Command("ip", "link", "delete", "hub").Run())
}

// in returns a command in the namespace of a host. It has a low priority, because the git server and the relay, which share the processors
// with all hosts here, are separate machines in reality.
func (s *site) in(host int, state string, args ...string) *exec.Cmd {
	cmd := exec.Command("nice", append([]string{"-n", "10", "nsenter", "--net=/run/netns/" + s.hosts[host]}, args...)...)
	cmd.Env = append(gittest.Env(), "HOME="+state, "ARTIFACTFS_STATE="+state)
	return cmd
}

// relayProcess is a running relay behind a line.
type relayProcess struct {
	cmd  *exec.Cmd
	line *exec.Cmd
	hold io.Closer // standard input of line
	url  string
	once sync.Once
}

// startRelay starts a relay with a new data directory.
func (s *site) startRelay(flags ...string) (*relayProcess, error) {
	s.runs++
	data := filepath.Join(s.work, fmt.Sprint("relay", s.runs))
	cmd := exec.Command("nice", append([]string{"-n", ownMachine, filepath.Join(s.bin, "artifactfs"), "relay", "--listen", relayHub + ":0", "--allow", "*", "--data", data,
		"--log-level", "error"}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &relayProcess{cmd: cmd}
	var at string
	if _, err := fmt.Fscanf(out, "relaying at http://%s\n", &at); err != nil {
		r.end()
		return nil, fmt.Errorf("start relay: %w", err)
	}
	if err := s.startLine(r, at); err != nil {
		r.end()
		return nil, fmt.Errorf("start line to the relay: %w", err)
	}
	return r, nil
}

// startLine starts the process that is the line to a relay.
func (s *site) startLine(r *relayProcess, target string) error {
	line := exec.Command("nice", "-n", ownMachine, "/proc/self/exe", "-relay", "-near", s.o.near.String())
	line.Args[3], _ = os.Executable() // nice has another /proc/self/exe
	line.Env = append(os.Environ(), lineTarget+"="+target)
	line.Stderr = os.Stderr
	out, err := line.StdoutPipe()
	if err != nil {
		return err
	}
	if r.hold, err = line.StdinPipe(); err != nil {
		return err
	}
	if err := line.Start(); err != nil {
		return err
	}
	r.line = line
	var at string
	if _, err := fmt.Fscanln(out, &at); err != nil {
		return err
	}
	r.url = "http://" + at
	return nil
}

// kill kills the relay.
func (r *relayProcess) kill() {
	r.once.Do(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	})
}

// end ends the relay and its line.
func (r *relayProcess) end() {
	r.once.Do(func() {
		r.cmd.Process.Signal(syscall.SIGCONT)
		r.cmd.Process.Signal(syscall.SIGTERM)
		r.cmd.Wait()
	})
	if r.line != nil {
		r.hold.Close()
		r.line.Wait()
		r.line = nil
	}
}

// crowd lets all hosts mount and build at the same time, compares their files with the clone, and prints a line. The function fault, if
// it is not nil, is called when the first host has mounted.
func (s *site) crowd(what, via string, fault func() error) error {
	if s.runs++; !s.o.only.MatchString(what) {
		return nil
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
			build := exec.Command("sh", "-c", s.o.command)
			build.Dir = dirs[i]
			if out, err := build.CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("build: %w: %s", err, out)
			}
			times[i] = time.Since(start)
		})
	}
	all.Wait()
	err := errors.Join(append(errs, faultErr)...)
	requests, fetches, sent := 0, 0, int64(0)
	for _, r := range s.server.Log().Requests() {
		requests++
		if sent += r.BytesOut; r.Command == gittest.Fetch && r.Filter != "tree:0" {
			fetches++
		}
	}
	for i := range s.o.hosts { // one after the other, because this is not measured
		if errs[i] == nil {
			sum, e := checksum(dirs[i])
			if e == nil && sum != s.right {
				e = errors.New("the files differ from those of a clone")
			}
			err = errors.Join(err, e)
		}
		err = errors.Join(err, daemons.End(states[i]))
		os.RemoveAll(states[i])
	}
	slices.Sort(times)
	fmt.Fprintf(s.table, "%s\t%s\t%s\t%s\t%d\t%d\t%.1f MiB\n", what, seconds(times[0]), seconds(times[len(times)/2]), seconds(times[len(times)-1]),
		requests, fetches, float64(sent)/(1<<20))
	s.table.Flush()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// checksum returns a hash of the names and the contents of all files in a directory, without git's own.
func checksum(dir string) (string, error) {
	cmd := exec.Command("sh", "-c", `find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum`)
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
