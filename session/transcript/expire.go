package transcript

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// ExpireRequest selects the segments of a transcript that Expire removes. A segment of a transcript is one file: it
// contains the records of one day that were made while the same checkpoint was the newest one.
type ExpireRequest struct {
	Session string                          // session whose transcript is changed
	Now     time.Time                       // the current time
	Keep    time.Duration                   // age up to which a segment is kept, by its newest record
	There   func(session.CheckpointID) bool // reports whether a checkpoint exists; its segments are then kept
	// DryRun makes Expire count the records without changing anything.
	DryRun bool
}

// expiredBy and expiredWhy are the author and the reason in the tombstones that Expire leaves.
const expiredBy, expiredWhy = "gc", "older than the retention"

// Expire removes segments whose checkpoint does not exist any more, and returns the number of removed records; the
// memory of agents in such segments does not count. If consecutive records are removed, the last of them that began a
// turn is replaced by a tombstone, so that later turns keep their numbers. Facts and the handoff are not part of a
// transcript and are kept. The function provide fetches contents that are missing on this host by their ids; it is nil
// if none is missing.
func Expire(ctx context.Context, r *session.Repo, e ExpireRequest,
	provide func(ids []object.ID) error) (dropped int64, err error) {
	ref := session.TranscriptRef(e.Session)
	for range tries {
		if dropped, err = e.expire(ctx, r, ref, provide); !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("remove old records of %s: %w", ref, err)
	}
	return dropped, nil
}

// expire makes one attempt of Expire. It returns an error that wraps session.ErrRefMoved if another process changes the
// ref at the same time.
func (e ExpireRequest) expire(ctx context.Context, r *session.Repo, ref string,
	provide func(ids []object.ID) error) (dropped int64, err error) {
	// Reading all records is expensive. So check first, by the names of the segments, whether any segment may have to be
	// dropped.
	if some, err := e.mayExpire(r, ref); err != nil || !some {
		return 0, err
	}
	lines, head, err := Read(r, e.Session, provide)
	if err != nil {
		return 0, err
	}
	// A segment is dropped if its newest record is old enough. Read returns the records in order of time across all
	// segments, so the last record that this loop finds for a segment is the newest one of the segment.
	newest := map[string]time.Time{}
	for _, l := range lines {
		newest[segmentOf(l)] = l.Time
	}
	old := func(l Line) bool { return !e.There(l.Checkpoint) && e.Now.Sub(newest[segmentOf(l)]) > e.Keep }
	stays := map[string]Line{} // records that are replaced by tombstones, by id
	// In each run of consecutive dropped records, only the last record that began a turn is replaced by a tombstone,
	// because later turns are counted from that record. The variable last is the id of this record in the current run.
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
	if e.DryRun {
		return dropped, nil
	}
	memory := Source{r, provide}
	files, err := memory.memoryFiles(head)
	if err != nil {
		return 0, err
	}
	// The memory is large, so fetch it only if something is removed.
	mayDrop := func(f object.TreeEntry) bool {
		day, name, _ := strings.Cut(f.Name, "/")
		return e.mayDrop(day, name)
	}
	if dropped == 0 && !slices.ContainsFunc(files, mayDrop) {
		return 0, nil
	}
	if err := memory.fetch(files); err != nil {
		return 0, err
	}
	// As in Erase, one commit without history replaces the transcript.
	w := rewriting{session: e.Session, at: e.Now, message: "gc",
		edit: func(path string, text []byte) ([]byte, int, error) {
			if inMemory(path) {
				text, n := dropLines(text, func(l Line) bool { return !e.There(l.Checkpoint) && e.Now.Sub(l.Time) > e.Keep })
				return text, n, nil
			}
			return e.drop(text, old, stays)
		}}
	return dropped, w.do(ctx, r, ref)
}

// mayExpire reports whether the names of the segments show that a segment may have to be removed. Usually none has to
// be, and then no record has to be read.
func (e ExpireRequest) mayExpire(r *session.Repo, ref string) (bool, error) {
	head, err := r.Ref(ref)
	if err != nil {
		return false, err
	}
	days, err := treeOf(r, head)
	if err != nil {
		return false, err
	}
	memory, err := (Source{Repo: r}).memoryDays(days)
	if err != nil {
		return false, err
	}
	for _, day := range append(memory, days...) {
		if !e.past(day.Name) {
			continue
		}
		files, err := r.Tree(day.ID)
		if err != nil {
			return false, err
		}
		for _, f := range files {
			if e.mayDrop(day.Name, f.Name) {
				return true, nil
			}
		}
	}
	return false, nil
}

// mayDrop reports whether the file of a segment, on a day, may have to be removed.
func (e ExpireRequest) mayDrop(day, file string) bool {
	checkpoint, _, _ := strings.Cut(file, ".")
	return e.past(day) && !e.There(session.CheckpointID(checkpoint))
}

// past reports whether records of the day may be older than Keep. If the day began less than the duration Keep ago, all
// of them are younger.
func (e ExpireRequest) past(day string) bool {
	began, err := time.Parse(time.DateOnly, day)
	return err == nil && e.Now.Sub(began) > e.Keep
}

// segmentOf returns the name of the segment that contains a record: the day of the record in UTC, and its checkpoint.
func segmentOf(l Line) string { return l.Time.UTC().Format(time.DateOnly) + "/" + string(l.Checkpoint) }

// isStone reports whether l is a tombstone that was written by Expire.
func isStone(l Line) bool {
	return l.Erased != nil && l.Erased.By == expiredBy && l.Erased.Why == expiredWhy
}

// drop removes the lines for which the function old returns true from the text of a file. It replaces those that are in
// the map stays by tombstones. gone is the number of removed and replaced lines.
func (e ExpireRequest) drop(text []byte, old func(Line) bool,
	stays map[string]Line) (after []byte, gone int, err error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	for line := range bytes.Lines(text) {
		l, err := ParseLine(line)
		if err != nil || !old(l) {
			b.Write(line)
			continue
		}
		turn, stone := stays[l.ID]
		if stone && isStone(l) {
			// The line is the tombstone of an earlier run and needs no change.
			b.Write(line)
			continue
		}
		if gone++; !stone {
			continue
		}
		left := envelope{ID: l.ID, Time: l.Time, Checkpoint: l.Checkpoint, Session: l.Session, Lane: l.Lane, StartsTurn: true,
			Turn:   turn.Turn,
			Erased: &Tombstone{Time: e.Now.UTC(), By: expiredBy, Why: expiredWhy}}
		if err := w.Encode(left); err != nil {
			return nil, 0, err
		}
	}
	return b.Bytes(), gone, nil
}
