package control

import (
	"context"
	"encoding/json"
	"time"
)

// SessionTranscriptRequest requests the transcript of a session.
type SessionTranscriptRequest struct {
	Of   string `json:"of"`             // directory of a mount, or name of a session
	Turn int    `json:"turn,omitempty"` // number of the turn whose records are returned; 0: all turns
	// head of the previous reply; if nothing was recorded since then, no records are returned
	Head string `json:"head,omitempty"`

	// Memory requests the memory of agents, in pages, instead of the records.
	Memory bool   `json:"memory,omitempty"`
	After  string `json:"after,omitempty"` // next of the reply with the page before; "": the first page
}

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r SessionTranscriptRequest) needs() []string { return needsMemory(r.Memory) }

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r SessionRecordRequest) needs() []string { return needsMemory(r.Memory) }

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r SessionEraseRequest) needs() []string {
	if len(r.Except) > 0 {
		return []string{"except"}
	}
	return nil
}

// needsMemory returns the name of the field memory if it is set. A daemon without it would mix memory and records.
func needsMemory(set bool) []string {
	if set {
		return []string{"memory"}
	}
	return nil
}

// SessionTranscriptReply is the output of `session transcript --json`, which prints one record per line.
type SessionTranscriptReply struct {
	Session string             `json:"session"` // name of the session
	Head    string             `json:"head"`    // commit of the transcript; "": nothing was recorded
	Turns   int                `json:"turns"`   // number of the last turn
	Records []TranscriptRecord `json:"records"` // records, oldest first; of memory, in no order
	// only of memory: the value for after with which the next page is requested; "": there is none
	Next string `json:"next,omitempty"`
}

// TranscriptRecord is one record of a transcript, or the tombstone of an erased record.
type TranscriptRecord struct {
	ID         string          `json:"id"`               // id of the record
	Time       time.Time       `json:"time"`             // time of the recording
	Checkpoint string          `json:"checkpoint"`       // newest checkpoint at that time; "": there was no checkpoint
	Session    string          `json:"session"`          // name of the session
	Lane       string          `json:"lane"`             // chain of checkpoints of the writer
	Actor      string          `json:"actor"`            // user or program that made the record
	Turn       int             `json:"turn"`             // number of the turn, counted from 1; 0: before the first turn
	Begins     bool            `json:"begins"`           // true if the record is the first of its turn
	Record     json.RawMessage `json:"record,omitempty"` // the recorded JSON object; missing: it was erased
	Erased     *Erased         `json:"erased,omitempty"` // tombstone, if the record was erased
}

// PlacedMemory describes a conversation of an agent from the memory of a session.
type PlacedMemory struct {
	Agent        string `json:"agent"`        // "claude" or "codex"
	Conversation string `json:"conversation"` // name that the agent has given to the conversation
	// placed: the file did not exist; extended: it had the beginning of the conversation; current: it had all of it;
	// newer: it is longer or different, and was not changed
	Outcome string `json:"outcome"`
	Title   string `json:"title,omitempty"`   // beginning of the first prompt
	Dir     string `json:"dir"`               // directory in which the agent continues the conversation
	File    string `json:"file"`              // file of the agent
	Partial bool   `json:"partial,omitempty"` // whether lines are missing: too large, erased or expired
	// whether this host has another version, and stores no more
	Diverged bool     `json:"diverged,omitempty"`
	Command  []string `json:"command"` // command that continues the conversation
}

// Erased is the tombstone of an erased record.
type Erased struct {
	Time time.Time `json:"time"`          // time of the erasure
	By   string    `json:"by"`            // user or program that erased the record
	Why  string    `json:"why,omitempty"` // reason of the erasure
}

// SessionEraseRequest requests that records of a transcript are erased permanently.
type SessionEraseRequest struct {
	Of      string    `json:"of"`                // directory of a mount, or name of a session
	Before  time.Time `json:"before"`            // records older than this time are erased; the zero time: none
	Except  []string  `json:"except,omitempty"`  // names of sessions of which Before selects no records
	Records []string  `json:"records,omitempty"` // ids of further records to erase
	Why     string    `json:"why,omitempty"`     // reason, which is stored in the tombstones
	Actor   string    `json:"actor,omitempty"`   // user or program that requested the erasure; "": user@host
}

// SessionEraseReply is the output of `session erase --json`.
type SessionEraseReply struct {
	Session string   `json:"session"` // name of the session
	Erased  []string `json:"erased"`  // ids of the erased records
	Bytes   int64    `json:"bytes"`   // number of bytes that became free on this host
	// number of lines that were erased from the memory of agents
	Memory int64 `json:"memory"`
}

// SessionFactsRequest requests changes of the facts and the handoff of a session, and the facts and handoff after these
// changes.
type SessionFactsRequest struct {
	Of      string   `json:"of"`                // directory of a mount, or name of a session
	Add     []string `json:"add,omitempty"`     // texts of new facts
	Remove  string   `json:"remove,omitempty"`  // id of the fact to remove
	Handoff *string  `json:"handoff,omitempty"` // new handoff; null: the handoff is not changed
	Actor   string   `json:"actor,omitempty"`   // author of the changes; "": user@host
}

// SessionFactsReply is the output of `session fact list --json`.
type SessionFactsReply struct {
	Session  string `json:"session"`  // name of the session
	Facts    []Fact `json:"facts"`    // facts, oldest first
	Handoff  string `json:"handoff"`  // text that describes the state of the session
	Redacted int64  `json:"redacted"` // number of secrets that were removed from the new texts
}

// Fact is a short text for users who resume a session.
type Fact struct {
	ID   string    `json:"id"`   // id of the fact
	Time time.Time `json:"time"` // time at which the fact was added
	By   string    `json:"by"`   // author
	Text string    `json:"text"` // text of the fact
}

func (r SessionTranscriptRequest) validate() error { return needOf(r.Of) }

// validate returns an error if the session is invalid, or if the request selects no records.
func (r SessionEraseRequest) validate() error {
	if r.Before.IsZero() && len(r.Records) == 0 {
		return badRequest("records to erase are missing: want a time or record IDs")
	}
	return needOf(r.Of)
}
func (r SessionFactsRequest) validate() error { return needOf(r.Of) }

// Changes reports whether the request changes anything.
func (r SessionFactsRequest) Changes() bool {
	return len(r.Add) > 0 || r.Remove != "" || r.Handoff != nil
}

// SessionTranscript returns the transcript of a session.
func (c *Client) SessionTranscript(ctx context.Context, r SessionTranscriptRequest) (SessionTranscriptReply, error) {
	return call[SessionTranscriptReply](ctx, c, opSessionTranscript, r, nil)
}

// SessionErase erases records of a transcript permanently.
func (c *Client) SessionErase(ctx context.Context, r SessionEraseRequest) (SessionEraseReply, error) {
	return call[SessionEraseReply](ctx, c, opSessionErase, r, nil)
}

// SessionFacts changes the facts and the handoff of a session, and returns the resulting facts and handoff.
func (c *Client) SessionFacts(ctx context.Context, r SessionFactsRequest) (SessionFactsReply, error) {
	return call[SessionFactsReply](ctx, c, opSessionFacts, r, nil)
}

// SessionNoteRequest requests that a git note is written on a commit.
type SessionNoteRequest struct {
	Dir    string          `json:"dir"`    // absolute directory of the mount, or a directory in it
	Commit string          `json:"commit"` // name of a commit or of a checkpoint: "@", "@~N", an id or "turn:N"; "": HEAD
	Ref    string          `json:"ref"`    // notes ref; "agent" and "": refs/notes/agent
	JSON   json.RawMessage `json:"json"`   // value of any type, which becomes the text of the note
}

// SessionNoteReply is the output of `session note --json`.
type SessionNoteReply struct {
	Commit   string `json:"commit"`   // id of the commit
	Ref      string `json:"ref"`      // full name of the notes ref
	Note     string `json:"note"`     // id of the note's blob
	Redacted int64  `json:"redacted"` // number of secrets that were removed from the note
}

// SessionRecordRequest requests that records are appended to the transcript of the mount at Dir.
type SessionRecordRequest struct {
	Dir   string   `json:"dir"`   // absolute directory of the mount, or a directory in it
	Lines []string `json:"lines"` // records, one JSON object each
	// whether the records are the memory of an agent, which is not shown with the other records
	Memory bool `json:"memory,omitempty"`
}

// SessionRecordReply is the output of `session record --json`.
type SessionRecordReply struct {
	Ref        string `json:"ref"`        // full name of the ref that stores the transcript
	Checkpoint string `json:"checkpoint"` // checkpoint that was the newest when the records were appended
	Lines      int64  `json:"lines"`      // number of records
	Redacted   int64  `json:"redacted"`   // number of secrets that were removed from the records
}

func (r SessionNoteRequest) validate() error   { return needDir(r.Dir) }
func (r SessionRecordRequest) validate() error { return needDir(r.Dir) }
