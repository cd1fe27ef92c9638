package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/internal/lazy"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

const (
	axisPage   = 200     // maximum number of entries on a page of a timeline
	maxRecords = 8 << 20 // maximum size, in bytes, of a file of records that is read
	// maximum total size, in bytes, of the files of records that are read between two checkpoints
	maxSlot     = 64 << 20
	maxDays     = 4000    // maximum number of directories of a transcript that are read
	maxParts    = 200_000 // maximum number of files of a transcript that are read
	maxText     = 700     // maximum number of characters of a record that a timeline shows
	maxCommit   = 1 << 20 // maximum size, in bytes, of a commit that is read
	maxMessages = 300     // maximum number of characters of a message that a timeline shows
)

// axis is the order in which a timeline shows the checkpoints, the commits and the records of a session. It consists of
// slots, the oldest first. A slot contains a checkpoint and everything until the next checkpoint; the first slot
// contains everything before the first checkpoint. An axis has only ids; their contents are read when a page shows
// them.
type axis struct {
	g     gitread.Repo
	name  string // name of the session
	meta  *session.Meta
	slots []slot
}

type slot struct {
	gitread.Point                // the checkpoint of the slot; empty in the first slot
	steps         []gitread.Step // commits, the oldest first
	files         []string       // ids of the files that contain its records
}

// loadAxis reads the ids for the axis of a session.
func loadAxis(ctx context.Context, g gitread.Repo, refs map[string]string, name string) (*axis, error) {
	metas, err := g.Metas(ctx, refs, []string{name})
	if err != nil {
		return nil, err
	}
	x := &axis{g: g, name: name, meta: metas[0]}
	if x.meta == nil {
		x.meta = &session.Meta{Session: name}
	}
	points, err := g.Checkpoints(ctx, refs, name, x.meta.Began)
	if err != nil {
		return nil, err
	}
	x.slots = make([]slot, 1, len(points)+1)
	for _, p := range points {
		x.slots = append(x.slots, slot{Point: p})
	}
	steps, err := g.Steps(ctx, x.heads(refs), x.meta.Base, x.meta.Began)
	if err != nil {
		return nil, err
	}
	x.place(steps)
	return x, x.findRecords(ctx, refs[session.TranscriptRef(name)])
}

// place adds commits, which are sorted from the newest to the oldest, to slots: a commit precedes the first checkpoint
// that has it as HEAD. A commit that no checkpoint has is placed by its time, which is less exact, because commits have
// no fractions of seconds.
func (x *axis) place(steps []gitread.Step) {
	first := map[string]int{} // index of the first checkpoint with each HEAD
	for i, s := range x.slots {
		if _, known := first[s.Head]; !known && s.Head != "" {
			first[s.Head] = i
		}
	}
	// index of a slot that the commit must not follow, because a commit is not newer than its descendants
	before := len(x.slots)
	for _, s := range steps {
		i, _ := slices.BinarySearchFunc(x.slots[1:], s.Time, func(s slot, at time.Time) int {
			return session.CheckpointID(s.ID).Time().Compare(at)
		})
		if n, known := first[s.ID]; known {
			i = n - 1
		}
		before = min(i, before)
		x.slots[before].steps = append(x.slots[before].steps, s)
	}
	for _, s := range x.slots {
		slices.Reverse(s.steps)
	}
}

// with returns the id of the first checkpoint that was made at or after a commit, or "" if there is none.
func (x *axis) with(commit string) string {
	for i, s := range x.slots {
		if s.Head == commit {
			return s.ID
		}
		if i+1 < len(x.slots) && slices.ContainsFunc(s.steps, func(step gitread.Step) bool { return step.ID == commit }) {
			return x.slots[i+1].ID
		}
	}
	return ""
}

// heads returns the newest commits of the branches of the session.
func (x *axis) heads(refs map[string]string) (tips []string) {
	there := map[string]object.ID{}
	for name, text := range refs {
		if id, err := object.ParseID(text); err == nil {
			there[name] = id
		}
	}
	layout, err := session.LayoutOf(*x.meta, there)
	if err != nil {
		return nil // there are none if this version cannot read the metadata of the session
	}
	for name := range there {
		branch, ok := layout.Here(name)
		_, carried := refs[session.CarriedRef(x.name, branch)]
		// The names of the session's branches must be distinguishable: with unchanged names, every branch of the
		// repository could belong to the session.
		if ok && strings.HasPrefix(branch, "refs/heads/") && (layout.Exclusive(name) || carried) {
			tips = append(tips, refs[name])
		}
	}
	slices.Sort(tips)
	return slices.Compact(tips)
}

// findRecords adds the files of the transcript in a commit to the slots. They are named DAY/CHECKPOINT.jsonl (package
// transcript).
func (x *axis) findRecords(ctx context.Context, commit string) error {
	if commit == "" {
		return nil
	}
	root, err := x.g.Stat(ctx, commit, "")
	if err != nil {
		return err
	}
	var days []string
	if err := x.g.Entries(ctx, root.ID, func(e read.Entry) bool {
		if e.Type == "tree" {
			days = append(days, e.Hash)
		}
		return len(days) < maxDays
	}); err != nil {
		return err
	}
	count := 0
	for _, day := range days {
		err := x.g.Entries(ctx, day, func(f read.Entry) bool {
			if id, _, ok := strings.Cut(f.Name, "."); ok && strings.HasSuffix(f.Name, ".jsonl") {
				// Records of a checkpoint that was dropped are added to the slot of the previous checkpoint.
				s := &x.slots[x.slotOf(id)]
				s.files = append(s.files, f.Hash)
				count++
			}
			return count < maxParts
		})
		if err != nil || count >= maxParts {
			return err
		}
	}
	return nil
}

// slotOf returns the index of the slot of a checkpoint. If the session does not have the checkpoint, it returns the
// slot of the previous one. It returns 0 if id is not an id of a checkpoint.
func (x *axis) slotOf(id string) int {
	up, err := session.ParseCheckpointID(id)
	if err != nil {
		return 0
	}
	i, known := slices.BinarySearchFunc(x.slots[1:], string(up),
		func(s slot, id string) int { return strings.Compare(s.ID, id) })
	if known {
		return i + 1
	}
	return i
}

// position is the position of an entry: the index of its slot, and its index in the slot.
type position struct{ slot, item int }

var positionText = lazy.Regexp(`^([0-9A-Za-z]{26}|0)\.([0-9]{1,7})$`)

// parse returns the position that a text in a link names.
func (x *axis) parse(text string) (position, bool) {
	m := positionText().FindStringSubmatch(text)
	if m == nil {
		return position{}, false
	}
	n, err := strconv.Atoi(m[2])
	return position{x.slotOf(m[1]), n}, err == nil
}

func (x *axis) text(p position) string {
	return firstOf(x.slots[p.slot].ID, "0") + "." + strconv.Itoa(p.item)
}

// entry is a checkpoint, a commit or a record on a timeline.
type entry struct {
	// kind: checkpoint, commit, or one of these kinds of records: prompt, tool, result, response, record, erased
	Kind   string
	ID     string // id of the checkpoint, the commit or the record
	Commit string // id of the commit; only for checkpoints and commits
	Time   time.Time
	Label  string // reason of a checkpoint, author of a commit, or name of a tool
	Text   string
	More   bool // true if Text is only the beginning of the text
	Actor  string
	Files  int64 // number of paths that differ from the previous checkpoint
	Pins   []string
	Link   string // path that selects the entry
	Chosen bool
	at     position

	Threads int // number of threads about a checkpoint or a commit, and about files in it
}

// entries returns the entries of a slot, the oldest first. For checkpoints and commits, only the ids are set.
func (x *axis) entries(ctx context.Context, slot int) ([]entry, error) {
	s := x.slots[slot]
	list := make([]entry, 0, 1+len(s.steps))
	for _, step := range s.steps {
		list = append(list, entry{Kind: "commit", ID: step.ID, Commit: step.ID, Time: step.Time})
	}
	left := int64(maxSlot)
	err := x.g.Contents(ctx, s.files, maxRecords, func(_ int, c read.Content) {
		if left -= c.Size; c.Bytes == nil || left < 0 {
			list = append(list, entry{Kind: "record", Text: "records of " + size(c.Size) + " are too large for this page",
				Actor: ""})
			return
		}
		for text := range bytes.Lines(c.Bytes) {
			// skip lines with errors, because a later version may have written lines of another form
			if l, err := transcript.ParseLine(text); err == nil {
				list = append(list, recordOf(l))
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read transcript: %w", err)
	}
	// Commits have no fractions of seconds, so a commit follows all records of the same second.
	slices.SortStableFunc(list, func(a, b entry) int { return endOf(a).Compare(endOf(b)) })
	if s.ID != "" {
		list = slices.Insert(list, 0, entry{Kind: "checkpoint", ID: s.ID, Commit: s.Commit,
			Time: session.CheckpointID(s.ID).Time()})
	}
	for i := range list {
		list[i].at = position{slot, i}
	}
	return list, nil
}

// endOf returns the latest time at which an entry may have been made.
func endOf(e entry) time.Time {
	if e.Kind == "commit" {
		return e.Time.Add(time.Second - time.Nanosecond)
	}
	return e.Time
}

// recordOf returns the entry of a record.
func recordOf(l transcript.Line) entry {
	e := entry{Kind: "record", ID: l.ID, Time: l.Time.UTC(), Actor: clip(l.Actor, 80)}
	if l.Erased != nil {
		e.Kind, e.Text = "erased", clip(firstOf(l.Erased.Why, "erased"), maxText)
		return e
	}
	var r struct {
		Type, Role, Text, Tool string
		Content                json.RawMessage
		Input, Output          json.RawMessage
		Failed                 bool
		Sub                    string
		SubType                string `json:"sub_type"`
	}
	_ = json.Unmarshal(l.Record, &r) // errors are ignored, because a member with an unexpected type counts as missing
	text := r.Text
	switch {
	case r.Type == "prompt" || r.Role == "user" && (r.Type == "" || r.Type == "message"):
		e.Kind = "prompt"
	case r.Type == "tool_call":
		e.Kind, text = "tool", firstOf(r.Text, plainJSON(r.Input))
	case r.Type == "tool_result":
		e.Kind, text = "result", firstOf(r.Text, plainJSON(r.Output))
		if r.Failed {
			e.Label = "failed"
		}
	case r.Type == "response" || r.Role == "assistant":
		e.Kind = "response"
	default:
		e.Label = clip(r.Type, 40)
	}
	e.Label = firstOf(clip(r.Tool, 60), e.Label)
	if r.Sub != "" {
		e.Label = strings.TrimSpace("sub-agent " + clip(r.SubType, 40) + " " + e.Label)
	}
	text = firstOf(text, plainJSON(r.Content), string(l.Record))
	e.Text = clip(text, maxText)
	e.More = len(e.Text) < len(text)
	return e
}

// plainJSON returns the text of a JSON value for people: a string itself, the only string of an object, or otherwise
// the JSON text.
func plainJSON(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(v, &members) == nil && len(members) == 1 {
		for _, m := range members {
			return plainJSON(m)
		}
	}
	return string(v)
}

// page returns up to axisPage entries, the newest first: those before the position from or, if up is set, those after
// it.
func (x *axis) page(ctx context.Context, from position, up bool) (list []entry, err error) {
	for s := from.slot; s >= 0 && s < len(x.slots) && len(list) < axisPage; {
		here, err := x.entries(ctx, s)
		if err != nil {
			return nil, err
		}
		if up {
			if s == from.slot {
				here = here[min(from.item+1, len(here)):]
			}
			list = append(list, here[:min(len(here), axisPage-len(list))]...)
			s++
			continue
		}
		if s == from.slot {
			here = here[:min(from.item, len(here))]
		}
		for _, e := range slices.Backward(here) {
			if list = append(list, e); len(list) == axisPage {
				break
			}
		}
		s--
	}
	if up {
		slices.Reverse(list)
	}
	return list, x.describe(ctx, list)
}

// describe reads the commits of the checkpoints and commits in a list, and sets the fields of their entries.
func (x *axis) describe(ctx context.Context, list []entry) error {
	var names []string
	var of []int
	for i, e := range list {
		if e.Commit != "" {
			names, of = append(names, e.Commit), append(of, i)
		}
	}
	err := x.g.Contents(ctx, names, maxCommit, func(i int, c read.Content) {
		e := &list[of[i]]
		if e.Kind == "checkpoint" {
			if p, err := gitread.CheckpointOf(c); err == nil {
				e.Label, e.Text, e.Files = clip(string(p.Reason), 40), clip(p.Message, maxMessages), p.Changed
			}
			return
		}
		head, message, _ := strings.Cut(string(c.Bytes), "\n\n")
		e.Text = line(message, maxMessages)
		e.Label = authorOf(head)
	})
	if err != nil {
		return fmt.Errorf("read commits: %w", err)
	}
	return nil
}

// authorOf returns the name of the author in head, the header of a commit.
func authorOf(head string) string {
	_, author, _ := strings.Cut(head, "\nauthor ")
	name, _, _ := strings.Cut(author, " <")
	return line(name, 80)
}

// around returns the position from which a page must begin to show the checkpoint with this id and a few newer entries.
func (x *axis) around(id string) position {
	return position{slot: min(x.slotOf(id)+4, len(x.slots)), item: 0}
}

// older reports whether there are entries before a position, and newer whether there are entries after it.
func (x *axis) older(p position) bool {
	return p.item > 0 || p.slot > 1 || p.slot == 1 && (len(x.slots[0].steps) > 0 || len(x.slots[0].files) > 0)
}

func (x *axis) newer(ctx context.Context, p position) (bool, error) {
	if p.slot+1 < len(x.slots) {
		return true, nil
	}
	here, err := x.entries(ctx, p.slot)
	return p.item+1 < len(here), err
}

// pins returns the names of the session's pins, by the commits of their checkpoints.
func pins(refs map[string]string, name string) map[string][]string {
	found := map[string][]string{}
	for ref, commit := range refs {
		if pin, ok := strings.CutPrefix(ref, session.PinPrefix(name)); ok {
			found[commit] = append(found[commit], pin)
		}
	}
	for _, names := range found {
		slices.SortFunc(names, cmp.Compare[string])
	}
	return found
}
