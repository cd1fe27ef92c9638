package fsmonitor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Git stages .gitmodules after it has moved or removed a submodule, although the monitor knows of no change before.
func TestGitStagesModules(t *testing.T) {
	m := newMonitored(t, asksSocket(t), map[string]gittest.File{"a": {Data: []byte("a")}})
	m.server.Close()
	serve(t, filepath.Join(m.dir, ".git"), func(ctx context.Context, pid int32, token string) (string, []string, bool, error) {
		next, paths, all, err := m.since(ctx, pid, token)
		if query.Find(int(pid)).StagesModules() {
			paths = append(paths, ".gitmodules")
		}
		return next, paths, all, err
	})
	sub := filepath.Join(filepath.Dir(m.dir), "sub")
	if err := os.Mkdir(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"commit", "--quiet", "--allow-empty", "--message=sub"}} {
		if _, err := gittest.Git(t.Context(), sub, args...); err != nil {
			t.Fatal(err)
		}
	}
	m.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", sub, "mods/a")
	m.note(".gitmodules", "mods/", "/")
	m.git("commit", "--quiet", "--message=added")
	// trust makes git rely on the monitor for .gitmodules: the file is older than the index, the first status stores its
	// times in the index, and the second one stores that the file is unchanged.
	trust := func() {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(m.dir, ".gitmodules"), old, old); err != nil {
			t.Fatal(err)
		}
		m.note(".gitmodules")
		m.git("status")
		m.git("status")
	}
	m.git("config", "alias.move", "mv")
	for _, step := range []struct{ command, staged string }{
		{"mv mods/a mods/b", "M  .gitmodules\nR  mods/a -> mods/b"},
		{"-C mods move b c", "M  .gitmodules\nR  mods/b -> mods/c"},
		{"rm --quiet mods/c", "M  .gitmodules\nD  mods/c"},
	} {
		trust()
		m.git(strings.Fields(step.command)...)
		m.note(".gitmodules", "mods/")
		if got := strings.TrimRight(m.git("status", "--short"), "\n"); got != step.staged {
			t.Errorf("status after git %s: got %q, want %q", step.command, got, step.staged)
		}
		m.git("commit", "--quiet", "--message=changed")
	}
}
