package integration

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// Programs in a container can change .git, but the daemon, which is outside of the container, runs no program that .git names.
func TestDaemonRunsNoProgramOfAContainer(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("app.git"), "--git-dir", "inside", "--wait", "git")
	ran := w.place("ran")
	w.sh(m.Dir, `mkdir -p .git/hooks
for hook in reference-transaction post-index-change; do printf '#!/bin/sh\necho hook >>`+ran+`\n' >.git/hooks/$hook; chmod +x .git/hooks/$hook; done
printf '#!/bin/sh\necho monitor >>`+ran+`\nexit 1\n' >.git/monitor; chmod +x .git/monitor
git config core.fsmonitor "$PWD/.git/monitor"
for name in evil e=vil; do git config filter.$name.clean 'echo filter >>`+ran+`; cat'; done
printf '*.a filter=evil\n*.b filter=e=vil\n' >.gitattributes; echo x >x.a; echo x >x.b`)
	if err := os.Remove(ran); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	m.checkpoint()
	w.ok("refresh", m.Dir)
	w.unmount(m)
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("the daemon has run programs of the container: %s", text)
	}
}
