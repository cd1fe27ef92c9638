package undo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// describe returns a call in short form: its id, turn, and the positions of its checkpoints; a question mark means that
// the end is not known.
func (h *history) describe(c *call) string {
	s := h.span(c)
	return fmt.Sprintf("%s turn %d %d-%d%s", c.id, c.turn, s.from, s.to, map[bool]string{false: "?"}[s.known])
}

// TestHistory checks which calls are found in records, in which turn, and between which checkpoints.
func TestHistory(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(w *world)
		want []string
	}{
		{"one agent", func(w *world) {
			w.prompt("claude/1")
			w.call("claude/1", "a", func() { w.write("x", "1") })
			w.call("claude/1", "b", func() {})
			w.response("claude/1")
		}, []string{"a turn 1 1-2", "b turn 1 3-3"}},
		{"tools that only read, records of other programs, and others", func(w *world) {
			w.record("tool_call", "claude/1", `,"tool":"Read","call":"r"`)
			w.record("tool_result", "claude/1", `,"tool":"Read","call":"r"`)
			w.append(`{"type":"tool_call","tool":"Bash","call":"s"}`)
			w.append(`{"type":"tool_call","tool":["Bash"]}`)
			w.append(`{"type":"unknown","agent":"claude"}`)
			w.append(`[]`)
		}, nil},
		{"two agents whose prompts end each other's turn of the session", func(w *world) {
			w.prompt("claude/1")
			w.begin("claude/1", "a")
			w.prompt("codex/1")
			w.call("codex/1", "b", func() { w.write("y", "1") })
			w.end("claude/1", "a")
			w.call("claude/1", "c", func() {})
		}, []string{"a turn 1 1-3", "b turn 2 2-3", "c turn 1 4-4"}},
		{"calls without ids", func(w *world) {
			for _, tool := range []string{"x", "y"} {
				w.record("tool_call", "gemini/1", `,"tool":"`+tool+`","checkpoint":"`+w.checkpoint("before "+tool)+`"`)
			}
			w.write("f", "1")
			for _, tool := range []string{"y", "x"} {
				w.record("tool_result", "gemini/1", `,"tool":"`+tool+`","checkpoint":"`+w.checkpoint("after "+tool)+`"`)
			}
		}, []string{"R0000 turn 0 0-3", "R0001 turn 0 1-2"}},
		{"an interrupted call, and its late result", func(w *world) {
			w.begin("claude/1", "a")
			w.write("x", "1")
			w.prompt("claude/1")
			w.begin("claude/1", "b")
			w.prompt("claude/1")
			w.write("x", "2")
			w.end("claude/1", "b")
		}, []string{"a turn 0 0-1?", "b turn 1 2-3"}},
		{"an interrupted call, in a mount without automatic checkpoints", func(w *world) {
			w.begin("claude/1", "a")
			w.write("x", "1")
			w.record("prompt", "claude/1", "")
			w.checkpoint("")
			w.write("x", "2")
		}, []string{"a turn 0 0-1?"}},
		{"a call that is running", func(w *world) {
			w.begin("claude/1", "a")
			w.write("x", "1")
			w.checkpoint("")
			w.write("x", "2")
		}, []string{"a turn 0 0-2?"}},
		{"a call that was killed", func(w *world) {
			w.begin("claude/1", "a")
			w.write("x", "1")
			w.checkpoint("")
			w.now = w.now.Add(maxOpen)
			w.write("x", "2")
			w.checkpoint("")
			w.write("x", "3")
		}, []string{"a turn 0 0-2?"}},
		{"records of earlier versions, without checkpoints of their own", func(w *world) {
			w.checkpoint("before a")
			w.record("tool_call", "claude/1", `,"tool":"Bash","call":"a"`)
			w.write("x", "1")
			w.record("tool_result", "claude/1", `,"tool":"Bash","call":"a"`)
			w.checkpoint("before b")
			w.record("tool_call", "claude/1", `,"tool":"Bash","call":"b"`)
			w.write("x", "2")
		}, []string{"a turn 0 0-1?", "b turn 0 1-2?"}},
		{"an event that arrives twice", func(w *world) {
			w.begin("claude/1", "a")
			w.begin("claude/1", "a")
			w.write("x", "1")
			w.end("claude/1", "a")
		}, []string{"a turn 0 0-1"}},
		{"dropped checkpoints", func(w *world) {
			w.call("claude/1", "a", func() { w.write("x", "1") })
			w.call("claude/1", "b", func() { w.write("x", "2") })
			w.call("claude/1", "c", func() { w.write("x", "3") })
			w.drop("P0000", "P0003")
		}, []string{"a turn 0 0-0", "b turn 0 1-2?", "c turn 0 2-3"}},
		{"a dropped checkpoint before a call", func(w *world) {
			w.call("claude/1", "a", func() { w.write("x", "1") })
			w.call("claude/1", "b", func() { w.write("x", "2") })
			w.drop("P0002")
		}, []string{"a turn 0 0-1", "b turn 0 1-2"}},
		{"erased records", func(w *world) {
			w.prompt("claude/1")
			w.prompt("claude/1")
			w.erase(1)
			w.call("claude/1", "a", func() { w.write("x", "1") })
			w.call("claude/1", "b", func() { w.write("x", "2") })
			w.erase(2, 5)
		}, []string{"b turn 2 3-4?"}},
	} {
		w := newWorld(t, tree{"x": "0"})
		c.run(w)
		h := w.history()
		var got []string
		for _, one := range h.calls {
			got = append(got, h.describe(one))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestTargets checks which calls a name means, and which undos can be redone.
func TestTargets(t *testing.T) {
	w := newWorld(t, tree{})
	w.prompt("claude/1")
	w.call("claude/1", "toolu_1", func() { w.write("x", "1") })
	w.call("claude/1", "toolu_2", func() { w.write("x", "2") })
	w.call("claude/1", "toolu_2b", func() {})
	w.prompt("codex/1")
	w.call("codex/1", "call_3", func() { w.write("y", "3") })
	for name, want := range map[string]string{
		"": "call_3 toolu_2 toolu_1", "2": "turn:2", "turn:1": "turn:1", "01": "turn:1", "toolu_2": "toolu_2",
		"call": "call_3", "toolu_2b": "toolu_2b",
	} {
		got, err := w.history().toUndo(name)
		if names := targetNames(got); names != want || err != nil {
			t.Errorf("targets of %q: got %q, %v, want %q", name, names, err, want)
		}
	}
	for name, want := range map[string]string{"3": "no tool call of turn 3", "turn:x": "no tool call of turn x",
		"nope": `no tool call that may have changed files has the id "nope"`, "toolu": `3 tool calls have ids`} {
		_, err := w.history().toUndo(name)
		if e := control.AsError(err); e == nil || !strings.HasPrefix(e.Cause, want) || e.Kind != control.CodeNotFound {
			t.Errorf("target %q: got the error %v, want %s", name, err, want)
		}
	}
	if got := (target{name: "call_3", calls: w.history().named("call_3")}).title(); got != `Bash "run call_3" of turn 2` {
		t.Errorf("title of a call: got %s", got)
	}
	undo := func(of string) {
		w.append(fmt.Sprintf(`{"type":"undo","of":%q,"to":"P0000","before":"P0000","after":"P0000"}`, of))
	}
	redo := func(of string) { w.append(fmt.Sprintf(`{"type":"redo","of":%q}`, of)) }
	steps := []struct {
		run               func()
		undoable, redoing string
	}{
		{func() { undo("call_3") }, "toolu_2 toolu_1", "call_3"},
		{func() { undo("turn:1") }, "", "turn:1 call_3"},
		{func() { redo(w.records[len(w.records)-1].ID) }, "toolu_2 toolu_1", "call_3"},
		{func() { undo("toolu_1") }, "toolu_2", "toolu_1 call_3"},
		{func() { redo(w.records[len(w.records)-1].ID) }, "toolu_2 toolu_1", "call_3"},
		{func() { undo("gone") }, "toolu_2 toolu_1", "gone call_3"},
	}
	for i, s := range steps {
		s.run()
		h := w.history()
		all, err := h.toUndo("")
		if got := targetNames(all); got != s.undoable || err != nil {
			t.Errorf("step %d: calls that can be undone: got %q, want %q, error %v", i, got, s.undoable, err)
		}
		if got := targetNames(h.toRedo()); got != s.redoing {
			t.Errorf("step %d: undos that can be redone: got %q, want %q", i, got, s.redoing)
		}
	}
}

func targetNames(all []target) string {
	var names []string
	for _, one := range all {
		names = append(names, one.name)
	}
	return strings.Join(names, " ")
}

// drop removes checkpoints, as gc does.
func (w *world) drop(ids ...string) {
	w.points = slices.DeleteFunc(w.points, func(p control.Checkpoint) bool { return slices.Contains(ids, p.ID) })
}

// erase replaces the records with these numbers by tombstones.
func (w *world) erase(numbers ...int) {
	for _, n := range numbers {
		w.records[n].Record, w.records[n].Erased = nil, &control.Erased{Time: time.Unix(0, 0)}
	}
}
