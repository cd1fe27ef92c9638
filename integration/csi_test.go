package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The conformance tests of the Container Storage Interface, of its authors, against the driver and a daemon with real
// mounts.
func TestCSISanity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("csi"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	programs := t.TempDir()
	build := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", programs + "/"},
			args...)...).CombinedOutput(); err != nil {
			t.Fatalf("build %v: %v\n%s", args, err, out)
		}
	}
	build("../cmd/artifactfs-csi")
	// The tests are a module of their own, because they need many libraries that the program does not need.
	tests := exec.Command("go", "build", "-buildvcs=false", "-o", programs+"/",
		"github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	tests.Dir = "../container/csi/sanity"
	if out, err := tests.CombinedOutput(); err != nil {
		t.Fatalf("build csi-sanity: %v\n%s", err, out)
	}
	_, end := w.service("--state", w.state, "daemon")
	defer end()
	w.until("the daemon serves", func() bool {
		_, err := control.Dial(t.Context(), control.DaemonSocket(w.state))
		return err == nil
	})
	driver := exec.Command(filepath.Join(programs, "artifactfs-csi"), "--node", "n1", "--state", w.state, "--services",
		"node,controller",
		"--csi-socket", filepath.Join(w.root, "csi.sock"), "--log-format", "console", "-v")
	log := must[*os.File](t)(os.Create(filepath.Join(w.root, "csi.log")))
	defer log.Close()
	driver.Stderr = log
	check(t, driver.Start())
	defer func() {
		driver.Process.Kill()
		driver.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("log of the driver:\n%s", text[max(0, len(text)-16<<10):])
		}
	}()
	params := filepath.Join(w.root, "params.yaml")
	check(t, os.WriteFile(params, fmt.Appendf(nil, "remote: %s\nsessionRemote: embedded\n", url), 0o644))
	w.until("the driver serves", func() bool {
		_, err := os.Stat(filepath.Join(w.root, "csi.sock"))
		return err == nil
	})
	out, err := exec.Command(filepath.Join(programs, "csi-sanity"), "--csi.endpoint",
		"unix://"+filepath.Join(w.root, "csi.sock"),
		"--csi.testvolumeparameters", params, "--csi.mountdir", filepath.Join(w.root, "target"),
		"--csi.stagingdir", filepath.Join(w.root, "staging"), "--ginkgo.no-color").CombinedOutput()
	if err != nil {
		t.Fatalf("csi-sanity: %v\n%s", err, out[max(0, len(out)-8<<10):])
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "Passed") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if at := mountsBelow(w.root); len(at) > 0 {
		t.Errorf("still mounted: %s", at)
	}
}
