package cluster

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

// check ends the test if err is not nil.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const podYAML = `apiVersion: v1
kind: Pod
metadata: {name: first, labels: {app: first}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: cluster.test/first:1
    imagePullPolicy: Never
    command: [sh, -c, "i=0; while :; do i=$((i+1)); echo $i >/data/count; sleep 0.1; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`

// mounterYAML describes two pods: one mounts a file system for the node, as drivers of volumes do, and the other reads
// it.
const mounterYAML = `apiVersion: v1
kind: Pod
metadata: {name: mounter, labels: {app: mounts}}
spec:
  terminationGracePeriodSeconds: 1
  hostNetwork: true
  containers:
  - name: main
    image: cluster.test/first:1
    imagePullPolicy: Never
    securityContext: {privileged: true}
    command: [sh, -c, "mkdir -p /lib/m && mount -t tmpfs none /lib/m && echo mounted >/lib/m/file && sleep 1000000"]
    volumeMounts: [{name: lib, mountPath: /lib, mountPropagation: Bidirectional}]
  volumes: [{name: lib, hostPath: {path: /var/lib/mounter, type: DirectoryOrCreate}}]
---
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {app: mounts}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: cluster.test/first:1
    imagePullPolicy: Never
    command: [sleep, "1000000"]
    volumeMounts: [{name: lib, mountPath: /lib, mountPropagation: HostToContainer}]
  volumes: [{name: lib, hostPath: {path: /var/lib/mounter, type: DirectoryOrCreate}}]
`

func TestCluster(t *testing.T) {
	if os.Getenv(Variable) == "" {
		t.Skip("make cluster-test runs this test")
	}
	ctx := t.Context()
	c, err := Start(ctx, Options{})
	check(t, err)
	defer func() { check(t, c.Stop()) }()
	check(t, c.Image("cluster.test/first:1", nil))
	check(t, c.Apply(podYAML))
	check(t, c.WaitReady(ctx, "default", "app=first", 1))
	count := func() string {
		t.Helper()
		out, err := c.Kubectl("exec", "first", "--", "cat", "/data/count")
		check(t, err)
		return strings.TrimSpace(out)
	}
	t.Logf("the pod has counted to %s", count())

	// The pod keeps running while the programs of the node are killed, and can be used after they were started again.
	pid, err := c.ContainerPID("default", "first", "main")
	check(t, err)
	for _, name := range []Component{Kubelet, Containerd} {
		check(t, c.Kill(name))
		check(t, c.Launch(name))
		before := ""
		check(t, c.Wait(ctx, "the pod can be used after the start of "+string(name), func() (err error) {
			before, err = c.Kubectl("exec", "first", "--", "cat", "/data/count")
			return err
		}))
		check(t, c.Wait(ctx, "the pod counts", func() error {
			if now := count(); now == strings.TrimSpace(before) {
				return errors.New("check pod: its counter does not change")
			}
			return nil
		}))
		after, err := c.ContainerPID("default", "first", "main")
		check(t, err)
		if after != pid {
			t.Errorf("the kill of %s replaced the process of the pod", name)
		}
	}

	// A mount that one pod makes is visible on the node and in other pods.
	check(t, c.Apply(mounterYAML))
	check(t, c.WaitReady(ctx, "default", "app=mounts", 2))
	check(t, c.Wait(ctx, "the mount is visible in another pod", func() error {
		_, err := c.Kubectl("exec", "reader", "--", "cat", "/lib/m/file")
		return err
	}))
	if text, err := os.ReadFile("/var/lib/mounter/m/file"); err != nil || string(text) != "mounted\n" {
		t.Errorf("file in the mount of a pod, read on the node: got %q (%v), want \"mounted\\n\"", text, err)
	}
	_, err = c.Kubectl("delete", "pod", "--all")
	check(t, err)
	check(t, c.WaitGone(ctx, "default", ""))
}
