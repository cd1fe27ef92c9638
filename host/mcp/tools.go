package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/session"
)

// Limits of the results of tools. They apply unless the arguments of a call state other limits.
const (
	defaultLog     = 20        // default number of checkpoints in the result of the tool log
	defaultRecords = 50        // default number of records in the result of the tool transcript
	maxPatch       = 256 << 10 // maximum length of a patch in bytes
)

// The arguments of the tools. The SDK derives the schema that agents see from the tags of the fields.
type (
	checkpointInput struct {
		Message string `json:"message,omitempty" jsonschema:"text that describes the checkpoint"`
		Pin     string `json:"pin,omitempty" jsonschema:"name of a pin for the checkpoint; letters, digits, dots, dashes and underscores"`
		Sync    bool   `json:"sync,omitempty" jsonschema:"return when the checkpoint is on the session remote"`
	}
	logInput struct {
		Limit int `json:"limit,omitempty" jsonschema:"maximum number of checkpoints to list, newest first; default 20"`
	}
	diffInput struct {
		From  string `json:"from,omitempty" jsonschema:"checkpoint to compare from; default: the commit from which the session was started"`
		To    string `json:"to,omitempty" jsonschema:"checkpoint to compare with; default: the working tree as it is now"`
		Patch bool   `json:"patch,omitempty" jsonschema:"also return the text of the differences, as git diff prints it"`
	}
	restoreInput struct {
		Checkpoint string   `json:"checkpoint" jsonschema:"checkpoint to restore"`
		Paths      []string `json:"paths,omitempty" jsonschema:"files and directories to restore, relative to the mount; default: everything"`
		Staged     bool     `json:"staged,omitempty" jsonschema:"also restore git's index"`
		DryRun     bool     `json:"dry_run,omitempty" jsonschema:"change nothing, return what would change"`
	}
	forkInput struct {
		Dir        string `json:"dir" jsonschema:"absolute path of the directory to mount the new session at; it is created if it does not exist"`
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint to start from; default: the working tree as it is now"`
		Session    string `json:"session,omitempty" jsonschema:"name of the new session"`
	}
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
	statusInput   struct{}
	prefetchInput struct {
		Paths []string `json:"paths,omitempty" jsonschema:"paths, directories or patterns relative to the root of the mount; default: everything"`
		Wait  bool     `json:"wait,omitempty" jsonschema:"return when the contents are on this host"`
	}
)

// logOutput is the result of the tool log: at most logInput.Limit checkpoints, and whether there are older ones.
type logOutput struct {
	control.SessionLogReply
	More bool `json:"more" jsonschema:"there are older checkpoints"`
}

// diffOutput is the result of the tool diff. A long patch is truncated, because it would fill the agent's context.
type diffOutput struct {
	control.SessionDiffReply
	Truncated bool `json:"truncated" jsonschema:"the patch was longer than 256 KiB and is cut"`
}

// transcriptOutput is the result of the tool transcript. After records were appended it has the members of
// control.SessionRecordReply; otherwise it has the records that were read.
type transcriptOutput struct {
	Ref        string             `json:"ref,omitempty"`
	Checkpoint string             `json:"checkpoint,omitempty" jsonschema:"checkpoint that the appended records belong to"`
	Lines      int64              `json:"lines" jsonschema:"number of records that were appended"`
	Redacted   int64              `json:"redacted" jsonschema:"number of secrets that were removed from them"`
	Turns      int                `json:"turns,omitempty" jsonschema:"number of the last turn"`
	Records    []transcriptRecord `json:"records,omitempty" jsonschema:"records that were read, oldest first"`
	More       bool               `json:"more,omitempty" jsonschema:"there are older records"`
}

// transcriptRecord is one record of a transcript. Record is missing if the record was erased.
type transcriptRecord struct {
	ID         string `json:"id"`
	Time       string `json:"time"`
	Checkpoint string `json:"checkpoint" jsonschema:"newest checkpoint when the record was appended"`
	Actor      string `json:"actor"`
	Turn       int    `json:"turn"`
	Record     any    `json:"record,omitempty"`
	Erased     bool   `json:"erased,omitempty"`
}

// appendRecords appends records to the transcript of a session, for the tool transcript.
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

// readRecords returns the newest records of the transcript of a session, for the tool transcript.
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

// compare implements the tool compare: it compares a checkpoint of this session with the checkpoints and sessions that
// in.With names.
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

// requestApproval implements the tool request_approval: it pushes the session and asks for an approval.
func requestApproval(ctx context.Context, w Session, in requestInput) (reply control.SessionApproveReply, err error) {
	_, err = w.Client.Sync(ctx, control.SyncRequest{Dir: w.Mount.Dir}, nil)
	// A refused branch does not prevent the request; the daemon checks that the newest checkpoint was pushed.
	if e := control.AsError(err); err != nil && e.Code != control.ExitUnsynced {
		return reply, err
	}
	return w.Client.SessionApprove(ctx, control.SessionApproveRequest{Of: w.Mount.Dir, Op: control.ApproveRequest, Action: in.For,
		Branch: in.Branch, To: in.To, Reviewers: in.Reviewers, Text: in.Message, Actor: session.Actor()})
}

// comment implements the tool annotate: it begins a thread of annotations, or adds to one.
func comment(ctx context.Context, w Session, in annotateInput) (control.SessionAnnotateReply, error) {
	r := control.SessionAnnotateRequest{Of: w.Mount.Dir, Op: in.State, Thread: in.Thread, ID: in.Checkpoint, Commit: in.Commit, Path: in.Path,
		Line: in.Line, End: in.End, Text: in.Text, Actor: session.Actor()}
	switch {
	case r.Op == "" && r.Thread == "":
		r.Op = control.AnnotateOpen
	case r.Op == "":
		r.Op = control.AnnotateReply
	}
	return w.Client.SessionAnnotate(ctx, r)
}

// addTools adds all tools to the server. find returns the session on which they operate.
func addTools(s *sdk.Server, find Find) {
	no, yes := new(bool), new(bool)
	*yes = true
	// The annotations looks mark tools that change nothing, and the annotations adds mark tools that add data without
	// changing existing data. Clients use these annotations to decide when to ask the user for permission.
	looks := &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: no}
	adds := &sdk.ToolAnnotations{DestructiveHint: no, OpenWorldHint: no}

	add(s, find, &sdk.Tool{Name: "checkpoint", Annotations: adds,
		Description: "Create a checkpoint: save all files of the working tree, also untracked ones, with git's index, HEAD, branches and " +
			"stashes. Returns the checkpoint's ID. If nothing changed since the last checkpoint, returns that one with made=false. Does " +
			"not change anything in git."},
		func(ctx context.Context, w Session, in checkpointInput) (control.CheckpointReply, error) {
			return w.Client.Checkpoint(ctx, control.CheckpointRequest{Dir: w.Mount.Dir, Message: in.Message, Pin: in.Pin, Sync: in.Sync}, nil)
		})
	add(s, find, &sdk.Tool{Name: "log", Annotations: looks,
		Description: "List the session's checkpoints, newest first: ID, time, reason, message, number of changed paths, pins."},
		func(ctx context.Context, w Session, in logInput) (logOutput, error) {
			if in.Limit <= 0 {
				in.Limit = defaultLog
			}
			// One more checkpoint is requested than the tool returns, to find out whether there are older ones.
			r, err := w.Client.SessionLog(ctx, control.SessionLogRequest{Of: w.Mount.Dir, Limit: in.Limit + 1})
			more := len(r.Checkpoints) > in.Limit
			r.Checkpoints = r.Checkpoints[:min(len(r.Checkpoints), in.Limit)]
			return logOutput{r, more}, err
		})
	add(s, find, &sdk.Tool{Name: "diff", Annotations: looks,
		Description: "Compare two checkpoints, or a checkpoint with the working tree: changed paths with their status and numbers of " +
			"lines, and on request the patch."},
		func(ctx context.Context, w Session, in diffInput) (diffOutput, error) {
			r, err := w.Client.SessionDiff(ctx, control.SessionDiffRequest{Of: w.Mount.Dir, A: in.From, B: in.To, Patch: in.Patch, Stat: true})
			cut := len(r.Patch) > maxPatch
			r.Patch = r.Patch[:min(len(r.Patch), maxPatch)]
			return diffOutput{r, cut}, err
		})
	add(s, find, &sdk.Tool{Name: "compare", Annotations: looks,
		Description: "Compare this session with other sessions: the changes of each, and for each path that two or more changed, whether the " +
			"changes are the same, merge cleanly, or conflict. Changes nothing."}, compare)
	add(s, find, &sdk.Tool{Name: "promote", Annotations: &sdk.ToolAnnotations{DestructiveHint: no, OpenWorldHint: yes},
		Description: "Push this session's commits to a branch of the repository that is mounted. Ask the user first, and use dry_run to show " +
			"what would be pushed. Changes that are not committed are an error. Commits are never overwritten: if the branch has others, " +
			"the methods squash and merge merge them, and conflicts are an error."},
		func(ctx context.Context, w Session, in promoteInput) (control.SessionPromoteReply, error) {
			return control.SessionPromote(ctx, w.Client, control.SessionPromoteRequest{Of: w.Mount.Dir, ID: in.Checkpoint, Branch: in.Branch,
				Method: control.PromoteMethod(in.Method), Message: in.Message, Identity: control.Identity(), DryRun: in.DryRun})
		})
	add(s, find, &sdk.Tool{Name: "restore", Annotations: &sdk.ToolAnnotations{DestructiveHint: yes, IdempotentHint: true, OpenWorldHint: no},
		Description: "Restore files to their state at a checkpoint. First creates a checkpoint of the current state and returns its ID as " +
			"before; to undo the restore, restore that checkpoint."},
		func(ctx context.Context, w Session, in restoreInput) (control.RestoreReply, error) {
			return w.Client.Restore(ctx, control.RestoreRequest{Dir: w.Mount.Dir, ID: in.Checkpoint, Paths: in.Paths,
				Staged: in.Staged, DryRun: in.DryRun}, nil)
		})
	add(s, find, &sdk.Tool{Name: "fork", Annotations: adds,
		Description: "Start another session from a checkpoint and mount it at another directory. Nothing is copied or downloaded; " +
			"afterwards the two sessions are independent. Use this to try something without changing this working tree."},
		// The new session is mounted from the same remote.
		func(ctx context.Context, w Session, in forkInput) (control.MountReply, error) {
			return w.Client.Fork(ctx, control.ForkRequest{Of: w.Mount.Dir, ID: in.Checkpoint,
				Mount: control.MountRequest{Remote: w.Mount.Remote, Dir: in.Dir, Session: in.Session}}, nil)
		})
	add(s, find, &sdk.Tool{Name: "note", Annotations: adds,
		Description: "Write a JSON object as a git note on a commit (git log --notes=agent shows it). Secrets are removed before it is written."},
		func(ctx context.Context, w Session, in noteInput) (control.SessionNoteReply, error) {
			text, err := json.Marshal(in.Note)
			if err != nil {
				return control.SessionNoteReply{}, fmt.Errorf("encode note: %w", err)
			}
			return w.Client.SessionNote(ctx, control.SessionNoteRequest{Dir: w.Mount.Dir, Commit: in.Commit, Ref: in.Ref, JSON: text})
		})
	add(s, find, &sdk.Tool{Name: "annotate", Annotations: adds,
		Description: "Comment on the session, a checkpoint, a commit, a file or lines of a file, for reviewers and other agents; answer, " +
			"resolve or reopen a thread of comments. Comments on lines follow renames and later edits. Secrets are removed before it is written."},
		comment)
	add(s, find, &sdk.Tool{Name: "annotations", Annotations: looks,
		Description: "List the threads of comments on the session that are not resolved, each with the place where its lines are now."},
		func(ctx context.Context, w Session, in annotationsInput) (control.SessionAnnotationsReply, error) {
			return w.Client.SessionAnnotations(ctx, control.SessionAnnotationsRequest{Of: w.Mount.Dir, ID: in.Checkpoint, Path: in.Path,
				All: in.All})
		})
	add(s, find, &sdk.Tool{Name: "transcript", Annotations: adds,
		Description: "Append records to the session's transcript, linked to the newest checkpoint; secrets are removed before they " +
			"are written. Without records, return the transcript: all records by turn, oldest first."},
		func(ctx context.Context, w Session, in transcriptInput) (transcriptOutput, error) {
			if len(in.Records) > 0 {
				return appendRecords(ctx, w, in.Records)
			}
			return readRecords(ctx, w, in)
		})
	add(s, find, &sdk.Tool{Name: "request_approval", Annotations: &sdk.ToolAnnotations{DestructiveHint: no, OpenWorldHint: yes},
		Description: "Ask people to approve the merge, the promotion or the deletion of this session. Pushes the session first. All changes " +
			"must be committed with git, except for a deletion. The approval is for the present files only: other files or commits void the " +
			"request. Returns the request with a link that reviewers need; give it to the user."}, requestApproval)
	add(s, find, &sdk.Tool{Name: "approvals", Annotations: looks,
		Description: "List the requests for approval of this session, newest first, with their status: open, granted, denied, withdrawn, " +
			"expired, or void because the session was changed."},
		func(ctx context.Context, w Session, in approvalsInput) (control.SessionApprovalsReply, error) {
			return w.Client.SessionApprovals(ctx, control.SessionApprovalsRequest{Of: w.Mount.Dir, To: in.To})
		})
	addCacheTools(s, find, looks)
	addLockTools(s, find, looks)
	addDescribeTool(s, find)
	add(s, find, &sdk.Tool{Name: "status", Annotations: looks,
		Description: "Describe the mount and its session: commit, changed paths, contents that are on this host, newest checkpoint, " +
			"number of refs that are not on the session remote yet."},
		// The mount was looked up for this call, so its status is current.
		func(_ context.Context, w Session, _ statusInput) (control.MountStatus, error) { return w.Mount, nil })
	add(s, find, &sdk.Tool{Name: "prefetch", Annotations: &sdk.ToolAnnotations{DestructiveHint: no, IdempotentHint: true, OpenWorldHint: yes},
		Description: "Fetch file contents from the remote before they are read."},
		func(ctx context.Context, w Session, in prefetchInput) (control.PrefetchReply, error) {
			return w.Client.Prefetch(ctx, control.PrefetchRequest{Dir: w.Mount.Dir, Paths: in.Paths, Wait: in.Wait}, nil)
		})
}

// add adds a tool to the server, which calls the function do with the session that the function find returns.
func add[In, Out any](s *sdk.Server, find Find, tool *sdk.Tool, do func(context.Context, Session, In) (Out, error)) {
	// The schema must be set before AddTool is called, because AddTool would derive a schema that forbids further properties.
	tool.OutputSchema = openSchema[Out]()
	sdk.AddTool(s, tool, func(ctx context.Context, _ *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		var out Out
		// The session is looked up at each call, because it may have been mounted again since the previous call.
		w, err := find(ctx, tool.Name)
		if err == nil {
			out, err = do(ctx, w, in)
		}
		if err != nil {
			e := *control.AsError(err)
			// An error without an operation gets the name of the tool.
			if e.Verb == "" {
				e.Verb, e.Object = tool.Name, w.Mount.Dir
			}
			return nil, out, &e
		}
		return nil, out, nil
	})
}

// openSchema returns the JSON schema of the type T, in which further properties are allowed at every level, because
// later versions add fields to replies.
func openSchema[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // cannot happen: T is a type of this program, and tests derive the schemas of all tools
	}
	// open allows further properties in a schema and in the schemas that it contains.
	var open func(s *jsonschema.Schema)
	open = func(s *jsonschema.Schema) {
		if s == nil {
			return
		}
		if s.Properties != nil {
			s.AdditionalProperties = nil
		}
		for _, property := range s.Properties {
			open(property)
		}
		open(s.Items)
	}
	open(schema)
	return schema
}
