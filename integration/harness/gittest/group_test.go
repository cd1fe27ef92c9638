package gittest

import (
	"bufio"
	"os/exec"
	"testing"
)

// TestWaitIsForTheWholeFamily checks that no child of a killed leader runs when wait returns, even if orphans are
// reaped late.
func TestWaitIsForTheWholeFamily(t *testing.T) {
	var g group
	for range 50 {
		cmd := exec.Command("sh", "-c", "sleep 600 & sleep 600 & echo ready; wait")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.start(cmd); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		if !alive(pid) {
			t.Fatal("a family at work counts as dead: this test sees nothing")
		}
		g.kill(cmd)
		if err := g.wait(cmd); err == nil {
			t.Error("a killed leader ended well")
		}
		if alive(pid) {
			t.Fatal("a child outlived the wait")
		}
	}
	g.close()
	if err := g.start(exec.Command("true")); err == nil {
		t.Error("a closed group starts processes")
	}
}
