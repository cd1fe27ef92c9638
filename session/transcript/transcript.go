// Package transcript stores records about the work in a session: git notes on commits, a log of prompts, answers and
// commands (the transcript), and facts with a handoff. It removes secrets before it writes anything (Redact).
//
// The records of a transcript are stored in the tree of session.TranscriptRef. Each batch of records adds one commit.
// The files of the tree are:
//
//	2006-01-02/POINT.jsonl        records of that day (in UTC) that were made while checkpoint POINT was the newest
//	2006-01-02/POINT.0002.jsonl   records that did not fit into the first file
//	2006-01-02/none.jsonl         records that were made before the first checkpoint
//	.memory/2006-01-02/...        the same for the memory of agents (ReadMemory), which is not shown with the records
//
// Each line is an object {"id","time","point","session","lane","actor","record":{...}}, where record is a JSON object
// that the caller of Record has passed. An erased record is replaced by "erased":{"time","by","why"}.
//
// Notes are ordinary git notes on refs/notes/*. They are written by stock git in the mount's git directory, and git may
// have to fetch the existing notes from the remote.
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
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

const (
	maxLine = 1 << 20  // maximum size in bytes of a record
	maxPart = 64 << 10 // size in bytes at which a file is full; small, because each batch rewrites the last file
	// maxFile is the maximum size in bytes of a file that is read. A file may exceed maxPart by the size of one batch.
	maxFile = 64 << 20
	tries   = 20 // maximum number of attempts to change a ref that other processes change at the same time
)

// Batch is a list of records that are added to a transcript by one commit.
type Batch struct {
	Session    string               // session to whose transcript the records are added
	Lane       string               // lane of the mount that adds the records
	Checkpoint session.CheckpointID // newest checkpoint when the records are added; "" if there is no checkpoint yet
	Actor      string               // user or program whose actions the records describe
	Time       time.Time            // time of all records of the batch
	Lines      []string             // the records, each of which is a JSON object
	Memory     bool                 // whether the records are the memory of an agent; see ReadMemory
	// Provide fetches contents that are missing on this host by their ids; nil if none is missing.
	Provide func(ids []object.ID) error
}

// Recorded is the result of Record.
type Recorded struct {
	Ref      string // ref of the transcript
	Lines    int64  // number of records that were added
	Redacted int64  // number of secrets that were removed
}

// envelope is the JSON form of one line of a file of a transcript.
type envelope struct {
	ID         string               `json:"id,omitempty"` // id of the record, which is a ULID
	Time       time.Time            `json:"time"`
	Checkpoint session.CheckpointID `json:"point"`
	Session    string               `json:"session"`
	Lane       string               `json:"lane"`
	Actor      string               `json:"actor,omitempty"`
	Record     json.RawMessage      `json:"record,omitempty"`

	// The fields below are set only for an erased record: the tombstone, whether the record began a turn, and the
	// number of its turn.
	Erased     *Tombstone `json:"erased,omitempty"`
	StartsTurn bool       `json:"begins,omitempty"`
	Turn       int        `json:"turn,omitempty"`
}

// LineError means that a line of a batch is not a valid record.
type LineError struct {
	Line int   // number of the line, counted from 1
	Err  error // reason why the line is invalid, without the number of the line
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("record line %d: %v", e.Line, e.Err) }

// Unwrap returns the reason why the line is invalid.
func (e *LineError) Unwrap() error { return e.Err }

// Record adds the records of a batch to the transcript of its session. It adds all of them or, if it returns an error,
// none.
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
	// The objects of the batch are unreachable until the ref is updated. Working protects them from a sweep until then.
	defer r.Working()()
	for range tries {
		err = b.add(ctx, r, ref, text)
		if !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return Recorded{}, fmt.Errorf("write records to %s: %w", ref, err)
	}
	return done, nil
}

// encode returns the lines of a file for the records of the batch, without secrets, and the number of removed secrets.
// It returns a *LineError for an invalid record.
func (b Batch) encode() (text []byte, redacted int64, err error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	for i, line := range b.Lines {
		if len(line) > maxLine {
			return nil, 0, &LineError{i + 1, fmt.Errorf("record has %d bytes, limit is %d", len(line), maxLine)}
		}
		clean, n, err := RedactJSON([]byte(line))
		if err == nil && !isObject(clean) {
			err = fmt.Errorf("%w: want an object", ErrNotJSON)
		}
		if err != nil {
			return nil, 0, &LineError{i + 1, err}
		}
		redacted += n
		if err := e.Encode(envelope{ID: string(session.NewCheckpointID(b.Time)), Time: b.Time.UTC(), Checkpoint: b.Checkpoint,
			Session: b.Session,
			Lane:    b.Lane, Actor: b.Actor, Record: clean}); err != nil {
			return nil, 0, &LineError{i + 1, err}
		}
	}
	return out.Bytes(), redacted, nil
}

// add writes a commit that adds text, the lines of the batch, and sets the ref to the commit. It returns an error that
// wraps session.ErrRefMoved if another process has changed the ref in the meantime.
func (b Batch) add(ctx context.Context, r *session.Repo, ref string, text []byte) error {
	f := r.Format()
	head, err := r.Ref(ref)
	if err != nil {
		return err
	}
	root, err := treeOf(r, head)
	if err != nil {
		return err
	}
	days := root
	if b.Memory {
		if days, err = (Source{Repo: r}).memoryDays(root); err != nil {
			return err
		}
	}
	day := b.Time.UTC().Format(time.DateOnly)
	var files []object.TreeEntry
	at, known := slices.BinarySearchFunc(days, day,
		func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
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
	out := []odb.Outgoing{blob, dayTree, tree}
	if b.Memory {
		root = put(root, object.TreeEntry{Name: memoryDir, Mode: object.ModeDir, ID: tree.ID})
		if tree, err = session.Outgoing(f, object.Tree, session.EncodeTree(root)); err != nil {
			return err
		}
		out = append(out, tree)
	}
	message := fmt.Sprintf("record: %d lines\n\nAfs-Session: %s\nAfs-Lane: %s\n", len(b.Lines), b.Session, b.Lane)
	if b.Checkpoint != "" {
		message += fmt.Sprintf("Afs-Checkpoint: %s\n", b.Checkpoint)
	}
	commit, err := session.NewCommit(f, tree.ID, head, b.Time, message)
	if err != nil {
		return err
	}
	return r.Record(ctx, append(out, commit), []session.RefChange{{Name: ref, Old: head, New: commit.ID}})
}

// treeOf returns the entries of the root tree of a commit, or no entries for the zero id.
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

// put returns the entries with e added, or replaced if there is an entry of this name, in git's order. A tree of a
// transcript contains either only files, or only directories of which no name is the beginning of another, so git's
// order is that of the bytes of the names.
func put(entries []object.TreeEntry, e object.TreeEntry) []object.TreeEntry {
	entries = slices.Clone(entries)
	at, known := slices.BinarySearchFunc(entries, e.Name,
		func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
	if known {
		entries[at] = e
		return entries
	}
	return slices.Insert(entries, at, e)
}

// part returns the name and the present contents of the file to which the batch is added. It is a new file if the last
// file of the checkpoint is full. The parameter files lists the files of the day.
func (b Batch) part(r *session.Repo, files []object.TreeEntry) (name string, before []byte, err error) {
	for n := 1; ; n++ {
		name = partName(b.Checkpoint, n)
		at, known := slices.BinarySearchFunc(files, name,
			func(e object.TreeEntry, name string) int { return strings.Compare(e.Name, name) })
		if !known {
			return name, nil, nil
		}
		_, size, err := r.Size(files[at].ID)
		if err != nil && b.Provide != nil { // the file was pushed by another machine and is not on this host yet
			if err = b.Provide([]object.ID{files[at].ID}); err == nil {
				_, size, err = r.Size(files[at].ID)
			}
		}
		if err != nil {
			return "", nil, err
		}
		// A file that has reached maxPart is full: try the next one.
		if size < maxPart {
			_, before, err = r.Get(files[at].ID, maxFile)
			return name, before, err
		}
	}
}

// partName returns the name of the n-th file of a checkpoint, counted from 1.
func partName(p session.CheckpointID, n int) string {
	base := stem(p)
	if n == 1 {
		return base + ".jsonl"
	}
	return fmt.Sprintf("%s.%04d.jsonl", base, n)
}

// stem returns the part of the name of a file that identifies its checkpoint.
func stem(p session.CheckpointID) string {
	if p == "" {
		return "none"
	}
	return string(p)
}

// Files returns the ids of the files that contain the records of checkpoint p in the transcript of session name, oldest
// first.
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

// Until returns the newest ancestor of the commit tip, or tip itself, whose transcript contains no record of a
// checkpoint after p. It returns the zero id if there is no such commit.
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
		// The commit message names the newest checkpoint of the batch. Checkpoint ids sort by time.
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
