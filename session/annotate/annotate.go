// Package annotate defines the annotations of a session: threads of comments on the whole session, on a checkpoint, a
// commit, a file or lines of a file. The functions parse and merge annotations, and find an annotated line in another
// version of the file. Package reffile reads and writes the file with the annotations on a session remote.
//
// The annotations of a session are lines of JSON in the file LogFile of the ref session.AnnotationsRef, sorted by id.
// Each line is one act, which is never changed:
//
//	{"v":1,"id":"01M8...","time":"...","actor":"alice","op":"open","thread":"01M8...","on":{...},"text":"..."}
//
// The act "open" begins a thread, which has the id of this act; "reply", "resolve" and "reopen" refer to the thread.
// Two copies of the file are merged by the union of their lines, so no copy loses an act. Lines, fields and operations
// that this version does not know are kept and ignored.
package annotate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/ulid"
)

const (
	// LogFile is the name of the file with the annotations, in the tree of the ref's commit.
	LogFile = "annotations.jsonl"
	// MaxText is the maximum size of the text of an act in bytes.
	MaxText = 64 << 10
	// MaxFile is the maximum size in bytes of the file to which Append adds an act.
	MaxFile = 4 << 20

	version       = 1
	maxActor      = 200  // maximum size of the name of an actor in bytes
	maxPath       = 4096 // maximum size of a path in bytes
	maxQuote      = 500  // maximum size of Place.Quote in bytes
	maxQuoteLines = 5    // maximum number of lines in Place.Quote
)

var (
	// ErrNoThread means that no thread has the requested id.
	ErrNoThread = errors.New("no such thread")
	// ErrAmbiguous means that several threads have ids that begin with the requested text.
	ErrAmbiguous = errors.New("several threads have ids that begin with this text")
	// ErrInvalid means that an act has an invalid text, actor or place.
	ErrInvalid = errors.New("invalid annotation")
	// ErrFull means that the annotations of the session have reached MaxFile.
	ErrFull = errors.New("session has more than 4 MiB of annotations")
)

// Op is the kind of an act.
type Op string

// The kinds of acts.
const (
	Open    Op = "open"    // begins a thread
	Reply   Op = "reply"   // adds a text to a thread
	Resolve Op = "resolve" // marks a thread as resolved; the text may be empty
	Reopen  Op = "reopen"  // marks a thread as open again; the text may be empty
)

// Place states what a thread is about: the session if Checkpoint and Commit are empty, otherwise that checkpoint or
// commit. If Path is set, the thread is about a file, or lines of a file, in the tree of the checkpoint or commit.
type Place struct {
	Checkpoint string `json:"checkpoint,omitempty"` // id of a checkpoint
	Commit     string `json:"commit,omitempty"`     // id of a commit
	Tree       string `json:"tree,omitempty"`       // id of the tree of the checkpoint or commit, if Path is set
	Path       string `json:"path,omitempty"`       // path in the tree
	Blob       string `json:"blob,omitempty"`       // id of the contents of the file
	Line       int    `json:"line,omitempty"`       // first line, counted from 1; 0: the whole file
	End        int    `json:"end,omitempty"`        // last line
	Quote      string `json:"quote,omitempty"`      // beginning of these lines, for people
}

// Act is one entry of the annotations of a session, such as a comment or a reply. It is stored as one line of the file
// LogFile.
type Act struct {
	Version int       `json:"v"`
	ID      string    `json:"id"` // ULID
	Time    time.Time `json:"time"`
	Actor   string    `json:"actor"` // user or program that made the act
	Op      Op        `json:"op"`
	Thread  string    `json:"thread"`       // id of the act that began the thread
	On      *Place    `json:"on,omitempty"` // object of the thread; only for Open
	Text    string    `json:"text,omitempty"`
}

// Thread is a conversation about one place.
type Thread struct {
	ID       string // id of the first act
	On       Place
	Resolved bool
	Acts     []Act // all acts, oldest first; the Op of the first act is Open
}

// Parse returns the acts in the contents of an annotations file, sorted by id. It skips lines that this version does
// not understand. If several lines have the same id, it returns the first of them.
func Parse(file []byte) []Act {
	var acts []Act
	for line := range bytes.Lines(file) {
		var a Act
		if json.Unmarshal(line, &a) == nil && a.check() == nil {
			acts = append(acts, a)
		}
	}
	slices.SortStableFunc(acts, func(a, b Act) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(acts, func(a, b Act) bool { return a.ID == b.ID })
}

// check returns an error unless this version understands the act.
func (a Act) check() error {
	switch {
	case a.Version < version:
		return fmt.Errorf("%w: version is missing", ErrInvalid)
	case !ulid.Valid(a.ID), !ulid.Valid(a.Thread):
		return fmt.Errorf("%w: id or thread is not a ULID", ErrInvalid)
	case a.Actor == "" || len(a.Actor) > maxActor || !utf8.ValidString(a.Actor):
		return fmt.Errorf("%w: invalid actor", ErrInvalid)
	case len(a.Text) > MaxText:
		return fmt.Errorf("%w: text is longer than %d KiB", ErrInvalid, MaxText>>10)
	case !utf8.ValidString(a.Text):
		return fmt.Errorf("%w: text is not UTF-8", ErrInvalid)
	case (a.Op == Open || a.Op == Reply) && strings.TrimSpace(a.Text) == "":
		return fmt.Errorf("%w: text is empty", ErrInvalid)
	}
	switch a.Op {
	case Open:
		if a.On == nil || a.Thread != a.ID {
			return fmt.Errorf("%w: place is missing, or thread is not the id", ErrInvalid)
		}
		return a.On.check()
	case Reply, Resolve, Reopen:
		return nil
	}
	return fmt.Errorf("%w: unknown operation %.20q", ErrInvalid, a.Op)
}

// check returns an error unless the fields of the place are consistent.
func (p Place) check() error {
	switch {
	case p.Checkpoint != "" && !ulid.Valid(p.Checkpoint):
		return fmt.Errorf("%w: checkpoint %.40q", ErrInvalid, p.Checkpoint)
	case len(p.Path) > maxPath, (p.Path == "") != (p.Blob == ""), (p.Path == "") != (p.Tree == ""):
		return fmt.Errorf("%w: path %.100q", ErrInvalid, p.Path)
	case p.Line < 0, p.End < p.Line, p.Line == 0 && p.End != 0, p.Line > 0 && p.Path == "":
		return fmt.Errorf("%w: lines %d to %d", ErrInvalid, p.Line, p.End)
	}
	return nil
}

// Merge returns the union of the lines of two annotations files, sorted by id. The result does not depend on the order
// of the arguments. Lines without an id, which this version does not understand, come first.
func Merge(a, b []byte) []byte {
	type keyed struct{ id, line string }
	var all []keyed
	for _, file := range [][]byte{a, b} {
		for line := range bytes.Lines(file) {
			line = bytes.TrimRight(line, "\r\n")
			if len(line) == 0 {
				continue
			}
			var k struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(line, &k) != nil {
				k.ID = ""
			}
			all = append(all, keyed{k.ID, string(line)})
		}
	}
	slices.SortFunc(all, func(x, y keyed) int {
		if c := strings.Compare(x.id, y.id); c != 0 {
			return c
		}
		return strings.Compare(x.line, y.line)
	})
	var out bytes.Buffer
	for _, k := range slices.Compact(all) {
		out.WriteString(k.line)
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// Append returns the contents of an annotations file with one more act, and the act. It sets the version, the id, the
// time, and for an act Open the thread of the act. The id sorts after all other ids in the file. Append returns
// ErrInvalid for an invalid act, ErrNoThread if the act refers to a thread that the file does not contain, and ErrFull
// if the result is larger than MaxFile.
func Append(file []byte, a Act, now time.Time) ([]byte, Act, error) {
	acts := Parse(file)
	var after session.CheckpointID
	if n := len(acts); n > 0 {
		after = session.CheckpointID(acts[n-1].ID)
	}
	a.Version, a.Time, a.ID = version, now.UTC().Truncate(time.Millisecond),
		string(session.NewCheckpointIDAfter(now, after))
	if a.Op == Open {
		a.Thread = a.ID
	} else if _, err := Find(Threads(acts), a.Thread); err != nil {
		return nil, a, err
	}
	if err := a.check(); err != nil {
		return nil, a, err
	}
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil {
		return nil, a, err
	}
	if len(file)+line.Len() > MaxFile {
		return nil, a, ErrFull
	}
	return Merge(file, line.Bytes()), a, nil
}

// Threads groups acts by thread, and returns the threads, oldest first. The parameter acts is sorted by id. Acts of
// threads that do not exist are skipped.
func Threads(acts []Act) []Thread {
	var all []Thread
	at := map[string]int{}
	for _, a := range acts {
		if a.Op == Open {
			at[a.ID] = len(all)
			all = append(all, Thread{ID: a.ID, On: *a.On})
		}
	}
	for _, a := range acts {
		i, ok := at[a.Thread]
		if !ok {
			continue
		}
		t := &all[i]
		t.Acts = append(t.Acts, a)
		switch a.Op {
		case Resolve:
			t.Resolved = true
		case Reopen:
			t.Resolved = false
		}
	}
	// If a clock was wrong, an act may have a lower id than the act that began its thread. Put the act Open first
	// anyway.
	for i := range all {
		slices.SortStableFunc(all[i].Acts, func(a, b Act) int { return opens(b) - opens(a) })
	}
	return all
}

// opens returns 1 if the act begins a thread, otherwise 0.
func opens(a Act) int {
	if a.Op == Open {
		return 1
	}
	return 0
}

// Find returns the thread that contains an act whose id begins with text. It returns ErrNoThread if there is no such
// thread, and ErrAmbiguous if there are several.
func Find(threads []Thread, text string) (Thread, error) {
	text = strings.ToUpper(text)
	var found []Thread
	for _, t := range threads {
		if text != "" && slices.ContainsFunc(t.Acts, func(a Act) bool { return strings.HasPrefix(a.ID, text) }) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return Thread{}, ErrNoThread
	case 1:
		return found[0], nil
	}
	return Thread{}, ErrAmbiguous
}

// Quote returns the beginning of the lines from number first to number last of a text, counted from 1, for the field
// Place.Quote.
func Quote(text []byte, first, last int) string {
	var lines []string
	n := 0
	for line := range bytes.Lines(text) {
		if n++; n >= first && n <= last && len(lines) < maxQuoteLines {
			lines = append(lines, strings.TrimRight(string(line), "\r\n"))
		}
	}
	quote := strings.Join(lines, "\n")
	return strings.ToValidUTF8(quote[:min(len(quote), maxQuote)], "")
}

// Lines returns the number of lines of a text. A last line without a newline counts.
func Lines(text []byte) int {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}
