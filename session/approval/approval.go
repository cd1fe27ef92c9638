// Package approval defines the approvals of a session, and the policy that states which changes need approvals. Clients
// and the server use this package to parse and check the records of approvals, and to decide whether a change is
// allowed. Package reffile reads and writes the files on a session remote.
//
// An approval is bound to content: to the tree that will be the new state of a branch, to the commit of the session
// that was reviewed, to the commit of the branch at that time (the base), and to the action. A request names these;
// grants and denials refer to the request. If one of these changes, the approval is no longer valid and a new request
// is necessary.
//
// The records of a session are lines of JSON in the file LogFile of the ref Ref(SESSION), oldest first. Each record
// contains the hash of the previous line, so a changed or removed line is detected. A server also checks each pushed
// line: its actor and token must be those of the push, and the push must not change or remove older lines.
package approval

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/ulid"
)

// LogFile is the name of the file with the records, in the tree of Ref's commit.
const LogFile = "approvals.jsonl"

const (
	version    = 1
	maxText    = 64 << 10 // maximum size in bytes of the text of a record
	maxNames   = 100      // maximum number of reviewers
	maxName    = 200      // maximum size in bytes of the name of an actor
	maxRecords = 10000    // maximum number of records of a session
)

// ErrLog means that the records of a session are damaged or were changed.
var ErrLog = errors.New("invalid approval records")

// Ref returns the name of the ref with the approvals of a session.
func Ref(name string) string { return Prefix + name }

// Prefix is the beginning of the names of the refs with approvals.
const Prefix = session.Prefix + "approvals/"

// Action is the act that needs an approval.
type Action string

const (
	Merge   Action = "merge"   // merge of the session into a branch of the same repository
	Promote Action = "promote" // push of the session's commits to a branch, usually of another repository
	Delete  Action = "delete"  // deletion of the session
)

// Op is the kind of a record.
type Op string

const (
	Request  Op = "request"
	Grant    Op = "grant"
	Deny     Op = "deny"
	Withdraw Op = "withdraw" // takes back a request, or the actor's own grant or denial of it
)

// Subject is the content to which an approval is bound.
type Subject struct {
	Action     Action `json:"action"`
	Checkpoint string `json:"checkpoint,omitempty"` // checkpoint that was reviewed
	Files      string `json:"files,omitempty"`      // tree of that checkpoint; "" in records of older versions
	Tree       string `json:"tree"`                 // tree of the branch after the change, or of the checkpoint to delete
	Target     string `json:"target,omitempty"`     // full name of the branch; "" for Delete
	// commit of the branch before the change; "" if the branch does not exist
	Base string `json:"base,omitempty"`
	// Commit is HEAD of the checkpoint, whose history was reviewed with the tree; "" if there was no commit, and in
	// records of older versions.
	Commit string `json:"commit,omitempty"`
}

// Reviews sets the checkpoint that is reviewed.
func (s *Subject) Reviews(p session.Checkpoint) {
	s.Checkpoint, s.Files, s.Commit = string(p.ID), p.Tree.String(), headOf(p)
}

// VoidedBy reports whether newest, the newest checkpoint of the session, makes the request void: whether it has other
// files, or another commit as HEAD, than the checkpoint that was reviewed. A request of an older version does not name
// files and commit, so any newer checkpoint makes it void. newest is zero if the session has no checkpoint that can be
// read.
func (s Subject) VoidedBy(newest session.Checkpoint) bool {
	return s.Checkpoint != "" && string(newest.ID) > s.Checkpoint &&
		(s.Files == "" || newest.Tree.String() != s.Files || headOf(newest) != s.Commit)
}

// headOf returns the id of the HEAD commit of a checkpoint, "" if the checkpoint has none.
func headOf(p session.Checkpoint) string {
	if p.Head.IsZero() {
		return ""
	}
	return p.Head.String()
}

// Record is an entry of the approvals of a session: a request, or a grant, denial or withdrawal. It is stored as one
// line of the file LogFile.
type Record struct {
	Version int    `json:"v"`
	ID      string `json:"id"` // ULID
	// SHA-256 of the previous line without its newline, in hexadecimal; "" for the first line
	Prev    string    `json:"prev"`
	Time    time.Time `json:"time"`
	Session string    `json:"session"`
	Op      Op        `json:"op"`
	Actor   string    `json:"actor"` // user who made the record
	// id of the token of the server with which it was pushed; "" on other remotes
	Token string `json:"token,omitempty"`
	Text  string `json:"text,omitempty"` // reason, as a text for people

	Request string `json:"request,omitempty"` // id of the request, for the other kinds of records

	// The fields below are set for requests only.
	Subject   *Subject  `json:"subject,omitempty"`
	Reviewers []string  `json:"reviewers,omitempty"` // users who are asked; the policy decides who may grant
	Expires   time.Time `json:"expires,omitzero"`
}

// Log contains the records of a session, oldest first.
type Log struct {
	Session string
	Records []Record
	last    string // hash of the last line
}

// ParseLog parses the file with the approvals of a session, and checks that each record contains the hash of the
// previous line. It returns errors that wrap ErrLog.
func ParseLog(name string, file []byte) (Log, error) {
	l := Log{Session: name}
	for len(file) > 0 {
		line, rest, ended := bytes.Cut(file, []byte("\n"))
		if !ended {
			return l, fmt.Errorf("%w: line %d does not end with a newline", ErrLog, len(l.Records)+1)
		}
		if err := l.add(line); err != nil {
			return l, fmt.Errorf("%w: line %d: %w", ErrLog, len(l.Records)+1, err)
		}
		file = rest
	}
	return l, nil
}

// add parses a line, checks it, and appends its record to the log.
func (l *Log) add(line []byte) error {
	var r Record
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("line has more than one JSON object")
	}
	if r.Prev != l.last {
		return errors.New("hash of the previous line does not match")
	}
	if err := l.check(r); err != nil {
		return err
	}
	l.Records = append(l.Records, r)
	l.last = hash(line)
	return nil
}

// check returns an error if a record cannot be the next record of the log.
func (l *Log) check(r Record) error {
	switch {
	case len(l.Records) == maxRecords:
		return fmt.Errorf("more than %d records", maxRecords)
	case r.Version != version:
		return fmt.Errorf("version %d of the format is not known", r.Version)
	case r.Session != l.Session:
		return fmt.Errorf("record is for session %.100q", r.Session)
	case !ulid.Valid(r.ID):
		return fmt.Errorf("invalid id %.40q", r.ID)
	case l.find(r.ID) != nil:
		return fmt.Errorf("id %s occurs twice", r.ID)
	case r.Time.IsZero():
		return errors.New("time is missing")
	case !validName(r.Actor):
		return errors.New("invalid actor")
	case len(r.Text) > maxText || !utf8.ValidString(r.Text):
		return errors.New("invalid text")
	}
	if r.Op == Request {
		return r.checkRequest()
	}
	request := l.find(r.Request)
	switch {
	case r.Op != Grant && r.Op != Deny && r.Op != Withdraw:
		return fmt.Errorf("unknown op %.40q", r.Op)
	case r.Subject != nil || len(r.Reviewers) > 0 || !r.Expires.IsZero():
		return fmt.Errorf("%s has fields of a request", r.Op)
	case request == nil || request.Op != Request:
		return fmt.Errorf("no request with the id %.40q", r.Request)
	}
	return nil
}

// checkRequest checks the fields of a request.
func (r Record) checkRequest() error {
	switch s := r.Subject; {
	case r.Request != "":
		return errors.New("request refers to another request")
	case s == nil:
		return errors.New("request has no subject")
	case len(r.Reviewers) > maxNames:
		return fmt.Errorf("request has more than %d reviewers", maxNames)
	case !r.Expires.After(r.Time):
		return errors.New("request expires before it begins")
	case s.Action != Merge && s.Action != Promote && s.Action != Delete:
		return fmt.Errorf("unknown action %.40q", s.Action)
	case !object.ValidID(s.Tree):
		return fmt.Errorf("invalid tree %.70q", s.Tree)
	case s.Base != "" && !object.ValidID(s.Base):
		return fmt.Errorf("invalid base %.70q", s.Base)
	case s.Commit != "" && !object.ValidID(s.Commit):
		return fmt.Errorf("invalid commit %.70q", s.Commit)
	case s.Checkpoint != "" && !ulid.Valid(s.Checkpoint):
		return fmt.Errorf("invalid checkpoint %.40q", s.Checkpoint)
	case s.Files != "" && !object.ValidID(s.Files):
		return fmt.Errorf("invalid files %.70q", s.Files)
	case s.Action == Delete && (s.Target != "" || s.Base != "" || s.Checkpoint == ""):
		return errors.New("request for a deletion names a branch, or names no checkpoint")
	case s.Action != Delete && (!refname.Valid(s.Target) || !strings.HasPrefix(s.Target, "refs/heads/")):
		return fmt.Errorf("invalid branch %.200q", s.Target)
	}
	for _, name := range r.Reviewers {
		if !validName(name) {
			return fmt.Errorf("invalid reviewer %.100q", name)
		}
	}
	return nil
}

func validName(name string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return name != "" && len(name) <= maxName && utf8.ValidString(name) && !strings.ContainsFunc(name, control)
}

// find returns the record with the id, or nil if the log does not contain it.
func (l *Log) find(id string) *Record {
	for i := range l.Records {
		if l.Records[i].ID == id {
			return &l.Records[i]
		}
	}
	return nil
}

// Find returns the request whose id begins with text. It returns false if there is no such request, or more than one.
func (l *Log) Find(text string) (found Record, ok bool) {
	text = strings.ToUpper(text)
	for _, r := range l.Records {
		if r.Op == Request && text != "" && strings.HasPrefix(r.ID, text) {
			if ok {
				return Record{}, false
			}
			found, ok = r, true
		}
	}
	return found, ok
}

// Append returns the contents of the file with one more record, and the record. It sets Version, ID, Prev and Session
// of the record, and the time if it is zero.
func (l *Log) Append(file []byte, r Record, now time.Time) ([]byte, Record, error) {
	r.Version, r.Prev, r.Session = version, l.last, l.Session
	after := session.CheckpointID("")
	if n := len(l.Records); n > 0 {
		after = session.CheckpointID(l.Records[n-1].ID)
	}
	r.ID = string(session.NewCheckpointIDAfter(now, after))
	if r.Time.IsZero() {
		r.Time = now.UTC().Truncate(time.Millisecond)
	}
	line, err := json.Marshal(r)
	if err != nil {
		return nil, r, err
	}
	if err := l.add(line); err != nil {
		return nil, r, err
	}
	return append(append(bytes.Clone(file), line...), '\n'), r, nil
}

// Person returns the name of a user as git writes it in commits: without the characters that git does not allow in a
// name. It returns "unknown" if no character remains.
func Person(actor string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '<' || r == '>' {
			return -1
		}
		return r
	}, actor)
	return cmp.Or(strings.Trim(clean, " .,:;\"'"), "unknown") // git removes these characters, and refuses an empty name
}

// Address returns the mail address of a user for a commit. If the actor's name is not an address, the result is an
// address at the host artifactfs.invalid, which cannot exist.
func Address(actor string) string {
	if strings.Contains(actor, "@") {
		return Person(actor)
	}
	return Person(strings.ReplaceAll(actor, " ", ".") + "@artifactfs.invalid")
}

func hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}
