package cluster

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// These environment variables tell the processes that Run starts which role they have.
const (
	stageVariable = "AFS_CLUSTER_STAGE"
	rootVariable  = "AFS_CLUSTER_ROOT"  // directory of the cluster's files
	groupVariable = "AFS_CLUSTER_GROUP" // name of the cluster's control group
)

// prefix is the start of the names of the temporary directory and of the control group. The process ID of the first
// process follows.
const prefix = "artifactfs-cluster-"

// cniDir is the directory of the network plugins (Debian package containernetworking-plugins).
const cniDir = "/usr/lib/cni"

// Run runs the tests of m and returns their exit code. If $AFS_CLUSTER is set, the tests run in new namespaces. They
// are a child of the first process of these namespaces, which reaps orphans such as the shims of containers. When the
// first process ends, the kernel ends all processes in the namespaces.
//
//	this process          waits; removes the control group and the directory
//	  `- first process    prepares mounts and network; reaps
//	       `- tests       m.Run
func Run(m *testing.M) int {
	switch {
	case os.Getenv(Variable) == "" || os.Getenv(stageVariable) == "tests":
		return m.Run()
	case os.Getenv(stageVariable) == "first":
		return first()
	}
	if err := Check(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	code, err := outside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return max(code, 1)
	}
	return code
}

// Check returns an error that states what this machine lacks to run a cluster, or nil if it lacks nothing.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("check requirements of a cluster: process is not root")
	}
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	programs := []string{"etcd", "containerd", "containerd-shim-runc-v2", "runc", "ctr", "umoci", "busybox", "ip", "tar",
		cniDir + "/ptp"}
	for _, name := range []Component{APIServer, Controller, Scheduler, Kubelet, "kubectl"} {
		programs = append(programs, filepath.Join(os.Getenv(Variable), string(name)))
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("find program: %w", err)
		}
	}
	static, err := isStatic("busybox")
	if err == nil && !static {
		err = errors.New("check busybox: not statically linked (install busybox-static)")
	}
	if err != nil {
		return err
	}
	points, err := hierarchies()
	if err == nil && len(points) == 0 {
		err = errors.New("find control groups: no hierarchy is mounted")
	}
	return err
}

// isStatic reports whether a program in PATH is statically linked, so that it runs in an image without libraries.
func isStatic(name string) (bool, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return false, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// outside starts the first process of the namespaces, waits until it has ended, and removes the directory and the
// control group. SIGINT and SIGTERM end the namespaces.
func outside() (code int, err error) {
	// The kernel sends Pdeathsig when the thread that started the child ends, so this thread must stay alive.
	runtime.LockOSThread()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	sweep()
	group := prefix + strconv.Itoa(os.Getpid())
	root, err := os.MkdirTemp("", group+"-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, keepLogs(root, code), os.RemoveAll(root)) }()
	if err := makeGroups(group); err != nil {
		return 1, errors.Join(err, removeGroups(group))
	}
	defer func() { err = errors.Join(err, removeGroups(group)) }()
	cmd := again("first", rootVariable+"="+root, groupVariable+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Setsid:     true, // a new session, so that Ctrl-C reaches only this process
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start process in namespaces: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-signals:
				cmd.Process.Signal(unix.SIGTERM)
			case <-ended:
				return
			}
		}
	}()
	cmd.Wait()
	code = cmd.ProcessState.ExitCode()
	if code < 0 { // killed
		code = 1
	}
	return code, nil
}

// again returns a command that runs this test binary with another role.
func again(stage string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(append(os.Environ(), stageVariable+"="+stage), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// first is the main function of the first process of the namespaces. It prepares the namespaces, runs the tests, and
// then kills all processes.
func first() int {
	if err := prepare(os.Getenv(rootVariable)); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: prepare namespaces:", err)
		return 1
	}
	tests := again("tests")
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	go func() {
		<-signals
		unix.Kill(tests.Process.Pid, unix.SIGKILL)
	}()
	code := 1
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == tests.Process.Pid {
			if err == nil && status.Exited() {
				code = status.ExitStatus()
			}
			break
		}
	}
	unix.Kill(-1, unix.SIGKILL)
	// A process that waits for a FUSE request cannot be killed until its connection ends.
	stuck := time.AfterFunc(10*time.Second, abort)
	defer stuck.Stop()
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			return code
		}
	}
}

// prepare creates the mounts and the network of the namespaces. Mounts propagate within the namespace, as on a node
// with systemd, but not to other namespaces.
func prepare(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Mounts of other programs were copied into this namespace. They are unmounted, because the copies would keep the
	// file systems busy.
	table, err := mountinfo.Self()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(table) {
		if strings.HasPrefix(m.Type, "fuse") && m.Type != "fusectl" {
			unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	for _, dir := range []string{"lib/kubelet", "log"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
		{filepath.Join(root, "lib"), "/var/lib", "", unix.MS_BIND},
		{filepath.Join(root, "log"), "/var/log", "", unix.MS_BIND},
		{"", "/", "", unix.MS_REC | unix.MS_SHARED},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", NodeIP + "/32", "dev", "lo"}} {
		if _, err := output("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// abort aborts the FUSE connections of all mounts in the mount namespaces of the cluster.
func abort() {
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, path := range tables {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		for _, m := range mountinfo.Parse(text) {
			if strings.HasPrefix(m.Type, "fuse") && m.Type != "fusectl" {
				os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(m.Device)), []byte("1"), 0)
			}
		}
	}
}

// keepLogs moves the logs of a failed run to another directory and prints the path of this directory.
func keepLogs(root string, code int) error {
	if code == 0 {
		return nil
	}
	kept := strings.TrimRight(root, "/") + "-log"
	if err := os.Rename(filepath.Join(root, "log"), kept); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	fmt.Fprintln(os.Stderr, "cluster: the logs of the failed run are in", kept)
	return nil
}

// sweep removes directories and control groups of earlier runs whose first process was killed with SIGKILL.
func sweep() {
	ended := func(path string) bool {
		digits, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
		pid, err := strconv.Atoi(digits)
		return err == nil && unix.Kill(pid, 0) == unix.ESRCH && !strings.HasSuffix(path, "-log")
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range dirs {
		if ended(dir) {
			os.RemoveAll(dir)
		}
	}
	groups, _ := hierarchies()
	for _, h := range groups {
		old, _ := filepath.Glob(filepath.Join(h, prefix+"*"))
		for _, dir := range old {
			if ended(dir) {
				removeGroup(dir)
			}
		}
	}
}
