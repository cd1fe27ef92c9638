package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// output runs a program for at most Patience and returns its standard output. Errors contain the standard error output.
func output(name string, args ...string) (string, error) {
	return feed(nil, name, args...)
}

// feed runs a program like output, with stdin as its standard input.
func feed(stdin []byte, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		err = fmt.Errorf("run %s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
		return stdout.String(), err
	}
	return stdout.String(), nil
}

// Kubectl runs kubectl and returns its standard output.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.kubectl(nil, args...) }

func (c *Cluster) kubectl(stdin []byte, args ...string) (string, error) {
	args = append([]string{"--kubeconfig=" + c.file("kubeconfig"), "--cache-dir=" + c.file("kubectl")}, args...)
	return feed(stdin, filepath.Join(c.bin, "kubectl"), args...)
}

// Apply creates or changes the Kubernetes objects that a YAML text describes (kubectl apply).
func (c *Cluster) Apply(yaml string) error {
	_, err := c.kubectl([]byte(yaml), "apply", "-f", "-")
	return err
}

func (c *Cluster) ready() error {
	_, err := c.Kubectl("get", "--raw", "/readyz")
	return err
}

func (c *Cluster) nodeReady() error {
	status, err := c.Kubectl("get", "node", Node, "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].status}{.spec.taints}`)
	if err == nil && status != "True" {
		err = fmt.Errorf("node is not ready: %q", status)
	}
	return err
}

// Wait calls check repeatedly until it returns nil. It returns an error after Patience, or as soon as a component ends.
func (c *Cluster) Wait(ctx context.Context, condition string, check func() error) error {
	return c.wait(ctx, condition, check)
}

// WaitReady waits until exactly count pods match a selector and all of them are ready.
func (c *Cluster) WaitReady(ctx context.Context, namespace, selector string, count int) error {
	return c.wait(ctx, fmt.Sprintf("%d pods %s are ready", count, selector), func() error {
		out, err := c.Kubectl("get", "pods", "-n", namespace, "-l", selector, "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}{end}`)
		if err != nil {
			return err
		}
		ready := 0
		for line := range strings.Lines(out) {
			// the line of a pod that is being deleted has three fields
			if f := strings.Fields(line); len(f) == 2 && f[1] == "True" {
				ready++
			}
		}
		if ready != count || strings.Count(out, "\n") != count {
			return fmt.Errorf("%d pods are ready, want %d:\n%s", ready, count, out)
		}
		return nil
	})
}

// WaitGone waits until no pod matches a selector.
func (c *Cluster) WaitGone(ctx context.Context, namespace, selector string) error {
	return c.wait(ctx, "no pod "+selector+" exists", func() error {
		out, err := c.Kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "name")
		if err == nil && out != "" {
			err = errors.New("wait for end of pods: remaining: " + out)
		}
		return err
	})
}

// ContainerPID returns the process ID of the first process of a container of a pod.
func (c *Cluster) ContainerPID(namespace, pod, container string) (int, error) {
	path := `jsonpath={.status.containerStatuses[?(@.name=="` + container + `")].containerID}`
	id, err := c.Kubectl("get", "pod", "-n", namespace, pod, "-o", path)
	if err != nil {
		return 0, err
	}
	id = strings.TrimPrefix(id, "containerd://")
	tasks, err := output("ctr", "-n", "k8s.io", "task", "ls")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(tasks) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id && f[2] == "RUNNING" {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("find process of container %s of pod %s: container %q has no running task", container, pod, id)
}

// Image builds an image and imports it into containerd. The image contains busybox with all its applets, and the given
// files, a map from absolute paths in the image to paths on the host. name has the form cluster.test/NAME:TAG. Pods
// that use the image need the pull policy Never.
func (c *Cluster) Image(name string, files map[string]string, entrypoint ...string) error {
	dir, err := os.MkdirTemp(c.dir, "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	base, tag, ok := strings.Cut(name, ":")
	if !ok {
		return fmt.Errorf("build image %s: name has no tag", name)
	}
	if err := imageTree(filepath.Join(dir, "tree"), files); err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	layout := filepath.Join(dir, "layout")
	config := []string{"config", "--image", layout + ":" + tag, "--config.env", "PATH=/bin:/usr/bin:/sbin:/usr/sbin"}
	for _, word := range entrypoint {
		config = append(config, "--config.entrypoint", word)
	}
	for _, step := range [][]string{
		{"init", "--layout", layout},
		{"new", "--image", layout + ":" + tag},
		{"insert", "--image", layout + ":" + tag, filepath.Join(dir, "tree"), "/"},
		config,
	} {
		if _, err := output("umoci", step...); err != nil {
			return fmt.Errorf("build image %s: %w", name, err)
		}
	}
	if _, err := output("tar", "-C", layout, "-cf", filepath.Join(dir, "image.tar"), "."); err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	if _, err := output("ctr", "-n", "k8s.io", "image", "import", "--base-name", base,
		filepath.Join(dir, "image.tar")); err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	return nil
}

// imageTree writes the file tree of an image to the directory tree.
func imageTree(tree string, files map[string]string) error {
	for _, dir := range []string{"bin", "etc", "proc", "sys", "dev", "tmp", "var", "root", "run"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(tree, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	users := "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(tree, "etc/passwd"), []byte(users), 0o644); err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := copyFile(filepath.Join(tree, "bin/busybox"), busybox); err != nil {
		return err
	}
	applets, err := output(busybox, "--list")
	if err != nil {
		return err
	}
	for _, applet := range strings.Fields(applets) {
		if applet != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(tree, "bin", applet)); err != nil {
				return err
			}
		}
	}
	for to, from := range files {
		if err := copyFile(filepath.Join(tree, to), from); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies the file from, with its mode, to the path to. It replaces an existing file.
func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}
