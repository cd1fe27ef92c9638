// Package transcript stores text about the work in a session, separately from its files: notes on
// commits, and a record of the actions. Secrets are removed before anything is written (Redact).
//
// Records are in the tree of session.TranscriptRef, each commit of which adds a batch:
//
//	2006-01-02/POINT.jsonl        records of a day (in UTC) made while POINT was the newest checkpoint
//	2006-01-02/POINT.0002.jsonl   records that did not fit into the first file
//	2006-01-02/none.jsonl         records made before the first checkpoint
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
	maxPart = 64 << 10 // size of a file from which a new one is begun, in bytes: each batch rewrites the file
	// maxFile is the largest file that is read: a part together with the batch that exceeded its limit.
	maxFile = 64 << 20
	tries   = 20 // number of attempts while other processes move the ref
)

// Batch is a list of records that are added together.
type Batch struct {
	Session    string
	Lane       string
	Checkpoint session.CheckpointID // newest checkpoint; "": none was made yet
	Actor      string
	Time       time.Time
	Lines      []string // one JSON object each
	// Provide fetches missing contents; nil: none are missing.
	Provide func(ids []object.ID) error
}

// Recorded is the result of a Batch.
type Recorded struct {
	Ref      string
	Lines    int64
	Redacted int64 // number of secrets that were removed
}

// envelope is one line of a file, as it is written.
type envelope struct {
	ID         string               `json:"id,omitempty"` // a ULID
	Time       time.Time            `json:"time"`
	Checkpoint session.CheckpointID `json:"point"`
	Session    string               `json:"session"`
	Lane       string               `json:"lane"`
	Actor      string               `json:"actor,omitempty"`
	Record     json.RawMessage      `json:"record,omitempty"`

	// The fields below are set for an erased record: its tombstone, and its turn.
	Erased     *Tombstone `json:"erased,omitempty"`
	StartsTurn bool       `json:"begins,omitempty"`
	Turn       int        `json:"turn,omitempty"`
}

// LineError is an invalid line of a batch.
type LineError struct {
	Line int // number of the line, from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("record line %d: %v", e.Line, e.Err) }

// Unwrap returns the reason without the number of the line.
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
	// The objects of the batch are not reachable before the ref moves; Working protects them from a sweep until then.
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

// encode returns the text of the batch, one line for each record, with secrets removed. It returns a *LineError for
// an invalid line.
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
		if err := e.Encode(envelope{ID: string(session.NewCheckpointID(b.Time)), Time: b.Time.UTC(), Checkpoint: b.Checkpoint, Session: b.Session,
			Lane: b.Lane, Actor: b.Actor, Record: clean}); err != nil {
			return nil, 0, &LineError{i + 1, err}
		}
	}
	return out.Bytes(), redacted, nil
}

// add writes the commit that adds the batch, and moves the ref. It returns session.ErrRefMoved if another process was
// first.
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
	if b.Checkpoint != "" {
		message += fmt.Sprintf("Afs-Checkpoint: %s\n", b.Checkpoint)
	}
	commit, err := session.NewCommit(f, tree.ID, head, b.Time, message)
	if err != nil {
		return err
	}
	return r.Record(ctx, []odb.Outgoing{blob, dayTree, tree, commit}, []session.RefChange{{Name: ref, Old: head, New: commit.ID}})
}

// treeOf returns the root tree of a commit; the zero commit has none.
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

// put sets an entry of a tree in git's order. The names consist of digits, letters and dashes, for which git's order
// is the order of bytes.
func put(entries []object.TreeEntry, e object.TreeEntry) []object.TreeEntry {
	entries = slices.Clone(entries)
	at, known := slices.BinarySearchFunc(entries, e.Name, func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
	if known {
		entries[at] = e
		return entries
	}
	return slices.Insert(entries, at, e)
}

// part returns the name of the file that the batch is added to, and the file's present contents. A full file is
// followed by another.
func (b Batch) part(r *session.Repo, files []object.TreeEntry) (name string, before []byte, err error) {
	for n := 1; ; n++ {
		name = partName(b.Checkpoint, n)
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
		// A file that reached maxPart is full; the next one is looked up.
		if size < maxPart {
			_, before, err = r.Get(files[at].ID, maxFile)
			return name, before, err
		}
	}
}

// partName returns the name of the nth file of a checkpoint.
func partName(p session.CheckpointID, n int) string {
	base := stem(p)
	if n == 1 {
		return base + ".jsonl"
	}
	return fmt.Sprintf("%s.%04d.jsonl", base, n)
}

// stem returns the beginning of the names of a checkpoint's files.
func stem(p session.CheckpointID) string {
	if p == "" {
		return "none"
	}
	return string(p)
}

// Files returns the ids of the files that hold the records of a checkpoint, oldest first.
func Files(r *session.Repo, name string, p session.CheckpointID) (ids []object.ID, _ error) {
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

// Until returns the newest commit of the transcript with the given tip that contains no record of a checkpoint after
// p, or zero if there is none.
func Until(r *session.Repo, tip object.ID, p session.CheckpointID) (object.ID, error) {
	for at := tip; !at.IsZero(); {
		info, err := r.Commit(at)
		if err != nil {
			return object.ID{}, err
		}
		_, content, err := r.Get(at, object.MaxCommitSize)
		if err != nil {
			return object.ID{}, err
		}
		// The commit message states the checkpoint of its batch. Checkpoint ids are in order of time.
		_, of, known := strings.Cut(string(content), "\nAfs-Checkpoint: ")
		of, _, _ = strings.Cut(of, "\n")
		if !known || session.CheckpointID(of) <= p {
			return at, nil
		}
		if at = (object.ID{}); len(info.Parents) > 0 {
			at = info.Parents[0]
		}
	}
	return object.ID{}, nil
}
