package transcript

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// EraseRequest says what is to be erased of a transcript.
type EraseRequest struct {
	Session string
	Lane    string
	Before  time.Time       // records that are older; zero: none for their age
	IDs     map[string]bool // and these
	Stone   Tombstone       // that takes their place
}

// Erase takes records out of a transcript for good, and returns the ids of those that were there. A tombstone takes the
// place of each, so that turns keep their numbers. The ref begins anew with a commit that has no history, so nothing names
// what the records were in: the next sweep removes it, and a session remote is told by a move of the ref.
func Erase(ctx context.Context, r *session.Repo, e EraseRequest, provide func(ids []object.ID) error) (erased []string, err error) {
	ref := session.TranscriptRef(e.Session)
	for range tries {
		lines, _, err := Read(r, e.Session, provide)
		if err != nil {
			return nil, err
		}
		turns := map[string]Line{}
		for _, l := range lines {
			turns[l.ID] = l
		}
		erased, err = e.rewrite(ctx, r, ref, turns)
		if !errors.Is(err, session.ErrRefMoved) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("erase from %s: %w", ref, err)
	}
	return erased, nil
}

func (e EraseRequest) wants(l Line) bool {
	return l.Erased == nil && (e.IDs[l.ID] || l.Time.Before(e.Before))
}

func (e EraseRequest) rewrite(ctx context.Context, r *session.Repo, ref string, turns map[string]Line) (erased []string, err error) {
	defer r.Working()()
	head, err := r.Ref(ref)
	if err != nil {
		return nil, err
	}
	days, err := treeOf(r, head)
	if err != nil {
		return nil, err
	}
	f := r.Format()
	var out []odb.Outgoing
	add := func(t object.Type, content []byte) (object.ID, error) {
		o, err := session.Outgoing(f, t, content)
		out = append(out, o)
		return o.ID, err
	}
	for d := range days {
		files, err := r.Tree(days[d].ID)
		if err != nil {
			return nil, err
		}
		for i := range files {
			_, text, err := r.Get(files[i].ID, maxFile)
			if err != nil {
				return nil, err
			}
			text, ids, err := e.lines(text, turns)
			if err != nil {
				return nil, err
			}
			if erased = append(erased, ids...); len(ids) == 0 {
				continue
			}
			if files[i].ID, err = add(object.Blob, text); err != nil {
				return nil, err
			}
		}
		if days[d].ID, err = add(object.Tree, session.EncodeTree(files)); err != nil {
			return nil, err
		}
	}
	if len(erased) == 0 {
		return nil, nil
	}
	tree, err := add(object.Tree, session.EncodeTree(days))
	if err != nil {
		return nil, err
	}
	message := fmt.Sprintf("erase: %d records\n\nAfs-Session: %s\nAfs-Lane: %s\n", len(erased), e.Session, e.Lane)
	commit, err := session.NewCommit(f, tree, object.ID{}, e.Stone.Time, message)
	if err != nil {
		return nil, err
	}
	return erased, r.Record(ctx, append(out, commit), []session.RefChange{{Name: ref, Old: head, New: commit.ID}})
}

// lines puts tombstones in the place of records.
func (e EraseRequest) lines(text []byte, turns map[string]Line) (after []byte, ids []string, err error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetEscapeHTML(false)
	for line := range bytes.Lines(text) {
		l, err := parseLine(line)
		if err != nil || !e.wants(l) {
			b.Write(line)
			continue
		}
		ids = append(ids, l.ID)
		stone := envelope{ID: l.ID, Time: l.Time, Point: l.Point, Session: l.Session, Lane: l.Lane, Erased: &e.Stone, Begins: turns[l.ID].Begins, Turn: turns[l.ID].Turn}
		if err := w.Encode(stone); err != nil {
			return nil, nil, err
		}
	}
	return b.Bytes(), ids, nil
}
