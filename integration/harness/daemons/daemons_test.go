package daemons

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestEnd checks that End ends the processes whose state directory is below the directory, and no others.
func TestEnd(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	start := func(state string, words ...string) *exec.Cmd {
		// Because of the colon, the shell does not replace itself by its last command.
		cmd := exec.Command("sh", append(append([]string{"-c", "sleep 60; :"}, words...), "--state", state)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // kills the child "sleep" too
			cmd.Wait()
		})
		return cmd
	}
	ours, theirs := start(dir+"/state", "daemon"), start(other+"/state", "daemon")
	start(dir+"x/state", "daemon") // not below the directory
	start(dir+"/state", "status")  // not a daemon
	ended := make(chan error, 1)
	go func() { ended <- ours.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); len(Below(dir)) != 1; time.Sleep(endPoll) {
		if time.Now().After(deadline) {
			t.Fatalf("processes below %s: got %v, want one", dir, Below(dir))
		}
	}
	if got := Below(dir)[0]; got.PID != ours.Process.Pid || got.Worker || got.State != dir+"/state" {
		t.Errorf("process below %s: got %+v", dir, got)
	}
	if err := End(dir); err != nil {
		t.Errorf("end the daemons: %v", err)
	}
	<-ended
	if left := Below(other); len(left) != 1 || left[0].PID != theirs.Process.Pid {
		t.Errorf("processes of another directory: got %v, want one", left)
	}
}
