package gitside

import (
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
)

func TestTheIndexIsLeftToCommandsAtWork(t *testing.T) {
	var g gitPass
	free := func() bool {
		release, ok := g.bar()
		if ok {
			release()
		}
		return ok
	}
	if !free() {
		t.Error("barred by nobody")
	}
	pipe, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat")
	cmd.Stdin = pipe
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	g.let(pid, []string{"vi"})
	g.let(0, []string{"git"}) // a process ID of 0 means that the process is in another PID namespace
	if !free() {
		t.Error("barred by who is not git")
	}
	g.let(pid, []string{"/usr/bin/git", "status"})
	if free() {
		t.Error("not barred by a command at work")
	}
	for name, p := range g.seen {
		g.seen[name] = pass{p.pid, p.at.Add(-passes)}
	}
	g.let(pid, []string{"/usr/bin/git", "status"})
	if !free() {
		t.Error("barred by one that sits in a pager")
	}
	hold.Close()
	cmd.Wait()
	pipe.Close()
	if !free() || len(g.seen) > 0 {
		t.Errorf("who has ended is known: %v", g.seen)
	}
	release, ok := g.bar()
	if !ok {
		t.Fatal("barred by nobody")
	}
	var released atomic.Bool
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		g.let(uint32(os.Getpid()), []string{"git"})
		if !released.Load() {
			t.Error("a command passed")
		}
	}()
	released.Store(true)
	release()
	<-passed
	if free() {
		t.Error("who has waited is not known")
	}
}
