package gitdir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIgnoresModes(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{"": false, "[core]\nfilemode = true": false,
		"[core]\nfilemode = off": true, "[core]\nFILEMODE = 0": true, "[Core]\nfilemode=false\nfilemode=yes": false} {
		if err := os.WriteFile(filepath.Join(dir, "config"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := IgnoresModes(dir); got != want {
			t.Errorf("configuration %q: got %v, want %v", text, got, want)
		}
	}
}
