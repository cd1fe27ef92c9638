package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// An agent whose hooks are installed records itself: its events, a checkpoint before and after each tool that may change
// files and at the end of the turn, a note on its commit. Uninstalling leaves the mount as it was.
func TestAgentsRecordThemselves(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	tools := map[string]string{"claude": "?? .mcp.json", "copilot": "?? .mcp.json", "codex": "?? .codex/config.toml",
		"cursor": "?? .cursor/mcp.json", "opencode": "?? opencode.json"} // files that a project shares
	subs := map[string]string{"claude": "a1b2c3d4e5f6a7b8c", "codex": "ab12", "copilot": "e5f6", "cursor": "s-1", "opencode": "ses_2", "gemini": ""}
	secret := "ghp_" + strings.Repeat("aB3d", 9)
	for _, agent := range []string{"claude", "codex", "copilot", "cursor", "gemini", "opencode"} {
		t.Run(agent, func(t *testing.T) {
			w := w.in(t)
			m := w.bare(url, "--wait", "git", "--session", "work-"+agent, "--checkpoint", "off")
			defer w.unmount(m)
			before := w.look(m.Dir)
			exclude := w.sh(m.Dir, "cat $(git rev-parse --git-path info/exclude) 2>/dev/null || true")
			w.sh(m.Dir, binary+" --state "+w.state+" agent install "+agent)
			status := w.git(m.Dir, "status", "--porcelain", "-uall")
			if status != tools[agent] && status != tools[agent]+"\n" {
				t.Errorf("git status after the install: %q", status)
			}
			if text := w.ok("status", m.Dir); !strings.Contains(text, "  agents    "+agent+": installed, never fired: ") {
				t.Errorf("status after the install:\n%s", text)
			}
			text := must[[]byte](t)(os.ReadFile(filepath.Join("..", "session", "agenthook", "testdata", agent+".jsonl")))
			file := filepath.Join(t.TempDir(), "conversation.jsonl") // in which the agent stores the conversation itself
			if texts, err := os.ReadFile(filepath.Join("..", "session", "agenthook", "testdata", agent+"-file.jsonl")); err == nil {
				check(t, os.WriteFile(file, bytes.ReplaceAll(texts, []byte("SECRET"), []byte(secret)), 0o600))
			}
			commit := "echo fixed >fixed && git add fixed && git commit -qm fix"
			for line := range strings.Lines(string(text)) {
				line = strings.NewReplacer("DIR", m.Dir, "SECRET", secret, "COMMAND", commit, "FILE", file).Replace(line)
				cmd := w.command(t.Context(), "session", "hook", agent)
				cmd.Dir, cmd.Stdin = "/", strings.NewReader(line)
				if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "artifactfs:") {
					t.Fatalf("event %s: %v: %s", line, err, out)
				}
				if text := w.ok("status", m.Dir); !strings.Contains(text, "  agents    "+agent+": last ") {
					t.Errorf("status after event %s:\n%s", line, text)
				}
				var event struct {
					Name  string `json:"hook_event_name"`
					Input struct {
						Command string `json:"command"`
					} `json:"tool_input"`
				}
				check(t, json.Unmarshal([]byte(line), &event))
				switch event.Name {
				case "PreToolUse", "preToolUse", "BeforeTool", "tool.execute.before": // the tool runs between this event and the next
					if event.Input.Command != "" {
						w.sh(m.Dir, event.Input.Command)
					}
				}
			}
			checkpoints := m.checkpoints()
			first := slices.IndexFunc(checkpoints, func(c control.Checkpoint) bool {
				return strings.HasPrefix(c.Message, "before ") && strings.Contains(c.Message, "git commit")
			})
			response := "The login is fixed."
			if agent == "copilot" || agent == "cursor" {
				response = "" // the event does not have it
			}
			if first < 0 || !strings.HasPrefix(checkpoints[0].Message, strings.TrimSpace("end of turn: "+response)) ||
				slices.ContainsFunc(checkpoints, func(c control.Checkpoint) bool { return strings.Contains(c.Message, secret) }) {
				t.Fatalf("checkpoints: %+v", checkpoints)
			}
			after := slices.IndexFunc(checkpoints, func(p control.Checkpoint) bool {
				return strings.HasPrefix(p.Message, "after ") && strings.Contains(p.Message, "git commit")
			})
			if after < 0 || m.in(checkpoints[max(after, 0)].Tree, "fixed") != "fixed\n" {
				t.Errorf("no checkpoint after the tool holds what the tool made: %+v", checkpoints)
			}
			if got := w.sh(m.sessionGit(), "git ls-tree --name-only "+checkpoints[first].Tree); strings.Contains(got, "fixed") {
				t.Errorf("the checkpoint before the tool holds what the tool made: %s", got)
			}
			var note struct{ Agent, Prompt string }
			check(t, json.Unmarshal([]byte(w.git(m.Dir, "notes", "--ref", "agent", "show", "HEAD")), &note))
			if note.Agent != agent || !strings.HasPrefix(note.Prompt, "Fix the login") || strings.Contains(note.Prompt, secret) {
				t.Errorf("note on the commit: %+v", note)
			}
			records := w.sh(m.sessionGit(), "git grep -h . refs/afs/transcript/work-"+agent+" -- '*.jsonl'")
			for _, want := range []string{`"type":"prompt"`, `"role":"user"`, `"type":"tool_call"`, `"type":"tool_result"`,
				response} {
				if !strings.Contains(records, want) {
					t.Errorf("the transcript has no %s:\n%s", want, records)
				}
			}
			compacts := agent == "claude" || agent == "codex"
			kept := strings.Contains(records, `"compacted":true`) && strings.Contains(records, "I look at the login first")
			if kept != compacts || strings.Contains(records, "a thought") {
				t.Errorf("texts before the compaction are kept: %v\n%s", kept, records)
			}
			if got := strings.Contains(fmt.Sprint(checkpoints), "before compaction "); got != compacts && agent != "cursor" {
				t.Errorf("checkpoint before the compaction: %v, %+v", got, checkpoints)
			}
			if nested := w.ok("session", "transcript", m.Dir, "--turn", "1", "--sub", subs[agent]); (subs[agent] != "") !=
				strings.Contains(nested, ": subagent_end  ") {
				t.Errorf("records of the sub-agent in turn 1:\n%s", nested)
			}
			if transcript := w.ok("session", "transcript", m.Dir); strings.Count(transcript, "== turn ") != 1 {
				t.Errorf("the transcript has not one turn:\n%s", transcript)
			}
			if strings.Contains(records, secret) {
				t.Errorf("the transcript holds a secret:\n%s", records)
			}
			if text := w.ok("status", m.Dir); !strings.Contains(text, "  agents    "+agent+": last prompt ") {
				t.Errorf("status after the turn does not print the last prompt of %s:\n%s", agent, text)
			}
			w.sh(m.Dir, binary+" --state "+w.state+" agent uninstall "+agent)
			if text := w.ok("status", m.Dir); strings.Contains(text, "  agents  ") {
				t.Errorf("status after the uninstall:\n%s", text)
			}
			w.git(m.Dir, "reset", "-q", "--hard", "HEAD~1")
			w.git(m.Dir, "clean", "-qf", "by-sub")
			if after := w.look(m.Dir); after.Tree != before.Tree {
				t.Errorf("the tree after the uninstall: %s, before the install: %s", after.Tree, before.Tree)
			}
			if left := w.sh(m.Dir, "cat $(git rev-parse --git-path info/exclude) 2>/dev/null || true; "+
				"find . -name '.c*' -o -name '.gemini' -o -name '.opencode' -o -name '.github'; "+
				"ls -d $(git rev-parse --git-dir)/artifactfs-hooks 2>/dev/null || true"); left != exclude {
				t.Errorf("left behind: %q, before: %q", left, exclude)
			}
		})
	}
}

// An agent that begins in a mount where another agent works gets a notice with a command that makes a tree of its own.
// The command works as it is printed.
func TestSecondAgentGetsATree(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "shared")
	defer w.unmount(m)
	check(t, os.WriteFile(filepath.Join(m.Dir, "half"), []byte("work\n"), 0o644))
	w.ok("agent", "install", "codex", "--dir", m.Dir, "--only", "hooks")
	begin := func(agent, conversation string) string {
		t.Helper()
		// Each shell is another agent. It waits after the hook, because an agent that has ended shares nothing.
		event := `{"hook_event_name":"SessionStart","session_id":"` + conversation + `","cwd":"` + m.Dir + `"}`
		cmd := exec.Command("/bin/sh", "-c",
			"printf %s "+control.ShellWord(event)+" | "+binary+" session hook "+agent+"; echo; sleep 300")
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), "ARTIFACTFS_STATE="+w.state), &syscall.SysProcAttr{Setpgid: true}
		output := must[io.ReadCloser](t)(cmd.StdoutPipe())
		check(t, cmd.Start())
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		})
		return must[string](t)(bufio.NewReader(output).ReadString('\n'))
	}
	if got := begin("claude", "c-1"); got != "\n" {
		t.Fatalf("answer to the first agent: %q", got)
	}
	var answer struct {
		Specific struct {
			Context string `json:"additionalContext"`
		} `json:"hookSpecificOutput"`
	}
	check(t, json.Unmarshal([]byte(begin("codex", "x-1")), &answer))
	_, command, ok := strings.Cut(answer.Specific.Context, " you can work instead: ")
	if !ok || !strings.Contains(answer.Specific.Context, "(claude, last seen ") {
		t.Fatalf("answer to the second agent: %q", answer.Specific.Context)
	}
	if text := w.ok("status", m.Dir); !strings.Contains(text, "  agents    2 agents work in this tree: codex, last seen ") {
		t.Errorf("status with two agents:\n%s", text)
	}
	w.sh(w.root, "export ARTIFACTFS_STATE="+control.ShellWord(w.state)+"; "+command)
	fork := m.Dir + "-2"
	if got := w.sh(fork, "cat half"); got != "work" {
		t.Errorf("the new tree has a file that is not committed: %q", got)
	}
	w.git(fork, "status", "--short") // waits for the git directory
	if text := w.ok("status", fork); !strings.Contains(text, "  agents    codex: installed, never fired") ||
		strings.Contains(text, "agents work") {
		t.Errorf("status of the new tree:\n%s", text)
	}
	w.ok("unmount", fork)
}

// A hook never disturbs its agent: where nothing is mounted, where no daemon is running, with an event that is no JSON.
func TestHookNeverFails(t *testing.T) {
	w := newWorld(t)
	for _, in := range []string{`{"hook_event_name":"Stop","session_id":"s","cwd":"/"}`, "not JSON", ""} {
		cmd := w.command(t.Context(), "session", "hook", "gemini")
		cmd.Dir, cmd.Stdin = "/", strings.NewReader(in)
		out, err := cmd.Output()
		if err != nil || string(out) != "{}\n" {
			t.Errorf("event %q: stdout %q, %v", in, out, err)
		}
	}
	r := w.afs("agent", "install", "nobody")
	w.refusal(r, control.ExitUsage, `unknown agent "nobody"`, "artifactfs agent --help")
}
