package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	namespace = "artifactfs"
	nodeImage = "cluster.test/artifactfs:1" // the programs and git
	podImage  = "cluster.test/pod:1"        // busybox and meter
	stateDir  = "/var/lib/artifactfs"
	meterDir  = "/var/lib/meter" // records of the meters
	setpriv   = "/usr/bin/setpriv"
)

// world is the cluster of all tests, with the deployment.
type world struct {
	*cluster.Cluster
	dir      string // of programs and repositories
	programs string
}

var (
	theWorld *world
	starting sync.Mutex
)

// start returns the cluster with the deployment, and starts it in the first call.
func start(t *testing.T) *world {
	t.Helper()
	if os.Getenv(cluster.Variable) == "" {
		t.Skip("make cluster-test runs this test")
	}
	starting.Lock()
	defer starting.Unlock()
	if theWorld != nil {
		return theWorld
	}
	c, err := cluster.Start(t.Context(), cluster.Options{MaxPods: 200})
	check(t, err)
	dir, err := os.MkdirTemp("/var/lib", "test-")
	check(t, err)
	w := &world{Cluster: c, dir: dir, programs: filepath.Join(dir, "bin")}
	check(t, os.Mkdir(w.programs, 0o755))
	check(t, os.MkdirAll(meterDir, 0o777))
	check(t, os.Chmod(meterDir, 0o777))
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", w.programs+"/",
		"../../cmd/artifactfs", "../../cmd/artifactfs-fsmonitor", "../../cmd/artifactfs-csi", "../harness/cluster/meter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build programs: %v\n%s", err, out)
	}
	files, err := gitFiles()
	check(t, err)
	for _, name := range []string{"artifactfs", "artifactfs-fsmonitor", "artifactfs-csi"} {
		files["/usr/bin/"+name] = filepath.Join(w.programs, name)
	}
	check(t, c.Image(nodeImage, files))
	check(t, c.Image(podImage, map[string]string{"/bin/meter": filepath.Join(w.programs, "meter")}))
	check(t, c.Apply(deployment(t)))
	w.deployed(t)
	theWorld = w
	return w
}

// deployed waits until the deployment runs and the kubelet knows the driver.
func (w *world) deployed(t *testing.T) {
	t.Helper()
	check(t, w.WaitReady(t.Context(), namespace, "app=artifactfs-keep", 1))
	check(t, w.WaitReady(t.Context(), namespace, "app=artifactfs-node", 1))
	check(t, w.Wait(t.Context(), "the driver is registered", func() error {
		out, err := w.Kubectl("get", "csinode", cluster.Node, "-o", "jsonpath={.spec.drivers[*].name}")
		if err == nil && out != "csi.artifactfs" {
			err = fmt.Errorf("drivers of the node: %q", out)
		}
		return err
	}))
}

// gitFiles returns the files that git and setpriv need in an image.
func gitFiles() (map[string]string, error) {
	files := map[string]string{"/usr/bin/git": "/usr/bin/git", setpriv: setpriv}
	for _, pattern := range []string{"git-remote-http", "git-remote-https", "git-sh-setup", "git-submodule",
		"git-mergetool--lib"} {
		found, _ := filepath.Glob(filepath.Join("/usr/lib/git-core", pattern))
		for _, path := range found {
			files[path] = path
		}
	}
	for _, program := range []string{"/usr/bin/git", "/usr/lib/git-core/git-remote-http", setpriv} {
		out, err := exec.Command("ldd", program).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("list libraries of %s: %w: %s", program, err, out)
		}
		for line := range strings.Lines(string(out)) {
			for _, word := range strings.Fields(line) {
				if filepath.IsAbs(word) {
					files[word] = word
				}
			}
		}
	}
	return files, nil
}

// deployment returns deploy/kubernetes/artifactfs.yaml with the image of the test.
func deployment(t *testing.T) string {
	t.Helper()
	return objects(t, "artifactfs.yaml", map[string]string{"artifactfs:latest": nodeImage}, 4)
}

// objects returns a file of deploy/kubernetes with the images of the test, a map from the images in the file. The file
// must have count containers.
func objects(t *testing.T, file string, images map[string]string, count int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/kubernetes", file))
	check(t, err)
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if before, image, found := strings.Cut(line, " image: "); found {
			name, known := images[strings.TrimSpace(image)]
			if !known {
				t.Fatalf("%s contains the unexpected image %s", file, image)
			}
			line = before + " image: " + name + "\n" + before + " imagePullPolicy: Never\n"
			count--
		}
		b.WriteString(line)
	}
	if count != 0 {
		t.Fatalf("the number of containers in %s differs from the expected one by %d", file, -count)
	}
	return b.String()
}

// afs runs artifactfs on the node, for the daemon of the deployment.
func (w *world) afs(args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(w.programs, "artifactfs"),
		append([]string{"--state", stateDir}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("artifactfs %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// serve serves the repositories below a directory to pods.
func serve(t *testing.T, o gittest.ServerOptions) *gittest.Server {
	t.Helper()
	o.Addr, o.Cheap = cluster.NodeIP+":0", true
	s, err := gittest.Serve(o)
	check(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// hashedRepo makes a repository with count files, whose names end with the hashes of their contents.
func hashedRepo(t *testing.T, path string, count int) *gittest.Repo {
	t.Helper()
	r, err := gittest.New(path, gittest.RepoOptions{})
	check(t, err)
	files := make(map[string]gittest.File, count)
	random := rand.New(rand.NewPCG(1, uint64(count)))
	for i := range count {
		var b strings.Builder
		for range 5 + random.IntN(200) {
			fmt.Fprintf(&b, "%016x\n", random.Uint64())
		}
		sum := sha256.Sum256([]byte(b.String()))
		files[fmt.Sprintf("dir%02d/f%04d-%s", i%20, i, hex.EncodeToString(sum[:]))] = gittest.File{Data: []byte(b.String())}
	}
	_, err = r.Commit("main", files, "files with hashes as names")
	check(t, err)
	return r
}

// pod describes a pod with a volume at /work.
type pod struct {
	name       string
	image      string // "": podImage
	command    string // of the shell
	attributes map[string]string
	secret     string // name of the secret with the token; "": none
	spec       string // further lines of the pod's spec, indented by two
	container  string // further lines of the container, indented by four
	mount      string // further fields of the volume mount
	volume     string // the volume; "": an ephemeral volume with the attributes
}

func (p pod) yaml() string {
	if p.image == "" {
		p.image = podImage
	}
	volume := p.volume
	if volume == "" {
		volume = "csi:\n      driver: csi.artifactfs\n      volumeAttributes:\n"
		for name, value := range p.attributes {
			volume += fmt.Sprintf("        %s: %q\n", name, value)
		}
		if p.secret != "" {
			volume += "      nodePublishSecretRef: {name: " + p.secret + "}\n"
		}
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  terminationGracePeriodSeconds: 2
  automountServiceAccountToken: false
  enableServiceLinks: false
%s  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: [sh, -c, %q]
%s    volumeMounts:
    - {name: work, mountPath: /work%s}
    - {name: meter, mountPath: /meter}
  volumes:
  - name: meter
    hostPath: {path: %s}
  - name: work
    %s
---
`, p.name, strings.TrimRight(p.name, "0123456789-"), p.spec, p.image, p.command, p.container, p.mount, meterDir, volume)
}

// exec runs a shell command in the container main of a pod.
func (w *world) exec(pod, command string) (string, error) {
	out, err := w.Kubectl("exec", pod, "-c", "main", "--", "sh", "-c", command)
	return strings.TrimSpace(out), err
}

// remove deletes pods and waits until they are gone.
func (w *world) remove(t *testing.T, selector string) {
	t.Helper()
	_, err := w.Kubectl("delete", "pod", "-l", selector, "--wait=false")
	check(t, err)
	// the context of the test has ended when its cleanups run
	check(t, w.WaitGone(context.Background(), "default", selector))
}

// volumesLeft returns an error if there is a mount of a volume, or the kubelet has a directory of one.
func (w *world) volumesLeft() error {
	table, err := mountinfo.Self()
	if err != nil {
		return err
	}
	for _, m := range table {
		if strings.HasPrefix(m.Type, "fuse") && strings.HasPrefix(m.Point, cluster.KubeletRoot) {
			return errors.New("there is a mount: " + m.Point)
		}
	}
	left, _ := filepath.Glob(filepath.Join(cluster.KubeletRoot, "pods/*/volumes/kubernetes.io~csi/*"))
	if len(left) > 0 {
		return fmt.Errorf("there are directories of volumes: %q", left)
	}
	return nil
}
