package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/undo"
)

// hooked is a mount in which agents work whose hooks are run by hand.
type hooked struct{ mounted }

// event runs the hook of an agent with an event. members are further members of the event, in JSON.
func (m hooked) event(agent, name, members string) {
	m.w.Helper()
	line := fmt.Sprintf(`{"hook_event_name":%q,"session_id":%q,"cwd":%q%s}`, name, agent+"-1", m.Dir, members)
	cmd := m.w.command(m.w.Context(), "session", "hook", agent)
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(line)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "artifactfs:") {
		m.w.Fatalf("event %s: %v: %s", line, err, out)
	}
}

// call runs a script as a call of the tool Bash, between the two events of the call.
func (m hooked) call(agent, id, script string) {
	m.w.Helper()
	members := fmt.Sprintf(`,"tool_name":"Bash","tool_input":{"command":%q},"tool_use_id":%q`, script, id)
	m.event(agent, "PreToolUse", members)
	m.w.sh(m.Dir, script)
	m.event(agent, "PostToolUse", members+`,"tool_response":"done"`)
}

// files returns the names of all files and directories, with hashes of the contents.
func (m hooked) files() string {
	m.w.Helper()
	return m.w.sh(m.Dir, `find . -path ./.git -prune -o -type f -exec sha256sum {} + -o -type d -print | sort`)
}

// undo runs session undo or redo, which must succeed.
func (m hooked) undo(args ...string) (r undo.Reply) {
	m.w.Helper()
	m.w.json(&r, append([]string{"session"}, append(args, "-C", m.Dir)...)...)
	return r
}

// paths returns the paths of changes.
func (m hooked) paths(r undo.Reply) string {
	var list []string
	for _, c := range r.Changes {
		list = append(list, c.Path)
	}
	return strings.Join(list, " ")
}

// Two agents and a user work in one mount. An undo takes back what one call or turn of an agent has changed and nothing
// else, and a redo restores exactly the files from before the undo.
func TestUndoOfAgents(t *testing.T) {
	w := newWorld(t)
	files := map[string]gittest.File{}
	for _, name := range []string{"d0/f0", "d0/f1", "d1/f0", "d1/f1"} {
		files[name] = gittest.File{Data: []byte(name + "\n")}
	}
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := hooked{w.bare(url, "--wait", "git", "--session", "work", "--checkpoint", "off")}
	defer w.unmount(m.mounted)
	w.refusal(w.afs("session", "undo", "-C", m.Dir), control.ExitFailed, "no tool call of an agent has changed files",
		"artifactfs agent status")
	m.event("claude", "UserPromptSubmit", `,"prompt":"go"`)
	start := m.files()
	m.call("claude", "toolu_1",
		"mkdir made empty; echo a >made/a; echo a >made/b; echo a >d0/f0; rm d0/f1; ln -s f0 d0/link")
	first := m.files()
	w.sh(m.Dir, "echo user >>d1/f0; echo user >notes; echo user >made/user")
	m.event("codex", "UserPromptSubmit", `,"prompt":"go"`)
	m.call("codex", "call_2", "echo codex >>d1/f1; echo codex >>made/a")
	m.call("claude", "toolu_3", "echo b >d0/f0; chmod +x made/b; git add d0/f0; git commit -qm fix")
	w.sh(m.Dir, "echo later >>notes")
	now, head, tree := m.files(), w.git(m.Dir, "rev-parse", "HEAD"), m.checkpoint().Tree
	records := w.ok("session", "transcript", m.Dir)

	w.refusal(w.afs("session", "undo", "toolu_1", "-C", m.Dir), control.ExitFailed,
		"1 path was changed by somebody else since: made/a (codex)", "--keep-others")
	if r := m.undo("undo", "--dry-run"); r.Of != "toolu_3" || m.paths(r) != "d0/f0 made/b" || !r.DryRun || !r.HeadMoved {
		t.Errorf("dry run: %+v", r)
	}
	if m.files() != now || w.ok("session", "transcript", m.Dir) != records {
		t.Errorf("a refusal or a dry run has changed something:\n%s\nwas\n%s", m.files(), now)
	}
	r := w.afs("session", "undo", "-C", m.Dir)
	if r.code != 0 || !strings.HasPrefix(r.stdout, `undid Bash "echo b >d0/f0; chmod`) ||
		!strings.Contains(r.stdout, " of turn 1 (") || !strings.Contains(r.stderr, "HEAD stays at "+head[:12]+
		" (git reset --soft "+w.git(m.Dir, "rev-parse", "HEAD~1")[:12]+" takes its commits back)") {
		t.Errorf("undo of the last call: %+v", r)
	}
	if got := w.sh(m.Dir, "cat d0/f0; git rev-parse HEAD; tail -1 notes"); got != "a\n"+head+"\nlater" {
		t.Errorf("after the undo of the last call: %s", got)
	}
	one := m.undo("undo", "toolu_1", "--keep-others")
	if len(one.Kept) != 1 || one.Kept[0] != "made/a" || m.paths(one) != "d0/f0 d0/f1 d0/link empty made/b" {
		t.Errorf("undo that keeps others: %+v", one)
	}
	got := w.sh(m.Dir, "echo d0/* made/* e*; cat d0/* made/a made/user notes")
	if got != "d0/f0 d0/f1 made/a made/user e*\nd0/f0\nd0/f1\na\ncodex\nuser\nuser\nlater" {
		t.Errorf("after the undo that keeps others: %s", got)
	}
	if r := m.undo("redo"); r.Of != "toolu_1" || m.paths(r) != m.paths(one) {
		t.Errorf("redo: %+v", r)
	}
	if m.undo("redo"); m.files() != now || m.checkpoint().Tree != tree {
		t.Errorf("after both redos:\n%s\nwant\n%s", m.files(), now)
	}
	w.refusal(w.afs("session", "redo", "-C", m.Dir), control.ExitFailed, "nothing was undone that can be redone",
		"transcript")

	// A turn is that of a conversation: the prompt of codex has not ended the turn of claude.
	turn := m.undo("undo", "1", "--with-others")
	if turn.Calls != 2 || len(turn.Others) != 1 || turn.Others[0] != (undo.OtherChange{Path: "made/a", By: "codex"}) {
		t.Errorf("undo of a turn: %+v", turn)
	}
	w.sh(m.Dir, "rm made/user notes; git checkout -q HEAD -- d1; rmdir made")
	if got := m.files(); got != start {
		t.Errorf("after the undo of the turn, without the work of the others:\n%s\nwant\n%s", got, start)
	}
	w.sh(m.Dir, "echo again >d0/f0")
	w.refusal(w.afs("session", "redo", "-C", m.Dir), control.ExitFailed,
		"1 path was changed by somebody else since: d0/f0", "--with-others")
	if m.undo("redo", "--with-others"); w.sh(m.Dir, "cat d0/f0 made/a") != "b\na\ncodex" {
		t.Errorf("after the redo of the turn:\n%s\nafter the first call\n%s", m.files(), first)
	}
	var last struct{ Record struct{ Type, Text string } }
	lines := strings.Split(strings.TrimSpace(w.ok("session", "transcript", m.Dir, "--json")), "\n")
	check(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	if last.Record.Type != "redo" || last.Record.Text != "redid turn 1" {
		t.Errorf("last record: %s", lines[len(lines)-1])
	}
}

// A call has removed the only file of a directory, removed an empty directory, and replaced others, and a user has made
// files there since. An undo restores what the call has changed and nothing else.
func TestUndoOfEmptyDirectories(t *testing.T) {
	w := newWorld(t)
	files := map[string]gittest.File{}
	for _, name := range []string{"d/x", "g/x", "h/x", "file", "notes"} {
		files[name] = gittest.File{Data: []byte(name + "\n")}
	}
	w.commit(w.repo("r.git", object.SHA1), files)
	m := hooked{w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git", "--session", "work",
		"--checkpoint", "off")}
	defer w.unmount(m.mounted)
	w.sh(m.Dir, "mkdir empty filled replaced shared")
	start := m.files()
	m.call("claude", "toolu_1", "rm d/x g/x h/x file; mkdir file; rmdir empty replaced; echo a >replaced; "+
		"echo a >filled/a; echo a >shared/a")
	w.sh(m.Dir, "echo user | tee d/x h/y shared/user notes")
	w.refusal(w.afs("session", "undo", "-C", m.Dir), control.ExitFailed,
		"1 path was changed by somebody else since: d/x", "--keep-others")
	now := m.files()
	r := m.undo("undo", "--keep-others")
	if got := w.sh(m.Dir, "cat d/x h/y shared/user notes"); got != "user\nuser\nuser\nuser" {
		t.Errorf("files of the user after the undo: %s", got)
	}
	if len(r.Kept) != 1 || r.Kept[0] != "d/x" {
		t.Errorf("undo that keeps others: %+v", r)
	}
	if m.undo("redo"); m.files() != now {
		t.Errorf("after the redo:\n%s\nwant\n%s", m.files(), now)
	}
	m.undo("undo", "--with-others")
	w.sh(m.Dir, "rm h/y shared/user; echo notes >notes")
	if got := m.files(); got != start {
		t.Errorf("after the undo, without the work of the user:\n%s\nwant\n%s", got, start)
	}
	m.call("claude", "toolu_2", "rm d/x")
	w.sh(m.Dir, "echo user | tee d/x notes")
	if r := m.undo("undo", "--keep-others"); len(r.Changes) != 0 || w.sh(m.Dir, "cat d/x notes") != "user\nuser" {
		t.Errorf("undo without anything to restore: %+v\n%s", r, m.files())
	}
}
