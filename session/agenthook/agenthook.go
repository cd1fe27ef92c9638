// Package agenthook connects coding agents with a session: it writes an agent's own hook
// configuration (Install, Uninstall), reads the events that the agent then sends (Parse), and finds
// the commits an agent has made (Commits).
//
// An agent runs `artifactfs session hook NAME` for each event, with the event as JSON on standard
// input. The formats are those of the agents' public documentation as of 2026:
//
//	claude    .claude/settings.local.json, "hooks"; UserPromptSubmit, PreToolUse, PostToolUse, Stop, ...
//	codex     .codex/hooks.json, the same structure; Codex runs a hook after its user has trusted it
//	gemini    .gemini/settings.json, "hooks"; BeforeAgent, BeforeTool, AfterTool, AfterAgent, ...; times in milliseconds
//	opencode  .opencode/plugins/artifactfs.js, a plugin of ours; it sends events of the same form as the others
package agenthook

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Agent is a coding agent that can record itself.
type Agent string

const (
	Claude   Agent = "claude"
	Codex    Agent = "codex"
	Gemini   Agent = "gemini"
	OpenCode Agent = "opencode"
)

// Agents returns all agents, in the order in which help texts list them.
func Agents() []Agent { return []Agent{Claude, Codex, Gemini, OpenCode} }

// ParseAgent returns the agent of a name.
func ParseAgent(name string) (Agent, error) {
	if a := Agent(name); slices.Contains(Agents(), a) {
		return a, nil
	}
	var names []string
	for _, a := range Agents() {
		names = append(names, string(a))
	}
	return "", fmt.Errorf("unknown agent %q: known are %s", name, strings.Join(names, ", "))
}

// Timeout is the longest time an agent is made to wait for one event. A hook that takes longer is
// ended by the agent.
const Timeout = 10 * time.Second

// grace is added to Timeout in the agent's configuration, so that the hook ends before the agent
// ends it.
const grace = 5 * time.Second

// configuration describes where an agent's hooks are configured and which events it has.
type configuration struct {
	path   string // path of the file, relative to the working directory
	events []configured
	unit   time.Duration // unit of "timeout" in the file
	named  bool          // whether an entry has a "name"
}

// configured is an event to which a hook is added.
type configured struct {
	name string
	tool bool // whether it has a matcher, which selects tools
}

// configurations describes the hooks of each agent. OpenCode has a plugin in place of hooks.
var configurations = map[Agent]configuration{
	Claude: {
		path: ".claude/settings.local.json",
		events: []configured{
			{name: "SessionStart"}, {name: "UserPromptSubmit"}, {name: "PreToolUse", tool: true}, {name: "PostToolUse", tool: true},
			{name: "PostToolUseFailure", tool: true}, {name: "Stop"}, {name: "SessionEnd"},
		},
		unit: time.Second,
	},
	Codex: {
		path: ".codex/hooks.json",
		events: []configured{
			{name: "SessionStart"}, {name: "UserPromptSubmit"}, {name: "PreToolUse", tool: true}, {name: "PostToolUse", tool: true}, {name: "Stop"},
		},
		unit: time.Second,
	},
	Gemini: {
		path: ".gemini/settings.json",
		events: []configured{
			{name: "SessionStart"}, {name: "BeforeAgent"}, {name: "BeforeTool", tool: true}, {name: "AfterTool", tool: true},
			{name: "AfterAgent"}, {name: "SessionEnd"},
		},
		unit:  time.Millisecond,
		named: true,
	},
	OpenCode: {path: ".opencode/plugins/artifactfs.js"},
}

// readers are the agents' own tools that change no file: no checkpoint is made before them. A tool
// that is not listed, such as one of an MCP server, may change files.
var readers = map[Agent][]string{
	Claude: {"Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoRead", "TodoWrite", "TaskCreate", "TaskGet",
		"TaskList", "TaskUpdate", "TaskOutput", "BashOutput", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ToolSearch",
		"ListMcpResourcesTool", "ReadMcpResourceTool"},
	Codex: {"update_plan", "view_image", "web_search"},
	Gemini: {"read_file", "read_many_files", "list_directory", "glob", "search_file_content", "grep_search", "google_web_search", "web_fetch",
		"write_todos", "ask_user", "get_internal_docs"},
	OpenCode: {"read", "grep", "glob", "list", "webfetch", "websearch", "codesearch", "todoread", "todowrite", "question", "lsp", "skill"},
}
