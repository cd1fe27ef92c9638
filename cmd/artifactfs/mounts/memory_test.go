package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// TestMemoryChoice checks that conversations which others may have made are placed only with the flag, that the flag
// turns the configuration off, and that a command which does not carry memory does not wait for git.
func TestMemoryChoice(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("HOME", home)
	for _, c := range []struct {
		config bool
		flags  []string
		mode   agenthook.MemoryMode
	}{
		{false, nil, agenthook.MemoryUnset},
		{true, nil, agenthook.MemoryKeep},
		{true, []string{"--agent-memory=false"}, agenthook.MemoryOff},
		{false, []string{"--agent-memory=false"}, agenthook.MemoryOff},
		{false, []string{"--agent-memory"}, agenthook.MemoryPlace},
		{true, []string{"--read-only"}, agenthook.MemoryUnset},
		{true, []string{"--session-remote", "none"}, agenthook.MemoryUnset},
		{true, []string{"--agent-memory=false", "--read-only"}, agenthook.MemoryUnset},
	} {
		text := ""
		if c.config {
			text = "agent_memory = true\n"
		}
		file := filepath.Join(home, "artifactfs", "config.toml")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var o MountOptions
		cmd := &cobra.Command{Use: "mount"}
		o.AddFlags(cmd)
		if err := cmd.ParseFlags(c.flags); err != nil {
			t.Fatal(err)
		}
		if o.Request.Wait != control.WaitTree {
			t.Fatalf("wait: %v", o.Request.Wait)
		}
		if err := o.CompleteMemory(cmd); err != nil || o.memory.mode != c.mode {
			t.Errorf("%+v: got %q, %v", c, o.memory.mode, err)
		}
		if waits := o.Request.Wait == control.WaitGit; waits != (c.mode != agenthook.MemoryUnset) {
			t.Errorf("%+v: waits %v", c, waits)
		}
	}
}
