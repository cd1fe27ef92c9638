package transcript

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Line is one record of a transcript, or the tombstone of an erased one.
type Line struct {
	ID         string // a ULID; for a record without one, derived from the line
	Time       time.Time
	Checkpoint session.CheckpointID // the newest checkpoint when it was recorded; "": there was none
	Session    string               // session in which it was recorded; in a fork, that may be the parent
	Lane       string
	Actor      string
	Turn       int  // number of its turn; 0: before the first turn
	StartsTurn bool // whether it is the first record of its turn
	Record     json.RawMessage
	Erased     *Tombstone // tombstone; nil unless Record was erased
}

// Tombstone replaces an erased record.
type Tombstone struct {
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	Why  string    `json:"why,omitempty"`
}

// turnMarkers holds the members that decide whether a record begins a turn.
type turnMarkers struct {
	Type string `json:"type"`
	Role string `json:"role"`
	Turn int    `json:"turn"`
}

// startsTurn reports whether a record begins a turn: it is a person's prompt ("type":"prompt", or
// "role":"user" without a type or with "type":"message"), or the first with another "turn" than the
// one before.
func (b turnMarkers) startsTurn(turn int) bool {
	if b.Turn > 0 {
		return b.Turn != turn
	}
	return b.Type == "prompt" || b.Role == "user" && (b.Type == "" || b.Type == "message")
}

// HasPrompt reports whether one of the lines that are about to be recorded is a person's prompt.
func HasPrompt(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		var b turnMarkers
		return json.Unmarshal([]byte(line), &b) == nil && b.startsTurn(b.Turn)
	})
}

// Head returns the commit of a transcript; zero: nothing was recorded.
func Head(r *session.Repo, name string) (object.ID, error) {
	return r.Ref(session.TranscriptRef(name))
}

// Read returns the records of a session, oldest first. provide fetches missing contents; nil: none
// are missing.
func Read(r *session.Repo, name string, provide func(ids []object.ID) error) (lines []Line, head object.ID, err error) {
	if head, err = Head(r, name); err != nil {
		return nil, head, fmt.Errorf("read transcript: %w", err)
	}
	days, err := treeOf(r, head)
	if err != nil {
		return nil, head, fmt.Errorf("read transcript: %w", err)
	}
	var files []object.TreeEntry
	// The tree has one directory for each day.
	for _, day := range days {
		if day.Mode != object.ModeDir {
			continue
		}
		list, err := r.Tree(day.ID)
		if err != nil {
			return nil, head, fmt.Errorf("read transcript: %w", err)
		}
		files = append(files, list...)
	}
	// All missing files are fetched in one request.
	if provide != nil {
		var missing []object.ID
		for _, f := range files {
			if _, _, err := r.Size(f.ID); err != nil {
				missing = append(missing, f.ID)
			}
		}
		if len(missing) > 0 {
			if err := provide(missing); err != nil {
				return nil, head, fmt.Errorf("fetch transcript: %w", err)
			}
		}
	}
	for _, f := range files {
		_, text, err := r.Get(f.ID, maxFile)
		if err != nil {
			return nil, head, fmt.Errorf("read transcript: %w", err)
		}
		for line := range bytes.Lines(text) {
			if l, err := parseLine(line); err == nil { // lines in the format of a later version are left out
				lines = append(lines, l)
			}
		}
	}
	// Files are by day and checkpoint; records of several lanes may overlap in time.
	slices.SortStableFunc(lines, func(a, b Line) int { return a.Time.Compare(b.Time) })
	number(lines)
	return lines, head, nil
}

// parseLine reads a line. A record without an id has one derived from its bytes, so that it can be named too.
func parseLine(line []byte) (Line, error) {
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		return Line{}, err
	}
	l := Line{ID: e.ID, Time: e.Time, Checkpoint: e.Checkpoint, Session: e.Session, Lane: e.Lane, Actor: e.Actor, Record: e.Record,
		Erased: e.Erased, StartsTurn: e.StartsTurn, Turn: e.Turn}
	if l.ID == "" {
		sum := sha256.Sum256(bytes.TrimSpace(line))
		l.ID = "r" + hex.EncodeToString(sum[:12])
	}
	return l, nil
}

// number sets Begins and Turn of lines, which must be in order of time.
func number(lines []Line) {
	turn := 0
	for i := range lines {
		l := &lines[i]
		var b turnMarkers
		// A tombstone keeps only that its record began a turn, so it counts as a prompt.
		if l.Erased != nil {
			b = turnMarkers{Turn: l.Turn}
			if l.StartsTurn && l.Turn == 0 {
				b.Type = "prompt"
			}
		} else {
			_ = json.Unmarshal(l.Record, &b) // members of other types are ignored
		}
		if l.StartsTurn = b.startsTurn(turn); l.StartsTurn {
			if turn++; b.Turn > 0 {
				turn = b.Turn
			}
		}
		l.Turn = turn
	}
}

// TurnPrefix begins the names of checkpoints by turn: "turn:3".
const TurnPrefix = "turn:"

// FindTurn returns the checkpoint at the beginning of a turn, by a name that begins with
// TurnPrefix: the newest when the prompt was recorded.
func FindTurn(r *session.Repo, name string, provide func(ids []object.ID) error) (session.Checkpoint, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, TurnPrefix))
	if err != nil || n < 1 {
		return session.Checkpoint{}, &session.FindError{Name: name, Err: fmt.Errorf("%w: turns are numbers from 1 on", session.ErrNoCheckpoint)}
	}
	lines, _, err := Read(r, r.Session(), provide)
	if err != nil {
		return session.Checkpoint{}, err
	}
	i := slices.IndexFunc(lines, func(l Line) bool { return l.StartsTurn && l.Turn == n })
	if i < 0 {
		last := 0
		if len(lines) > 0 {
			last = lines[len(lines)-1].Turn
		}
		err := fmt.Errorf("%w: the transcript has %d turns", session.ErrNoCheckpoint, last)
		return session.Checkpoint{}, &session.FindError{Name: name, Err: err}
	}
	// The checkpoint of the record may have been dropped, or be another session's: then the time decides.
	if at := lines[i].Checkpoint; at != "" {
		if p, err := r.Find(string(at)); err == nil {
			return p, nil
		}
	}
	return r.Find(lines[i].Time.Format(time.RFC3339Nano)) // the checkpoint with this id is not in this session
}
