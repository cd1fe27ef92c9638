// Package undo undoes and redoes what tool calls of coding agents have changed in the files of a session. The hooks of
// agents make a checkpoint before and after each call that may change files (package agenthook). So the changes between
// two checkpoints are those of the calls that ran between them; if none ran, somebody else has made them.
//
// The decision which paths are restored, and which changes of others would be lost with them, is made from the
// transcript and the checkpoints alone (history, plan). Undo and Redo carry it out with the requests of a Session.
package undo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// maxOpen is the time after which a call without a result counts as ended, because its agent was probably killed.
const maxOpen = time.Hour

// conversation identifies a conversation with an agent. Sub-agents belong to the conversation that has started them.
type conversation struct{ agent, id string }

// call is the call of a tool that may have changed files.
type call struct {
	id            string // id of the call, or of its record if the agent gives its calls no ids
	tool, subject string
	who           conversation
	turn          int       // turn that the conversation was in
	at            time.Time // time of the record of the call
	before        string    // checkpoint before the call; "" if there was none
	after         string    // checkpoint after the call; "" if nothing shows that the call has ended
	early         bool      // the checkpoint before may have been made some time before the call
	ended         bool      // the result of the call is recorded
	late          bool      // the call may have ended after the checkpoint after was made, and before the next one
}

// move is an undo or a redo that was carried out.
type move struct {
	id         string  // id of its record
	of         string  // name of what was undone; for a redo, the id of the record of the undo
	to         string  // checkpoint from which the files were restored
	before     string  // checkpoint before the move
	after      string  // checkpoint after the move
	calls      []*call // calls that were undone or redone; none if their records were erased
	undo, over bool    // over: the undo was redone
}

// history is what a session has recorded: its checkpoints, and the calls between them.
type history struct {
	points []control.Checkpoint // oldest first; the last one has the present files
	index  map[string]int       // positions in points, by id
	calls  []*call              // in the order in which they began
	moves  []*move
	turns  map[conversation]int // present turns, by conversation
	turn   int                  // turn whose prompt was erased, so that its conversation is unknown; 0: none
}

// entry has the members of records that an undo needs.
type entry struct {
	Type       string          `json:"type"`
	Agent      string          `json:"agent"`
	Session    string          `json:"agent_session"`
	Tool       string          `json:"tool"`
	Call       string          `json:"call"`
	Checkpoint string          `json:"checkpoint"`
	Input      json.RawMessage `json:"input"`
	Of         string          `json:"of"`
	To         string          `json:"to"`
	Before     string          `json:"before"`
	After      string          `json:"after"`
}

// The types of the records of moves.
const (
	typeUndo = "undo"
	typeRedo = "redo"
)

// newHistory returns the history of a session. The records are sorted oldest first, and the checkpoints newest first,
// as replies of the daemon have them.
func newHistory(records []control.TranscriptRecord, checkpoints []control.Checkpoint) *history {
	h := &history{points: slices.Clone(checkpoints), index: map[string]int{}, turns: map[conversation]int{}}
	slices.Reverse(h.points)
	for i, p := range h.points {
		h.index[p.ID] = i
	}
	for _, r := range records {
		h.add(r)
	}
	return h
}

// add adds a record to the calls and moves. It ignores records of other kinds, and those that cannot be parsed.
func (h *history) add(r control.TranscriptRecord) {
	if len(r.Record) == 0 {
		if r.Begins { // the prompt may have been that of any conversation
			clear(h.turns)
			h.turn = r.Turn
		}
		return
	}
	var e entry
	if json.Unmarshal(r.Record, &e) != nil {
		return
	}
	who := conversation{e.Agent, e.Session}
	switch e.Type {
	case string(agenthook.Prompt):
		h.turns[who] = r.Turn
		h.close(who, e, r)
	case string(agenthook.TurnEnd), string(agenthook.SessionEnd), string(agenthook.SessionStart):
		h.close(who, e, r)
	case string(agenthook.ToolCall):
		h.begin(who, e, r)
	case string(agenthook.ToolResult):
		if c := h.running(who, e); c != nil {
			c.after, c.ended, c.late = cmp.Or(e.Checkpoint, r.Checkpoint), true, e.Checkpoint == ""
		}
	case typeUndo:
		h.moves = append(h.moves, &move{id: r.ID, of: e.Of, to: e.To, before: e.Before, after: e.After, calls: h.named(e.Of),
			undo: true})
	case typeRedo:
		m := &move{id: r.ID, of: e.Of, to: e.To, before: e.Before, after: e.After}
		for _, u := range h.moves {
			if u.undo && u.id == e.Of {
				m.calls, u.over = u.calls, true
			}
		}
		h.moves = append(h.moves, m)
	}
}

// begin adds a call, unless its tool changes no files.
func (h *history) begin(who conversation, e entry, r control.TranscriptRecord) {
	event := agenthook.Event{Agent: agenthook.Agent(e.Agent), Kind: agenthook.ToolCall, Tool: e.Tool, Input: e.Input}
	// A record without an agent comes from another program, which makes no checkpoints.
	if e.Agent == "" || !event.Changes() || e.Call != "" && h.running(who, e) != nil {
		return
	}
	h.calls = append(h.calls, &call{id: cmp.Or(e.Call, r.ID), tool: e.Tool, subject: event.Subject(), who: who,
		turn: cmp.Or(h.turns[who], h.turn, r.Turn), at: r.Time, before: cmp.Or(e.Checkpoint, r.Checkpoint),
		early: e.Checkpoint == ""})
}

// running returns the call that a result belongs to: the one with the same id or, if the agent gives its calls no ids,
// the oldest call of the same tool in the conversation that has not ended. It returns nil if there is none.
func (h *history) running(who conversation, e entry) *call {
	for _, c := range h.calls {
		if c.who == who && (e.Call != "" && c.id == e.Call || e.Call == "" && c.tool == e.Tool && c.after == "") {
			return c
		}
	}
	return nil
}

// close ends the calls of a conversation that have no result, because the agent has done something else since, for
// example because the user has interrupted it. The record r with the members e shows this.
func (h *history) close(who conversation, e entry, r control.TranscriptRecord) {
	for _, c := range h.calls {
		if c.who == who && c.after == "" {
			c.after = cmp.Or(e.Checkpoint, r.Checkpoint)
			c.late = e.Checkpoint == "" && c.after == c.before
		}
	}
}

// turnPrefix is the beginning of the name of a turn.
const turnPrefix = "turn:"

// named returns the calls of a target by its name: "turn:N", or the id of a call.
func (h *history) named(name string) (calls []*call) {
	turn, isTurn := strings.CutPrefix(name, turnPrefix)
	for _, c := range h.calls {
		if isTurn && strconv.Itoa(c.turn) == turn || !isTurn && c.id == name {
			calls = append(calls, c)
		}
	}
	return calls
}

// place returns the position of a checkpoint. If the checkpoint was dropped, it returns the position of the next one,
// and exact is false.
func (h *history) place(id string) (at int, exact bool) {
	if at, exact = h.index[id]; exact {
		return at, true
	}
	at, _ = slices.BinarySearchFunc(h.points, id,
		func(p control.Checkpoint, id string) int { return cmp.Compare(p.ID, id) })
	return at, false
}

// span has the positions of the checkpoints between which a call has run.
type span struct {
	from, to   int
	begin, end int  // positions between which the call has run for sure
	known      bool // the beginning and the end of the call are known exactly
}

// sure reports whether the call has run for sure between the checkpoint at a position in the span and the next one.
func (s span) sure(i int) bool { return s.begin <= i && i < s.end }

// span returns between which checkpoints a call has run. If its end is not known, it has run for sure only until the
// next checkpoint, because the agent may have been killed or interrupted soon.
func (h *history) span(c *call) (s span) {
	from, exact := h.place(c.before)
	if !exact {
		from = max(from-1, 0)
	}
	s.from, s.begin = from, from
	if c.early {
		s.begin++
	}
	last := len(h.points) - 1
	if c.after == "" {
		s.to, s.end = last, from+1
		for i := from; i < last; i++ {
			if h.points[i].Time.After(c.at.Add(maxOpen)) {
				s.to = i
				break
			}
		}
		return s
	}
	to, exact := h.place(c.after)
	if c.late {
		to++
	}
	s.to = max(from, min(to, last))
	exact = exact && !c.late
	switch {
	case !c.ended:
		s.end = from + 1
	case exact:
		s.end = s.to
	default:
		s.end = max(from+1, s.to-1)
	}
	s.known = exact && c.ended && !c.early
	return s
}

// target is what an undo or redo is to take back.
type target struct {
	name  string  // "turn:N", or the id of a call
	calls []*call // calls of which the changes are undone or redone
	undo  *move   // undo that is redone; nil for an undo
}

// title returns a text that describes what is undone, such as `Bash "make" of turn 2`.
func (t target) title() string {
	const most = 60
	turn, isTurn := strings.CutPrefix(t.name, turnPrefix)
	switch {
	case isTurn:
		return "turn " + turn
	case len(t.calls) == 0:
		return t.name
	}
	c := t.calls[0]
	text := c.tool
	if s := c.subject; s != "" {
		if len(s) > most {
			s = strings.ToValidUTF8(s[:most], "") + "..."
		}
		text += fmt.Sprintf(" %q", s)
	}
	if c.turn == 0 {
		return text + " before the first turn"
	}
	return fmt.Sprintf("%s of turn %d", text, c.turn)
}

// undone reports whether a call was undone and not redone.
func (h *history) undone(c *call) bool {
	return slices.ContainsFunc(h.moves, func(m *move) bool { return m.undo && !m.over && slices.Contains(m.calls, c) })
}

// toUndo returns the targets that a name means: a turn ("turn:N", "N"), or a call by the beginning of its id. Without a
// name, these are all calls that may have changed files and were not undone, newest first.
func (h *history) toUndo(name string) ([]target, error) {
	if name == "" {
		var all []target
		for _, c := range slices.Backward(h.calls) {
			s := h.span(c)
			if _, exact := h.place(c.before); h.undone(c) || exact && h.points[s.from].Tree == h.points[s.to].Tree {
				continue
			}
			all = append(all, target{name: c.id, calls: []*call{c}})
		}
		return all, nil
	}
	turn, isTurn := strings.CutPrefix(name, turnPrefix)
	if n, err := strconv.Atoi(turn); err == nil {
		turn, isTurn = strconv.Itoa(n), true
	}
	if isTurn {
		name = turnPrefix + turn
		if calls := h.named(name); len(calls) > 0 {
			return []target{{name: name, calls: calls}}, nil
		}
		return nil, notFound("no tool call of turn "+turn+" may have changed files",
			"artifactfs session transcript prints the turns")
	}
	matches := slices.DeleteFunc(slices.Clone(h.calls), func(c *call) bool { return !strings.HasPrefix(c.id, name) })
	if exact := h.named(name); len(exact) > 0 {
		matches = exact
	}
	const hint = "artifactfs session transcript --json has the ids of calls in record.call"
	switch len(matches) {
	case 0:
		return nil, notFound(fmt.Sprintf("no tool call that may have changed files has the id %.80q", name), hint)
	case 1:
		return []target{{name: matches[0].id, calls: matches}}, nil
	}
	return nil, notFound(fmt.Sprintf("%d tool calls have ids that begin with %.80q", len(matches), name), hint)
}

// toRedo returns the undos that were not redone, newest first.
func (h *history) toRedo() (all []target) {
	for _, m := range slices.Backward(h.moves) {
		if m.undo && !m.over {
			all = append(all, target{name: m.of, calls: m.calls, undo: m})
		}
	}
	return all
}

// notFound returns the error that there is nothing to undo or to redo.
func notFound(cause, hint string) error {
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeNotFound, Cause: cause, Hint: hint}
}
