package integration

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/thin"
)

// A clone of the session remote of a thin session has a branch on which git log -p shows edits, removed files, commits
// and prompts. An erased record disappears from it, and so does the branch when the session is deleted.
func TestSessionThinIsReadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("source.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"dir/edited.txt": {Data: []byte("first\n" + strings.Repeat("line\n", 1000))},
		"dir/removed.txt": {Data: []byte("a removed line\n")}, "other.txt": {Data: []byte("other\n")}})
	c := w.sessionRemote("http", nil)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("source.git"), append(c.flags("work"), "--wait", "git")...)
	m.record(`{"type":"prompt","text":"Change the first line"}`)
	w.sh(m.Dir, "sed -i 's/^first$/changed/' dir/edited.txt && cat dir/removed.txt && rm dir/removed.txt")
	m.checkpoint("--sync", "-m", "the edit")
	w.sh(m.Dir, "echo more >>other.txt && git commit -qam 'a commit'")
	m.checkpoint("--sync")
	clone := w.place("clone")
	log := func() string {
		w.git(w.root, "clone", "-q", c.Path, clone)
		text := w.git(clone, "log", "-p", "origin/"+strings.TrimPrefix(thin.ReadableRef("work"), "refs/heads/"))
		w.git(clone, "fsck", "--strict")
		w.sh(w.root, "rm -r "+clone)
		return text
	}
	text := log()
	for _, want := range []string{"    the edit\n", "\n-first\n+changed\n", "deleted file mode", "\n-a removed line\n",
		"    a commit\n", "\n+more\n",
		"Change the first line"} {
		if !strings.Contains(text, want) {
			t.Errorf("log of the readable branch lacks %q:\n%s", want, text)
		}
	}
	w.ok("session", "erase", "--record", w.records(m.Dir)[0].ID, "-C", m.Dir)
	m.sync()
	if text := log(); strings.Contains(text, "Change the first line") || !strings.Contains(text, "\n-first\n+changed\n") {
		t.Errorf("log after the record was erased:\n%s", text)
	}
	w.unmount(m)
	w.ok("session", "delete", "work", "--session-remote", c.arg, "--yes")
	if refs := w.git(c.Path, "for-each-ref", "--format=%(refname)", "refs/heads"); refs != "" {
		t.Errorf("branches after the session was deleted: got %s, want none", refs)
	}
}
