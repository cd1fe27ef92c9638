package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// agentWorld is a working tree that a fake daemon reports as a mount, with its git directory in the state directory.
type agentWorld struct {
	*afs
	dir, git string
	daemon   *fakeDaemon
}

func newAgentWorld(t *testing.T) agentWorld {
	t.Helper()
	w := agentWorld{afs: newAfs(t)}
	w.dir, w.git = filepath.Join(w.afs.dir, "m"), filepath.Join(w.state, "mounts", "m1", "git")
	if err := os.MkdirAll(filepath.Dir(w.git), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("git", "init", "-q", "--separate-git-dir", w.git, w.dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	w.daemon = newFakeDaemon(mountStatus(w.dir))
	serve(t, control.DaemonSocket(w.state), w.daemon)
	return w
}

// event runs the hook of an agent with an event in the mount.
func (w agentWorld) event(agent, name string) {
	w.t.Helper()
	cmd := w.command("session", "hook", agent)
	cmd.Stdin = strings.NewReader(`{"hook_event_name":"` + name + `","session_id":"s-1","cwd":"` + w.dir + `"}`)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "artifactfs:") {
		w.t.Errorf("event %s of %s: got %v: %s", name, agent, err, out)
	}
}

// age sets the time of a file back.
func (w agentWorld) age(path string, by time.Duration) {
	w.t.Helper()
	if at := time.Now().Add(-by); os.Chtimes(path, at, at) != nil {
		w.t.Errorf("the file %s does not exist", path)
	}
}

// lines returns the lines of status about agents.
func (w agentWorld) lines() string {
	w.t.Helper()
	status := w.ok("status", "m")
	if all := w.ok("status"); all != status {
		w.t.Errorf("status of all mounts: got %s, want %s", all, status)
	}
	var lines []string
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "  agents    "); ok {
			lines = append(lines, strings.TrimSpace(text))
		}
	}
	return strings.Join(lines, "\n")
}

// Status says of each agent whose hooks are installed when they have fired, and what to do if they never have.
func TestStatusTellsWhenHooksHaveFired(t *testing.T) {
	w := newAgentWorld(t)
	expect := func(when, want string) {
		t.Helper()
		if got := w.lines(); got != want {
			t.Errorf("status %s: got\n%s\nwant\n%s", when, got, want)
		}
	}
	expect("without hooks", "")
	if got := w.ok("status", "m", "--json"); strings.Contains(got, `"agents"`) {
		t.Errorf("status --json without hooks: got %s", got)
	}
	w.ok("agent", "install", "claude", "--dir", "m")
	if r := w.run("agent", "install", "codex", "--dir", "m"); r.code != 0 {
		t.Fatalf("install the hooks of codex: got %+v", r)
	}
	trust := "never fired: trust it with /hooks in codex (codex exec runs no project hooks)"
	untrusted := "codex: installed, " + trust
	expect("after the install",
		"claude: installed, never fired: start claude in "+w.dir+", and accept the directory\n"+untrusted)

	w.event("claude", "SessionStart")
	expect("after the first event", "claude: last event (agent start) just now, no prompt yet\n"+untrusted)
	w.event("claude", "UserPromptSubmit")
	w.age(filepath.Join(w.git, "artifactfs-hooks/fired/claude/prompt"), 150*time.Second)
	expect("after the first prompt", "claude: last prompt 2 min ago\n"+untrusted)

	type agent struct {
		Agent, File, Hint string
		Installed         bool
		Fired             *struct {
			Kind, Conversation string
			Time               time.Time
		}
		Prompt *time.Time
	}
	check := func(args string, agents []agent) {
		t.Helper()
		if len(agents) < 2 {
			t.Fatalf("%s: got the agents %+v, want claude and codex", args, agents)
		}
		claude, codex := agents[0], agents[1]
		if claude.Agent != "claude" || !claude.Installed || claude.Hint != "" || claude.Prompt == nil || claude.Fired == nil {
			t.Fatalf("%s: got %+v", args, claude)
		}
		if f := claude.Fired; f.Kind != "agent_start" || f.Conversation != "s-1" || !f.Time.After(*claude.Prompt) {
			t.Errorf("%s: got the newest event %+v", args, *f)
		}
		if codex.Agent != "codex" || codex.File != w.dir+"/.codex/hooks.json" || !codex.Installed || codex.Fired != nil ||
			!strings.Contains(codex.Hint, "/hooks") {
			t.Errorf("%s: got %+v", args, codex)
		}
	}
	var one struct{ Agents []agent }
	var all struct{ Mounts []struct{ Agents []agent } }
	var hooks struct{ Hooks []agent }
	for args, out := range map[string]any{
		"status m --json": &one, "status --json": &all, "agent status --dir m --json": &hooks} {
		if err := json.Unmarshal([]byte(w.ok(strings.Fields(args)...)), out); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
	}
	check("status m --json", one.Agents)
	check("status --json", all.Mounts[0].Agents)
	check("agent status --json", hooks.Hooks)
	want := "claude    installed in " + w.dir +
		"/.claude/settings.local.json (with tools and skill), last prompt 2 min ago\n" +
		"codex     installed in " + w.dir + "/.codex/hooks.json (with tools and skill), " + trust + "\n" +
		"copilot   not installed\ncursor    not installed\ngemini    not installed\nopencode  not installed\n"
	if got := w.ok("agent", "status", "--dir", "m"); got != want {
		t.Errorf("agent status: got\n%s\nwant\n%s", got, want)
	}

	// An earlier version has installed fewer hooks.
	file := w.dir + "/.claude/settings.local.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	older := strings.Replace(string(text), " session hook claude", " version", 1)
	for name, replace := range map[string]string{"older": older, "present": string(text)} {
		if err := os.WriteFile(file, []byte(replace), 0o644); err != nil {
			t.Fatal(err)
		}
		hint := ""
		if name == "older" {
			hint = ": an earlier version has written the hooks: run artifactfs agent install claude --dir " + w.dir
		}
		expect("with the "+name+" hooks", "claude: last prompt 2 min ago"+hint+"\n"+untrusted)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}

	// An agent that is running continues to run hooks that were removed from its file.
	w.event("gemini", "SomethingElse")
	expect("after an event of hooks that are not installed", "claude: last prompt 2 min ago\n"+untrusted+
		"\ngemini: fired just now, but "+w.dir+"/.gemini/settings.json contains no hooks")
	for _, agent := range []string{"gemini", "claude"} {
		w.ok("agent", "uninstall", agent, "--dir", "m")
	}
	expect("after the uninstall of two agents", untrusted)
	w.ok("agent", "uninstall", "codex", "--dir", "m")
	expect("after the uninstall of all", "")
	if left, err := os.Stat(filepath.Join(w.git, "artifactfs-hooks")); err == nil {
		t.Errorf("uninstall has left %s", left.Name())
	}
}

// Scripts can use the former name of the commands, which no help lists.
func TestFormerNameOfAgent(t *testing.T) {
	w := newAgentWorld(t)
	w.ok("session", "hooks", "install", "gemini", "--dir", "m")
	status := w.ok("agent", "status", "--dir", "m")
	got := w.ok("session", "hooks", "status", "--dir", "m")
	if got != status || !strings.Contains(got, "gemini    installed in ") {
		t.Errorf("session hooks status: got\n%s\nwant\n%s", got, status)
	}
	w.ok("session", "hooks", "uninstall", "gemini", "--dir", "m")
	if got := w.ok("agent", "status", "--dir", "m", "--json"); strings.Contains(got, `"installed":true`) {
		t.Errorf("agent status after the uninstall: got %s", got)
	}
	help := w.ok("session", "hooks", "--help")
	if !strings.HasPrefix(help, "This is the former name of artifactfs agent.\n") {
		t.Errorf("session hooks --help: got\n%s", help)
	}
}

// Doctor warns of hooks that were installed an hour ago and have never fired.
func TestDoctorFindsHooksThatNeverFire(t *testing.T) {
	w := newAgentWorld(t)
	w.ok("agent", "install", "claude", "--dir", "m")
	w.ok("agent", "install", "gemini", "--only", "hooks", "--dir", "m")
	w.ok("agent", "install", "opencode", "--only", "skill,hooks", "--dir", "m")
	w.age(filepath.Join(w.dir, ".claude/settings.local.json"), 2*time.Hour)
	w.age(filepath.Join(w.dir, ".gemini/settings.json"), 2*time.Hour)
	w.event("gemini", "BeforeAgent")
	got := w.run("doctor", "--offline").stdout
	for _, want := range []string{
		"warn  " + w.dir + ": hooks of claude: installed, never fired (with tools and skill)\n" +
			"      hint: start claude in " + w.dir + ", and accept the directory\n",
		"ok    " + w.dir + ": hooks of gemini: last prompt just now\n",
		"ok    " + w.dir + ": hooks of opencode: installed, never fired (with skill)\n      hint: restart opencode in " +
			w.dir + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("doctor does not print %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "hooks of codex") {
		t.Errorf("doctor has a finding about hooks that are not installed:\n%s", got)
	}
}

// A hook notes that it has fired also where nothing is mounted, if the directory is in a git repository.
func TestHooksFireOutsideOfMounts(t *testing.T) {
	a := newAfs(t)
	w := agentWorld{afs: a, dir: filepath.Join(a.dir, "clone")}
	if out, err := exec.Command("git", "init", "-q", w.dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	w.event("codex", "UserPromptSubmit")
	want := "fired just now, but " + w.dir + "/.codex/hooks.json contains no hooks\n"
	if got := a.ok("agent", "status", "--dir", "clone"); !strings.Contains(got, "codex     "+want) {
		t.Errorf("agent status: got\n%s\nwant in it %s", got, want)
	}
	a.ok("agent", "uninstall", "codex", "--dir", "clone")
	if _, err := os.Stat(filepath.Join(w.dir, ".git/artifactfs-hooks")); err == nil {
		t.Error("uninstall has left artifactfs-hooks")
	}
	w.dir = a.dir // in no git repository
	w.event("codex", "UserPromptSubmit")
}

// A hook ends before the agent kills it, even if the daemon does not answer. Codex waits three seconds for the hook of
// this event, and longer for others. The limit leaves a busy machine time to start the process.
func TestHookEndsInTime(t *testing.T) {
	a := newAfs(t)
	socket := control.DaemonSocket(a.state)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := a.command("session", "hook", "codex")
	cmd.Stdin = strings.NewReader(`{"hook_event_name":"SessionEnd","session_id":"s-1","cwd":"` + a.dir + `"}`)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if took := time.Since(began); err != nil || len(out) > 0 || took > 9*time.Second {
		t.Errorf("hook with a daemon that does not answer: got %v after %v: %s", err, took, out)
	}
}

// A checkpoint is made before and after each tool that may change files, and its ID is in the record. After a tool that
// has changed nothing, the checkpoint has no message, so that the daemon makes none.
func TestHooksMakeCheckpoints(t *testing.T) {
	a, s, f := newWork(t)
	s.set(func() { s.checkpoint.ID = checkpointA })
	dir := filepath.Join(a.dir, "app")
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	for _, c := range []struct {
		event, tool string
		dirty       bool
		want        string // message of the checkpoint
		made        bool
	}{
		{"PreToolUse", "Bash", false, "before Bash make x", true},
		{"PostToolUse", "Bash", true, "after Bash make x", true},
		{"PostToolUse", "Bash", false, "", true},
		{"PostToolUseFailure", "mcp__x__y", true, "after mcp__x__y make x", true},
		{"PreToolUse", "Read", true, "", false},
		{"PostToolUse", "Read", true, "", false},
	} {
		f.set(func() { f.mounts[0].Session.Dirty = c.dirty })
		s.set(func() { s.asked = nil })
		cmd := a.command("session", "hook", "claude")
		cmd.Stdin = strings.NewReader(`{"hook_event_name":"` + c.event + `","session_id":"s-1","tool_name":"` + c.tool +
			`","tool_input":{"command":"make x"},"tool_use_id":"t-1","cwd":"` + dir + `"}`)
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "artifactfs:") {
			t.Fatalf("event %+v: %v: %s", c, err, out)
		}
		message, made, record := "", false, ""
		s.set(func() {
			for _, r := range s.asked {
				switch r := r.(type) {
				case control.CheckpointRequest:
					message, made = r.Message, true
				case control.SessionRecordRequest:
					record = r.Lines[0]
				}
			}
		})
		if message != c.want || made != c.made || strings.Contains(record, checkpointA) != c.made ||
			!strings.Contains(record, `"call":"t-1"`) {
			t.Errorf("event %+v: got checkpoint %v with message %q and record %s", c, made, message, record)
		}
	}
}

// Install adds the parts that --only names, and all without it. Uninstall removes all, and both say what has changed.
func TestPartsOfAnAgent(t *testing.T) {
	w := newAgentWorld(t)
	settings, table := w.dir+"/.codex/hooks.json", w.dir+"/.codex/config.toml"
	skill := w.dir + "/.agents/skills/artifactfs/SKILL.md"
	status := func(want string) {
		t.Helper()
		if got := w.ok("agent", "status", "--dir", "m"); !strings.Contains(got, "\ncodex     "+want) {
			t.Errorf("agent status: got\n%s\nwant in it %s", got, want)
		}
	}
	for _, c := range []struct{ args, out, status string }{
		{"install codex --only skill", "installed the skill of codex in " + skill, "not installed (with skill)\n"},
		{"install codex --only hooks", "installed the hooks of codex in " + settings,
			"installed in " + settings + " (with skill), never fired"},
		{"install codex", "the hooks of codex are installed in " + settings + "\ninstalled the tools of codex in " + table +
			"\nthe skill of codex is installed in " + skill,
			"installed in " + settings + " (with tools and skill), never fired"},
		{"uninstall codex", "removed the hooks of codex from " + settings + "\nremoved the tools of codex from " + table +
			"\nremoved the skill of codex from " + skill, "not installed\n"},
		{"uninstall codex", "no hooks of codex are installed in " + settings, "not installed\n"},
	} {
		if r := w.run(append(strings.Fields("agent "+c.args), "--dir", "m")...); r.code != 0 || r.stdout != c.out+"\n" {
			t.Errorf("agent %s: got %+v\nwant\n%s", c.args, r, c.out)
		}
		status(c.status)
	}
	if err := os.WriteFile(w.dir+"/.mcp.json", []byte(`{"mcpServers":{"artifactfs":{"url":"x"}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	got := w.ok("agent", "install", "copilot", "--only", "hooks,tools", "--dir", "m")
	if want := "not changed, because you have made or edited the entry artifactfs in it: " + w.dir +
		"/.mcp.json\n"; !strings.HasSuffix(got, want) {
		t.Errorf("agent install beside an entry of the user: got %s, want at its end %s", got, want)
	}
	// The other parts are installed if one cannot be.
	if err := os.MkdirAll(w.dir+"/.cursor", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.dir+"/.cursor/mcp.json", []byte("[]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run("agent", "install", "cursor", "--dir", "m"); r.code != 1 || strings.Count(r.stdout, "installed the ") != 2 ||
		!strings.Contains(r.stderr, "/.cursor/mcp.json: file is not a JSON object") {
		t.Errorf("agent install with a file that cannot be edited: got %+v", r)
	}
	var change struct {
		Part, File string
		Changed    bool
		Other      []struct {
			Part          string
			Changed, Kept bool
		}
	}
	text := w.ok("agent", "install", "copilot", "--dir", "m", "--json")
	if err := json.Unmarshal([]byte(text), &change); err != nil || change.Part != "hooks" || change.Changed ||
		len(change.Other) != 2 || !change.Other[0].Kept || change.Other[1].Part != "skill" || !change.Other[1].Changed {
		t.Errorf("agent install --json: got %s, error %v", text, err)
	}
	if r := w.run("agent", "install", "copilot", "--only", "nothing", "--dir", "m"); r.code != 2 ||
		!strings.Contains(r.stderr, `unknown part "nothing": want hooks, tools or skill`) {
		t.Errorf("agent install --only nothing: got %+v", r)
	}
}
