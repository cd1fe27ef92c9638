// Package transcript stores text about the work in a session, separately from its files: notes on
// commits, and a record of the actions. Secrets are removed before anything is written (Redact).
//
// Records are in the tree of session.TranscriptRef, each commit of which adds a batch:
//
//	2006-01-02/POINT.jsonl        what was recorded on a day (in UTC) while POINT was the newest checkpoint ("none": there was none)
//	2006-01-02/POINT.0002.jsonl   and what did not fit
//
// A line is {"id","time","point","session","lane","actor","record":{...}}, where record is the
// caller's. An erased one has "erased":{"time","by","why"} in its place.
//
// Notes are git's own, on refs/notes/*, in the mount's git directory, and written by stock git,
// which may have to fetch the existing notes from the remote.
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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

const (
	maxLine = 1 << 20  // bytes of a record
	maxPart = 64 << 10 // bytes of a file from which on the next one is begun: each batch writes it anew
	// maxFile is the longest file that is read: a part, and a batch in it.
	maxFile = 64 << 20
	tries   = 20 // after another process has moved the ref first
)

// Batch is a list of records that are added together.
type Batch struct {
	Session string
	Lane    string
	Point   session.PointID // that it belongs to; "": there is none yet
	Actor   string
	Time    time.Time
	Lines   []string // a JSON object each
	// Provide fetches missing contents; nil: none are missing.
	Provide func(ids []object.ID) error
}

// Recorded is the result of a Batch.
type Recorded struct {
	Ref      string
	Lines    int64
	Redacted int64 // secrets that were taken out
}

// envelope is a line.
type envelope struct {
	ID      string          `json:"id,omitempty"` // a ULID
	Time    time.Time       `json:"time"`
	Point   session.PointID `json:"point"`
	Session string          `json:"session"`
	Lane    string          `json:"lane"`
	Actor   string          `json:"actor,omitempty"`
	Record  json.RawMessage `json:"record,omitempty"`

	// Of a record that was erased: the tombstone, and which turn it began or belonged to.
	Erased *Tombstone `json:"erased,omitempty"`
	Begins bool       `json:"begins,omitempty"`
	Turn   int        `json:"turn,omitempty"`
}

// LineError is an invalid line of a batch.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("record line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Record adds a batch to the records of a session: all of it, or nothing.
func Record(ctx context.Context, r *session.Repo, b Batch) (Recorded, error) {
	ref := session.TranscriptRef(b.Session)
	text, redacted, err := b.encode()
	if err != nil {
		return Recorded{}, err
	}
	done := Recorded{Ref: ref, Lines: int64(len(b.Lines)), Redacted: redacted}
	if len(b.Lines) == 0 {
		return done, nil
	}
	defer r.Working()()
	for range tries {
		err = b.add(ctx, r, ref, text)
		if !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return Recorded{}, fmt.Errorf("record in %s: %w", ref, err)
	}
	return done, nil
}

// encode returns the lines that are written.
func (b Batch) encode() (text []byte, redacted int64, err error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	for i, line := range b.Lines {
		if len(line) > maxLine {
			return nil, 0, &LineError{i + 1, fmt.Errorf("%d bytes, limit is %d", len(line), maxLine)}
		}
		clean, n, err := RedactJSON([]byte(line))
		if err == nil && !isObject(clean) {
			err = fmt.Errorf("%w object", ErrNotJSON)
		}
		if err != nil {
			return nil, 0, &LineError{i + 1, err}
		}
		redacted += n
		if err := e.Encode(envelope{ID: string(session.NewPointID(b.Time)), Time: b.Time.UTC(), Point: b.Point, Session: b.Session, Lane: b.Lane, Actor: b.Actor, Record: clean}); err != nil {
			return nil, 0, &LineError{i + 1, err}
		}
	}
	return out.Bytes(), redacted, nil
}

// add makes the next commit.
func (b Batch) add(ctx context.Context, r *session.Repo, ref string, text []byte) error {
	f := r.Format()
	head, err := r.Ref(ref)
	if err != nil {
		return err
	}
	days, err := treeOf(r, head)
	if err != nil {
		return err
	}
	day := b.Time.UTC().Format(time.DateOnly)
	var files []object.TreeEntry
	at, known := slices.BinarySearchFunc(days, day, func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
	if known {
		if files, err = r.Tree(days[at].ID); err != nil {
			return err
		}
	}
	name, before, err := b.part(r, files)
	if err != nil {
		return err
	}
	blob, err := session.Outgoing(f, object.Blob, append(before, text...))
	if err != nil {
		return err
	}
	files = put(files, object.TreeEntry{Name: name, Mode: object.ModeFile, ID: blob.ID})
	dayTree, err := session.Outgoing(f, object.Tree, session.EncodeTree(files))
	if err != nil {
		return err
	}
	days = put(days, object.TreeEntry{Name: day, Mode: object.ModeDir, ID: dayTree.ID})
	tree, err := session.Outgoing(f, object.Tree, session.EncodeTree(days))
	if err != nil {
		return err
	}
	message := fmt.Sprintf("record: %d lines\n\nAfs-Session: %s\nAfs-Lane: %s\n", len(b.Lines), b.Session, b.Lane)
	if b.Point != "" {
		message += fmt.Sprintf("Afs-Checkpoint: %s\n", b.Point)
	}
	commit, err := session.NewCommit(f, tree.ID, head, b.Time, message)
	if err != nil {
		return err
	}
	return r.Record(ctx, []odb.Outgoing{blob, dayTree, tree, commit}, []session.RefChange{{Name: ref, Old: head, New: commit.ID}})
}

// treeOf lists the days; the zero commit has none.
func treeOf(r *session.Repo, commit object.ID) ([]object.TreeEntry, error) {
	if commit.IsZero() {
		return nil, nil
	}
	info, err := r.Commit(commit)
	if err != nil {
		return nil, err
	}
	return r.Tree(info.Tree)
}

// put sets an entry. The names consist of digits, letters and dashes, for which git's order is that
// of the bytes; directories are only beside directories.
func put(entries []object.TreeEntry, e object.TreeEntry) []object.TreeEntry {
	entries = slices.Clone(entries)
	at, known := slices.BinarySearchFunc(entries, e.Name, func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
	if known {
		entries[at] = e
		return entries
	}
	return slices.Insert(entries, at, e)
}

// part returns the file for a batch, and its contents.
func (b Batch) part(r *session.Repo, files []object.TreeEntry) (name string, before []byte, err error) {
	for n := 1; ; n++ {
		name = partName(b.Point, n)
		at, known := slices.BinarySearchFunc(files, name, func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
		if !known {
			return name, nil, nil
		}
		_, size, err := r.Size(files[at].ID)
		if err != nil && b.Provide != nil { // recorded on another machine
			if err = b.Provide([]object.ID{files[at].ID}); err == nil {
				_, size, err = r.Size(files[at].ID)
			}
		}
		if err != nil {
			return "", nil, err
		}
		if size < maxPart {
			_, before, err = r.Get(files[at].ID, maxFile)
			return name, before, err
		}
	}
}

// partName is that of the nth file of a checkpoint.
func partName(p session.PointID, n int) string {
	base := stem(p)
	if n == 1 {
		return base + ".jsonl"
	}
	return fmt.Sprintf("%s.%04d.jsonl", base, n)
}

func stem(p session.PointID) string {
	if p == "" {
		return "none"
	}
	return string(p)
}

// Files lists the contents whose lines belong to a checkpoint, oldest first.
func Files(r *session.Repo, name string, p session.PointID) (ids []object.ID, _ error) {
	head, err := r.Ref(session.TranscriptRef(name))
	if err != nil {
		return nil, err
	}
	days, err := treeOf(r, head)
	if err != nil {
		return nil, fmt.Errorf("read transcript: %w", err)
	}
	for _, day := range days {
		if day.Mode != object.ModeDir {
			continue
		}
		files, err := r.Tree(day.ID)
		if err != nil {
			return nil, fmt.Errorf("read transcript: %w", err)
		}
		for _, e := range files {
			if strings.HasPrefix(e.Name, stem(p)+".") {
				ids = append(ids, e.ID)
			}
		}
	}
	return ids, nil
}

// Until is the newest commit of a transcript, which ends at tip, that has nothing of later checkpoints than p; zero: there is none.
func Until(r *session.Repo, tip object.ID, p session.PointID) (object.ID, error) {
	for at := tip; !at.IsZero(); {
		info, err := r.Commit(at)
		if err != nil {
			return object.ID{}, err
		}
		_, content, err := r.Get(at, object.MaxCommitSize)
		if err != nil {
			return object.ID{}, err
		}
		_, of, known := strings.Cut(string(content), "\nAfs-Checkpoint: ")
		of, _, _ = strings.Cut(of, "\n")
		if !known || session.PointID(of) <= p {
			return at, nil
		}
		if at = (object.ID{}); len(info.Parents) > 0 {
			at = info.Parents[0]
		}
	}
	return object.ID{}, nil
}
