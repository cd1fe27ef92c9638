package transcript

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// ExpireRequest selects the segments of a transcript to drop. A segment is a file: the records of
// one day while one checkpoint was the newest.
type ExpireRequest struct {
	Session string
	Now     time.Time
	Keep    time.Duration                   // segments whose newest record is younger are kept
	There   func(session.CheckpointID) bool // reports whether a checkpoint exists; its segments are kept
	// DryRun counts the records and changes nothing.
	DryRun bool
}

// expired is the author and the reason of tombstones that Expire leaves.
const expiredBy, expiredWhy = "gc", "older than the retention"

// Expire drops segments whose checkpoint is gone, and returns the number of records that were
// dropped. The last beginning of a turn in each row of dropped records stays as a tombstone, so
// that later turns keep their numbers. Facts and the handoff are not part of a transcript. provide
// is as of Read.
func Expire(ctx context.Context, r *session.Repo, e ExpireRequest, provide func(ids []object.ID) error) (dropped int64, err error) {
	ref := session.TranscriptRef(e.Session)
	for range tries {
		if dropped, err = e.expire(ctx, r, ref, provide); !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("drop old records of %s: %w", ref, err)
	}
	return dropped, nil
}

// expire is one attempt of Expire. It returns session.ErrRefMoved if another process has moved the ref meanwhile.
func (e ExpireRequest) expire(ctx context.Context, r *session.Repo, ref string,
	provide func(ids []object.ID) error) (dropped int64, err error) {
	// Reading all records is expensive, so the names of the segments are checked first.
	if some, err := e.some(r, ref); err != nil || !some {
		return 0, err
	}
	lines, _, err := Read(r, e.Session, provide)
	if err != nil {
		return 0, err
	}
	// A segment's newest record decides. Records are read in order of time, whatever segment they
	// are of.
	newest := map[string]time.Time{}
	for _, l := range lines {
		newest[segmentOf(l)] = l.Time
	}
	old := func(l Line) bool { return !e.There(l.Checkpoint) && e.Now.Sub(newest[segmentOf(l)]) > e.Keep }
	stays := map[string]Line{} // tombstones, by id
	// last is the id of the tombstone in the current row of dropped records. Only the last beginning of a turn in a
	// row is needed, because turns are counted from it.
	last := ""
	for _, l := range lines {
		if !old(l) {
			last = ""
			continue
		}
		if l.StartsTurn {
			delete(stays, last)
			stays[l.ID], last = l, l.ID
		}
		if !isStone(l) {
			dropped++
		}
	}
	if e.DryRun || dropped == 0 {
		return dropped, nil
	}
	// One commit without history replaces the transcript, as after Erase.
	w := rewriting{session: e.Session, at: e.Now, message: "gc", edit: func(_ string, text []byte) ([]byte, int, error) {
		return e.drop(text, old, stays)
	}}
	return dropped, w.do(ctx, r, ref)
}

// some reports whether the names of segments show that one may be dropped, so that usually no
// record has to be read.
func (e ExpireRequest) some(r *session.Repo, ref string) (bool, error) {
	head, err := r.Ref(ref)
	if err != nil {
		return false, err
	}
	days, err := treeOf(r, head)
	if err != nil {
		return false, err
	}
	for _, day := range days {
		// A segment that began within Keep has no record older than that.
		began, err := time.Parse(time.DateOnly, day.Name)
		if err != nil || e.Now.Sub(began) <= e.Keep {
			continue
		}
		files, err := r.Tree(day.ID)
		if err != nil {
			return false, err
		}
		for _, f := range files {
			if checkpoint, _, _ := strings.Cut(f.Name, "."); !e.There(session.CheckpointID(checkpoint)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// segmentOf returns the name of the segment of a record: its day in UTC and its checkpoint.
func segmentOf(l Line) string { return l.Time.UTC().Format(time.DateOnly) + "/" + string(l.Checkpoint) }

// isStone reports whether a line is a tombstone that Expire has left.
func isStone(l Line) bool {
	return l.Erased != nil && l.Erased.By == expiredBy && l.Erased.Why == expiredWhy
}

// drop removes old lines from the text of a file, and replaces those in stays by tombstones. gone is the number of
// lines that were changed.
func (e ExpireRequest) drop(text []byte, old func(Line) bool, stays map[string]Line) (after []byte, gone int, err error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	for line := range bytes.Lines(text) {
		l, err := parseLine(line)
		if err != nil || !old(l) {
			b.Write(line)
			continue
		}
		turn, stone := stays[l.ID]
		if stone && isStone(l) {
			// A tombstone of an earlier run is already in its final form.
			b.Write(line)
			continue
		}
		if gone++; !stone {
			continue
		}
		left := envelope{ID: l.ID, Time: l.Time, Checkpoint: l.Checkpoint, Session: l.Session, Lane: l.Lane, StartsTurn: true, Turn: turn.Turn,
			Erased: &Tombstone{Time: e.Now.UTC(), By: expiredBy, Why: expiredWhy}}
		if err := w.Encode(left); err != nil {
			return nil, 0, err
		}
	}
	return b.Bytes(), gone, nil
}
