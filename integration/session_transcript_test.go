package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// output collects the output of a command.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) has(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Contains(o.text.String(), text)
}

// record appends to the transcript.
func (m mounted) record(lines ...string) {
	m.w.Helper()
	cmd := m.w.command(m.w.Context(), "session", "record", "-C", m.Dir)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		m.w.Fatalf("session record: %v: %s", err, out)
	}
}

// A transcript is printed by turns, the files of a turn can be restored, and an erased record is removed here, on the
// session remote and in forks.
func TestTranscriptIsReadRestoredAndErased(t *testing.T) {
	w, r := newTravelled(t)
	c := w.sessionRemote("path", r)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "echo first >file")
	m.record(`{"type":"prompt","text":"make it second"}`)
	w.sh(m.Dir, "echo second >file")
	m.record(`{"type":"tool_call","role":"assistant","tool":"edit","input":{"path":"file"}}`)
	m.record(`{"type":"prompt","text":"the word is xyzzy, make it third"}`)
	w.sh(m.Dir, "echo third >file")
	m.record(`{"type":"reply","role":"assistant","text":"done"}`)

	text := w.ok("session", "transcript", "-C", m.Dir)
	for _, want := range []string{"== turn 1, checkpoint ", "== turn 2, checkpoint ", "prompt  make it second",
		`edit {"path":"file"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("session transcript: got\n%s\nwant %q in it", text, want)
		}
	}
	if one := w.ok("session", "transcript", "--turn", "1", "-C", m.Dir); strings.Contains(one, "xyzzy") ||
		!strings.Contains(one, "make it second") {
		t.Errorf("session transcript --turn 1: got\n%s", one)
	}
	if report := w.ok("session", "transcript", "--markdown", "-C", m.Dir); !strings.Contains(report, "# Session work\n") ||
		!strings.Contains(report, "## Turn 2\n") {
		t.Errorf("session transcript --markdown: got\n%s", report)
	}
	var records []control.TranscriptRecord
	for line := range strings.Lines(w.ok("session", "transcript", "--json", "-C", m.Dir)) {
		var record control.TranscriptRecord
		w.check(json.Unmarshal([]byte(line), &record))
		records = append(records, record)
	}
	if len(records) != 4 || records[2].Turn != 2 || !records[2].Begins || len(records[2].ID) != 26 {
		t.Fatalf("records: got %+v, want four, the third of which begins turn 2", records)
	}
	if show := m.shown(records[2].Checkpoint); show.Recorded != 2 || len(show.Since) != 2 {
		t.Errorf("records between the checkpoints of turn 1 and 2: got %d, want 2", show.Recorded)
	}
	if log := w.ok("session", "log", "-C", m.Dir); !strings.Contains(log, "RECORDED") {
		t.Errorf("session log does not show the number of records:\n%s", log)
	}
	w.ok("session", "restore", "--turn", "2", "-C", m.Dir)
	w.wantFile(m.path("file"), "second\n")
	w.ok("session", "restore", "turn:1", "file", "-C", m.Dir)
	w.wantFile(m.path("file"), "first\n")
	w.refusal(w.afs("session", "restore", "--turn", "9", "-C", m.Dir), control.ExitNotMounted,
		"transcript has only 2 turns", "")

	// --follow continues after a takeover.
	var followed output
	follow := w.command(t.Context(), "session", "transcript", "--follow", "-C", m.Dir)
	follow.Stdout = &followed
	w.check(follow.Start())
	w.until("the existing records were printed", func() bool { return followed.has("done") })
	w.check(syscall.Kill(m.status().PID, syscall.SIGKILL))
	m.record(`{"type":"reply","text":"after the kill"}`)
	w.until("a later record was printed", func() bool { return followed.has("after the kill") })
	w.check(follow.Process.Signal(os.Interrupt))
	_ = follow.Wait() // ended by that signal

	var fork control.MountReply
	w.json(&fork, "session", "fork", w.place("fork"), "-C", m.Dir)
	w.ok("session", "fact", "add", "the tests need port 5432", "-C", m.Dir)
	w.ok("session", "handoff", "--set", "login works", "-C", m.Dir)
	m.sync()
	out := w.ok("session", "erase", "--record", records[2].ID, "--why", "asked for", "-C", m.Dir)
	if !strings.Contains(out, "erased 1 record of session work") || !strings.Contains(out, "of its fork "+fork.Session) {
		t.Errorf("session erase: got %q, want the session and its fork", out)
	}
	if text := w.ok("session", "transcript", "-C", m.Dir); strings.Contains(text, "xyzzy") ||
		!strings.Contains(text, "asked for") || !strings.Contains(text, "== turn 2") {
		t.Errorf("session transcript after a record was erased: got\n%s", text)
	}
	m.sync()
	for _, dir := range []string{m.sessionGit(), c.Path, mounted{w: w, MountReply: fork}.sessionGit()} {
		if all := w.sh(dir,
			`for r in $(git for-each-ref --format='%(refname)' refs/afs/transcript); do for c in $(git rev-list $r); do git ls-tree -r $c | while read -r _ _ id _; do git cat-file blob $id; done; done; done`); strings.Contains(all, "xyzzy") {
			t.Errorf("%s still has the erased record in the history of its transcript", dir)
		}
	}
	if all := w.sh(m.sessionGit(),
		"git cat-file --batch --batch-all-objects --unordered 2>/dev/null || true"); strings.Contains(all, "xyzzy") {
		t.Error("session.git still has an object with the erased record")
	}
	if facts := w.ok("session", "fact", "list", "-C", m.Dir); !strings.Contains(facts, "the tests need port 5432") {
		t.Errorf("session fact list: got %q", facts)
	}
	if handoff := w.ok("session", "handoff", "-C", m.Dir); handoff != "login works\n" {
		t.Errorf("session handoff: got %q, want %q", handoff, "login works\n")
	}
	w.git(c.Path, "rev-parse", "--verify", "refs/afs/facts/work")
	w.unmount(mounted{w: w, MountReply: fork})
	w.unmount(m)
}

// gc drops the records of dropped checkpoints, here and on the session remote; facts, the handoff and turn numbers
// stay.
func TestTranscriptIsCollected(t *testing.T) {
	w, r := newTravelled(t)
	c := w.sessionRemote("path", r)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"),
		append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	for _, turn := range []string{"xyzzy", "second", "third"} {
		w.sh(m.Dir, "echo "+turn+" >file")
		m.checkpoint()
		m.record(`{"type":"prompt","text":"` + turn + `"}`)
	}
	w.ok("session", "fact", "add", "-C", m.Dir, "the tests need root")
	m.sync()
	var reply control.SessionGCReply
	w.json(&reply, "session", "gc", m.Dir, "--keep-all", "0", "--keep-daily", "0", "--dry-run")
	if reply.Records != 2 || len(reply.Dropped) != 2 {
		t.Errorf("session gc --dry-run: got %d records and %d checkpoints, want 2 and 2", reply.Records, len(reply.Dropped))
	}
	if out := w.ok("session", "gc", m.Dir, "--keep-all", "0", "--keep-daily", "0"); !strings.HasPrefix(out,
		"dropped 2 checkpoints and 2 records, kept 1, ") {
		t.Errorf("session gc: got %q, want 2 checkpoints and 2 records dropped", out)
	}
	m.sync()
	var last control.TranscriptRecord
	lines := strings.Split(strings.TrimSpace(w.ok("session", "transcript", "-C", m.Dir, "--json")), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != 2 || last.Turn != 3 ||
		!strings.Contains(string(last.Record), "third") {
		t.Errorf("session transcript after gc: got %q, want a tombstone and the third turn", lines)
	}
	for _, dir := range []string{m.sessionGit(), c.Path} {
		if got := w.git(dir, "rev-list", "--count", "refs/afs/transcript/work"); got != "1" {
			t.Errorf("commits of the transcript in %s after gc: got %s, want 1", dir, got)
		}
		if out := w.sh(dir, "git grep -c xyzzy refs/afs/transcript/work || true"); out != "" {
			t.Errorf("%s still has a dropped record: %s", dir, out)
		}
	}
	if out := w.ok("session", "fact", "list", "-C", m.Dir); !strings.Contains(out, "need root") {
		t.Errorf("facts after gc: got %q", out)
	}
}
