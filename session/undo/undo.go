package undo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Session has the requests by which files are undone and redone. *control.Client implements it.
type Session interface {
	SessionTranscript(ctx context.Context, r control.SessionTranscriptRequest) (control.SessionTranscriptReply, error)
	SessionLog(ctx context.Context, r control.SessionLogRequest) (control.SessionLogReply, error)
	SessionDiff(ctx context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error)
	Restore(ctx context.Context, r control.RestoreRequest,
		progress func(control.Progress)) (control.RestoreReply, error)
	Checkpoint(ctx context.Context, r control.CheckpointRequest,
		progress func(control.Progress)) (control.CheckpointReply, error)
	SessionRecord(ctx context.Context, r control.SessionRecordRequest) (control.SessionRecordReply, error)
}

// Choice states what happens to the paths that others have changed, too.
type Choice int

const (
	Refuse  Choice = iota // nothing is restored if there are such paths
	Keep                  // they are not restored
	Include               // they are restored with the others
)

// Options are the arguments of Undo and Redo.
type Options struct {
	Dir string // directory of the mount
	// Name is what to undo: a turn ("N", "turn:N") or the beginning of the id of a call; "": the newest call that has
	// changed files. Redo does not use it.
	Name   string
	Others Choice
	DryRun bool                   // change nothing, and return what would be changed
	Show   func(control.Progress) // shows the progress of the restore; may be nil
	// Unsure is called before files are restored or this is refused, if Unknown is true in the reply; may be nil
	Unsure func()
}

// Reply is the output of `session undo --json` and `session redo --json`.
type Reply struct {
	Dir     string               `json:"dir"`              // absolute directory of the mount
	Of      string               `json:"of"`               // what was undone: "turn:N" or the id of a call
	Title   string               `json:"title"`            // description of it for people
	Tool    string               `json:"tool,omitempty"`   // tool of the call; missing for a turn
	Turn    int                  `json:"turn,omitempty"`   // turn of the call
	Calls   int                  `json:"calls"`            // number of calls
	Time    *time.Time           `json:"time,omitempty"`   // time at which the first call began
	To      string               `json:"to"`               // checkpoint from which files are restored
	Before  string               `json:"before,omitempty"` // checkpoint of the previous state; missing: no change
	Changes []control.PathChange `json:"changes"`          // changed paths
	Others  []OtherChange        `json:"others"`           // paths that somebody else has changed since, too
	Later   []string             `json:"later"`            // paths that the same agent has changed later
	Kept    []string             `json:"kept"`             // unchanged paths, because others have changed them
	// Unknown is true if the beginning or the end of a call is not known exactly, so that changes of others may count as
	// its own.
	Unknown bool `json:"unknown"`
	// HeadMoved is true if a call has moved HEAD. HEAD and the branches stay; if a reset to HeadBefore takes back exactly
	// the commits of the calls, HeadBefore is set.
	HeadMoved  bool   `json:"head_moved"`
	Head       string `json:"head,omitempty"` // present commit of HEAD, if a call has moved HEAD
	HeadBefore string `json:"head_before,omitempty"`
	DryRun     bool   `json:"dry_run"` // nothing was changed
}

// Undo restores the files that a call or a turn has changed to their state before it. If others have changed some of
// these files since, it does what o.Others states. Before it returns, the undo is recorded in the transcript, so that
// Redo finds it. Ignored files, HEAD, branches and the index stay unchanged.
func Undo(ctx context.Context, s Session, o Options) (Reply, error) {
	h, err := load(ctx, s, o.Dir)
	if err != nil {
		return Reply{}, err
	}
	targets, err := h.toUndo(o.Name)
	if err != nil {
		return Reply{}, err
	}
	return o.carryOut(ctx, s, h, targets, o.Name != "", notFound(
		"no tool call of an agent has changed files that can be undone",
		"artifactfs agent status says whether the hooks are installed; artifactfs session restore restores any checkpoint"))
}

// Redo restores the files that the newest undo has changed to their state before it. Each redo takes back one undo.
// If anybody, even the same agent, has changed some of these files since, Redo does what o.Others states.
func Redo(ctx context.Context, s Session, o Options) (Reply, error) {
	h, err := load(ctx, s, o.Dir)
	if err != nil {
		return Reply{}, err
	}
	return o.carryOut(ctx, s, h, h.toRedo(), false, notFound("nothing was undone that can be redone",
		"artifactfs session transcript has the records of all undos"))
}

// load makes a checkpoint of the present files if they have changed, and reads the history of the session.
func load(ctx context.Context, s Session, dir string) (*history, error) {
	if _, err := s.SessionDiff(ctx, control.SessionDiffRequest{Of: dir, A: "@"}); err != nil {
		return nil, err
	}
	log, err := s.SessionLog(ctx, control.SessionLogRequest{Of: dir})
	if err != nil {
		return nil, err
	}
	records, err := readTranscript(ctx, s, dir)
	return newHistory(records, log.Checkpoints), err
}

// readTranscript returns all records of the session. If the reply with all of them is too long, it reads turn by turn.
func readTranscript(ctx context.Context, s Session, dir string) ([]control.TranscriptRecord, error) {
	r, err := s.SessionTranscript(ctx, control.SessionTranscriptRequest{Of: dir})
	var failure *control.Error
	if err == nil || errors.As(err, &failure) || errors.Is(err, control.ErrNoServer) || ctx.Err() != nil {
		return r.Records, err
	}
	const none = 1<<31 - 1 // number of a turn that does not exist
	if r, err = s.SessionTranscript(ctx, control.SessionTranscriptRequest{Of: dir, Turn: none}); err != nil {
		return nil, err
	}
	var records []control.TranscriptRecord
	for turn := 1; turn <= r.Turns; turn++ {
		one, err := s.SessionTranscript(ctx, control.SessionTranscriptRequest{Of: dir, Turn: turn})
		if err != nil {
			return nil, err
		}
		records = append(records, one.Records...)
	}
	slices.SortStableFunc(records, func(a, b control.TranscriptRecord) int { return a.Time.Compare(b.Time) })
	return records, nil
}

// carryOut undoes or redoes the first of the targets of which something is left to restore. If only is set, there is
// one target, and it is no error if nothing is left. Otherwise none is the error for this case.
func (o Options) carryOut(ctx context.Context, s Session, h *history, targets []target, only bool,
	none error) (Reply, error) {
	seen := map[[2]string][]control.PathChange{}
	diff := func(a, b string) ([]control.PathChange, error) {
		changes, known := seen[[2]string{a, b}]
		if known {
			return changes, nil
		}
		r, err := s.SessionDiff(ctx, control.SessionDiffRequest{Of: o.Dir, A: a, B: b})
		if err == nil {
			seen[[2]string{a, b}] = r.Changes
		}
		return r.Changes, err
	}
	var gone error // the checkpoint before a call was dropped
	for _, t := range targets {
		p, err := h.plan(t, diff)
		if err != nil {
			if p.to == "" && !only && t.undo == nil { // an older call may have changed files, too
				gone = cmp.Or(gone, err)
				continue
			}
			return Reply{}, err
		}
		if len(p.paths) > 0 || only {
			return o.apply(ctx, s, h, &p, diff)
		}
	}
	return Reply{}, cmp.Or(gone, none)
}

// newReply returns the reply about a plan that was not carried out yet.
func (o Options) newReply(p *plan, now control.Checkpoint) Reply {
	r := Reply{Dir: o.Dir, Of: p.name, Title: p.title(), Calls: len(p.calls), To: p.to, DryRun: o.DryRun,
		Changes: []control.PathChange{}, Others: append([]OtherChange{}, p.others...), Later: append([]string{}, p.later...),
		Kept: []string{}, Unknown: p.unknown, HeadMoved: p.moved, HeadBefore: p.reset}
	if p.moved {
		r.Head = now.Head
	}
	if len(p.calls) > 0 {
		c := p.calls[0]
		r.Turn, r.Time = c.turn, &c.at
		if !strings.HasPrefix(p.name, turnPrefix) {
			r.Tool = c.tool
		}
	}
	return r
}

// apply restores the paths of a plan, and records that.
func (o Options) apply(ctx context.Context, s Session, h *history, p *plan, diff differ) (Reply, error) {
	now := h.points[len(h.points)-1]
	r := o.newReply(p, now)
	if p.unknown && len(p.paths) > 0 && o.Unsure != nil {
		o.Unsure()
	}
	if o.Others == Keep {
		r.Kept = append(r.Kept, p.without()...)
	}
	if o.Others == Refuse && len(p.others) > 0 && !o.DryRun {
		return Reply{}, refusal(p.others)
	}
	paths := p.request()
	if len(paths) == 0 { // a request without paths would restore all files
		return r, nil
	}
	done, err := s.Restore(ctx, control.RestoreRequest{Dir: o.Dir, ID: p.to, Paths: paths, DryRun: o.DryRun}, o.Show)
	if err != nil {
		return Reply{}, err
	}
	r.Changes, r.Kept = append(r.Changes, done.Changes...), append(r.Kept, done.Kept...)
	if o.DryRun || done.Before == nil || len(r.Changes) == 0 {
		return r, nil
	}
	r.Before = done.Before.ID
	if err := o.finish(ctx, s, p, &r, now.ID, diff); err != nil {
		return Reply{}, &control.Error{Code: control.ExitFailed, Cause: "files were restored, but the rest has failed: " +
			control.AsError(err).Error(), Hint: fmt.Sprintf("artifactfs session restore -C %s %s brings the previous state back",
			control.ShellWord(o.Dir), r.Before)}
	}
	return r, nil
}

// finish puts back what others have changed after the plan was made, makes a checkpoint and a record.
func (o Options) finish(ctx context.Context, s Session, p *plan, r *Reply, now string, diff differ) error {
	if r.Before != now {
		late, err := diff(now, r.Before)
		if err != nil {
			return err
		}
		var back []string
		for _, d := range late {
			if slices.ContainsFunc(r.Changes, func(c control.PathChange) bool { return c.Path == d.Path }) {
				back = append(back, d.Path)
			}
		}
		if len(back) > 0 {
			if _, err := s.Restore(ctx, control.RestoreRequest{Dir: o.Dir, ID: r.Before, Paths: back}, nil); err != nil {
				return err
			}
			r.Kept = append(r.Kept, back...)
			r.Changes = slices.DeleteFunc(r.Changes, func(c control.PathChange) bool { return slices.Contains(back, c.Path) })
		}
		if len(r.Changes) == 0 {
			return nil
		}
	}
	record := struct {
		Type   string `json:"type"`
		Role   string `json:"role"`
		Text   string `json:"text"`
		Of     string `json:"of"`
		To     string `json:"to"`
		Before string `json:"before"`
		After  string `json:"after"`
	}{Type: typeUndo, Role: "system", Text: "undid " + r.Title, Of: p.name, To: p.to, Before: r.Before}
	if p.undo != nil {
		record.Type, record.Text, record.Of = typeRedo, "redid "+r.Title, p.undo.id
	}
	// The message is pushed with the checkpoint, so it must not contain a secret.
	message, _ := transcript.Redact("after " + record.Type + " of " + r.Title)
	after, err := s.Checkpoint(ctx, control.CheckpointRequest{Dir: o.Dir, Message: message}, nil)
	if err != nil {
		return err
	}
	record.After = after.ID
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	_, err = s.SessionRecord(ctx, control.SessionRecordRequest{Dir: o.Dir, Lines: []string{string(line)}})
	return err
}

// refusal returns the error that lists the paths that others have changed.
func refusal(others []OtherChange) error {
	const most = 10
	var list []string
	for _, o := range others[:min(len(others), most)] {
		if o.By != "" {
			o.Path += " (" + o.By + ")"
		}
		list = append(list, o.Path)
	}
	text := strings.Join(list, ", ")
	if n := len(others) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	was := "paths were"
	if len(others) == 1 {
		was = "path was"
	}
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict,
		Cause: fmt.Sprintf("%d %s changed by somebody else since: %s", len(others), was, text),
		Hint:  "--keep-others leaves them as they are, --with-others restores them too, --dry-run lists the changes"}
}
