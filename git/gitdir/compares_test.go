package gitdir

import (
	"os"
	"path/filepath"
	"testing"
)

func TestComparesLess(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"": false, "[core]\nfilemode = true": false, "[core]\nfilemode = off": true, "[core]\nFILEMODE = 0": true,
		"[core]\nsymlinks = no": true, "[core]\ncheckStat = minimal": true,
		"[core]\ncheckstat = default\ntrustctime = 1": false, "[Core]\nfilemode=false\nfilemode=yes": false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "config"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ComparesLess(dir); got != want {
			t.Errorf("configuration %q: got %v, want %v", text, got, want)
		}
	}
}
