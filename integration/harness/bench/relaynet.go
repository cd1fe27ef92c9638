package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// startMachine starts a command in a new session with the nice value ownMachine. If the kernel first divides processor
// time between sessions (autogroup), it also sets this nice value for the session.
func startMachine(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return err
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte(ownMachine), 0)
	if errors.Is(err, fs.ErrNotExist) { // the kernel has no autogroup, so it compares the nice values of processes
		return nil
	}
	return err
}

// inNamespace runs this program again in a new network namespace, and then removes what that process has left behind.
func inNamespace() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("nice", append([]string{"-n", ownMachine, self}, os.Args[1:]...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideNet+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := startMachine(cmd); err != nil {
		return err
	}
	end := sync.OnceValue(func() error {
		err := cmd.Wait()
		left, _ := filepath.Glob(fmt.Sprintf("/run/netns/afsbench-%d-*", cmd.Process.Pid))
		for _, path := range left {
			err = errors.Join(err, exec.Command("ip", "netns", "delete", filepath.Base(path)).Run())
		}
		return err
	})
	whenInterrupted(end)
	return end()
}

// network creates the network namespaces of the hosts and connects them by a bridge.
func (s *site) network() error {
	commands := []string{"ip link set lo up", "ip link add hub type bridge", "ip addr add " + relayHub + "/24 dev hub",
		"ip link set hub up"}
	for i := range s.o.hosts {
		name := fmt.Sprintf("afsbench-%d-%d", os.Getpid(), i)
		s.hosts = append(s.hosts, name)
		commands = append(commands, "ip netns add "+name,
			fmt.Sprintf("ip link add h%d type veth peer name eth0 netns %s", i, name),
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

// endNetwork removes the network namespaces of the hosts.
func (s *site) endNetwork() (err error) {
	for _, name := range s.hosts {
		if out, e := exec.Command("ip", "netns", "delete", name).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("delete namespace: %w: %s", e, out))
		}
	}
	return errors.Join(err, exec.Command("ip", "link", "delete", "hub").Run())
}

// in returns an artifactfs command that runs in the network namespace of a host. It has a low priority, because in
// reality the git server and the relay do not share processors with the hosts.
func (s *site) in(host int, state string, args ...string) *exec.Cmd {
	cmd := exec.Command("nice", append([]string{"-n", hostsMachine, "nsenter", "--net=/run/netns/" + s.hosts[host]},
		args...)...)
	cmd.Env = append(gittest.Env(), "HOME="+state, "ARTIFACTFS_STATE="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// relayProcess is a running relay, and the process that simulates the connection between the hosts and the relay
// (line).
type relayProcess struct {
	cmd      *exec.Cmd
	line     *exec.Cmd
	hold     io.Closer // standard input of line, which ends when this is closed
	url      string
	once     sync.Once // ends cmd
	lineOnce sync.Once // ends line
}

// startRelay starts a relay with a new data directory, and its line.
func (s *site) startRelay(flags ...string) (*relayProcess, error) {
	if s.runs++; interrupted.Load() {
		return nil, errInterrupted
	}
	data := filepath.Join(s.work, fmt.Sprint("relay", s.runs))
	cmd := exec.Command(filepath.Join(s.bin, "artifactfs"),
		append([]string{"relay", "--listen", relayHub + ":0", "--allow", "*", "--data", data,
			"--log-level", "error"}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := startMachine(cmd); err != nil {
		return nil, err
	}
	r := &relayProcess{cmd: cmd}
	whenInterrupted(r.end)
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

// startLine starts the process that simulates the connection to a relay.
func (s *site) startLine(r *relayProcess, target string) error {
	line := exec.Command("/proc/self/exe", "-relay", "-near", s.o.near.String())
	line.Env = append(os.Environ(), lineTarget+"="+target)
	line.Stderr = os.Stderr
	out, err := line.StdoutPipe()
	if err != nil {
		return err
	}
	if r.hold, err = line.StdinPipe(); err != nil {
		return err
	}
	if err := startMachine(line); err != nil {
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

// kill kills the relay with SIGKILL.
func (r *relayProcess) kill() {
	r.once.Do(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	})
}

// end ends the relay and its line.
func (r *relayProcess) end() error {
	r.once.Do(func() {
		r.cmd.Process.Signal(syscall.SIGCONT)
		r.cmd.Process.Signal(syscall.SIGTERM)
		r.cmd.Wait()
	})
	r.lineOnce.Do(func() {
		if r.line != nil {
			r.hold.Close()
			r.line.Wait()
		}
	})
	return nil
}
