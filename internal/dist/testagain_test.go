package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTestAgain checks that scripts/test-again.sh repeats a failed test at most once, and never a test that kills
// processes.
func TestTestAgain(t *testing.T) {
	script, err := filepath.Abs("../../scripts/test-again.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, failed, list string
		second             int // exit status of the second run
		status             int
		runs               string
		prints             []string
	}{
		{"a failure of the moment", "TestBusy", "", 0, 0, "first\n-run ^(TestBusy)$ example.com/p\n",
			[]string{"add these lines", "\nexample.com/p TestBusy 20"}},
		{"another test in the list", "TestBusy", "example.com/p TestBusyToo 2026-01-02\n", 0, 0,
			"first\n-run ^(TestBusy)$ example.com/p\n", []string{"\nexample.com/p TestBusy 20"}},
		{"a failure twice", "TestBusy", "", 1, 1, "first\n-run ^(TestBusy)$ example.com/p\n", nil},
		{"a test that was run again before", "TestBusy", "example.com/p TestBusy 2026-01-02\n", 0, 1, "first\n",
			[]string{"lists it: example.com/p TestBusy 2026-01-02"}},
		{"a test about kills", "TestUnderKills", "", 0, 1, "first\n", []string{"is a finding: example.com/p TestUnderKills"}},
		{"no failure", "", "", 0, 0, "first\n", nil},
	} {
		dir := t.TempDir()
		file := func(name, text string) string {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			return path
		}
		first := "echo 'ok  \texample.com/p\t0.1s'; exit 0"
		if c.failed != "" {
			first = "echo '--- FAIL: " + c.failed + " (0.1s)'; echo FAIL; printf 'FAIL\\texample.com/p\\t0.1s\\n'; exit 1"
		}
		fake := file("go", "#!/bin/sh\nif [ \"$1\" = -run ]; then echo \"$*\" >>"+dir+"/runs; exit "+
			string(rune('0'+c.second))+"; fi\necho first >>"+dir+"/runs\n"+first+"\n")
		cmd := exec.Command("sh", script, fake, "--", "example.com/p")
		cmd.Env = append(os.Environ(), "AFS_RERAN_TESTS="+file("list", c.list))
		out, _ := cmd.CombinedOutput()
		runs, _ := os.ReadFile(filepath.Join(dir, "runs"))
		if got := cmd.ProcessState.ExitCode(); got != c.status || string(runs) != c.runs {
			t.Errorf("%s: got status %d and runs %q, want %d and %q\n%s", c.what, got, runs, c.status, c.runs, out)
		}
		for _, text := range c.prints {
			if !strings.Contains(string(out), text) {
				t.Errorf("%s: output lacks %q:\n%s", c.what, text, out)
			}
		}
	}
}
