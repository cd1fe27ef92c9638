// Package agenthook connects coding agents with a session. It writes hooks into the configuration of an agent (Install,
// Uninstall), parses the events that the agent then sends (Parse), and finds the commits that the agent has made
// (Commits).
//
// For each event, the agent runs `artifactfs session hook NAME` with the event as JSON on standard input. The formats
// of events and configuration files are those of the agents' public documentation as of 2026:
//
//	claude    .claude/settings.local.json, "hooks"; UserPromptSubmit, PreToolUse, PostToolUse, Stop, ...
//	codex     .codex/hooks.json, same structure; Codex runs a hook only after its user has approved it
//	copilot   .github/hooks/artifactfs.json, entries without groups; the names of claude, and events of the same form
//	cursor    .cursor/hooks.json, entries without groups; beforeSubmitPrompt, preToolUse, postToolUse, stop, ...
//	gemini    .gemini/settings.json, "hooks"; BeforeAgent, BeforeTool, AfterTool, AfterAgent, ...; timeouts in milliseconds
//	opencode  .opencode/plugins/artifactfs.js, a plugin that is part of this package and sends events of the same form
package agenthook

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Agent is the name of a coding agent whose events can be recorded.
type Agent string

const (
	Claude   Agent = "claude"
	Codex    Agent = "codex"
	Copilot  Agent = "copilot"
	Cursor   Agent = "cursor"
	Gemini   Agent = "gemini"
	OpenCode Agent = "opencode"
)

// Agents returns all agents, in the order in which help texts list them.
func Agents() []Agent { return []Agent{Claude, Codex, Copilot, Cursor, Gemini, OpenCode} }

// ParseAgent returns the agent called name. It returns an error that lists the known agents if there is no such agent.
func ParseAgent(name string) (Agent, error) {
	if a := Agent(name); slices.Contains(Agents(), a) {
		return a, nil
	}
	var names []string
	for _, a := range Agents() {
		names = append(names, string(a))
	}
	return "", fmt.Errorf("unknown agent %q: want one of %s", name, strings.Join(names, ", "))
}

// Timeout is the maximum time that a hook takes for one event. The agent waits during this time.
const Timeout = 10 * time.Second

// grace is the difference between the timeout in the agent's configuration and Timeout. An agent kills a hook that
// exceeds the configured timeout, so the hook must end earlier.
const grace = 5 * time.Second

// TreeTimeout is the maximum time that a hook takes to make or to remove a working tree.
const TreeTimeout = 2 * time.Minute

// Latest returns the time after which the hook of an event must have ended even if it is blocked. It is shorter than
// the timeout in the agent's configuration.
func (e Event) Latest() time.Duration {
	for _, c := range configurations[e.Agent].events {
		if c.name == e.Name && c.timeout > 0 {
			return c.timeout - time.Second
		}
	}
	return Timeout + 2*time.Second
}

// configuration describes the file that configures an agent's hooks, and the events for which Install adds hooks.
type configuration struct {
	path   string        // path of the file, relative to the working directory
	events []configured  // events for which Install adds hooks
	unit   time.Duration // unit of "timeout" in the file
	named  bool          // whether each entry of the file has a member "name"
	flat   bool          // whether an entry is a hook itself, instead of a group of hooks with a "matcher"
	empty  string        // text of a file without hooks
	// comments states that the agent accepts comments in the file, and commas behind last members.
	comments bool
}

// configured is an event for which a hook is added.
type configured struct {
	name string // the agent's name of the event
	tool bool   // whether the entry of the event has a "matcher", which selects tools
	// timeout is the timeout of the hook in the file; 0 means Timeout and grace.
	timeout time.Duration
}

// configurations contains the configuration of each agent except OpenCode, which has a plugin instead of hooks.
var configurations = map[Agent]configuration{
	Claude: {
		path: ".claude/settings.local.json",
		events: []configured{
			{name: "SessionStart"}, {name: "UserPromptSubmit"}, {name: "PreToolUse", tool: true},
			{name: "PostToolUse", tool: true},
			{name: "PostToolUseFailure", tool: true}, {name: "Stop"}, {name: "SessionEnd"},
			{name: "SubagentStart"}, {name: "SubagentStop"}, {name: "PreCompact"},
			{name: "WorktreeCreate", timeout: TreeTimeout + grace}, {name: "WorktreeRemove", timeout: TreeTimeout + grace},
		},
		unit:  time.Second,
		empty: emptySettings,
	},
	Codex: {
		path: ".codex/hooks.json",
		events: []configured{
			{name: "SessionStart"}, {name: "UserPromptSubmit"}, {name: "PreToolUse", tool: true},
			{name: "PostToolUse", tool: true}, {name: "Stop"},
			{name: "SessionEnd", timeout: 3 * time.Second}, // codex prints a warning about a longer timeout
			{name: "SubagentStart"}, {name: "SubagentStop"}, {name: "PreCompact"},
		},
		unit:  time.Second,
		empty: emptySettings,
	},
	Copilot: {
		path: ".github/hooks/artifactfs.json",
		events: []configured{
			{name: "SessionStart"}, {name: "UserPromptSubmit"}, {name: "PreToolUse"}, {name: "PostToolUse"},
			{name: "PostToolUseFailure"}, {name: "Stop"}, {name: "SessionEnd"}, {name: "SubagentStop"}, {name: "PreCompact"},
		},
		unit:  time.Second,
		flat:  true,
		empty: emptyVersioned,
	},
	Cursor: {
		path: ".cursor/hooks.json",
		events: []configured{
			{name: "sessionStart"}, {name: "beforeSubmitPrompt"}, {name: "preToolUse"}, {name: "postToolUse"},
			{name: "postToolUseFailure"}, {name: "afterAgentResponse"}, {name: "stop"}, {name: "sessionEnd"},
			{name: "subagentStart"}, {name: "subagentStop"}, {name: "preCompact"},
		},
		unit:  time.Second,
		flat:  true,
		empty: emptyVersioned,
	},
	Gemini: {
		path: ".gemini/settings.json",
		events: []configured{
			{name: "SessionStart"}, {name: "BeforeAgent"}, {name: "BeforeTool", tool: true}, {name: "AfterTool", tool: true},
			{name: "AfterAgent"}, {name: "SessionEnd"},
		},
		unit:  time.Millisecond,
		named: true,
		empty: emptySettings,

		comments: true,
	},
	OpenCode: {path: ".opencode/plugins/artifactfs.js"},
}

// readers are the agents' built-in tools that change no file, so no checkpoint is made before and after one of them
// runs. Any tool that is not listed, such as a tool of an MCP server, may change files.
var readers = map[Agent][]string{
	Claude: {"Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoRead", "TodoWrite",
		"TaskCreate", "TaskGet",
		"TaskList", "TaskUpdate", "TaskOutput", "BashOutput", "AskUserQuestion", "EnterPlanMode",
		"ExitPlanMode", "ToolSearch",
		"ListMcpResourcesTool", "ReadMcpResourceTool"},
	Codex: {"update_plan", "view_image", "web_search"},
	// Copilot uses the names of claude's tools in some events, and its own names in others.
	Copilot: {"Read", "Glob", "Grep", "WebFetch", "WebSearch", "AskUserQuestion", "TodoWrite", "view", "glob", "grep", "rg",
		"web_fetch", "web_search", "ask_user", "update_todo", "report_intent", "read_bash", "list_bash", "read_agent", "list_agents",
		"fetch_copilot_cli_documentation"},
	Cursor: {"Read", "Grep", "Glob", "LS", "ReadLints", "SemanticSearch", "WebFetch", "WebSearch", "TodoWrite",
		"AskQuestion", "ListMcpResources", "FetchMcpResource"},
	Gemini: {"read_file", "read_many_files", "list_directory", "glob", "search_file_content", "grep_search",
		"google_web_search", "web_fetch",
		"write_todos", "ask_user", "get_internal_docs"},
	OpenCode: {"read", "grep", "glob", "list", "webfetch", "websearch", "codesearch", "todoread", "todowrite", "question",
		"lsp", "skill"},
}
