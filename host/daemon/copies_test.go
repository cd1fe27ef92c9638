package daemon

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// TestAMountThatIsMountedElsewhereIsBusy checks a mount of which a container has a copy in its mount namespace. An
// unmount must fail with an error that names the container, and must not wait for the end of the container.
//
// The test is not parallel: its mount namespaces contain copies of every mount, so mounts of other tests would be busy.
func TestAMountThatIsMountedElsewhereIsBusy(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	k.mount(k.request(repo.Path, dir))
	container := func() (pid int, end func()) {
		cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid, func() { in.Close(); cmd.Wait() }
	}

	pid, end := container()
	defer end()
	_, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "("+strconv.Itoa(pid)+")") {
		t.Errorf("unmount of a mount that the container of process %d holds: got %v", pid, err)
	}
	if got := k.sh(dir, "cat README.md; git status --porcelain"); got != "read me\n" {
		t.Errorf("file of the mount after the failed unmount: got %q", got)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir})
		answer <- err
	}()
	end() // the container ends while unmount waits
	if err := <-answer; err != nil {
		t.Errorf("unmount after the container's end: got %v", err)
	}

	k.mount(k.request(repo.Path, dir))
	_, end = container()
	defer end()
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir, Detach: true}); err != nil {
		t.Errorf("detach of a mount that a container holds: got %v", err)
	}
	k.mount(k.request(repo.Path, dir))
	end()
	k.unmount(dir)
}
