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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// Line is one line of a transcript: a record, or the tombstone of an erased record.
type Line struct {
	ID         string               // id of the record, a ULID; for a record without an id, a hash of the line
	Time       time.Time            // time at which the line was recorded
	Checkpoint session.CheckpointID // newest checkpoint when the line was recorded; "" if there was none
	Session    string               // session in which the line was recorded; in a fork, it may be the parent session
	Lane       string               // lane of the mount that recorded the line
	Actor      string               // user or program whose action the record describes
	Turn       int                  // number of the turn of the record; 0 means before the first turn
	StartsTurn bool                 // whether the record is the first one of its turn
	Record     json.RawMessage      // the recorded JSON object; nil if it is erased
	Erased     *Tombstone           // tombstone that replaces Record; nil if the record is not erased
}

// Tombstone is the entry that replaces an erased record.
type Tombstone struct {
	Time time.Time `json:"time"`          // time of the erasure
	By   string    `json:"by"`            // user or program that erased the record
	Why  string    `json:"why,omitempty"` // reason for the erasure; "" if none was recorded
}

// turnMarkers contains the members of a record that decide whether the record begins a turn.
type turnMarkers struct {
	Type string `json:"type"`
	Role string `json:"role"`
	Turn int    `json:"turn"`
}

// startsTurn reports whether the record begins a turn. The parameter turn is the turn of the previous record. A record
// whose member "turn" is a positive number begins a turn if the number differs from the parameter. Any other record
// begins a turn if it is a person's prompt: it has "type":"prompt", or it has "role":"user" and either no type or
// "type":"message".
func (b turnMarkers) startsTurn(turn int) bool {
	if b.Turn > 0 {
		return b.Turn != turn
	}
	return b.Type == "prompt" || b.Role == "user" && (b.Type == "" || b.Type == "message")
}

// HasPrompt reports whether one of the records is a person's prompt. The records are JSON texts that were not added to
// the transcript yet.
func HasPrompt(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		var b turnMarkers
		return json.Unmarshal([]byte(line), &b) == nil && b.startsTurn(b.Turn)
	})
}

// Head returns the newest commit of the transcript of the session name, or the zero id if nothing was recorded.
func Head(r *session.Repo, name string) (object.ID, error) {
	return r.Ref(session.TranscriptRef(name))
}

// Read returns the records of the session name, oldest first, and the commit that contains them. The function provide
// fetches contents that are missing on this host by their ids; it is nil if none is missing.
func Read(r *session.Repo, name string, provide func(ids []object.ID) error) (lines []Line, head object.ID, err error) {
	if head, err = Head(r, name); err != nil {
		return nil, head, fmt.Errorf("read transcript: %w", err)
	}
	days, err := treeOf(r, head)
	if err != nil {
		return nil, head, fmt.Errorf("read transcript: %w", err)
	}
	from := Source{r, provide}
	files, err := from.files(days)
	if err != nil {
		return nil, head, fmt.Errorf("read transcript: %w", err)
	}
	if err := from.fetch(files); err != nil {
		return nil, head, fmt.Errorf("fetch transcript: %w", err)
	}
	for _, f := range files {
		_, text, err := r.Get(f.ID, maxFile)
		if err != nil {
			return nil, head, fmt.Errorf("read transcript: %w", err)
		}
		for line := range bytes.Lines(text) {
			// skip a line that cannot be parsed, because a later version may have written it
			if l, err := ParseLine(line); err == nil {
				lines = append(lines, l)
			}
		}
	}
	// The files are sorted by day and checkpoint, but the records of several lanes may overlap in time.
	slices.SortStableFunc(lines, func(a, b Line) int { return a.Time.Compare(b.Time) })
	number(lines)
	return lines, head, nil
}

// Source is a repository with transcripts, and a way to get what is missing in it.
type Source struct {
	Repo *session.Repo
	// Provide fetches contents that are missing on this host by their ids; it is nil if none is missing.
	Provide func(ids []object.ID) error
}

// files returns the files in the directories of days, oldest first, with names of the form DAY/NAME. It leaves out the
// memory of agents.
func (s Source) files(days []object.TreeEntry) (files []object.TreeEntry, _ error) {
	for _, day := range days {
		if day.Mode != object.ModeDir || day.Name == memoryDir {
			continue
		}
		list, err := s.Repo.Tree(day.ID)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			f.Name = day.Name + "/" + f.Name
			files = append(files, f)
		}
	}
	return files, nil
}

// fetch fetches the contents that are missing on this host, in one request.
func (s Source) fetch(files []object.TreeEntry) error {
	if s.Provide == nil {
		return nil
	}
	var missing []object.ID
	for _, f := range files {
		if _, _, err := s.Repo.Size(f.ID); err != nil {
			missing = append(missing, f.ID)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return s.Provide(missing)
}

// ParseLine parses one line of a file of a transcript. It sets Turn and StartsTurn only for a tombstone. A record
// without an id gets a hash of the line as its id, so that requests can name the record.
func ParseLine(line []byte) (Line, error) {
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		return Line{}, err
	}
	l := Line{ID: e.ID, Time: e.Time, Checkpoint: e.Checkpoint, Session: e.Session, Lane: e.Lane, Actor: e.Actor,
		Record: e.Record,
		Erased: e.Erased, StartsTurn: e.StartsTurn, Turn: e.Turn}
	if l.ID == "" {
		sum := sha256.Sum256(bytes.TrimSpace(line))
		l.ID = "r" + hex.EncodeToString(sum[:12])
	}
	return l, nil
}

// number sets the fields StartsTurn and Turn of all lines of a transcript. The lines must be sorted by time.
func number(lines []Line) {
	turn := 0
	for i := range lines {
		l := &lines[i]
		var b turnMarkers
		// A tombstone states whether its record began a turn, and the number of the turn. If the number is missing, a record
		// that began a turn is counted like a prompt.
		if l.Erased != nil {
			b = turnMarkers{Turn: l.Turn}
			if l.StartsTurn && l.Turn == 0 {
				b.Type = "prompt"
			}
		} else {
			_ = json.Unmarshal(l.Record, &b) // a member that has an unexpected type counts as missing
		}
		if l.StartsTurn = b.startsTurn(turn); l.StartsTurn {
			if turn++; b.Turn > 0 {
				turn = b.Turn
			}
		}
		l.Turn = turn
	}
}

// TurnPrefix is the beginning of a name that means the checkpoint at the beginning of a turn, such as "turn:3".
const TurnPrefix = "turn:"

// FindTurn returns the checkpoint at the beginning of a turn: the newest one when the prompt of the turn was recorded.
// name is TurnPrefix and the number of the turn. The function provide fetches contents that are missing on this host by
// their ids; it is nil if none is missing. FindTurn returns a *session.FindError if there is no such turn or
// checkpoint.
func FindTurn(r *session.Repo, name string, provide func(ids []object.ID) error) (session.Checkpoint, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, TurnPrefix))
	if err != nil || n < 1 {
		return session.Checkpoint{},
			&session.FindError{Name: name, Err: fmt.Errorf("%w: turn numbers start at 1", session.ErrNoCheckpoint)}
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
		return session.Checkpoint{}, &session.FindError{Name: name, Err: fmt.Errorf("%w: transcript has only %d turns",
			session.ErrNoCheckpoint, last)}
	}
	// If the record's checkpoint was dropped or belongs to another session, find a checkpoint by the record's time.
	if at := lines[i].Checkpoint; at != "" {
		if p, err := r.Find(string(at)); err == nil {
			return p, nil
		}
	}
	return r.Find(lines[i].Time.Format(time.RFC3339Nano))
}
