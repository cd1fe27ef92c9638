package query

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMisreadCommands(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Join("sub", "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PWD", filepath.Join(os.Getenv("PWD"), "sub"))
	for command, want := range map[string]bool{
		"git diff": false, "git diff HEAD": true, "git diff HEAD -- sub": true, "git diff --stat HEAD~2": true,
		"git diff --cached HEAD": false,
		"git diff --staged":      false, "git diff -- HEAD": false, "git diff sub": false, "git diff inner": false,
		"git diff --no-index a b": false,
		"git diff sub --":         true, "git -C /x -c a=b diff main": true, "git -C": false, "git": false,
		"git status":          false,
		"git log -p HEAD":     false,
		"git diff-index HEAD": true, "git diff-index --cached HEAD": false, "/usr/lib/git-core/git-diff-index HEAD": true,
		"/usr/bin/git diff main": true,
		"git diff-files":         false, "": false,
	} {
		if got := misread(strings.Fields(command)); got != want {
			t.Errorf("command %q: got %v, want %v", command, got, want)
		}
	}
}

func TestIsHook(t *testing.T) {
	for name, want := range map[string]bool{"/a/b/" + HookName: true, CarefulName: true, "artifactfs": false,
		"/x/" + HookName + "/y": false} {
		if IsHook(name) != want {
			t.Errorf("program name %q: want %v", name, want)
		}
	}
}
