package control

import (
	"context"
	"encoding/json"
	"time"
)

// SessionTranscriptRequest requests the transcript of a session.
type SessionTranscriptRequest struct {
	Of   string `json:"of"`
	Turn int    `json:"turn,omitempty"` // that turn alone; 0: all
	Head string `json:"head,omitempty"` // of the reply before: while nothing was added there are no records; "": there was none
}

// SessionTranscriptReply is printed by `session transcript --json`, one line for each record.
type SessionTranscriptReply struct {
	Session string             `json:"session"`
	Head    string             `json:"head"`  // commit of the transcript; "": nothing was recorded
	Turns   int                `json:"turns"` // number of the last one
	Records []TranscriptRecord `json:"records"`
}

// TranscriptRecord is one record of a transcript.
type TranscriptRecord struct {
	ID         string          `json:"id"`
	Time       time.Time       `json:"time"`
	Checkpoint string          `json:"checkpoint" v5:"point"` // the newest checkpoint then; "": there was none
	Session    string          `json:"session"`
	Lane       string          `json:"lane"`
	Actor      string          `json:"actor"`
	Turn       int             `json:"turn"`   // of the record, from 1 on; 0: before the first turn
	Begins     bool            `json:"begins"` // it is the first of its turn
	Record     json.RawMessage `json:"record,omitempty"`
	Erased     *Erased         `json:"erased,omitempty"` // the record is gone
}

// Erased is the tombstone of a record.
type Erased struct {
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	Why  string    `json:"why,omitempty"`
}

// SessionEraseRequest asks to erase records of a transcript for good.
type SessionEraseRequest struct {
	Of      string    `json:"of"`
	Before  time.Time `json:"before"`            // records that are older; zero: none for their age
	Records []string  `json:"records,omitempty"` // and those with these ids
	Why     string    `json:"why,omitempty"`     // is kept
	Actor   string    `json:"actor,omitempty"`
}

// SessionEraseReply is the output of `session erase --json`.
type SessionEraseReply struct {
	Session string   `json:"session"`
	Erased  []string `json:"erased"` // ids
	Bytes   int64    `json:"bytes"`  // that became free on this host
}

// SessionFactsRequest asks for the facts and the handoff of a session, after changing them.
type SessionFactsRequest struct {
	Of      string   `json:"of"`
	Add     []string `json:"add,omitempty"`
	Remove  string   `json:"remove,omitempty"`  // id of a fact
	Handoff *string  `json:"handoff,omitempty"` // the new handoff; null: unchanged
	Actor   string   `json:"actor,omitempty"`
}

// SessionFactsReply is the output of `session fact list --json`.
type SessionFactsReply struct {
	Session  string `json:"session"`
	Facts    []Fact `json:"facts"` // oldest first
	Handoff  string `json:"handoff"`
	Redacted int64  `json:"redacted"` // secrets that were removed from the added facts
}

// Fact is a statement that the next person or agent to work in a session needs.
type Fact struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	Text string    `json:"text"`
}

func (r SessionTranscriptRequest) validate() error { return needOf(r.Of) }

// validate reports a session name that is not valid, and a request that names nothing to erase.
func (r SessionEraseRequest) validate() error {
	if r.Before.IsZero() && len(r.Records) == 0 {
		return badRequest("nothing is named that is to be erased")
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

// SessionErase erases records of a transcript.
func (c *Client) SessionErase(ctx context.Context, r SessionEraseRequest) (SessionEraseReply, error) {
	return call[SessionEraseReply](ctx, c, opSessionErase, r, nil)
}

// SessionFacts changes the facts of a session, and returns them.
func (c *Client) SessionFacts(ctx context.Context, r SessionFactsRequest) (SessionFactsReply, error) {
	return call[SessionFactsReply](ctx, c, opSessionFacts, r, nil)
}

// SessionNoteRequest asks to write a git note on a commit.
type SessionNoteRequest struct {
	Dir    string          `json:"dir"`
	Commit string          `json:"commit"` // as git names commits; "" is HEAD; "@", "@~N", a checkpoint's id or "turn:N": that checkpoint
	Ref    string          `json:"ref"`    // "agent", the default of a Client, is refs/notes/agent
	JSON   json.RawMessage `json:"json"`
}

// SessionNoteReply is the output of `session note --json`.
type SessionNoteReply struct {
	Commit   string `json:"commit"`
	Ref      string `json:"ref"`
	Note     string `json:"note"`     // blob id
	Redacted int64  `json:"redacted"` // secrets that were taken out
}

// SessionRecordRequest appends to the transcript of the mount at Dir.
type SessionRecordRequest struct {
	Dir   string   `json:"dir"`
	Lines []string `json:"lines"` // a JSON object each
}

// SessionRecordReply is the output of `session record --json`.
type SessionRecordReply struct {
	Ref        string `json:"ref"`
	Checkpoint string `json:"checkpoint" v5:"point"` // that the records belong to
	Lines      int64  `json:"lines"`
	Redacted   int64  `json:"redacted"`
}

func (r SessionNoteRequest) validate() error   { return needDir(r.Dir) }
func (r SessionRecordRequest) validate() error { return needDir(r.Dir) }
