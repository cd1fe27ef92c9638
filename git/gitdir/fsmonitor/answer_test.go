package fsmonitor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
)

// answered returns a clone whose monitor completes the answers of a journal by Changes. The function set is called
// before each answer. The test is skipped if the git program runs under another name, as with a dynamic loader.
func answered(t *testing.T, set func(m *monitored, c *Changes)) *monitored {
	t.Helper()
	m := newMonitored(t, asksSocket(t), someFiles())
	var unknown atomic.Bool
	m.server.Close()
	ask := func(ctx context.Context, pid int32, token string) (next string, paths []string, all bool, err error) {
		c := Changes{Start: "j:0"}
		c.Since = func(token string) (string, []string, bool, error) { return m.since(ctx, pid, token) }
		set(m, &c)
		unknown.Store(query.Find(int(pid)).StagesModules())
		return c.Answer(pid, token)
	}
	m.server = serve(t, filepath.Join(m.dir, ".git"), ask)
	if m.git("status"); unknown.Load() {
		t.Skip("the processes of git have another name")
	}
	return m
}

// shell runs a command of the shell in the clone, through an alias of git.
func (m *monitored) shell(command string) { m.t.Helper(); m.git("-c", "alias.run=!"+command, "run") }

// After git was run with core.fileMode=false, it has stored that files are unchanged whose modes have changed.
func TestModesAfterTheyWereIgnored(t *testing.T) {
	m := answered(t, func(m *monitored, c *Changes) {
		config, _ := os.ReadFile(filepath.Join(m.dir, ".git", "config"))
		c.ComparesLess = strings.Contains(strings.ToLower(string(config)), "filemode = false")
	})
	const want = " M sub/f"
	for _, status := range [][]string{{"-c", "core.fileMode=false", "status", "--short"}, {"shell"}, {"config"}} {
		if err := os.Chmod(filepath.Join(m.dir, "sub/f"), 0o755); err != nil {
			t.Fatal(err)
		}
		m.note("sub/f")
		switch status[0] {
		case "shell":
			m.shell("git -c core.filemode=0 status")
		case "config":
			m.git("config", "core.fileMode", "false")
			m.git("status")
			m.git("status")
			m.git("config", "core.fileMode", "true")
		default:
			m.git(status...)
		}
		for range 2 {
			if got := m.git("status", "--short"); got != want {
				t.Errorf("status after %q: got %q, want %q", status, got, want)
			}
		}
		m.git("checkout", "--", "sub/f")
		m.note("sub/f")
		m.git("status")
	}
}

// Git reads names from a pipe whose other end changes a file that the monitor has called unchanged before.
func TestFilesChangedWhileGitReadsNames(t *testing.T) {
	m := answered(t, func(m *monitored, c *Changes) {
		since := c.Since
		c.Since = func(token string) (string, []string, bool, error) {
			defer os.WriteFile(filepath.Join(m.dir, ".git", "asked"), nil, 0o600)
			return since(token)
		}
	})
	m.write("sub/f", "first\n")
	m.git("add", "sub/f")
	m.trust("sub/f")
	m.shell("rm .git/asked; (until test -e .git/asked; do :; done; echo second >sub/f; echo sub/f) | " +
		"git update-index --stdin")
	m.note("sub/f")
	if got := m.git("diff", "--name-only"); got != "" {
		t.Errorf("files that git update-index --stdin did not stage: %q", got)
	}
}

// trust makes git rely on the monitor for a file.
func (m *monitored) trust(path string) {
	m.t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(m.dir, path), old, old); err != nil {
		m.t.Fatal(err)
	}
	m.note(path)
	m.git("status")
	m.git("status")
}

// An index with a position that the journal does not know may call any file unchanged.
func TestUnknownPositionAfterLooseComparison(t *testing.T) {
	var j journal
	c := Changes{Start: "j:0"}
	c.Since = func(token string) (string, []string, bool, error) { return j.since(t.Context(), 0, token) }
	j.note("a", "b")
	for token, want := range map[string]struct {
		paths int
		all   bool
	}{"j:1": {1, false}, "j:1" + comparedLess: {2, false}, "j:9": {0, true}, "j:9" + comparedLess: {0, true}} {
		next, paths, all, err := c.Answer(0, token)
		if next != "j:2" || len(paths) != want.paths || all != want.all || err != nil {
			t.Errorf("answer since %q: got %q, %q, %v, %v, want %+v", token, next, paths, all, err, want)
		}
	}
}
