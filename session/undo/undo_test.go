package undo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// server is a world that answers requests as the daemon does.
type server struct {
	*world
	writing func() // another writer, which runs before a restore
	long    bool   // the reply with all records is too long
	failing bool   // no record can be appended
	asked   []control.RestoreRequest
}

func (w *server) SessionDiff(_ context.Context,
	r control.SessionDiffRequest) (reply control.SessionDiffReply, err error) {
	if r.B == "" {
		r.B = w.checkpoint("")
		r.A = r.B
	}
	reply.Changes, err = w.diff(r.A, r.B)
	return reply, err
}

func (w *server) SessionLog(context.Context, control.SessionLogRequest) (reply control.SessionLogReply, err error) {
	reply.Checkpoints = slices.Clone(w.points)
	slices.Reverse(reply.Checkpoints)
	return reply, nil
}

func (w *server) SessionTranscript(_ context.Context,
	r control.SessionTranscriptRequest) (reply control.SessionTranscriptReply, err error) {
	if w.long && r.Turn == 0 {
		return reply, errors.New("line is longer than the limit")
	}
	reply.Turns = w.turns
	for _, one := range w.records {
		if r.Turn == 0 || one.Turn == r.Turn {
			reply.Records = append(reply.Records, one)
		}
	}
	return reply, nil
}

func (w *server) SessionRecord(_ context.Context,
	r control.SessionRecordRequest) (reply control.SessionRecordReply, err error) {
	if w.failing {
		return reply, errors.New("disk is full")
	}
	for _, line := range r.Lines {
		w.append(line)
	}
	return reply, nil
}

func (w *server) Checkpoint(_ context.Context, r control.CheckpointRequest,
	_ func(control.Progress)) (reply control.CheckpointReply, err error) {
	reply.ID = w.checkpoint(r.Message)
	return reply, nil
}

// Restore restores paths and what is below them, or all paths if the request has none. A path stays as it is if a file
// that stays has the name of a directory above it.
func (w *server) Restore(_ context.Context, r control.RestoreRequest,
	_ func(control.Progress)) (reply control.RestoreReply, err error) {
	w.asked = append(w.asked, r)
	if w.writing != nil && !r.DryRun {
		w.writing()
		w.writing = nil
	}
	before := w.checkpoint("")
	to := w.trees[r.ID]
	after := maps.Clone(w.files)
	var adds []control.PathChange
	reply.Changes = []control.PathChange{}
	for _, c := range compare(w.files, to) {
		if len(r.Paths) > 0 && !slices.ContainsFunc(r.Paths,
			func(p string) bool { return c.Path == p || strings.HasPrefix(c.Path, p+"/") }) {
			continue
		}
		if c.OldMode == dirMode || c.NewMode != "" {
			delete(after, c.Path+"/")
		}
		if c.OldMode != "" && c.OldMode != dirMode {
			delete(after, c.Path)
		}
		if c.NewMode != "" {
			adds = append(adds, c)
		} else {
			reply.Changes = append(reply.Changes, c)
		}
	}
	for _, c := range adds {
		blocked := false
		for other := range after {
			blocked = blocked || strings.HasPrefix(c.Path, other+"/") || strings.HasPrefix(other, c.Path+"/") ||
				other == c.Path && c.NewMode == dirMode
		}
		if blocked {
			reply.Kept = append(reply.Kept, c.Path)
			continue
		}
		maps.DeleteFunc(after, func(other, _ string) bool {
			return strings.HasSuffix(other, "/") && strings.HasPrefix(c.Path, other)
		})
		if text, is := to[c.Path]; is {
			after[c.Path] = text
		} else {
			after[c.Path+"/"] = ""
		}
		reply.Changes = append(reply.Changes, c)
	}
	if reply.DryRun = r.DryRun; !r.DryRun {
		w.files, reply.Before = after, &control.Checkpoint{ID: before}
	}
	return reply, nil
}

// options returns the options of an undo of name.
func (w *server) options(name string, c Choice) Options {
	return Options{Dir: "/m", Name: name, Others: c}
}

// undo undoes name, which must succeed.
func (w *server) undo(name string, c Choice) Reply {
	w.Helper()
	r, err := Undo(w.Context(), w, w.options(name, c))
	if err != nil {
		w.Fatalf("undo %q: %v", name, err)
	}
	return r
}

// redo redoes the last undo, which must succeed.
func (w *server) redo(c Choice) Reply {
	w.Helper()
	r, err := Redo(w.Context(), w, w.options("", c))
	if err != nil {
		w.Fatalf("redo: %v", err)
	}
	return r
}

// failure returns the error of an undo of name.
func (w *server) failure(name string, c Choice) *control.Error {
	w.Helper()
	r, err := Undo(w.Context(), w, w.options(name, c))
	if err == nil {
		w.Fatalf("undo %q succeeded: %+v", name, r)
	}
	return control.AsError(err)
}

// want checks the present files.
func (w *server) want(when string, files tree) {
	w.Helper()
	if !maps.Equal(w.files, files) {
		w.Errorf("files %s: got %v, want %v", when, w.files, files)
	}
}

func newServer(t *testing.T, files tree) *server { return &server{world: newWorld(t, files)} }

// TestUndoAndRedo checks several undos and redos in a row, with their records.
func TestUndoAndRedo(t *testing.T) {
	w := newServer(t, tree{"x": "0", "old": "0"})
	w.prompt("claude/1")
	w.call("claude/1", "a", func() { w.write("x", "a"); w.remove("old") })
	w.call("claude/1", "b", func() { w.write("x", "b"); w.write("d/new", "b"); w.head = "c1" })
	w.write("mine", "u")
	done := tree{"x": "b", "d/new": "b", "mine": "u"}
	r := w.undo("", Refuse)
	w.want("after the undo", tree{"x": "a", "mine": "u"})
	if r.Of != "b" || r.Title != `Bash "run b" of turn 1` || r.Tool != "Bash" || r.Turn != 1 || r.Calls != 1 ||
		r.To != "P0003" || r.Before == "" || len(r.Changes) != 2 || len(r.Others)+len(r.Kept)+len(r.Later) != 0 ||
		r.Unknown || !r.HeadMoved || r.Head != "c1" || r.HeadBefore != "c0" || r.DryRun || r.Dir != "/m" || r.Time == nil {
		t.Errorf("reply of undo: got %+v", r)
	}
	record := string(w.records[len(w.records)-1].Record)
	want := fmt.Sprintf(`{"type":"undo","role":"system","text":"undid Bash \"run b\" of turn 1","of":"b","to":"P0003",`+
		`"before":%q,"after":%q}`, r.Before, w.points[len(w.points)-1].ID)
	if record != want {
		t.Errorf("record: got %s, want %s", record, want)
	}
	if p := w.points[len(w.points)-1]; p.Message != `after undo of Bash "run b" of turn 1` {
		t.Errorf("checkpoint after the undo: got message %q", p.Message)
	}
	w.undo("", Refuse)
	w.want("after the second undo", tree{"x": "0", "old": "0", "mine": "u"})
	if e := w.failure("", Refuse); e.ErrorCode() != control.CodeNotFound || e.Code != control.ExitFailed {
		t.Errorf("third undo: got the error %+v", e)
	}
	if r := w.redo(Refuse); r.Of != "a" || r.Title != `Bash "run a" of turn 1` || len(r.Changes) != 2 {
		t.Errorf("reply of redo: got %+v", r)
	}
	w.want("after the redo", tree{"x": "a", "mine": "u"})
	w.redo(Refuse)
	w.want("after the second redo", done)
	if _, err := Redo(t.Context(), w, w.options("", Refuse)); control.AsError(err).ErrorCode() != control.CodeNotFound {
		t.Errorf("third redo: got the error %v", err)
	}
	r = w.undo("1", Refuse)
	w.want("after the undo of the turn", tree{"x": "0", "old": "0", "mine": "u"})
	if r.Of != "turn:1" || r.Title != "turn 1" || r.Tool != "" || r.Calls != 2 {
		t.Errorf("reply of the undo of a turn: got %+v", r)
	}
	if r = w.undo("1", Refuse); len(r.Changes) != 0 || r.Before != "" {
		t.Errorf("undo of a turn that is undone: got %+v", r)
	}
	// The agent goes on after the undo, and a redo would throw that away.
	w.call("claude/1", "c", func() { w.write("x", "c") })
	_, err := Redo(t.Context(), w, w.options("", Refuse))
	const refused = "1 path was changed by somebody else since: x (claude)"
	if e := control.AsError(err); e == nil || e.Cause != refused {
		t.Errorf("redo after a call: got %v", err)
	}
	w.redo(Keep)
	w.want("after the redo that keeps others", tree{"x": "c", "d/new": "b", "mine": "u"})
}

// TestUndoOfOthers checks what happens to paths that somebody else has changed.
func TestUndoOfOthers(t *testing.T) {
	changed := func() *server {
		w := newServer(t, tree{"x": "0", "y": "0"})
		w.call("claude/1", "a", func() { w.write("x", "a"); w.write("y", "a"); w.write("z", "a") })
		w.call("codex/1", "b", func() { w.write("x", "b") })
		w.write("y", "u")
		return w
	}
	w := changed()
	files, records := maps.Clone(w.files), len(w.records)
	e := w.failure("a", Refuse)
	if e.Code != control.ExitFailed || e.Kind != control.CodeConflict || !strings.Contains(e.Hint, "--with-others") ||
		e.Cause != "2 paths were changed by somebody else since: x (codex), y" {
		t.Errorf("undo of changes of others: got the error %+v", e)
	}
	o := w.options("a", Refuse)
	o.DryRun = true
	r, err := Undo(t.Context(), w, o)
	if err != nil || !r.DryRun || len(r.Changes) != 3 || r.Before != "" ||
		!slices.Equal(r.Others, []OtherChange{{"x", "codex"}, {"y", ""}}) {
		t.Errorf("dry run: got %+v, %v", r, err)
	}
	if w.want("after the refusal and the dry run", files); len(w.records) != records || len(w.points) != 5 {
		t.Errorf("dry run wrote %d records and %d checkpoints", len(w.records)-records, len(w.points))
	}
	if r = w.undo("a", Keep); !slices.Equal(r.Kept, []string{"x", "y"}) || len(r.Changes) != 1 {
		t.Errorf("undo that keeps others: got %+v", r)
	}
	w.want("after the undo that keeps others", tree{"x": "b", "y": "u"})
	w = changed()
	w.undo("a", Include)
	w.want("after the undo with others", tree{"x": "0", "y": "0"})
	w.redo(Refuse)
	w.want("after the redo", files)
	w = newServer(t, tree{})
	w.call("claude/1", "a", func() {
		for i := range 12 {
			w.write(fmt.Sprint(i), "a")
		}
	})
	for i := range 12 {
		w.write(fmt.Sprint(i), "u")
	}
	if e := w.failure("", Refuse); !strings.HasSuffix(e.Cause, "since: 0, 1, 10, 11, 2, 3, 4, 5, 6, 7 and 2 more") {
		t.Errorf("undo of many changes of others: got %s", e.Cause)
	}
}

// TestUndoInEmptiedDirectory checks that nothing but the files of the call is restored if the call has removed the only
// file of a directory, and a user has made it again.
func TestUndoInEmptiedDirectory(t *testing.T) {
	for _, others := range []string{"d/x", "d/y"} {
		w := newServer(t, tree{"d/x": "0", "notes": "0"})
		w.call("claude/1", "a", func() { w.remove("d/x") })
		w.write(others, "u")
		w.write("notes", "u")
		want := tree{"d/x": "0", others: "u", "notes": "u"}
		want[others] = "u"
		r := w.undo("", Keep)
		w.want("after the undo with "+others, want)
		if kept := others == "d/x"; kept != (len(r.Changes) == 0) || kept != slices.Equal(r.Kept, []string{"d/x"}) {
			t.Errorf("undo with %s: got %+v", others, r)
		}
	}
	w := newServer(t, tree{"e/": "", "notes": "0"})
	w.call("claude/1", "a", func() { w.remove("e") })
	w.write("e/u", "u")
	w.write("notes", "u")
	if r := w.undo("a", Include); len(r.Changes) != 0 || len(w.asked) != 0 {
		t.Errorf("undo that has nothing to restore: got %+v, requests %v", r, w.asked)
	}
}

// TestUndoOfUnknownEnd checks that an undo refuses what a user has changed after an agent was killed, and that it tells
// before the restore that it does not know the end of the call.
func TestUndoOfUnknownEnd(t *testing.T) {
	w := newServer(t, tree{"x": "0"})
	w.begin("claude/1", "a")
	w.write("x", "a")
	w.checkpoint("")
	w.write("mine", "u")
	if e := w.failure("", Refuse); e.Cause != "1 path was changed by somebody else since: mine" {
		t.Errorf("undo of a call that was killed: got %+v", e)
	}
	o, told := w.options("", Keep), false
	o.Unsure = func() { told = len(w.asked) == 0 }
	if r, err := Undo(t.Context(), w, o); err != nil || !told || !r.Unknown || !slices.Equal(r.Kept, []string{"mine"}) {
		t.Errorf("undo that keeps others: got %+v, %v; told before: %v", r, err, told)
	}
	w.want("after the undo", tree{"x": "0", "mine": "u"})
}

// TestUndoOfOlderCall checks that an undo of the newest call skips calls without a checkpoint before them.
func TestUndoOfOlderCall(t *testing.T) {
	w := newServer(t, tree{"x": "0", "y": "0"})
	w.call("claude/1", "a", func() { w.write("x", "a") })
	w.call("claude/1", "b", func() { w.write("y", "b") })
	w.drop("P0002")
	if r := w.undo("", Refuse); r.Of != "a" {
		t.Errorf("undo after a checkpoint was dropped: got %+v", r)
	}
	w.want("after the undo", tree{"x": "0", "y": "b"})
	const cause = "checkpoint P0002 was dropped, or is one of the session from which this one was forked"
	if e := w.failure("", Refuse); e.Cause != cause {
		t.Errorf("undo of the last call whose checkpoint was dropped: got %+v", e)
	}
	if e := w.failure("b", Refuse); e.Cause != cause {
		t.Errorf("undo of the call by its id: got %+v", e)
	}
}

// TestUndoBesideAWriter checks that what another process writes between the plan and the restore is not lost.
func TestUndoBesideAWriter(t *testing.T) {
	w := newServer(t, tree{"x": "0", "y": "0"})
	w.call("claude/1", "a", func() { w.write("x", "a"); w.write("y", "a") })
	w.writing = func() { w.write("x", "late"); w.write("z", "late") }
	if r := w.undo("", Refuse); !slices.Equal(r.Kept, []string{"x"}) || len(r.Changes) != 1 || r.Changes[0].Path != "y" {
		t.Errorf("undo beside a writer: got %+v", r)
	}
	w.want("after the undo", tree{"x": "late", "y": "0", "z": "late"})
	w.redo(Refuse)
	w.want("after the redo", tree{"x": "late", "y": "a", "z": "late"})
}

// TestUndoFailures checks transcripts that are too long for one reply, and failures of requests.
func TestUndoFailures(t *testing.T) {
	w := newServer(t, tree{"x": "0"})
	w.prompt("claude/1")
	w.call("claude/1", "a", func() { w.write("x", "a") })
	w.prompt("claude/1")
	w.call("claude/1", "b", func() { w.write("x", "b") })
	w.long = true
	w.undo("1", Refuse)
	w.want("after the undo with a long transcript", tree{"x": "0"})
	w.redo(Refuse)
	w.failing = true
	e := w.failure("", Refuse)
	if !strings.HasSuffix(e.Cause, "the rest has failed: disk is full") ||
		e.Hint != "artifactfs session restore -C /m "+w.points[len(w.points)-2].ID+" brings the previous state back" {
		t.Errorf("undo that cannot be recorded: got %+v", e)
	}
	if e := newServer(t, tree{}).failure("", Refuse); e.ErrorCode() != control.CodeNotFound {
		t.Errorf("undo in a session without calls: got %+v", e)
	}
	w.drop(w.points[0].ID, w.points[1].ID, w.points[2].ID)
	if e := w.failure("a", Refuse); e.Code != control.ExitNotMounted || !strings.Contains(e.Hint, "session log") {
		t.Errorf("undo from a dropped checkpoint: got %+v", e)
	}
}

// TestRandomUndo runs calls of two agents and changes of a user at random, undoes one of the calls or turns, and checks
// that no content of others is lost unless it was asked for, that every path of the call is as it was before, and that
// a redo restores exactly the files from before the undo.
func TestRandomUndo(t *testing.T) {
	paths := []string{"a", "b", "c", "d", "d/x", "d/y", "d/y/z", "e/f", "e/g/h", "i"}
	undone, kept := 0, 0
	for seed := range uint64(4000) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newServer(t, tree{"a": "0", "d/x": "0", "e/f": "0"})
		n := 0
		change := func(who string) {
			for range 1 + random.IntN(3) {
				n++
				if path := paths[random.IntN(len(paths))]; random.IntN(4) == 0 {
					w.remove(path)
				} else {
					w.write(path, fmt.Sprintf("%s %d", who, n))
				}
			}
		}
		agents := []string{"claude/1", "codex/1"}
		running := map[string][]string{}
		var calls []string
		for step := range 4 + random.IntN(16) {
			who := agents[random.IntN(2)]
			switch mine := running[who]; {
			case random.IntN(8) == 0 && len(mine) == 0:
				w.prompt(who)
			case random.IntN(3) == 0 && len(mine) < 2:
				id := fmt.Sprintf("call-%d-", step)
				w.begin(who, id)
				calls, running[who] = append(calls, id), append(mine, id)
			case random.IntN(12) == 0 && len(mine) > 0: // the agent is killed
				w.checkpoint("killed")
				for _, id := range mine {
					delete(w.open, id)
				}
				running[who] = nil
			case len(mine) > 0:
				change(who)
				if random.IntN(2) == 0 {
					w.end(who, mine[0])
					running[who] = mine[1:]
				}
			case len(w.open) == 0:
				change("user")
			}
			if random.IntN(10) == 0 {
				w.checkpoint("")
			}
		}
		for who, mine := range running {
			for _, id := range mine {
				w.end(who, id)
			}
		}
		name, choice := "", []Choice{Refuse, Keep, Include}[random.IntN(3)]
		if len(calls) > 0 && random.IntN(2) == 0 {
			name = calls[random.IntN(len(calls))]
		} else if w.turns > 0 && random.IntN(3) == 0 {
			name = fmt.Sprint(1 + random.IntN(w.turns))
		}
		before := maps.Clone(w.files)
		r, err := Undo(t.Context(), w, w.options(name, choice))
		if err != nil {
			w.want(fmt.Sprintf("of seed %d after the refusal %v", seed, err), before)
			if code := control.AsError(err).ErrorCode(); code != control.CodeConflict && code != control.CodeNotFound ||
				code == control.CodeConflict && choice != Refuse {
				t.Fatalf("seed %d: undo of %q: %v", seed, name, err)
			}
			continue
		}
		h := w.history()
		owner := map[string]bool{"0": true}
		for _, c := range h.named(r.Of) {
			owner[c.who.agent+"/"+c.who.id] = true
		}
		for path, text := range before {
			by, _, _ := strings.Cut(text, " ")
			if now := w.files[path]; choice != Include && !owner[by] && now != text {
				t.Fatalf("seed %d: undo of %q changed %s from %q to %q, which %s has written", seed, r.Of, path, text, now, by)
			}
		}
		for _, c := range h.named(r.Of) {
			if c.after == "" {
				continue
			}
			for _, d := range compare(w.trees[c.before], w.trees[c.after]) {
				had, now := w.trees[r.To][d.Path], w.files[d.Path]
				// Another call of the turn may have taken the change back, before others have changed the path.
				by, _, _ := strings.Cut(now, " ")
				back := r.Calls > 1 && now == before[d.Path] && !owner[by]
				if now != had && !back && !slices.Contains(r.Kept, d.Path) {
					t.Fatalf("seed %d: after the undo of %q, %s is %q, want %q; kept %q", seed, r.Of, d.Path, now, had, r.Kept)
				}
			}
		}
		if len(r.Changes) == 0 {
			continue
		}
		undone++
		kept += len(r.Kept)
		if w.redo(Refuse); !maps.Equal(w.files, before) {
			t.Fatalf("seed %d: after undo of %q and redo: got %v, want %v", seed, r.Of, w.files, before)
		}
		if _, err := Redo(t.Context(), w, w.options("", Refuse)); control.AsError(err).ErrorCode() != control.CodeNotFound {
			t.Fatalf("seed %d: second redo: got the error %v", seed, err)
		}
	}
	if undone < 1000 || kept < 100 {
		t.Errorf("only %d undos were carried out, and %d paths kept", undone, kept)
	}
}
