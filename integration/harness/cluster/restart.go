package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Restart simulates a restart of the node. It kills the kubelet, containerd and every process of every container with
// SIGKILL, detaches all mounts of pods, removes what does not survive a boot (files below /run, control groups), and
// starts containerd and the kubelet again. The control plane continues to run. Unlike after a power failure, written
// data that was not synced is not lost, and the boot ID of the kernel does not change.
func (c *Cluster) Restart() error {
	for _, name := range []Component{Kubelet, Containerd} {
		if err := c.Kill(name); err != nil {
			return err
		}
	}
	if err := killContainers(); err != nil {
		return err
	}
	table, err := mountinfo.Self()
	if err != nil {
		return err
	}
	for _, m := range table {
		for _, dir := range []string{KubeletRoot, "/run/containerd", "/run/netns", "/run/artifactfs"} {
			if mountinfo.Within(dir, m.Point) {
				// fails if the mount was detached together with a mount above it
				unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
		}
	}
	for _, dir := range []string{"/run/containerd", "/run/netns", "/run/artifactfs"} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	points, err := hierarchies()
	for _, point := range points { // for each remaining group of an ended container, the kubelet would wait 3 s
		err = errors.Join(err, removeGroup(filepath.Join(point, os.Getenv(groupVariable), "kubepods")))
	}
	if err != nil {
		return err
	}
	if err := c.Launch(Containerd); err != nil {
		return err
	}
	// The kubelet ends if containerd is not ready. On a real node, a service manager would start it again.
	for end := time.Now().Add(Patience); ; {
		if err := c.Launch(Kubelet); err != nil {
			return err
		}
		c.mu.Lock()
		ended := c.processes[Kubelet].ended
		c.mu.Unlock()
		select {
		case <-time.After(3 * time.Second):
			return nil
		case <-ended:
		}
		if time.Now().After(end) {
			return errors.New("start kubelet: ended again: " + c.Tail(Kubelet))
		}
		if err := c.Kill(Kubelet); err != nil {
			return err
		}
	}
}

// killContainers kills all processes of containers, and their shims.
func killContainers() error {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		pids, err := proc.PIDs()
		if err != nil {
			return err
		}
		running := 0
		for _, pid := range pids {
			if pid == 1 || !isOfContainer(pid) {
				continue
			}
			running++
			unix.Kill(pid, unix.SIGKILL)
		}
		if running == 0 {
			return nil
		}
	}
	return errors.New("kill containers: processes still run")
}

// isOfContainer reports whether a process is in the control group of a pod or is the shim of a container.
func isOfContainer(pid int) bool {
	p := proc.Of(pid)
	name, _ := p.Name()
	groups, _ := p.Cgroups()
	pods := filepath.Join("/", os.Getenv(groupVariable), "kubepods")
	return strings.HasPrefix(name, "containerd-shim") ||
		slices.ContainsFunc(groups, func(g proc.Cgroup) bool { return strings.Contains(g.Path, pods) })
}
