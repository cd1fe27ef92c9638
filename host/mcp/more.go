package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/session"
)

// defaultRecords is the number of records that the tool transcript returns unless its arguments state another.
const defaultRecords = 50

// The arguments of the tools that a server offers if the user chooses them.
type (
	noteInput struct {
		Note   map[string]any `json:"note" jsonschema:"JSON object to write; its members are merged into an existing note"`
		Commit string         `json:"commit,omitempty" jsonschema:"commit to annotate, as git names it; default HEAD"`
		Ref    string         `json:"ref,omitempty" jsonschema:"name below refs/notes; default agent"`
	}
	transcriptInput struct {
		Records []map[string]any `json:"records,omitempty" jsonschema:"objects to append, such as a turn; default: read the transcript"`
		Turn    int              `json:"turn,omitempty" jsonschema:"read only this turn, counted from 1; default: all turns"`
		Limit   int              `json:"limit,omitempty" jsonschema:"maximum number of records to read, the newest; default 50"`
	}
	compareInput struct {
		With []string `json:"with" jsonschema:"sessions: SESSION, SESSION@CHECKPOINT, URL#session=SESSION@CHECKPOINT, or @~1 of this one"`
		From string   `json:"from,omitempty" jsonschema:"checkpoint of this session to compare; default: the newest"`
	}
	requestInput struct {
		For       string   `json:"for" jsonschema:"what is to be approved: merge (into a branch of the session remote), promote or delete"`
		Branch    string   `json:"branch,omitempty" jsonschema:"branch that will change; default: the default branch of the repository"`
		To        string   `json:"to,omitempty" jsonschema:"for promote: URL of the repository that has the branch"`
		Reviewers []string `json:"reviewers,omitempty" jsonschema:"users who are asked to approve"`
		Message   string   `json:"message,omitempty" jsonschema:"text for the reviewers"`
	}
	approvalsInput struct {
		To string `json:"to,omitempty" jsonschema:"URL of the repository whose requests are listed; default: the session remote"`
	}
	annotateInput struct {
		Text       string `json:"text,omitempty" jsonschema:"the comment; may be empty to resolve or reopen a thread"`
		Path       string `json:"path,omitempty" jsonschema:"file to comment on, relative to the root of the mount; default: no file"`
		Line       int    `json:"line,omitempty" jsonschema:"first line of the file to comment on, counted from 1"`
		End        int    `json:"end,omitempty" jsonschema:"last line; default: the same line"`
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint to comment on; default for a file: the working tree as it is now"`
		Commit     string `json:"commit,omitempty" jsonschema:"commit to comment on"`
		Thread     string `json:"thread,omitempty" jsonschema:"ID of the thread to add to; default: begin a new thread"`
		State      string `json:"state,omitempty" jsonschema:"resolve or reopen: change the state of the thread"`
	}
	annotationsInput struct {
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint in which files and lines are looked up; default: the newest"`
		Path       string `json:"path,omitempty" jsonschema:"list only comments on this file, or on files in this directory"`
		All        bool   `json:"all,omitempty" jsonschema:"also list resolved threads"`
	}
	promoteInput struct {
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint whose HEAD is promoted; default: the present HEAD"`
		Branch     string `json:"branch,omitempty" jsonschema:"branch of the mounted remote; default: the branch that was mounted"`
		Method     string `json:"method,omitempty" jsonschema:"ff (default), squash or merge"`
		Message    string `json:"message,omitempty" jsonschema:"message of the new commit of squash and merge; default: a list of the commits"`
		DryRun     bool   `json:"dry_run,omitempty" jsonschema:"push nothing, return what would be pushed"`
	}
	prefetchInput struct {
		Paths []string `json:"paths,omitempty" jsonschema:"paths, directories or patterns relative to the root of the mount; default: everything"`
		Wait  bool     `json:"wait,omitempty" jsonschema:"return when the contents are on this host"`
	}
)

// transcriptOutput is the result of the tool transcript. After records were appended it has the members of
// control.SessionRecordReply; otherwise it has the records that were read.
type transcriptOutput struct {
	Ref        string             `json:"ref,omitempty"`
	Checkpoint string             `json:"checkpoint,omitempty"` // checkpoint that the appended records belong to
	Lines      int64              `json:"lines"`                // number of records that were appended
	Redacted   int64              `json:"redacted"`             // number of secrets that were removed from them
	Turns      int                `json:"turns,omitempty"`      // number of the last turn
	Records    []transcriptRecord `json:"records,omitempty"`    // records that were read, oldest first
	More       bool               `json:"more,omitempty"`       // there are older records
}

// transcriptRecord is one record of a transcript. Record is missing if the record was erased.
type transcriptRecord struct {
	ID         string `json:"id"`
	Time       string `json:"time"`
	Checkpoint string `json:"checkpoint"` // newest checkpoint when the record was appended
	Actor      string `json:"actor"`
	Turn       int    `json:"turn"`
	Record     any    `json:"record,omitempty"`
	Erased     bool   `json:"erased,omitempty"`
}

// appendRecords appends records to the transcript of a session.
func appendRecords(ctx context.Context, w Session, records []map[string]any) (transcriptOutput, error) {
	lines := make([]string, 0, len(records))
	for _, record := range records {
		line, err := json.Marshal(record)
		if err != nil {
			return transcriptOutput{}, fmt.Errorf("encode record: %w", err)
		}
		lines = append(lines, string(line))
	}
	// The daemon removes secrets and links the records to the newest checkpoint.
	r, err := w.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: w.Mount.Dir, Lines: lines})
	return transcriptOutput{Ref: r.Ref, Checkpoint: r.Checkpoint, Lines: r.Lines, Redacted: r.Redacted}, err
}

// readRecords returns the newest records of the transcript of a session.
func readRecords(ctx context.Context, w Session, in transcriptInput) (out transcriptOutput, err error) {
	r, err := w.Client.SessionTranscript(ctx, control.SessionTranscriptRequest{Of: w.Mount.Dir, Turn: in.Turn})
	if err != nil {
		return out, err
	}
	if in.Limit <= 0 {
		in.Limit = defaultRecords
	}
	// The daemon returns all records. An agent usually needs the newest records, so only these are returned.
	out.Turns, out.More = r.Turns, len(r.Records) > in.Limit
	// Records are in order of time, so the newest are at the end.
	for _, t := range r.Records[max(0, len(r.Records)-in.Limit):] {
		record := transcriptRecord{ID: t.ID, Time: t.Time.Format(time.RFC3339Nano), Checkpoint: t.Checkpoint, Actor: t.Actor,
			Turn: t.Turn, Erased: t.Erased != nil}
		if len(t.Record) > 0 {
			if err := json.Unmarshal(t.Record, &record.Record); err != nil {
				return out, fmt.Errorf("decode record %s: %w", t.ID, err)
			}
		}
		out.Records = append(out.Records, record)
	}
	return out, nil
}

// compare compares a checkpoint of this session with other checkpoints and sessions, each named by one of in.With.
func compare(ctx context.Context, w Session, in compareInput) (reply control.SessionCompareReply, err error) {
	r := control.SessionCompareRequest{Dir: w.Mount.Dir, Sides: []control.CompareSide{{Of: w.Mount.Dir, ID: in.From}}}
	for _, word := range in.With {
		link, isLink, err := sessionlink.Parse(word)
		if err != nil {
			return reply, err
		}
		side := control.CompareSide{Of: link.Session, SessionRemote: link.Remote, ID: link.Checkpoint}
		if !isLink {
			// A word that is not a link is SESSION, SESSION@CHECKPOINT, or a checkpoint of this session that begins with "@".
			switch side.Of, side.ID = sessionlink.Split(word); {
			case side.Of == "" && strings.HasPrefix(word, "@"):
				side.Of = w.Mount.Dir
			case side.Of == "":
				side.Of, side.ID = word, ""
			}
		}
		r.Sides = append(r.Sides, side)
	}
	return w.Client.SessionCompare(ctx, r)
}

// requestApproval pushes the session and asks for an approval.
func requestApproval(ctx context.Context, w Session, in requestInput) (reply control.SessionApproveReply, err error) {
	_, err = w.Client.Sync(ctx, control.SyncRequest{Dir: w.Mount.Dir}, nil)
	// A refused branch does not prevent the request; the daemon checks that the newest checkpoint was pushed.
	if e := control.AsError(err); err != nil && e.Code != control.ExitUnsynced {
		return reply, err
	}
	return w.Client.SessionApprove(ctx, control.SessionApproveRequest{Of: w.Mount.Dir, Op: control.ApproveRequest,
		Action: in.For,
		Branch: in.Branch, To: in.To, Reviewers: in.Reviewers, Text: in.Message, Actor: session.Actor()})
}

// comment begins a thread of annotations, or adds to one.
func comment(ctx context.Context, w Session, in annotateInput) (control.SessionAnnotateReply, error) {
	r := control.SessionAnnotateRequest{Of: w.Mount.Dir, Op: in.State, Thread: in.Thread, ID: in.Checkpoint,
		Commit: in.Commit, Path: in.Path,
		Line: in.Line, End: in.End, Text: in.Text, Actor: session.Actor()}
	switch {
	case r.Op == "" && r.Thread == "":
		r.Op = control.AnnotateOpen
	case r.Op == "":
		r.Op = control.AnnotateReply
	}
	return w.Client.SessionAnnotate(ctx, r)
}

// moreTools returns the tools that a server offers if the user chooses them, without those of cache entries and locks.
func moreTools() []tool {
	leaves := &sdk.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(true)}
	fetches := &sdk.ToolAnnotations{DestructiveHint: new(false), IdempotentHint: true, OpenWorldHint: new(true)}
	replaces := &sdk.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)}
	return []tool{
		of(sdk.Tool{Name: "compare", Annotations: looks(),
			Description: "Compare this session with other sessions: the changes of each, and for each path that two or " +
				"more changed, whether the changes are the same, merge cleanly, or conflict. Changes nothing."}, compare),
		of(sdk.Tool{Name: toolPromote, Annotations: leaves,
			Description: "Push this session's commits to a branch of the repository that is mounted. Ask the user first, " +
				"and use dry_run to show what would be pushed. Changes that are not committed are an error. Commits are " +
				"never overwritten: if the branch has others, the methods squash and merge merge them, and conflicts are an " +
				"error."}, promote),
		of(sdk.Tool{Name: "note", Annotations: adds(),
			Description: "Write a JSON object as a git note on a commit (git log --notes=agent shows it). Secrets are " +
				"removed before it is written."}, note),
		of(sdk.Tool{Name: "annotate", Annotations: adds(),
			Description: "Comment on the session, a checkpoint, a commit, a file or lines of a file, for reviewers and " +
				"other agents; answer, resolve or reopen a thread of comments. Comments on lines follow renames and later " +
				"edits. Secrets are removed before it is written."}, comment),
		of(sdk.Tool{Name: "annotations", Annotations: looks(),
			Description: "List the threads of comments on the session that are not resolved, each with the place where " +
				"its lines are now."}, annotations),
		of(sdk.Tool{Name: "transcript", Annotations: adds(),
			Description: "Append records to the session's transcript, linked to the newest checkpoint; secrets are " +
				"removed before they are written. Without records, return the transcript: all records by turn, oldest " +
				"first."}, transcript),
		of(sdk.Tool{Name: "request_approval", Annotations: leaves,
			Description: "Ask people to approve the merge, the promotion or the deletion of this session. Pushes the " +
				"session first. All changes must be committed with git, except for a deletion. The approval is for the " +
				"present files only: other files or commits void the request. Returns the request with a link that reviewers " +
				"need; give it to the user."}, requestApproval),
		of(sdk.Tool{Name: "approvals", Annotations: looks(),
			Description: "List the requests for approval of this session, newest first, with their status: open, granted, " +
				"denied, withdrawn, expired, or void because the session was changed."}, approvals),
		of(sdk.Tool{Name: "undo", Annotations: replaces,
			Description: "Restore the files that one tool call or turn of an agent has changed to their state before it. " +
				"Fails if somebody else has changed some of these files since, unless others is given. Can be redone."},
			takeBack),
		of(sdk.Tool{Name: "prefetch", Annotations: fetches,
			Description: "Fetch file contents from the remote before they are read."}, prefetch),
	}
}

func promote(ctx context.Context, w Session, in promoteInput) (control.SessionPromoteReply, error) {
	return control.SessionPromote(ctx, w.Client, control.SessionPromoteRequest{Of: w.Mount.Dir, ID: in.Checkpoint,
		Branch: in.Branch, Method: control.PromoteMethod(in.Method), Message: in.Message, Identity: control.Identity(),
		DryRun: in.DryRun})
}

func note(ctx context.Context, w Session, in noteInput) (control.SessionNoteReply, error) {
	text, err := json.Marshal(in.Note)
	if err != nil {
		return control.SessionNoteReply{}, fmt.Errorf("encode note: %w", err)
	}
	r := control.SessionNoteRequest{Dir: w.Mount.Dir, Commit: in.Commit, Ref: in.Ref, JSON: text}
	return w.Client.SessionNote(ctx, r)
}

func annotations(ctx context.Context, w Session, in annotationsInput) (control.SessionAnnotationsReply, error) {
	r := control.SessionAnnotationsRequest{Of: w.Mount.Dir, ID: in.Checkpoint, Path: in.Path, All: in.All}
	return w.Client.SessionAnnotations(ctx, r)
}

func transcript(ctx context.Context, w Session, in transcriptInput) (transcriptOutput, error) {
	if len(in.Records) > 0 {
		return appendRecords(ctx, w, in.Records)
	}
	return readRecords(ctx, w, in)
}

func approvals(ctx context.Context, w Session, in approvalsInput) (control.SessionApprovalsReply, error) {
	return w.Client.SessionApprovals(ctx, control.SessionApprovalsRequest{Of: w.Mount.Dir, To: in.To})
}

func prefetch(ctx context.Context, w Session, in prefetchInput) (control.PrefetchReply, error) {
	return w.Client.Prefetch(ctx, control.PrefetchRequest{Dir: w.Mount.Dir, Paths: in.Paths, Wait: in.Wait}, nil)
}
