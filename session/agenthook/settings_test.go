package agenthook

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const users = `{
  "model": "m-1",  "big": 12345678901234567890,
  "hooks": {
    "PreToolUse": [
      {"matcher": "Bash", "hooks": [{"type": "command", "command": "./check.sh"}]}
    ]
  },
  "permissions": {"allow": ["Bash(ls:*)"]}
}
`

// TestUninstallRestoresSettings checks that Uninstall removes exactly the bytes that Install added, for all kinds of
// existing settings.
func TestUninstallRestoresSettings(t *testing.T) {
	for name, before := range map[string]string{
		"other hooks": users,
		"no hooks":    "{\n\t\"a\": [1, 2],\n\t\"b\": null\n}",
		"one line":    `{"a":{"hooks":1}}`,
		"empty file":  "{\n}\n",
		"empty hooks": `{"a":1,"hooks":{}}`,
		"empty lines": "{\n  \"hooks\": {\n  }\n}\n",
		"empty event": "{\"hooks\": {\"Stop\": [], \"stop\": [\n    ], \"AfterAgent\": [ ]}}",
	} {
		for _, a := range []Agent{Claude, Codex, Copilot, Cursor, Gemini} {
			c := configurations[a]
			command := "'/opt/my tools/artifactfs'" + commandSuffix(a)
			after, err := c.install([]byte(before), a, command)
			if err != nil {
				t.Fatalf("%s: install for %s: %v", name, a, err)
			}
			var parsed struct {
				Hooks map[string][]struct {
					Command string // of an entry that is the hook itself
					Hooks   []struct{ Command string }
				}
			}
			if err := json.Unmarshal(after, &parsed); err != nil {
				t.Fatalf("%s: installed settings of %s are not JSON: %v\n%s", name, a, err, after)
			}
			for _, e := range c.events {
				groups := parsed.Hooks[e.name]
				got := ""
				if n := len(groups); n > 0 && c.flat {
					got = groups[n-1].Command
				} else if n > 0 {
					got = groups[n-1].Hooks[0].Command
				}
				if got != command {
					t.Errorf("%s: %s has no hook on %s:\n%s", name, a, e.name, after)
				}
			}
			if a == Codex && !strings.Contains(string(after), `"timeout": 3`) {
				t.Errorf("%s: the hook of codex for the end of a conversation has a long timeout:\n%s", name, after)
			}
			again, err := c.install(after, a, command)
			if err != nil || string(again) != string(after) {
				t.Errorf("%s: a second install for %s changed the file (error %v):\n%s", name, a, err, again)
			}
			older := c
			older.events = c.events[1 : len(c.events)-1]
			if again, err = older.install([]byte(before), a, "artifactfs"+commandSuffix(a)); err == nil {
				again, err = c.install(again, a, command)
			}
			if err != nil || string(again) != string(after) {
				t.Errorf("%s: the install for %s does not replace older hooks (error %v):\n%s", name, a, err, again)
			}
			rest, n, err := uninstall(after, a)
			if err != nil || n != len(c.events) || string(rest) != before {
				t.Errorf("%s: uninstall for %s removed %d hooks, error %v, and left\n%s\nwant\n%s", name, a, n, err, rest, before)
			}
		}
	}
}

// TestEditedHooksStay checks that hooks that the user has made or edited stay as they are, without a second hook for
// their events, and that all others are installed and removed as usual.
func TestEditedHooksStay(t *testing.T) {
	for _, a := range []Agent{Claude, Copilot, Gemini} {
		c := configurations[a]
		event := c.events[len(c.events)-2].name
		command := "artifactfs" + commandSuffix(a)
		all, err := c.install([]byte(c.empty), a, command)
		if err != nil {
			t.Fatal(err)
		}
		first := strings.Index(string(all), quote(event)+": [")
		timeout := `"timeout": ` + strconv.FormatInt(int64((Timeout+grace)/c.unit), 10)
		if !strings.Contains(string(all[first:]), timeout) {
			timeout = `"timeout": ` + strconv.FormatInt(int64((TreeTimeout+grace)/c.unit), 10)
		}
		for old, with := range map[string]string{
			timeout: `"timeout": 60`, `"command": "artifactfs`: `"command": "FOO=1 artifactfs`,
			`"type"`: `"async": true, "type"`, commandSuffix(a) + `"`: commandSuffix(a) + ` 2>/dev/null"`,
		} {
			edited := string(all[:first]) + strings.Replace(string(all[first:]), old, with, 1)
			for _, program := range []string{"artifactfs", "/opt/artifactfs"} {
				after, err := c.install([]byte(edited), a, program+commandSuffix(a))
				if program == "artifactfs" && string(after) != edited || !errors.Is(err, errKept) ||
					!strings.Contains(string(after), with) {
					t.Errorf("%s: install for %s beside a hook with %s: error %v, got\n%s", program, a, with, err, after)
				}
				rest, n, err := uninstall(after, a)
				found, entriesErr := c.entries(rest, a)
				if n != len(c.events)-1 || len(found.own) > 0 || !found.edited[event] || err != nil || entriesErr != nil {
					t.Errorf("%s: uninstall for %s removed %d hooks, error %v, %v, and left\n%s", program, a, n, err, entriesErr, rest)
				}
			}
		}
	}
}

// TestCommentsStay checks that a removal keeps the comments of the user around the removed member, and that the rest is
// still valid.
func TestCommentsStay(t *testing.T) {
	ours := `"artifactfs": {"command": "artifactfs", "args": ["mcp"]}`
	for text, want := range map[string]string{
		"{\n  OURS,\n  // my model\n  \"model\": 1\n}":              "{\n  // my model\n  \"model\": 1\n}",
		"{\n  \"a\": 1,\n  OURS,\n  // my model\n  \"model\": 1\n}": "{\n  \"a\": 1,\n  // my model\n  \"model\": 1\n}",
		"{\n  \"a\": 1, // one, two\n  OURS // ours\n}":             "{\n  \"a\": 1 // one, two\n // ours\n}",
		"{\n  \"a\": 1, // one\n  OURS}":                            "{\n  \"a\": 1 // one\n}",
		"{\n  \"a\": 1, // one\n  OURS, /* , */\n}":                 "{\n  \"a\": 1, // one\n /* , */\n}",
		"{\n  \"a\": 1, // one\n  OURS,\n  \"b\": 2}":               "{\n  \"a\": 1, // one\n  \"b\": 2}",
		"{ OURS, }":                                "{ }",
		"{ // none\n  OURS /* , */ , // end\n}":    "{ // none\n /* , */  // end\n}",
		"{\n  \"a\": 1 /* one */, OURS, // two\n}": "{\n  \"a\": 1 /* one */, // two\n}",
		"{\r\n  \"a\": 1,\r\n  OURS\r\n}":          "{\r\n  \"a\": 1\r\n}",
	} {
		text := []byte(`{"mcpServers": ` + strings.Replace(text, "OURS", ours, 1) + "}")
		rest, n, err := cutEntry(text, "mcpServers", isServer)
		if got := strings.TrimSuffix(strings.TrimPrefix(string(rest), `{"mcpServers": `), "}"); n != 1 || got != want ||
			err != nil {
			t.Errorf("removal from\n%s\ngot\n%q, error %v, want\n%q", text, got, err, want)
		}
		if _, err := parseSettings(rest); err != nil {
			t.Errorf("rest of %s is not valid: %v: %s", text, err, rest)
		}
	}
}

// TestSecondInstallMovesNothing checks that an install changes nothing if its entries are there, also if they are not
// the last ones.
func TestSecondInstallMovesNothing(t *testing.T) {
	for _, c := range []piece{Gemini.piece(Hooks), Gemini.piece(Tools)} {
		text, err := c.put([]byte("{\n}\n"), "artifactfs")
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.TrimSuffix(string(text), "\n}\n") + ",\n  // mine\n  \"model\": \"m\"\n}\n")
		if again, err := c.put(text, "artifactfs"); string(again) != string(text) || err != nil {
			t.Errorf("second install: got\n%s\nerror %v, want\n%s", again, err, text)
		}
	}
}

func TestInstallRefusesWhatItCannotRead(t *testing.T) {
	for _, before := range []string{"[]", "{} {}", "{", `{"hooks": []}`, `{"hooks": {"PreToolUse": {}}}`,
		"// comment\n{}"} {
		if after, err := configurations[Claude].install([]byte(before), Claude,
			"artifactfs session hook claude"); err == nil {
			t.Errorf("install into %q succeeded and wrote %s", before, after)
		}
	}
}

// A pipe in the place of the settings is refused: it would wait for a writer.
func TestSettingsAreRegularFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configurations[Claude].path)
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if in, err := Installed(dir, Claude); in.Yes || err == nil {
		t.Errorf("hooks in a pipe: got %+v, error %v", in, err)
	}
	if _, err := Install(dir, Claude, "artifactfs"); err == nil {
		t.Error("install into a pipe succeeded")
	}
}

// Install and uninstall in a directory without a configuration leave no files behind.
func TestUninstallLeavesNoTrace(t *testing.T) {
	for _, a := range Agents() {
		dir := t.TempDir()
		if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
			t.Fatalf("git init: %v: %s", err, out)
		}
		exclude := filepath.Join(dir, ".git/info/exclude")
		before, err := os.ReadFile(exclude)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := Install(dir, a, "artifactfs"); err != nil {
				t.Fatalf("install for %s: %v", a, err)
			}
		}
		in, err := Installed(dir, a)
		if !in.Yes || in.Old || err != nil {
			t.Errorf("after an install for %s: got %+v, error %v", a, in, err)
		}
		text, err := os.ReadFile(in.Path)
		if err != nil {
			t.Fatal(err)
		}
		// An earlier version installed fewer hooks, or another plugin.
		older, _, _ := strings.Cut(strings.Replace(string(text), "synthetic: true", "", 1), pluginSeal[0])
		if c := configurations[a]; a != OpenCode {
			c.events = c.events[2:]
			written, err := c.install([]byte(c.empty), a, "artifactfs"+commandSuffix(a))
			if err != nil {
				t.Fatal(err)
			}
			older = string(written)
		}
		if err := os.WriteFile(in.Path, []byte(older), 0o644); err != nil {
			t.Fatal(err)
		}
		if in, err = Installed(dir, a); !in.Yes || !in.Old || err != nil {
			t.Errorf("hooks of an earlier version for %s: got %+v, error %v", a, in, err)
		}
		if _, err := Install(dir, a, "artifactfs"); err != nil {
			t.Fatalf("install for %s: %v", a, err)
		}
		if in, err = Installed(dir, a); in.Old || err != nil {
			t.Errorf("after an install over older hooks for %s: got %+v, error %v", a, in, err)
		}
		status, err := git(dir, "status", "--porcelain", "--untracked-files=all")
		if err != nil || status != "" {
			t.Errorf("after an install for %s git status prints %q, error %v", a, status, err)
		}
		change, err := Uninstall(dir, a)
		if err != nil || !change.Changed {
			t.Errorf("uninstall for %s: changed %v, error %v", a, change.Changed, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("uninstall for %s left %v, error %v", a, entries, err)
		}
		if after, _ := os.ReadFile(exclude); string(after) != string(before) {
			t.Errorf("uninstall for %s left info/exclude as %q", a, after)
		}
	}
}

// TestOpenCodePlugin runs the plugin for opencode in node, and compares the events that it sends with
// testdata/opencode.jsonl.
func TestOpenCodePlugin(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program,
		[]byte("#!/bin/sh\n[ \"$*\" = 'session hook opencode' ] || exit 1\ncat >>"+dir+"/events\necho >>"+dir+"/events\n"+
			"[ $(wc -l <"+dir+"/events) -gt 1 ] || echo 'Another agent works here.'\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	change, err := Install(dir, OpenCode, program)
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(dir, "plugin.mjs") // opencode's runtime loads modules with any suffix, node only with this one
	if err := os.Rename(change.Path, module); err != nil {
		t.Fatal(err)
	}
	script := `
import { ArtifactFS } from "` + module + `"
const client = { session: { messages: async () => ({ data: [
  { info: { role: "user" }, parts: [{ type: "text", text: "no" }] },
  { info: { role: "assistant" }, parts: [{ type: "tool" }, { type: "text", text: "The login is fixed." }] } ] }) } }
const hooks = await ArtifactFS({ client, directory: "DIR" })
const args = { command: "COMMAND", description: "commit" }
const prompt = { message: { id: "msg_1", sessionID: "ses_1" }, parts: [
  { id: "prt_1", type: "text", text: "Fix the login; the key is SECRET" }, { id: "prt_2", type: "text", text: "hint", synthetic: true }] }
await hooks["chat.message"]({ sessionID: "ses_1", model: { providerID: "p", modelID: "m-1" } }, prompt)
console.log(JSON.stringify(prompt.parts.slice(2)))
await hooks.event({ event: { type: "session.created", properties: { info: { id: "ses_2", parentID: "ses_1" } } } })
await hooks["chat.message"]({ sessionID: "ses_2", agent: "explore" }, { message: {}, parts: [{ type: "text", text: "Find the login" }] })
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "ses_2", callID: "call_2" }, { args: { command: "echo sub >by-sub" } })
await hooks.event({ event: { type: "session.idle", properties: { sessionID: "ses_2" } } })
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "ses_1", callID: "call_1" }, { args })
await hooks["tool.execute.after"]({ tool: "bash", sessionID: "ses_1", callID: "call_1", args }, { title: "commit", output: "[main 1234567] fix", metadata: {} })
await hooks.event({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } })
await hooks.event({ event: { type: "file.edited", properties: {} } })
`
	cmd := exec.Command(node, "--input-type=module", "-e", script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v: %s", err, out)
	}
	added := `[{"id":"prt_20","sessionID":"ses_1","messageID":"msg_1","type":"text",` +
		`"text":"Another agent works here.","synthetic":true}]` + "\n"
	if string(out) != added {
		t.Errorf("parts that the plugin added to the prompt: got %s, want %s", out, added)
	}
	sent, _ := os.ReadFile(filepath.Join(dir, "events"))
	want, err := os.ReadFile("testdata/opencode.jsonl")
	if err != nil || string(sent) != string(want) {
		t.Errorf("the plugin sent\n%s\nwant\n%s", sent, want)
	}
}

// FuzzUninstall checks that a failed Install or Uninstall does not change the settings file, and that after a
// successful Install and Uninstall the file has the same bytes as before.
func FuzzUninstall(f *testing.F) {
	for _, seed := range []string{users, "{}", `{"hooks":{}}`, `{"hooks":{"Stop":[]}}`, `{"a":"é\u00e9"}`, "{ }\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, before string) {
		for _, a := range []Agent{Claude, Cursor} {
			c := configurations[a]
			clean, had, err := uninstall([]byte(before), a)
			if err != nil || had > 0 {
				return
			}
			after, err := c.install(clean, a, "artifactfs"+commandSuffix(a))
			if err != nil { // also if the file has hooks of the user
				return
			}
			rest, n, err := uninstall(after, a)
			if err != nil || n != len(c.events) {
				t.Fatalf("uninstall for %s removed %d hooks, error %v, from\n%s", a, n, err, after)
			}
			if string(rest) != before {
				t.Errorf("settings after uninstall for %s: got %q, want %q", a, rest, before)
			}
		}
	})
}
