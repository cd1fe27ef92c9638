package transcript

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// EraseRequest selects the records that Erase removes from a transcript.
type EraseRequest struct {
	Session string          // session whose transcript is changed
	Lane    string          // lane of the mount whose user erases the records; part of the commit message
	Before  time.Time       // selects the records that were made before this time; zero: none
	Except  []string        // sessions of which Before selects no records, for example not the fork, but its parent
	IDs     map[string]bool // selects the records with these ids
	Stone   Tombstone       // entry that replaces each erased record
	Hold    error           // if set, nothing is erased, and this error is returned if the request selects anything
}

// Repeated returns the request that repeats an erasure of another host, or of another session, in the session name.
// Its time selects no records of the sessions except, besides those that the erasure excepts.
func Repeated(name string, of session.Erasure, except ...string) EraseRequest {
	e := EraseRequest{Session: name, Before: of.Before, Except: slices.Concat(of.Except, except), IDs: map[string]bool{},
		Stone: Tombstone{Time: of.Time, By: of.By, Why: of.Why}}
	for _, id := range of.IDs {
		e.IDs[id] = true
	}
	return e
}

// Erase removes records from a transcript permanently, and returns their ids. It also removes the memory of agents: the
// lines that Before selects, and all lines of each conversation to which a record belongs that IDs selects, because any
// later line of a conversation may repeat the record. memory is the number of these lines. A tombstone replaces each
// record, so that turns keep their numbers. The ref is set to a new commit without parents, so that the removed records
// become unreachable: the next sweep deletes their objects, and session remotes get the new commit with the next push.
// The function provide fetches contents that are missing on this host by their ids; it is nil if none is missing.
func Erase(ctx context.Context, r *session.Repo, e EraseRequest,
	provide func(ids []object.ID) error) (erased []string, memory int, err error) {
	ref := session.TranscriptRef(e.Session)
	for range tries {
		var lines []Line
		var head object.ID
		if lines, head, err = Read(r, e.Session, provide); err != nil {
			return nil, 0, err
		}
		if e.Before.IsZero() && !slices.ContainsFunc(lines, e.wants) {
			return nil, 0, nil // so no memory is fetched, which is large
		}
		if err := (Source{r, provide}).fetchMemory(head); err != nil {
			return nil, 0, err
		}
		// A tombstone contains the turn of the erased record. Turns are counted over all records, so read all records first.
		turns := map[string]Line{}
		for _, l := range lines {
			turns[l.ID] = l
		}
		erased, memory, err = e.rewrite(ctx, r, ref, turns)
		// If another process has changed the ref, read the transcript again and retry.
		if !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("erase records from %s: %w", ref, err)
	}
	return erased, memory, nil
}

// wants reports whether the request selects the record l. It returns false for a record that is erased already.
func (e EraseRequest) wants(l Line) bool {
	return l.Erased == nil && (e.IDs[l.ID] || l.Time.Before(e.Before) && !slices.Contains(e.Except, l.Session))
}

// rewrite replaces the selected records in all files of the transcript by tombstones, and removes the lines of memory.
// It returns the ids of these records, and the number of these lines. The map turns contains all records of the
// transcript by id.
func (e EraseRequest) rewrite(ctx context.Context, r *session.Repo, ref string,
	turns map[string]Line) (erased []string, memory int, err error) {
	spoiled := e.conversations(turns)
	w := rewriting{session: e.Session, lane: e.Lane, at: e.Stone.Time, message: "erase", hold: e.Hold,
		edit: func(path string, text []byte) ([]byte, int, error) {
			if inMemory(path) {
				text, n := dropLines(text, func(l Line) bool { return e.wantsMemory(l, spoiled) })
				memory += n
				return text, n, nil
			}
			text, ids, err := e.lines(text, turns)
			erased = append(erased, ids...)
			return text, len(ids), err
		}}
	return erased, memory, w.do(ctx, r, ref)
}

// rewriting describes how a transcript is replaced by one commit without parents, so that its previous commits become
// unreachable and the next sweep removes them.
type rewriting struct {
	session, lane string
	at            time.Time // time of the new commit
	message       string    // first word of the new commit's message
	hold          error     // if set, do returns it instead of removing records
	// edit returns the new contents of a file, and the number of records that it has removed from the file; 0 means
	// that the file does not change. The path has the form DAY/NAME, after memoryDir for memory. If the new contents
	// are empty, the file is removed.
	edit func(path string, text []byte) (after []byte, gone int, err error)
}

// do replaces the transcript to which ref points. If edit removes no record, do changes nothing. It returns an error
// that wraps session.ErrRefMoved if another process changes the ref at the same time.
func (w rewriting) do(ctx context.Context, r *session.Repo, ref string) error {
	defer r.Working()()
	head, err := r.Ref(ref)
	if err != nil {
		return err
	}
	root, err := treeOf(r, head)
	if err != nil {
		return err
	}
	f := r.Format()
	var out []odb.Outgoing
	add := func(t object.Type, content []byte) (object.ID, error) {
		o, err := session.Outgoing(f, t, content)
		out = append(out, o)
		return o.ID, err
	}
	gone := 0
	// each returns the entries of a directory with the changes. Entries of other types were not written by this program,
	// so they are kept unchanged.
	var each func(dir string, entries []object.TreeEntry) ([]object.TreeEntry, error)
	each = func(dir string, entries []object.TreeEntry) (left []object.TreeEntry, err error) {
		for _, e := range entries {
			switch {
			case e.Mode == object.ModeDir && (dir == "" || dir == memoryDir+"/"):
				list, err := r.Tree(e.ID)
				if err == nil {
					list, err = each(dir+e.Name+"/", list)
				}
				if err != nil {
					return nil, err
				}
				if len(list) == 0 {
					continue // git does not store empty trees inside a tree
				}
				if e.ID, err = add(object.Tree, session.EncodeTree(list)); err != nil {
					return nil, err
				}
			case dir != "" && dir != memoryDir+"/" && e.Mode.IsBlob():
				_, text, err := r.Get(e.ID, maxFile)
				if err != nil {
					return nil, err
				}
				text, n, err := w.edit(dir+e.Name, text)
				if err != nil {
					return nil, err
				}
				if gone += n; n > 0 {
					if len(text) == 0 {
						continue
					}
					if e.ID, err = add(object.Blob, text); err != nil {
						return nil, err
					}
				}
			}
			left = append(left, e)
		}
		return left, nil
	}
	left, err := each("", root)
	if err != nil || gone == 0 {
		return err
	}
	if w.hold != nil {
		return w.hold
	}
	tree, err := add(object.Tree, session.EncodeTree(left))
	if err != nil {
		return err
	}
	// The commit has no parent, so the old records become unreachable.
	message := fmt.Sprintf("%s: %d records\n\nAfs-Session: %s\nAfs-Lane: %s\n", w.message, gone, w.session, w.lane)
	commit, err := session.NewCommit(f, tree, object.ID{}, w.at, message)
	if err != nil {
		return err
	}
	return r.Record(ctx, append(out, commit), []session.RefChange{{Name: ref, Old: head, New: commit.ID}})
}

// lines returns text with a tombstone in place of each selected record, and the ids of these records. It keeps lines
// that cannot be parsed.
func (e EraseRequest) lines(text []byte, turns map[string]Line) (after []byte, ids []string, err error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetEscapeHTML(false)
	for line := range bytes.Lines(text) {
		l, err := ParseLine(line)
		if err != nil || !e.wants(l) {
			b.Write(line)
			continue
		}
		ids = append(ids, l.ID)
		stone := envelope{ID: l.ID, Time: l.Time, Checkpoint: l.Checkpoint, Session: l.Session, Lane: l.Lane,
			Erased:     &e.Stone,
			StartsTurn: turns[l.ID].StartsTurn, Turn: turns[l.ID].Turn}
		if err := w.Encode(stone); err != nil {
			return nil, nil, err
		}
	}
	return b.Bytes(), ids, nil
}
