package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

func TestFlagsFromTheEnvironment(t *testing.T) {
	a := newAfs(t)
	a.env = []string{"ARTIFACTFS_REMOTE=https://127.0.0.1/team/app.git", "ARTIFACTFS_DIR=" + a.dir + "/m",
		"ARTIFACTFS_REF=v1", "ARTIFACTFS_SESSION=s1",
		"ARTIFACTFS_PREFETCH_BUDGET=3M", "ARTIFACTFS_ALLOW_OTHER=true", "ARTIFACTFS_REDIRECT=x,y", "ARTIFACTFS_TIMEOUT=90s",
		"ARTIFACTFS_HISTORY="}
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	a.ok("mount")
	a.ok("mount", "other:app.git", "--ref=v2", "--session", "s2")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) != 2 {
		t.Fatalf("got %d mount requests", len(f.requests))
	}
	r := f.requests[0]
	if r.Remote != "https://127.0.0.1/team/app.git" || r.Dir != a.dir+"/m" || r.Ref != "v1" || r.Session != "s1" ||
		r.PrefetchBudget != 3<<20 || !r.AllowOther ||
		!slices.Equal(r.Redirects, []string{"x", "y"}) || !r.RedirectsOnly || r.Timeout != 90*time.Second ||
		r.History != control.HistoryBackground {
		t.Errorf("mount request from variables only: got %+v", r)
	}
	if r = f.requests[1]; r.Remote != "other:app.git" || r.Dir != a.dir+"/app" || r.Ref != "v2" || r.Session != "s2" ||
		!r.AllowOther {
		t.Errorf("mount request with arguments, which have priority: got %+v", r)
	}
}

func TestEnvironmentErrorsNameTheVariable(t *testing.T) {
	a := newAfs(t)
	a.env = []string{"ARTIFACTFS_PREFETCH=some"}
	r := a.run("mount", "repo")
	want := "artifactfs: mount $ARTIFACTFS_PREFETCH: must be one of auto|all|none\nhint: artifactfs mount --help\n"
	if r.code != control.ExitUsage || r.stderr != want {
		t.Errorf("mount request: got %+v", r)
	}
	a.env = []string{"ARTIFACTFS_LOG_LEVEL=loud"}
	if r := a.run("list"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "$ARTIFACTFS_LOG_LEVEL: must be one of") {
		t.Errorf("mount request: got %+v", r)
	}
}

// Other commands never take their target from the environment.
func TestUnmountIgnoresTheSessionOfTheEnvironment(t *testing.T) {
	a := newAfs(t)
	a.env = []string{"ARTIFACTFS_SESSION=s1", "ARTIFACTFS_ALL=1", "ARTIFACTFS_DISCARD=1"}
	if r := a.run("unmount"); r.code != control.ExitUsage || !strings.Contains(r.stderr, "want a directory") {
		t.Errorf("unmount without arguments: got %+v, want a usage error", r)
	}
}

func TestEnvironmentIsCompleted(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("HOME", "")
	cli.CompleteEnvironment()
	if os.Getenv("PATH") != cli.SearchPath || os.Getenv("HOME") == "" {
		t.Errorf("completed environment: got PATH %q, HOME %q", os.Getenv("PATH"), os.Getenv("HOME"))
	}
}
