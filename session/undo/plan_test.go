package undo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// compare returns the differences of two trees as the daemon returns them: a directory that becomes empty is a new
// path, but an empty one that gets files, or that a file replaces, is no removed path.
func compare(a, b tree) []control.PathChange {
	changes := []control.PathChange{}
	names := map[string]bool{}
	for _, t := range []tree{a, b} {
		for path := range t {
			names[strings.TrimSuffix(path, "/")] = true
		}
	}
	// entry returns the mode and the id of a file or an empty directory, and whether the directory contains anything.
	entry := func(t tree, name string) (mode, id string, full bool) {
		if text, is := t[name]; is {
			return "100644", "id-" + text, false
		}
		for path := range t {
			if path == name+"/" {
				return dirMode, "empty", false
			}
			full = full || strings.HasPrefix(path, name+"/")
		}
		return "", "", full
	}
	add := func(c control.PathChange) {
		c.Status = "M"
		if c.OldMode == "" {
			c.Status = "A"
		} else if c.NewMode == "" {
			c.Status = "D"
		}
		changes = append(changes, c)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c := control.PathChange{Path: name}
		var full bool
		c.OldMode, c.Old, _ = entry(a, name)
		c.NewMode, c.New, full = entry(b, name)
		if c.OldMode == c.NewMode && c.Old == c.New {
			continue
		}
		if c.NewMode == dirMode {
			add(control.PathChange{Path: name, NewMode: c.NewMode, New: c.New})
			c.NewMode, c.New = "", ""
		}
		if c.OldMode == dirMode {
			if c.NewMode == "" && !full {
				add(control.PathChange{Path: name, OldMode: c.OldMode, Old: c.Old})
			}
			c.OldMode, c.Old = "", ""
		}
		if c.OldMode != "" || c.NewMode != "" {
			add(c)
		}
	}
	return changes
}

// diff returns the differences of two checkpoints.
func (w *world) diff(a, b string) ([]control.PathChange, error) {
	for _, id := range []string{a, b} {
		if !slices.ContainsFunc(w.points, func(p control.Checkpoint) bool { return p.ID == id }) {
			return nil, &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound, Cause: "no checkpoint " + id}
		}
	}
	return compare(w.trees[a], w.trees[b]), nil
}

// planOf returns the plan of the undo of name, in short form: the checkpoint, the paths, then after a bar each path of
// others with its agents, and further remarks.
func (w *world) planOf(name string) string {
	w.Helper()
	h := w.history()
	targets, err := h.toUndo(name)
	if err != nil || len(targets) == 0 {
		w.Fatalf("undo of %q: got %d targets, error %v", name, len(targets), err)
	}
	p, err := h.plan(targets[0], w.diff)
	if err != nil {
		return "error: " + control.AsError(err).Cause
	}
	text := p.to + " " + strings.Join(p.paths, " ")
	for i, o := range p.others {
		if i == 0 {
			text += " |"
		}
		text += fmt.Sprintf(" %s(%s)", o.Path, o.By)
	}
	if len(p.later) > 0 {
		text += " later " + strings.Join(p.later, " ")
	}
	if p.unknown {
		text += " unknown"
	}
	if p.moved {
		text += " moved " + p.reset
	}
	return text
}

// TestPlan checks which paths an undo restores, and which of them others have changed.
func TestPlan(t *testing.T) {
	set := func(w *world, text string, paths ...string) func() {
		return func() {
			for _, path := range paths {
				w.write(path, text)
			}
		}
	}
	for _, c := range []struct {
		name string
		run  func(w *world)
		undo string
		want string
	}{
		{"one agent", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "d/new"))
		}, "", "P0000 d/new x"},
		{"an earlier call of the same agent", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "y"))
			w.call("claude/1", "b", set(w, "b", "x"))
		}, "a", "P0000 x y later x"},
		{"a turn, without what the user has changed before and after it", func(w *world) {
			w.prompt("claude/1")
			set(w, "u", "u1")()
			w.call("claude/1", "a", set(w, "a", "x"))
			set(w, "u", "u2")()
			w.call("claude/1", "b", set(w, "b", "y"))
			w.response("claude/1")
			set(w, "u", "u3")()
		}, "1", "P0001 x y"},
		{"the user between two calls", func(w *world) {
			w.prompt("claude/1")
			w.call("claude/1", "a", set(w, "a", "x"))
			set(w, "u", "x")()
			w.call("claude/1", "b", set(w, "b", "x", "y"))
		}, "1", "P0001 x y | x()"},
		{"the user after the call", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "y"))
			set(w, "u", "x", "z")()
		}, "a", "P0000 x y | x()"},
		{"a user who has taken the own change back", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "y"))
			set(w, "u", "x")()
			w.checkpoint("")
			set(w, "a", "x")()
		}, "a", "P0000 x y"},
		{"a user who has taken the change of the call back", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "y"))
			set(w, "0", "x")()
		}, "a", "P0000 y"},
		{"two agents, one after the other", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x", "y"))
			w.call("codex/1", "b", set(w, "b", "x"))
		}, "a", "P0000 x y | x(codex)"},
		{"two agents at the same time", func(w *world) {
			w.begin("claude/1", "a")
			set(w, "a", "x")()
			w.begin("codex/1", "b")
			set(w, "b", "y")()
			w.end("codex/1", "b")
			set(w, "a", "z")()
			w.end("claude/1", "a")
		}, "a", "P0000 x y z | y(codex)"},
		{"another conversation with the same agent, and the user", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x"))
			w.call("claude/2", "b", set(w, "b", "x"))
			set(w, "u", "x")()
		}, "a", "P0000 x | x(claude in another conversation)"},
		{"sub-agents in parallel", func(w *world) {
			w.begin("claude/1", "task")
			w.begin("claude/1", "a")
			w.begin("claude/1", "b")
			set(w, "a", "x")()
			w.end("claude/1", "a")
			set(w, "b", "y")()
			w.end("claude/1", "b")
			w.end("claude/1", "task")
		}, "b", "P0002 x y"},
		{"a call that is running", func(w *world) {
			w.begin("claude/1", "a")
			set(w, "a", "x")()
		}, "", "P0000 x unknown"},
		{"an erased call of another agent", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x"))
			w.call("codex/1", "b", set(w, "b", "x"))
			w.erase(2, 3)
		}, "a", "P0000 x | x()"},
		{"a dropped checkpoint after the call", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x"))
			w.checkpoint("between")
			w.call("codex/1", "b", set(w, "b", "y"))
			w.drop("P0001")
		}, "a", "P0000 x unknown"},
		{"a dropped checkpoint before the call", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x"))
			w.drop("P0000")
		}, "a", "error: checkpoint P0000 was dropped, or is one of the session from which this one was forked"},
		{"a commit", func(w *world) {
			w.call("claude/1", "a", func() { w.write("x", "a"); w.head = "c1" })
		}, "a", "P0000 x moved c0"},
		{"a commit, and one of the user", func(w *world) {
			w.call("claude/1", "a", func() { w.write("x", "a"); w.head = "c1" })
			w.head = "c2"
		}, "a", "P0000 x moved "},
		{"a directory of others in place of a removed file", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("x"); w.write("y", "a") })
			set(w, "u", "x/u")()
		}, "a", "P0000 x x/u y | x/u()"},
		{"a file of others in place of a directory", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "d/old"))
			set(w, "u", "d")()
		}, "a", "P0000 d d/old | d() d/old()"},
		{"an empty directory", func(w *world) {
			w.call("claude/1", "a", func() { w.write("e/f", "a") })
		}, "a", "P0000 e e/f"},
		{"an empty directory in which others have made a file, too", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "e/f"))
			set(w, "u", "e/u")()
		}, "a", "P0000 e/f"},
		{"a removed empty directory that others have made again", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("e") })
			set(w, "u", "e/u")()
		}, "a", "P0000 "},
		{"an emptied directory", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("d/old") })
		}, "a", "P0000 d/old"},
		{"an emptied directory in which others have made a file", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("d/old") })
			set(w, "u", "d/new")()
		}, "a", "P0000 d/old"},
		{"an emptied directory in which others have made the same file", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("d/old"); w.write("y", "a") })
			set(w, "u", "d/old")()
		}, "a", "P0000 d/old y | d/old()"},
		{"an empty directory in place of a file", func(w *world) {
			w.call("claude/1", "a", func() { w.remove("x"); w.write("x/", "") })
		}, "a", "P0000 x"},
		{"the user after a call that was killed", func(w *world) {
			w.begin("claude/1", "a")
			set(w, "a", "x")()
			w.checkpoint("")
			set(w, "u", "y")()
		}, "a", "P0000 x y | y() unknown"},
		{"the user after an interrupted call", func(w *world) {
			w.begin("claude/1", "a")
			set(w, "a", "x")()
			w.checkpoint("")
			set(w, "u", "y")()
			w.prompt("claude/1")
		}, "a", "P0000 x y | y() unknown"},
		{"the user after a later call that was killed", func(w *world) {
			w.call("claude/1", "a", set(w, "a", "x"))
			w.begin("claude/1", "b")
			set(w, "b", "y")()
			w.checkpoint("")
			set(w, "u", "x")()
		}, "a", "P0000 x | x()"},
		{"another call of the same conversation beside one that was killed", func(w *world) {
			w.begin("claude/1", "b")
			w.checkpoint("killed")
			w.call("claude/1", "a", set(w, "a", "x"))
		}, "a", "P0002 x"},
		{"the user before a call without a checkpoint of its own", func(w *world) {
			w.checkpoint("")
			set(w, "u", "y")()
			w.record("tool_call", "claude/1", `,"tool":"Bash","call":"a"`)
			set(w, "a", "x")()
			w.end("claude/1", "a")
		}, "a", "P0000 x y | x() y() unknown"},
		{"a call after which no checkpoint was made", func(w *world) {
			w.begin("claude/1", "a")
			set(w, "a", "x")()
			w.checkpoint("")
			set(w, "b", "y")()
			w.checkpoint("")
			w.record("tool_result", "claude/1", `,"tool":"Bash","call":"a"`)
			set(w, "u", "z")()
		}, "a", "P0000 x y z | z() unknown"},
	} {
		w := newWorld(t, tree{"x": "0", "y": "0", "d/old": "0", "e/": ""})
		c.run(w)
		if got := w.planOf(c.undo); got != c.want {
			t.Errorf("%s: got plan %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPlanAfterMoves checks that an earlier undo counts as a change of the agent whose call it has undone, and that a
// redo restores only what the undo has changed.
func TestPlanAfterMoves(t *testing.T) {
	w := newWorld(t, tree{"x": "0"})
	w.call("claude/1", "a", func() { w.write("x", "a") })
	w.call("codex/1", "b", func() { w.write("x", "b"); w.write("y", "b") })
	before := w.checkpoint("")
	w.write("x", "a")
	w.remove("y")
	w.write("z", "user") // during the undo
	w.append(fmt.Sprintf(`{"type":"undo","of":"b","to":"P0002","before":%q,"after":%q}`, before, w.checkpoint("after")))
	if got := w.planOf("a"); got != "P0000 x" {
		t.Errorf("plan after the change of another agent was undone: got %q", got)
	}
	w.call("claude/1", "c", func() { w.write("x", "c") })
	w.write("x", "a")
	w.append(fmt.Sprintf(`{"type":"undo","of":"c","to":"P0002","before":%q,"after":%q}`, w.points[len(w.points)-1].ID,
		w.checkpoint("after")))
	if got := w.planOf("a"); got != "P0000 x" {
		t.Errorf("plan after a later call of the same agent was undone: got %q", got)
	}
	w.append(fmt.Sprintf(`{"type":"redo","of":%q}`, w.records[len(w.records)-1].ID))
	w.write("y", "user")
	h := w.history()
	p, err := h.plan(h.toRedo()[0], w.diff)
	if err != nil || p.to != before || !slices.Equal(p.paths, []string{"x", "y"}) ||
		!slices.Equal(p.others, []OtherChange{{Path: "y"}}) {
		t.Errorf("redo: got %s, paths %q, others %v, error %v", p.to, p.paths, p.others, err)
	}
	failure := errors.New("no answer")
	if _, err := h.plan(h.toRedo()[0], func(_, _ string) ([]control.PathChange, error) {
		return nil, failure
	}); !errors.Is(err, failure) {
		t.Errorf("plan without an answer: got the error %v", err)
	}
	w.drop(before)
	h = w.history()
	if _, err := h.plan(h.toRedo()[0], w.diff); control.AsError(err).ErrorCode() != control.CodeNotFound {
		t.Errorf("redo from a dropped checkpoint: got the error %v", err)
	}
}

// TestPlanOfSubmodules checks that submodules are not restored, because a restore leaves them unchanged.
func TestPlanOfSubmodules(t *testing.T) {
	w := newWorld(t, tree{})
	w.call("claude/1", "a", func() { w.write("sub", "1") })
	h := w.history()
	targets, err := h.toUndo("a")
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.plan(targets[0], func(_, _ string) ([]control.PathChange, error) {
		return []control.PathChange{{Path: "sub", OldMode: submoduleMode, Old: "1", NewMode: submoduleMode, New: "2"},
			{Path: "x", NewMode: "100644", New: "2"}}, nil
	})
	if !slices.Equal(p.paths, []string{"x"}) || err != nil {
		t.Errorf("paths to restore: got %q, error %v", p.paths, err)
	}
}

// TestFewComparisons checks that a turn with many calls needs few comparisons of checkpoints.
func TestFewComparisons(t *testing.T) {
	w := newWorld(t, tree{})
	w.prompt("claude/1")
	for i := range 40 {
		if i == 20 {
			w.write("y", "u")
		}
		w.call("claude/1", fmt.Sprint("c", i), func() { w.write("x", fmt.Sprint(i)) })
	}
	h := w.history()
	targets, err := h.toUndo("1")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	p, err := h.plan(targets[0], func(a, b string) ([]control.PathChange, error) {
		compared++
		return w.diff(a, b)
	})
	if compared != 4 || !slices.Equal(p.paths, []string{"x"}) || len(p.others) != 0 || err != nil {
		t.Errorf("undo of 40 calls with a change of the user between: got %d comparisons, paths %q, others %v, error %v",
			compared, p.paths, p.others, err)
	}
}

// TestRequest checks which paths are requested from the daemon: directories only if there are many paths and nothing
// else differs below them, and an empty directory only if nothing below its name stays.
func TestRequest(t *testing.T) {
	w := newWorld(t, tree{"few": "0", "e/": "", "k/": ""})
	w.call("claude/1", "a", func() {
		w.write("few", "a")
		w.write("e/mine", "a")
		w.write("k/mine", "a")
	})
	w.write("e/theirs", "u")
	plan := func(name string) (p plan) {
		h := w.history()
		targets, err := h.toUndo(name)
		if err == nil {
			p, err = h.plan(targets[0], w.diff)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := plan("a")
	if got := strings.Join(p.request(), " "); got != "e/mine few k k/mine" {
		t.Errorf("request for few paths: got %s", got)
	}
	w.call("claude/1", "b", func() {
		for i := range maxPaths {
			w.write(fmt.Sprintf("all/%d/%d", i%7, i), "b")
			w.write(fmt.Sprintf("some/%d/%d", i%2, i), "b")
		}
	})
	w.write("some/1/1", "u")
	w.write("some/new", "u")
	p = plan("b")
	if kept := p.without(); !slices.Equal(kept, []string{"some/1/1"}) {
		t.Errorf("paths that others have changed: got %q", kept)
	}
	got := p.request()
	if len(got) != 1+1+maxPaths/2-1 || got[0] != "all" || got[1] != "some/0" || slices.Contains(got, "some/1/1") ||
		!slices.Contains(got, "some/1/3") {
		t.Errorf("request for many paths: got %d paths: %q", len(got), got)
	}
}

// TestWithout checks that paths which can only be restored together are kept together.
func TestWithout(t *testing.T) {
	w := newWorld(t, tree{"x": "0", "y": "0"})
	w.call("claude/1", "a", func() { w.write("x/1", "a"); w.write("x/2", "a"); w.write("y", "a") })
	w.write("x/2", "u")
	h := w.history()
	targets, _ := h.toUndo("")
	p, err := h.plan(targets[0], w.diff)
	if err != nil {
		t.Fatal(err)
	}
	if kept := p.without(); !slices.Equal(kept, []string{"x", "x/1", "x/2"}) || !slices.Equal(p.paths, []string{"y"}) {
		t.Errorf("kept %q and restored %q", kept, p.paths)
	}
}
