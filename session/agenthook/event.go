package agenthook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind is the moment of an agent's work that an Event reports.
type Kind string

// The kinds of events. Their values appear as "type" in the transcript.
const (
	Other        Kind = ""
	SessionStart Kind = "agent_start"
	Prompt       Kind = "prompt"      // a turn begins
	ToolCall     Kind = "tool_call"   // before a tool runs
	ToolResult   Kind = "tool_result" // after it
	TurnEnd      Kind = "response"
	SessionEnd   Kind = "agent_end"
)

// kinds maps the names of all agents' events; none is used for two moments.
var kinds = map[string]Kind{
	"SessionStart":        SessionStart,
	"UserPromptSubmit":    Prompt,
	"PreToolUse":          ToolCall,
	"PostToolUse":         ToolResult,
	"PostToolUseFailure":  ToolResult,
	"Stop":                TurnEnd,
	"SessionEnd":          SessionEnd,
	"BeforeAgent":         Prompt,
	"BeforeTool":          ToolCall,
	"AfterTool":           ToolResult,
	"AfterAgent":          TurnEnd,
	"chat.message":        Prompt,
	"tool.execute.before": ToolCall,
	"tool.execute.after":  ToolResult,
	"session.idle":        TurnEnd,
}

// Event is one moment of an agent's work, in a form that all agents share.
type Event struct {
	Agent   Agent
	Kind    Kind
	Session string // the agent's own name of its conversation
	Dir     string // the agent's working directory; "": unknown
	Model   string
	Text    string // text of a prompt or a response
	Tool    string
	Call    string // id of a tool call, the same in its result
	Input   json.RawMessage
	Output  json.RawMessage
	Failed  bool // the tool failed
}

// MaxEvent is the longest event that is read, in bytes.
const MaxEvent = 16 << 20

// wire holds the members that agents send; each agent sends some of them.
type wire struct {
	Event        string          `json:"hook_event_name"`
	Session      string          `json:"session_id"`
	Dir          string          `json:"cwd"`
	Model        string          `json:"model"`
	Prompt       string          `json:"prompt"`
	Last         string          `json:"last_assistant_message"`
	Response     string          `json:"prompt_response"`
	Tool         string          `json:"tool_name"`
	Call         string          `json:"tool_use_id"`
	ToolInput    json.RawMessage `json:"tool_input"`
	ToolResponse json.RawMessage `json:"tool_response"`
	Error        json.RawMessage `json:"error"`
}

// Parse reads an event as an agent sends it. An event that nothing is recorded of has the Kind
// Other.
func Parse(a Agent, text []byte) (Event, error) {
	if len(text) > MaxEvent {
		return Event{}, fmt.Errorf("read event: it has %d bytes, limit is %d", len(text), MaxEvent)
	}
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		return Event{}, fmt.Errorf("read event: %w", err)
	}
	if w.Event == "" {
		return Event{}, errors.New("read event: it has no hook_event_name")
	}
	e := Event{
		Agent: a, Kind: kinds[w.Event], Session: w.Session, Dir: w.Dir, Model: w.Model,
		Tool: w.Tool, Call: w.Call, Input: present(w.ToolInput), Output: present(w.ToolResponse),
	}
	switch e.Kind {
	case Prompt:
		e.Text = w.Prompt
	case TurnEnd:
		// Agents send the response under one of two names.
		if e.Text = w.Last; e.Text == "" {
			e.Text = w.Response
		}
	case ToolResult:
		e.Failed = w.Event == "PostToolUseFailure"
		// A failed tool has an error in place of an output.
		if e.Output == nil {
			e.Output = present(w.Error)
		}
	}
	return e, nil
}

// present returns nil for a JSON value without information.
func present(v json.RawMessage) json.RawMessage {
	if t := bytes.TrimSpace(v); len(t) == 0 || string(t) == "null" {
		return nil
	}
	return v
}

// Changes reports whether the event precedes a tool that may change files.
func (e Event) Changes() bool {
	return e.Kind == ToolCall && !slices.Contains(readers[e.Agent], e.Tool)
}

// Title returns a line of at most 120 bytes about the event, for the message of a checkpoint.
func (e Event) Title() string {
	switch e.Kind {
	case ToolCall:
		return cut(strings.TrimSpace("before "+e.Tool+" "+e.subject()), 120)
	case TurnEnd:
		return cut(strings.TrimSpace("end of turn: "+firstLine(e.Text)), 120)
	}
	return string(e.Kind)
}

// subject returns the argument of a tool that a person would name it by.
func (e Event) subject() string {
	var args map[string]json.RawMessage
	if json.Unmarshal(e.Input, &args) != nil {
		return ""
	}
	for _, key := range []string{"file_path", "filePath", "path", "command", "notebook_path"} {
		var s string
		if json.Unmarshal(args[key], &s) == nil && s != "" {
			return firstLine(s)
		}
	}
	return ""
}

// firstLine returns the first line of s without surrounding white space.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

const (
	maxString = 32 << 10  // bytes of a string in a record; the middle of a longer one is left out
	maxValue  = 100 << 10 // bytes of a tool's input, and of its output
)

// record is a line of the transcript; doc/sessions.md documents it.
type record struct {
	Type    Kind   `json:"type"`
	Role    string `json:"role"`
	Agent   Agent  `json:"agent"`
	Session string `json:"agent_session,omitempty"`
	Model   string `json:"model,omitempty"`
	Text    string `json:"text,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Call    string `json:"call,omitempty"`
	Input   any    `json:"input,omitempty"`
	Output  any    `json:"output,omitempty"`
	Failed  bool   `json:"failed,omitempty"`
}

// Record returns the event as a line for the transcript. Long strings in it are shortened.
func (e Event) Record() (string, error) {
	r := record{
		Type: e.Kind, Agent: e.Agent, Session: e.Session, Model: e.Model, Text: cut(e.Text, maxString), Tool: e.Tool, Call: e.Call,
		Input: shorten(e.Input), Output: shorten(e.Output), Failed: e.Failed,
	}
	// The roles are those of the usual chat formats.
	switch e.Kind {
	case Prompt:
		r.Role = "user"
	case ToolResult:
		r.Role = "tool"
	case SessionStart, SessionEnd:
		r.Role = "system"
	default:
		r.Role = "assistant"
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// shorten returns a JSON value with its long strings cut; one that is still too long becomes a
// string of its beginning.
func shorten(v json.RawMessage) any {
	if v == nil {
		return nil
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(v))
	// Numbers are kept as text, because a float64 would change large ones.
	d.UseNumber()
	if d.Decode(&value) != nil {
		return cut(string(v), maxString)
	}
	value = shortenStrings(value)
	if text, err := json.Marshal(value); err != nil || len(text) > maxValue {
		return cut(string(text), maxString)
	}
	return value
}

// shortenStrings cuts the strings in a decoded JSON value, in place where possible.
func shortenStrings(v any) any {
	switch v := v.(type) {
	case string:
		return cut(v, maxString)
	case []any:
		for i := range v {
			v[i] = shortenStrings(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = shortenStrings(v[k])
		}
	}
	return v
}

// cut returns s if it has at most max bytes, and else its beginning and end around a count of the
// bytes between.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	// The note counts toward max.
	note := fmt.Sprintf(" [%d bytes left out] ", len(s)-max)
	keep := max - len(note)
	return strings.ToValidUTF8(s[:keep/2], "") + note + strings.ToValidUTF8(s[len(s)-keep/2:], "")
}
