package agenthook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/session/transcript"
)

// Kind is the kind of an event in an agent's conversation.
type Kind string

// These are the kinds of events. The value of a kind is the "type" of its records in the transcript.
const (
	Other        Kind = "" // any other kind of event, for which nothing is recorded
	SessionStart Kind = "agent_start"
	Prompt       Kind = "prompt"      // the user has sent a prompt, which begins a turn
	ToolCall     Kind = "tool_call"   // a tool is about to run
	ToolResult   Kind = "tool_result" // a tool has run
	TurnEnd      Kind = "response"    // the agent has responded, which ends the turn
	SessionEnd   Kind = "agent_end"
	Message      Kind = "message"      // the agent has written a text
	Notification Kind = "notification" // the agent itself has sent a prompt, for example when a background task has ended
	Compact      Kind = "compact"      // the agent is about to replace its context by a summary

	// A sub-agent does a part of the work in the conversation of the agent that has started it. Its prompt has a kind of
	// its own, because only a prompt of the user begins a turn.
	SubStart  Kind = "subagent_start"
	SubPrompt Kind = "subagent_prompt"
	SubEnd    Kind = "subagent_end"

	// These events are no part of the conversation, and are not recorded: the agent wants the hook to make a working tree,
	// or to remove one.
	MakeTree   Kind = "worktree_create"
	RemoveTree Kind = "worktree_remove"
)

// kinds maps the names that the agents give to events to the kinds of events. No two agents use the same name for
// different kinds.
var kinds = map[string]Kind{
	"SessionStart":        SessionStart,
	"UserPromptSubmit":    Prompt,
	"PreToolUse":          ToolCall,
	"PostToolUse":         ToolResult,
	"PostToolUseFailure":  ToolResult,
	"Stop":                TurnEnd,
	"SessionEnd":          SessionEnd,
	"SubagentStart":       SubStart,
	"SubagentStop":        SubEnd,
	"PreCompact":          Compact,
	"WorktreeCreate":      MakeTree,
	"WorktreeRemove":      RemoveTree,
	"sessionStart":        SessionStart,
	"beforeSubmitPrompt":  Prompt,
	"preToolUse":          ToolCall,
	"postToolUse":         ToolResult,
	"postToolUseFailure":  ToolResult,
	"afterAgentResponse":  Message,
	"stop":                TurnEnd,
	"sessionEnd":          SessionEnd,
	"subagentStart":       SubStart,
	"subagentStop":        SubEnd,
	"preCompact":          Compact,
	"BeforeAgent":         Prompt,
	"BeforeTool":          ToolCall,
	"AfterTool":           ToolResult,
	"AfterAgent":          TurnEnd,
	"chat.message":        Prompt,
	"tool.execute.before": ToolCall,
	"tool.execute.after":  ToolResult,
	"session.idle":        TurnEnd,
}

// Event is one event of an agent's conversation, in a form that is common to all agents.
type Event struct {
	Agent   Agent // agent that has sent the event
	Kind    Kind
	Name    string          // agent's name of the event
	Session string          // name that the agent has given to the conversation
	Dir     string          // the agent's working directory; "" if unknown
	Model   string          // model that the agent uses; "" if unknown
	Text    string          // text of a prompt or a response
	Tool    string          // name of the tool; "" if the event is not about a tool
	Call    string          // id of a tool call; the result of the call has the same id
	Input   json.RawMessage // arguments of a tool call
	Output  json.RawMessage // result of a tool call
	Failed  bool            // whether the tool has failed
	Sub     string          // id of the sub-agent from which the event comes; "" if it comes from the agent itself
	SubType string          // type of the sub-agent, such as "Explore"; "" if unknown
	Trigger string          // what has caused a compaction: "auto" or "manual"
	File    string          // file in which the agent stores the conversation; "" if unknown
	Kept    int             // number of texts that were recorded before the record of a compaction
	Left    int             // number of older texts that were not recorded
	Tree    Tree            // working tree that the hook has to make or to remove
	// Checkpoint is the checkpoint that was made for the event before its record; "" if none was made.
	Checkpoint string
}

// Tree is the working tree of an event of the kind MakeTree or RemoveTree.
type Tree struct {
	Name string // name that the agent has given to a new tree
	Path string // directory of the tree; "" for a new tree if the hook has to choose it
	From string // directory in the tree from which a new tree is made
	Base string // commit of a new tree; "" if the agent names none
}

// MaxEvent is the maximum size of an event in bytes. Parse refuses larger events.
const MaxEvent = 16 << 20

// wire contains the members that Parse reads from an event. Each agent sends only some of them.
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
	ToolResult   json.RawMessage `json:"tool_result"`
	ToolOutput   json.RawMessage `json:"tool_output"`
	Error        json.RawMessage `json:"error"`
	Sub          string          `json:"agent_id"`
	Parent       string          `json:"parent_agent_id"` // conversation of a sub-agent whose own conversation is Session
	CamelSession string          `json:"sessionId"`       // copilot, in events that have no name
	Trigger      string          `json:"trigger"`
	File         string          `json:"transcript_path"`
	SubType      string          `json:"agent_type"` // also sent for the agent itself, if it was started with a type
}

// treeWire contains the members of events about working trees. The versions of claude send different ones of them.
type treeWire struct {
	Name         string `json:"name"`
	WorktreeName string `json:"worktree_name"`
	Path         string `json:"worktree_path"`
	BasePath     string `json:"base_path"`
	BaseCommit   string `json:"base_commit"`
	BaseRef      string `json:"base_ref"`
}

// cursorWire contains the members that only cursor sends. Some of its events have the conversation also as session_id.
type cursorWire struct {
	Conversation string          `json:"conversation_id"`
	Parent       string          `json:"parent_conversation_id"` // of a sub-agent
	Roots        []string        `json:"workspace_roots"`
	Text         string          `json:"text"`
	Sub          string          `json:"subagent_id"`
	SubType      string          `json:"subagent_type"`
	Summary      string          `json:"summary"` // last text of a sub-agent
	Error        json.RawMessage `json:"error_message"`
}

// common sets the members that other agents send instead.
func (c cursorWire) common(w *wire) {
	w.Session = cmp.Or(c.Parent, w.Session, c.Conversation)
	if w.Dir == "" && len(c.Roots) > 0 {
		w.Dir = c.Roots[0]
	}
	w.Last, w.Sub, w.SubType = cmp.Or(c.Text, c.Summary), c.Sub, c.SubType
	w.ToolResponse, w.Error = w.ToolOutput, c.Error
}

// Parse parses an event in the form in which the agent sends it. The result has the Kind Other if the event need not be
// recorded.
func Parse(a Agent, text []byte) (Event, error) {
	if len(text) > MaxEvent {
		return Event{}, fmt.Errorf("read event: event has %d bytes, limit is %d", len(text), MaxEvent)
	}
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		return Event{}, fmt.Errorf("read event: %w", err)
	}
	if w.Event == "" && w.CamelSession != "" {
		return Event{Agent: a, Session: w.CamelSession, Dir: w.Dir}, nil
	}
	if w.Event == "" {
		return Event{}, errors.New("read event: hook_event_name is missing")
	}
	if a == Cursor {
		var c cursorWire
		if err := json.Unmarshal(text, &c); err != nil {
			return Event{}, fmt.Errorf("read event: %w", err)
		}
		c.common(&w)
	}
	e := Event{
		Agent: a, Kind: kinds[w.Event], Name: w.Event, Session: w.Session, Dir: w.Dir, Model: w.Model,
		Tool: w.Tool, Call: w.Call, File: w.File, Input: nonNull(w.ToolInput), Output: nonNull(w.ToolResponse),
	}
	if w.Sub != "" {
		e.Sub, e.SubType = limit(w.Sub, maxConversation), cutClean(w.SubType, maxConversation)
		switch e.Kind {
		case Prompt:
			e.Kind = SubPrompt
		case TurnEnd:
			if e.Kind = Other; a == OpenCode {
				e.Kind = SubEnd // the others send another event for it
			}
		}
		if w.Session == w.Sub { // copilot
			e.Session = cmp.Or(w.Parent, w.Session)
		}
	}
	if a == Claude {
		switch {
		case e.Kind == Prompt && strings.HasPrefix(strings.TrimSpace(w.Prompt), "<task-notification>"):
			e.Kind = Notification
		case e.Kind == SubEnd && e.Sub != "" && e.SubType == "":
			e.Kind = Other // a part of claude itself, such as the one that makes the summary for a compaction
		}
	}
	switch e.Kind {
	case MakeTree, RemoveTree:
		var t treeWire
		if err := json.Unmarshal(text, &t); err != nil {
			return e, fmt.Errorf("read event: %w", err)
		}
		e.Tree = Tree{Name: cmp.Or(t.Name, t.WorktreeName), Path: t.Path, From: cmp.Or(t.BasePath, w.Dir),
			Base: cmp.Or(t.BaseCommit, t.BaseRef)}
	case Compact:
		e.Trigger = cutClean(w.Trigger, maxConversation)
	case Prompt, SubPrompt, Notification:
		e.Text = w.Prompt
		// Gemini puts what hooks have answered before the prompt.
		if context, prompt, ok := strings.Cut(w.Prompt, "</hook_context>"); ok && a == Gemini &&
			strings.HasPrefix(context, "<hook_context>") {
			e.Text = strings.TrimSpace(prompt)
		}
	case TurnEnd, SubEnd, Message:
		// The agents use two different names for the text of a response.
		if e.Text = w.Last; e.Text == "" {
			e.Text = w.Response
		}
	case ToolResult:
		e.Failed = strings.EqualFold(w.Event, "PostToolUseFailure")
		if e.Output == nil {
			e.Output = nonNull(w.ToolResult)
		}
		// If a tool has failed, the event contains an error instead of an output, so use the error as the output.
		if e.Output == nil {
			e.Output = nonNull(w.Error)
		}
	}
	return e, nil
}

// Timeout returns the maximum time that a hook takes for the event.
func (e Event) Timeout() time.Duration {
	if e.Kind == MakeTree || e.Kind == RemoveTree {
		return TreeTimeout
	}
	return Timeout
}

// nonNull returns v, or nil if v is missing or null.
func nonNull(v json.RawMessage) json.RawMessage {
	if t := bytes.TrimSpace(v); len(t) == 0 || string(t) == "null" {
		return nil
	}
	return v
}

// Changes reports whether the event is the call of a tool that may change files, or the result of such a call.
func (e Event) Changes() bool {
	return (e.Kind == ToolCall || e.Kind == ToolResult) && !slices.Contains(readers[e.Agent], e.Tool)
}

// MakesCheckpoint reports whether a checkpoint is made before the event is recorded.
func (e Event) MakesCheckpoint() bool {
	return e.Changes() || e.BoundsSub() || e.Kind == TurnEnd || e.Kind == Compact
}

// BoundsSub reports whether the event is the beginning or the end of a sub-agent's work.
func (e Event) BoundsSub() bool { return e.Kind == SubStart || e.Kind == SubPrompt || e.Kind == SubEnd }

// Title returns a description of the event in at most 120 bytes, which is used as the message of a checkpoint. The
// message is pushed with the checkpoint, so Title removes secrets.
func (e Event) Title() string {
	switch e.Kind {
	case ToolCall:
		return title("before " + e.Tool + " " + e.Subject())
	case ToolResult:
		return title("after " + e.Tool + " " + e.Subject())
	case TurnEnd:
		return title("end of turn: " + firstLine(e.Text))
	case Compact:
		return title("before compaction " + firstLine(e.Trigger))
	case SubStart, SubPrompt, SubEnd:
		name := strings.TrimSpace("sub-agent " + firstLine(e.SubType))
		if e.Kind == SubEnd {
			return title("end of " + name + ": " + firstLine(e.Text))
		}
		return title("before " + name)
	}
	return string(e.Kind)
}

// title returns a text in the form of Title.
func title(s string) string {
	s = cutClean(strings.TrimSpace(s), 120)
	s, _ = transcript.Redact(s) // if it was not cut
	return cut(s, 120)
}

// Subject returns the first line of the tool's argument that describes the call best, such as a path or a command. It
// returns "" if there is no such argument.
func (e Event) Subject() string {
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
	maxString = 32 << 10  // maximum size of a string in a record, in bytes; in a longer string, the middle is left out
	maxValue  = 100 << 10 // maximum size of the input of a tool in bytes, and of its output

	maxRedacted = 1 << 20 // maximum size in bytes of JSON from which secrets are removed as a whole
	maxSecret   = 8 << 10 // maximum size in bytes of a secret at the place at which a text is cut
)

// record is the JSON form of an Event in the transcript. doc/internals/sessions/transcripts.md documents its members.
type record struct {
	Type       Kind   `json:"type"`
	Role       string `json:"role"`
	Agent      Agent  `json:"agent"`
	Session    string `json:"agent_session,omitempty"`
	Model      string `json:"model,omitempty"`
	Text       string `json:"text,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Call       string `json:"call,omitempty"`
	Input      any    `json:"input,omitempty"`
	Output     any    `json:"output,omitempty"`
	Failed     bool   `json:"failed,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Sub        string `json:"sub,omitempty"`
	SubType    string `json:"sub_type,omitempty"`
	Trigger    string `json:"trigger,omitempty"`
	Kept       int    `json:"kept,omitempty"`
	Left       int    `json:"left_out,omitempty"`
	Compacted  bool   `json:"compacted,omitempty"` // whether the text was recorded because of a compaction
	Time       string `json:"time,omitempty"`      // time at which the agent has written such a text
}

// Record returns the event as one JSON object for the transcript. Long strings in it are shortened, after secrets were
// removed from them. Other strings may contain secrets.
func (e Event) Record() (string, error) {
	r := record{
		Type: e.Kind, Agent: e.Agent, Session: e.Session, Model: e.Model, Text: cutClean(e.Text, maxString),
		Tool: e.Tool, Call: e.Call,
		Input: shorten(e.Input), Output: shorten(e.Output), Failed: e.Failed, Checkpoint: e.Checkpoint,
		Sub: e.Sub, SubType: e.SubType, Trigger: e.Trigger, Kept: e.Kept, Left: e.Left,
	}
	// The roles are those of the usual chat formats.
	switch e.Kind {
	case Prompt:
		r.Role = "user"
	case ToolResult:
		r.Role = "tool"
	case SessionStart, SessionEnd, SubStart, SubPrompt, SubEnd, Compact, Notification:
		r.Role = "system"
	default:
		r.Role = "assistant"
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// shorten returns a decoded JSON value in which long strings are shortened. If the result is still longer than
// maxValue, shorten returns the text of the result, shortened, as a string.
func shorten(v json.RawMessage) any {
	if v == nil {
		return nil
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(v))
	// Numbers are decoded as text, because a conversion to float64 would change large numbers.
	d.UseNumber()
	if d.Decode(&value) != nil {
		return cutClean(string(v), maxString)
	}
	value = shortenStrings(value)
	text, err := json.Marshal(value)
	if err == nil && len(text) <= maxValue {
		return value
	}
	if len(text) <= maxRedacted {
		if clean, _, err := transcript.RedactJSON(text); err == nil { // also finds secrets by the names of members
			text = clean
		}
	}
	return cutClean(string(text), maxString)
}

// shortenStrings shortens the strings in a decoded JSON value. It changes arrays and objects in place.
func shortenStrings(v any) any {
	switch v := v.(type) {
	case string:
		return cutClean(v, maxString)
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

// limit returns s, or its beginning if it has more than max bytes.
func limit(s string, max int) string { return strings.ToValidUTF8(s[:min(len(s), max)], "") }

// cutClean returns s if s has at most size bytes. Otherwise it removes secrets from s and then cuts it, because a
// secret of which only a part is left is not recognized later. Of a long text it reads only the parts that it keeps,
// and maxSecret further bytes of each.
func cutClean(s string, size int) string {
	if len(s) <= size {
		return s
	}
	window := size/2 + maxSecret
	if len(s) <= 2*window {
		s, _ = transcript.Redact(s)
		return cut(s, size)
	}
	note := fmt.Sprintf(leftNote, len(s)-size)
	keep := (size - len(note)) / 2
	head, _ := transcript.Redact(s[:window])
	tail, _ := transcript.Redact(s[len(s)-window:])
	// The windows may have got shorter, and have parts of secrets where they were cut.
	head = head[:min(keep, max(0, len(head)-maxSecret/2))]
	tail = tail[max(len(tail)-keep, min(len(tail), maxSecret/2)):]
	return strings.ToValidUTF8(head, "") + note + strings.ToValidUTF8(tail, "")
}

// leftNote is the format of the note in the place of what was left out of a text.
const leftNote = " [%d bytes left out] "

// cut returns s if s has at most max bytes. Otherwise it returns the beginning and the end of s, and between them a
// note with the number of bytes that were left out.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	// The size of the note is part of max.
	note := fmt.Sprintf(leftNote, len(s)-max)
	keep := max - len(note)
	return strings.ToValidUTF8(s[:keep/2], "") + note + strings.ToValidUTF8(s[len(s)-keep/2:], "")
}
