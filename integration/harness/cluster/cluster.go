// Package cluster starts a real Kubernetes cluster with one node for tests: etcd, apiserver, controller manager,
// scheduler, containerd and kubelet.
//
// A test binary that uses the package calls Run in its TestMain. Run executes the tests in new mount, process, network
// and IPC namespaces, so the cluster may use the usual paths (/var/lib/kubelet, /run/containerd/containerd.sock) and
// ports. When the first process of the namespaces ends, the kernel ends every process of the cluster and removes its
// mounts and network interfaces. Run then removes the only objects outside of the namespaces: a directory of temporary
// files and a control group.
//
// The programs of Kubernetes must be in the directory $AFS_CLUSTER, which scripts/cluster-binaries.sh fills. If the
// variable is not set, the tests of the binary are skipped.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Variable is the name of the environment variable that contains the directory of the Kubernetes programs.
const Variable = "AFS_CLUSTER"

// Names and addresses of the cluster. The addresses exist only in its network namespace.
const (
	Node        = "node-1"
	NodeIP      = "10.88.0.1" // address of the loopback interface that pods can reach
	APIPort     = "6443"      // port of the apiserver at NodeIP
	KubeletRoot = "/var/lib/kubelet"
	podNetwork  = "10.89.0.0/16"
	pauseImage  = "cluster.test/pause:1"
)

// Patience is the time limit for the start of a component and for a wait for a condition. It is long because machines
// that run tests are busy.
const Patience = 3 * time.Minute

// Component is the name of a program of the cluster.
type Component string

// These are the components, in the order in which they are started.
const (
	Etcd       Component = "etcd"
	APIServer  Component = "kube-apiserver"
	Controller Component = "kube-controller-manager"
	Scheduler  Component = "kube-scheduler"
	Containerd Component = "containerd"
	Kubelet    Component = "kubelet"
)

var components = []Component{Etcd, APIServer, Controller, Scheduler, Containerd, Kubelet}

// Options configures a cluster.
type Options struct {
	MaxPods int // maximum number of pods on the node; 0 means 110, the default of Kubernetes
}

// Cluster is a running cluster. Its methods may be called from any goroutine.
type Cluster struct {
	dir string // configuration and images; the logs are in dir/log
	bin string

	mu        sync.Mutex
	processes map[Component]*process
}

// process is a running component.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
}

// Start starts a cluster and waits until its node is ready. It must be called by tests that Run executes. There can be
// only one cluster at a time. The caller must call Stop.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	dir := os.Getenv(rootVariable)
	if dir == "" {
		return nil, errors.New("start cluster: the process was not started by cluster.Run")
	}
	if o.MaxPods == 0 {
		o.MaxPods = 110
	}
	c := &Cluster{dir: dir, bin: os.Getenv(Variable), processes: make(map[Component]*process)}
	if err := c.configure(o); err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	for _, name := range components {
		if err := c.Launch(name); err != nil {
			return err
		}
		switch name {
		case APIServer:
			if err := c.wait(ctx, "apiserver is ready", func() error { return c.ready() }); err != nil {
				return err
			}
		case Containerd:
			if err := c.wait(ctx, "containerd answers", func() error { return c.answers() }); err != nil {
				return err
			}
			if err := c.Image(pauseImage, nil, "/bin/busybox", "sleep", "2147483647"); err != nil {
				return err
			}
		}
	}
	if err := c.wait(ctx, "node is ready", c.nodeReady); err != nil {
		return err
	}
	return c.wait(ctx, "there is a service account for pods", func() error {
		_, err := c.Kubectl("get", "serviceaccount", "default")
		return err
	})
}

// answers returns nil if containerd answers requests.
func (c *Cluster) answers() error {
	_, err := output("ctr", "version")
	return err
}

// Launch starts a component that is not running.
func (c *Cluster) Launch(name Component) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[name] != nil {
		return fmt.Errorf("start %s: already running", name)
	}
	log, err := os.OpenFile(c.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(c.program(name), c.arguments(name)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=" + c.dir, "GOGC=50"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.ended)
	}()
	c.processes[name] = p
	return nil
}

// Kill kills a component with SIGKILL and waits until it has ended. Containers and their shims continue to run, because
// they are not children of the kubelet or containerd.
func (c *Cluster) Kill(name Component) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[name]
	if p == nil {
		return fmt.Errorf("kill %s: not running", name)
	}
	p.cmd.Process.Kill()
	<-p.ended
	delete(c.processes, name)
	return nil
}

// PID returns the process ID of a component, or 0 if it is not running.
func (c *Cluster) PID(name Component) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[name]; p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Stop kills all components. Containers run until the namespaces end.
func (c *Cluster) Stop() error {
	var errs []error
	for i := len(components) - 1; i >= 0; i-- { // the kubelet first, because it would restart containers
		if c.PID(components[i]) != 0 {
			errs = append(errs, c.Kill(components[i]))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) log(name Component) string { return filepath.Join(c.dir, "log", string(name)+".log") }

// wait calls check repeatedly until it returns nil. It returns an error if a component or ctx ends.
func (c *Cluster) wait(ctx context.Context, condition string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		for _, name := range components {
			c.mu.Lock()
			p := c.processes[name]
			c.mu.Unlock()
			if p == nil {
				continue
			}
			select {
			case <-p.ended:
				return fmt.Errorf("%s ended while the test waited until %s: %s", name, condition, c.Tail(name))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", condition, ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Tail returns the last lines of the log of a component.
func (c *Cluster) Tail(name Component) string {
	const size = 2000
	text, err := os.ReadFile(c.log(name))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-size):])
}
